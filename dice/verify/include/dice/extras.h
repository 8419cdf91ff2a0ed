// Small helpers that PyTorch's headers bring along: ranges, argument checks, parallel_for, modes that do nothing here.
#pragma once
#include <dice/factories.h>

namespace c10 {

// for (const auto i : c10::irange(n))
template <class Number>
struct IntegerRange {
  struct Iterator {
    Number value;
    C10_HOST_DEVICE Number operator*() const { return value; }
    C10_HOST_DEVICE Iterator& operator++() { ++value; return *this; }
    C10_HOST_DEVICE bool operator!=(const Iterator& other) const { return value != other.value; }
    C10_HOST_DEVICE bool operator==(const Iterator& other) const { return value == other.value; }
  };
  Number first, last;
  C10_HOST_DEVICE Iterator begin() const { return {first}; }
  C10_HOST_DEVICE Iterator end() const { return {last}; }
};
template <class First, class Last> IntegerRange<Last> irange(First first, Last last) {
  return {static_cast<Last>(first), last < static_cast<Last>(first) ? static_cast<Last>(first) : last};
}
template <class Number> IntegerRange<Number> irange(Number last) { return irange(Number{0}, last); }

template <class Items> int64_t multiply_integers(const Items& items) {
  int64_t product = 1;
  for (const auto item : items) product *= item;
  return product;
}
template <class Items> int64_t sum_integers(const Items& items) {
  int64_t sum = 0;
  for (const auto item : items) sum += item;
  return sum;
}

struct InferenceMode {
  explicit InferenceMode(bool = true) {}
  static bool is_enabled() { return false; }
};

// What Tensor::expect_contiguous() returns: here always an owner.
template <class Value>
class MaybeOwned {
 public:
  MaybeOwned() = default;
  static MaybeOwned owned(Value value) { return MaybeOwned(std::move(value)); }
  static MaybeOwned borrowed(const Value& value) { return MaybeOwned(value); }
  const Value& operator*() const { return value_; }
  const Value* operator->() const { return &value_; }

 private:
  explicit MaybeOwned(Value value) : value_(std::move(value)) {}
  Value value_;
};

}  // namespace c10

namespace at {

template <class Number, class Other> constexpr C10_HOST_DEVICE Number ceil_div(Number a, Other b) { return (a + b - 1) / b; }
template <class Number, class Other> constexpr C10_HOST_DEVICE Number round_up(Number a, Other b) { return ceil_div(a, b) * b; }

inline c10::MaybeOwned<Tensor> Tensor::expect_contiguous() const { return c10::MaybeOwned<Tensor>::owned(contiguous()); }
inline c10::MemoryFormat Tensor::suggest_memory_format() const {
  if (dim() == 4 && !is_contiguous() && is_contiguous(c10::MemoryFormat::ChannelsLast)) return c10::MemoryFormat::ChannelsLast;
  if (dim() == 5 && !is_contiguous() && is_contiguous(c10::MemoryFormat::ChannelsLast3d)) return c10::MemoryFormat::ChannelsLast3d;
  return c10::MemoryFormat::Contiguous;
}

struct AutoDispatchBelowADInplaceOrView {};
struct AutoDispatchBelowAutograd {};
struct AutoNonVariableTypeMode {
  explicit AutoNonVariableTypeMode(bool = true) {}
};

template <class Function> void parallel_for(int64_t begin, int64_t end, int64_t, const Function& function) {
  if (begin < end) function(begin, end);
}
inline int get_num_threads() { return 1; }

// ---- TensorArg and its checks
using CheckedFrom = const char*;
struct TensorArg {
  TensorArg(const Tensor& tensor_, const char* name_, int position_) : tensor(tensor_), name(name_), pos(position_) {}
  const Tensor* operator->() const { return &tensor; }
  const Tensor& operator*() const { return tensor; }
  const Tensor& tensor;
  const char* name;
  int pos;
};
std::string text_of(const TensorArg& arg) DICE_SHARED({ return "argument #" + std::to_string(arg.pos) + " '" + arg.name + "'"; })
void checkDim(CheckedFrom c, const TensorArg& arg, int64_t dim) DICE_SHARED({
  TORCH_CHECK(arg->dim() == dim, "Expected ", dim, "-dimensional tensor, but got ", arg->dim(), "-dimensional tensor for ", text_of(arg), " (while checking arguments for ", c, ")");
})
void checkContiguous(CheckedFrom c, const TensorArg& arg) DICE_SHARED({
  TORCH_CHECK(arg->is_contiguous(), "Expected contiguous tensor, but got non-contiguous tensor for ", text_of(arg), " (while checking arguments for ", c, ")");
})
void checkScalarType(CheckedFrom c, const TensorArg& arg, c10::ScalarType type) DICE_SHARED({
  TORCH_CHECK(arg->scalar_type() == type, "Expected tensor for ", text_of(arg), " to have scalar type ", type, "; but got ", arg->scalar_type(), " instead (while checking arguments for ", c, ")");
})
void checkSameType(CheckedFrom c, const TensorArg& a, const TensorArg& b) DICE_SHARED({
  TORCH_CHECK(a->scalar_type() == b->scalar_type(), "Expected tensor for ", text_of(a), " to have the same type as tensor for ", text_of(b), " (while checking arguments for ", c, ")");
})
void checkSameSize(CheckedFrom c, const TensorArg& a, const TensorArg& b) DICE_SHARED({
  TORCH_CHECK(a->sizes() == b->sizes(), "Expected tensor for ", text_of(a), " to have same size as tensor for ", text_of(b), " (while checking arguments for ", c, ")");
})
void checkNumel(CheckedFrom c, const TensorArg& arg, int64_t numel) DICE_SHARED({
  TORCH_CHECK(arg->numel() == numel, "Expected tensor for ", text_of(arg), " to have ", numel, " elements (while checking arguments for ", c, ")");
})
void checkDefined(CheckedFrom c, const TensorArg& arg) DICE_SHARED({
  TORCH_CHECK(arg->defined(), "Expected tensor for ", text_of(arg), " to be non-null (while checking arguments for ", c, ")");
})
void checkSameGPU(CheckedFrom c, const TensorArg& a, const TensorArg& b) DICE_SHARED({
  TORCH_CHECK(a->device() == b->device(), "Expected tensors for ", text_of(a), " and ", text_of(b), " to be on the same GPU (while checking arguments for ", c, ")");
})

}  // namespace at

namespace torch {
using c10::InferenceMode;
namespace nn::functional {
// Spelled out: the lists of op_names.h may be shortened to what a source names.
#define DICE_FUNCTIONAL(name) \
  template <class... Args> Tensor name(const Tensor& self, const Args&... args) { return ::dice::call<Tensor>(#name, self, args...); }
DICE_FUNCTIONAL(celu) DICE_FUNCTIONAL(elu) DICE_FUNCTIONAL(hardswish) DICE_FUNCTIONAL(leaky_relu) DICE_FUNCTIONAL(mish)
DICE_FUNCTIONAL(relu) DICE_FUNCTIONAL(relu6) DICE_FUNCTIONAL(sigmoid) DICE_FUNCTIONAL(silu) DICE_FUNCTIONAL(softplus)
DICE_FUNCTIONAL(tanh)
#undef DICE_FUNCTIONAL
}  // namespace nn::functional
}  // namespace torch
