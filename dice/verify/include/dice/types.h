// The small value types of PyTorch's C++ interface: ScalarType, Device, ArrayRef, Scalar, TensorOptions.
#pragma once
#include <dice/error.h>
#include <dice/half.h>

namespace c10 {

// ---- ScalarType: the numbers are part of PyTorch's C interface ------------------------------------------
#define AT_FORALL_SCALAR_TYPES(_) \
  _(uint8_t, Byte) _(int8_t, Char) _(int16_t, Short) _(int, Int) _(int64_t, Long) _(float, Float) _(double, Double)

enum class ScalarType : int8_t {
  Byte = 0, Char = 1, Short = 2, Int = 3, Long = 4, Half = 5, Float = 6, Double = 7, ComplexHalf = 8,
  ComplexFloat = 9, ComplexDouble = 10, Bool = 11, BFloat16 = 15, Float8_e5m2 = 23, Float8_e4m3fn = 24,
  UInt16 = 27, UInt32 = 28, UInt64 = 29, Undefined = 127,
};

constexpr ScalarType kByte = ScalarType::Byte, kUInt8 = ScalarType::Byte, kU8 = ScalarType::Byte;
constexpr ScalarType kChar = ScalarType::Char, kInt8 = ScalarType::Char, kI8 = ScalarType::Char;
constexpr ScalarType kShort = ScalarType::Short, kInt16 = ScalarType::Short, kI16 = ScalarType::Short;
constexpr ScalarType kInt = ScalarType::Int, kInt32 = ScalarType::Int, kI32 = ScalarType::Int;
constexpr ScalarType kLong = ScalarType::Long, kInt64 = ScalarType::Long, kI64 = ScalarType::Long;
constexpr ScalarType kHalf = ScalarType::Half, kFloat16 = ScalarType::Half, kF16 = ScalarType::Half;
constexpr ScalarType kFloat = ScalarType::Float, kFloat32 = ScalarType::Float, kF32 = ScalarType::Float;
constexpr ScalarType kDouble = ScalarType::Double, kFloat64 = ScalarType::Double, kF64 = ScalarType::Double;
constexpr ScalarType kComplexFloat = ScalarType::ComplexFloat, kComplexDouble = ScalarType::ComplexDouble;
constexpr ScalarType kBool = ScalarType::Bool, kBFloat16 = ScalarType::BFloat16, kBF16 = ScalarType::BFloat16;
constexpr ScalarType kUInt16 = ScalarType::UInt16, kUInt32 = ScalarType::UInt32, kUInt64 = ScalarType::UInt64;
constexpr ScalarType kFloat8_e5m2 = ScalarType::Float8_e5m2, kFloat8_e4m3fn = ScalarType::Float8_e4m3fn;

inline const char* toString(ScalarType type) {
  switch (type) {
    case ScalarType::Byte: return "Byte";
    case ScalarType::Char: return "Char";
    case ScalarType::Short: return "Short";
    case ScalarType::Int: return "Int";
    case ScalarType::Long: return "Long";
    case ScalarType::Half: return "Half";
    case ScalarType::Float: return "Float";
    case ScalarType::Double: return "Double";
    case ScalarType::ComplexHalf: return "ComplexHalf";
    case ScalarType::ComplexFloat: return "ComplexFloat";
    case ScalarType::ComplexDouble: return "ComplexDouble";
    case ScalarType::Bool: return "Bool";
    case ScalarType::BFloat16: return "BFloat16";
    case ScalarType::Float8_e5m2: return "Float8_e5m2";
    case ScalarType::Float8_e4m3fn: return "Float8_e4m3fn";
    case ScalarType::UInt16: return "UInt16";
    case ScalarType::UInt32: return "UInt32";
    case ScalarType::UInt64: return "UInt64";
    case ScalarType::Undefined: return "Undefined";
  }
  return "UNKNOWN_SCALAR";
}
inline const char* enum_text(ScalarType type) { return toString(type); }

inline size_t elementSize(ScalarType type) {
  switch (type) {
    case ScalarType::Byte: case ScalarType::Char: case ScalarType::Bool:
    case ScalarType::Float8_e5m2: case ScalarType::Float8_e4m3fn: return 1;
    case ScalarType::Short: case ScalarType::Half: case ScalarType::BFloat16: case ScalarType::UInt16: return 2;
    case ScalarType::Int: case ScalarType::Float: case ScalarType::ComplexHalf: case ScalarType::UInt32: return 4;
    case ScalarType::Long: case ScalarType::Double: case ScalarType::ComplexFloat: case ScalarType::UInt64: return 8;
    case ScalarType::ComplexDouble: return 16;
    case ScalarType::Undefined: break;
  }
  return 0;
}
inline bool isFloatingType(ScalarType type) {
  return type == ScalarType::Float || type == ScalarType::Double || type == ScalarType::Half || type == ScalarType::BFloat16;
}
inline bool isComplexType(ScalarType type) {
  return type == ScalarType::ComplexFloat || type == ScalarType::ComplexDouble || type == ScalarType::ComplexHalf;
}
inline bool isIntegralType(ScalarType type, bool include_bool = false) {
  return (type >= ScalarType::Byte && type <= ScalarType::Long) || type == ScalarType::UInt16 ||
         type == ScalarType::UInt32 || type == ScalarType::UInt64 || (include_bool && type == ScalarType::Bool);
}

template <class CppType> struct CppTypeToScalarType;
#define DICE_CPP_TYPES(_)                                                                                       \
  _(uint8_t, Byte) _(int8_t, Char) _(int16_t, Short) _(int32_t, Int) _(int64_t, Long) _(c10::Half, Half)        \
  _(float, Float) _(double, Double) _(bool, Bool) _(c10::BFloat16, BFloat16) _(uint16_t, UInt16)                \
  _(uint32_t, UInt32) _(uint64_t, UInt64)
#define DICE_CPP_TYPE(cpp_type, name)                                                             \
  template <> struct CppTypeToScalarType<cpp_type> {                                              \
    static constexpr ScalarType value = ScalarType::name;                                         \
  };
DICE_CPP_TYPES(DICE_CPP_TYPE)
#undef DICE_CPP_TYPE
// `long long` and `long` are both 64 bits wide; PyTorch knows only the one behind int64_t.

namespace impl {
template <ScalarType type> struct ScalarTypeToCPPType;
#define DICE_SCALAR_TYPE(cpp_type, name)                                                          \
  template <> struct ScalarTypeToCPPType<ScalarType::name> { using type = cpp_type; };
DICE_CPP_TYPES(DICE_SCALAR_TYPE)
#undef DICE_SCALAR_TYPE
template <ScalarType type> using ScalarTypeToCPPTypeT = typename ScalarTypeToCPPType<type>::type;
}  // namespace impl

// ---- Devices, layouts, memory formats --------------------------------------------------------------------
enum class DeviceType : int8_t { CPU = 0, CUDA = 1, Meta = 14 };
constexpr DeviceType kCPU = DeviceType::CPU, kCUDA = DeviceType::CUDA, kMeta = DeviceType::Meta;
using DeviceIndex = int8_t;
inline const char* enum_text(DeviceType type) {
  return type == DeviceType::CPU ? "cpu" : type == DeviceType::CUDA ? "cuda" : "meta";
}

struct Device {
  Device(DeviceType type, DeviceIndex index = -1) : type_(type), index_(index) {}
  Device(const std::string& name);
  Device(const char* name) : Device(std::string(name)) {}
  DeviceType type() const { return type_; }
  DeviceIndex index() const { return index_; }
  bool has_index() const { return index_ != -1; }
  bool is_cuda() const { return type_ == DeviceType::CUDA; }
  bool is_cpu() const { return type_ == DeviceType::CPU; }
  bool operator==(const Device& other) const { return type_ == other.type_ && index_ == other.index_; }
  bool operator!=(const Device& other) const { return !(*this == other); }
  std::string str() const { return dice::text(*this); }
  void write_to(std::string& out) const {
    out += enum_text(type_);
    if (has_index()) out += ":" + std::to_string(static_cast<int>(index_));
  }

 private:
  DeviceType type_;
  DeviceIndex index_;
};

enum class Layout : int8_t { Strided = 0, Sparse = 1 };
constexpr Layout kStrided = Layout::Strided, kSparse = Layout::Sparse;
inline const char* enum_text(Layout layout) { return layout == Layout::Strided ? "Strided" : "Sparse"; }

enum class MemoryFormat : int8_t { Contiguous = 0, Preserve = 1, ChannelsLast = 2, ChannelsLast3d = 3 };
inline const char* enum_text(MemoryFormat format) {
  const char* names[] = {"Contiguous", "Preserve", "ChannelsLast", "ChannelsLast3d"};
  return names[static_cast<int>(format)];
}

using std::nullopt;
using std::nullopt_t;
using std::optional;
using std::make_optional;
using std::string_view;

// ---- ArrayRef --------------------------------------------------------------------------------------------
template <class Item>
class ArrayRef final {
 public:
  using value_type = Item;
  using iterator = const Item*;
  using const_iterator = const Item*;

  constexpr ArrayRef() : data_(nullptr), size_(0) {}
  constexpr ArrayRef(const Item& item) : data_(&item), size_(1) {}
  constexpr ArrayRef(const Item* data, size_t size) : data_(data), size_(size) {}
  constexpr ArrayRef(const Item* begin, const Item* end) : data_(begin), size_(static_cast<size_t>(end - begin)) {}
  ArrayRef(const std::vector<Item>& items) : data_(items.data()), size_(items.size()) {}
  template <size_t count>
  constexpr ArrayRef(const std::array<Item, count>& items) : data_(items.data()), size_(count) {}
  template <size_t count>
  constexpr ArrayRef(const Item (&items)[count]) : data_(items), size_(count) {}
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winit-list-lifetime"
#endif
  constexpr ArrayRef(const std::initializer_list<Item>& items) : data_(items.begin()), size_(items.size()) {}
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

  constexpr const Item* begin() const { return data_; }
  constexpr const Item* end() const { return data_ + size_; }
  constexpr const Item* data() const { return data_; }
  constexpr size_t size() const { return size_; }
  constexpr bool empty() const { return size_ == 0; }
  const Item& operator[](size_t index) const { return data_[index]; }
  const Item& at(size_t index) const {
    TORCH_CHECK(index < size_, "ArrayRef: invalid index Index = ", index, "; Length = ", size_);
    return data_[index];
  }
  const Item& front() const { return at(0); }
  const Item& back() const { return at(size_ - 1); }
  ArrayRef slice(size_t start, size_t count) const {
    TORCH_CHECK(start + count <= size_, "ArrayRef: invalid slice, N = ", start, "; M = ", count, "; size = ", size_);
    return ArrayRef(data_ + start, count);
  }
  ArrayRef slice(size_t start) const { return slice(start, size_ - start); }
  std::vector<Item> vec() const { return std::vector<Item>(begin(), end()); }
  bool equals(ArrayRef other) const {
    if (size_ != other.size_) return false;
    for (size_t i = 0; i < size_; ++i) {
      if (!(data_[i] == other.data_[i])) return false;
    }
    return true;
  }
  void write_to(std::string& out) const { dice::write_text(out, vec()); }

 private:
  const Item* data_;
  size_t size_;
};
template <class Item> bool operator==(ArrayRef<Item> a, ArrayRef<Item> b) { return a.equals(b); }
template <class Item> bool operator!=(ArrayRef<Item> a, ArrayRef<Item> b) { return !a.equals(b); }
template <class Item> bool operator==(const std::vector<Item>& a, ArrayRef<Item> b) { return ArrayRef<Item>(a).equals(b); }
template <class Item> bool operator==(ArrayRef<Item> a, const std::vector<Item>& b) { return a.equals(ArrayRef<Item>(b)); }
template <class Item> bool operator!=(ArrayRef<Item> a, const std::vector<Item>& b) { return !a.equals(ArrayRef<Item>(b)); }
using IntArrayRef = ArrayRef<int64_t>;
using OptionalIntArrayRef = std::optional<IntArrayRef>;

// ---- Scalar ----------------------------------------------------------------------------------------------
class Scalar {
 public:
  Scalar() : Scalar(static_cast<int64_t>(0)) {}
  template <class Number, std::enable_if_t<std::is_integral_v<Number> && !std::is_same_v<Number, bool>, int> = 0>
  Scalar(Number value) : kind_('i'), integer_(static_cast<int64_t>(value)) {}
  template <class Number, std::enable_if_t<std::is_floating_point_v<Number>, int> = 0>
  Scalar(Number value) : kind_('f'), real_(static_cast<double>(value)) {}
  Scalar(bool value) : kind_('b'), integer_(value) {}
  Scalar(Half value) : Scalar(static_cast<double>(static_cast<float>(value))) {}
  Scalar(BFloat16 value) : Scalar(static_cast<double>(static_cast<float>(value))) {}

  bool isFloatingPoint() const { return kind_ == 'f'; }
  bool isIntegral(bool include_bool) const { return kind_ == 'i' || (include_bool && kind_ == 'b'); }
  bool isBoolean() const { return kind_ == 'b'; }
  template <class Number> Number to() const {
    return isFloatingPoint() ? static_cast<Number>(real_) : static_cast<Number>(integer_);
  }
  float toFloat() const { return to<float>(); }
  double toDouble() const { return to<double>(); }
  int toInt() const { return to<int>(); }
  int64_t toLong() const { return to<int64_t>(); }
  bool toBool() const { return to<bool>(); }
  ScalarType type() const {
    return kind_ == 'f' ? ScalarType::Double : kind_ == 'b' ? ScalarType::Bool : ScalarType::Long;
  }
  void write_to(std::string& out) const { isFloatingPoint() ? dice::write_text(out, real_) : dice::write_text(out, integer_); }

 private:
  char kind_;
  union {
    int64_t integer_;
    double real_;
  };
};
template <> inline Half Scalar::to<Half>() const { return Half(toFloat()); }
template <> inline BFloat16 Scalar::to<BFloat16>() const { return BFloat16(toFloat()); }

}  // namespace c10

// ---- TypeMeta: what Tensor::dtype() returns --------------------------------------------------------------
namespace caffe2 {
class TypeMeta {
 public:
  TypeMeta() = default;
  TypeMeta(c10::ScalarType type) : type_(type) {}
  c10::ScalarType toScalarType() const { return type_; }
  size_t itemsize() const { return c10::elementSize(type_); }
  std::string name() const;
  template <class CppType> static TypeMeta Make() { return TypeMeta(c10::CppTypeToScalarType<CppType>::value); }
  template <class CppType> bool Match() const { return type_ == c10::CppTypeToScalarType<CppType>::value; }
  friend bool operator==(const TypeMeta& a, const TypeMeta& b) { return a.type_ == b.type_; }
  friend bool operator!=(const TypeMeta& a, const TypeMeta& b) { return a.type_ != b.type_; }
  void write_to(std::string& out) const { out += name(); }

 private:
  c10::ScalarType type_ = c10::ScalarType::Undefined;
};
inline bool operator==(c10::ScalarType a, const TypeMeta& b) { return a == b.toScalarType(); }
inline bool operator==(const TypeMeta& a, c10::ScalarType b) { return a.toScalarType() == b; }
inline bool operator!=(c10::ScalarType a, const TypeMeta& b) { return a != b.toScalarType(); }
inline bool operator!=(const TypeMeta& a, c10::ScalarType b) { return a.toScalarType() != b; }
}  // namespace caffe2

namespace c10 {
inline ScalarType typeMetaToScalarType(caffe2::TypeMeta type) { return type.toScalarType(); }

// ---- TensorOptions ---------------------------------------------------------------------------------------
struct TensorOptions {
  TensorOptions() = default;
  TensorOptions(ScalarType type) : dtype_(type) {}
  TensorOptions(caffe2::TypeMeta type) : dtype_(type.toScalarType()) {}
  TensorOptions(Layout layout) : layout_(layout) {}
  TensorOptions(MemoryFormat format) : memory_format_(format) {}
  TensorOptions(Device device) : device_(device) {}
  TensorOptions(DeviceType device) : device_(Device(device)) {}
  TensorOptions(const char* device) : device_(Device(device)) {}
  TensorOptions(const std::string& device) : device_(Device(device)) {}

  template <class Value> [[nodiscard]] TensorOptions with(std::optional<Value> TensorOptions::*field, std::optional<Value> value) const {
    TensorOptions copy = *this;
    copy.*field = value;
    return copy;
  }
  [[nodiscard]] TensorOptions dtype(std::optional<ScalarType> type) const { return with(&TensorOptions::dtype_, type); }
  [[nodiscard]] TensorOptions dtype(ScalarType type) const { return dtype(std::optional<ScalarType>(type)); }
  [[nodiscard]] TensorOptions dtype(caffe2::TypeMeta type) const { return dtype(type.toScalarType()); }
  template <class CppType> [[nodiscard]] TensorOptions dtype() const { return dtype(CppTypeToScalarType<CppType>::value); }
  [[nodiscard]] TensorOptions device(std::optional<Device> device) const { return with(&TensorOptions::device_, device); }
  [[nodiscard]] TensorOptions device(Device device) const { return with(&TensorOptions::device_, std::optional<Device>(device)); }
  [[nodiscard]] TensorOptions device(DeviceType type, DeviceIndex index = -1) const { return device(Device(type, index)); }
  [[nodiscard]] TensorOptions device(const char* name) const { return device(Device(name)); }
  [[nodiscard]] TensorOptions device(const std::string& name) const { return device(Device(name)); }
  [[nodiscard]] TensorOptions device_index(int index) const { return device(Device(kCUDA, static_cast<DeviceIndex>(index))); }
  [[nodiscard]] TensorOptions layout(Layout layout) const { return with(&TensorOptions::layout_, std::optional<Layout>(layout)); }
  [[nodiscard]] TensorOptions requires_grad(bool value) const { return with(&TensorOptions::requires_grad_, std::optional<bool>(value)); }
  [[nodiscard]] TensorOptions pinned_memory(bool value) const { return with(&TensorOptions::pinned_memory_, std::optional<bool>(value)); }
  [[nodiscard]] TensorOptions memory_format(MemoryFormat format) const {
    return with(&TensorOptions::memory_format_, std::optional<MemoryFormat>(format));
  }
  caffe2::TypeMeta dtype() const { return dtype_.value_or(ScalarType::Float); }
  Device device() const { return device_.value_or(Device(kCPU)); }
  Layout layout() const { return layout_.value_or(kStrided); }
  bool requires_grad() const { return requires_grad_.value_or(false); }
  bool has_dtype() const { return dtype_.has_value(); }
  bool has_device() const { return device_.has_value(); }

  std::optional<ScalarType> dtype_;
  std::optional<Device> device_;
  std::optional<Layout> layout_;
  std::optional<bool> requires_grad_;
  std::optional<bool> pinned_memory_;
  std::optional<MemoryFormat> memory_format_;
};
template <class... Value> TensorOptions dtype(Value... type) { return TensorOptions().dtype(type...); }
template <class CppType> TensorOptions dtype() { return TensorOptions().dtype(CppTypeToScalarType<CppType>::value); }
inline TensorOptions device(Device device) { return TensorOptions().device(device); }
inline TensorOptions layout(Layout layout) { return TensorOptions().layout(layout); }
inline TensorOptions requires_grad(bool value = true) { return TensorOptions().requires_grad(value); }

}  // namespace c10

#if !defined(DICE_FEW_STD_HEADERS)
// Everything that a check's message can hold can also be printed.
namespace dice {
template <class Value, class = decltype(std::declval<const Value&>().write_to(std::declval<std::string&>()))>
std::ostream& print(std::ostream& out, const Value& value) { return out << text(value); }
}  // namespace dice
namespace c10 {
template <class Value> auto operator<<(std::ostream& out, const Value& value) -> decltype(dice::print(out, value)) { return dice::print(out, value); }
inline std::ostream& operator<<(std::ostream& out, ScalarType type) { return out << toString(type); }
inline std::ostream& operator<<(std::ostream& out, DeviceType type) { return out << enum_text(type); }
}  // namespace c10
namespace caffe2 {
inline std::ostream& operator<<(std::ostream& out, const TypeMeta& type) { return out << type.name(); }
}  // namespace caffe2
#endif

namespace at {
using namespace c10;
using caffe2::TypeMeta;
}  // namespace at
namespace torch {
using namespace at;
using Dtype = c10::ScalarType;
}  // namespace torch
