// at::Tensor: a counted handle on a PyTorch tensor. What kernels' host code asks all the time (sizes, pointers, empty
// tensors) goes straight to PyTorch's C interface; every other operator goes through Python's operator table (ops.h).
#pragma once
#include <dice/accessor.h>
#include <dice/op_names.h>
#include <dice/python.h>

namespace c10 {
template <class Value> class MaybeOwned;
}
namespace dice {
template <class Result, class... Args> Result call(const char* name, const Args&... args);
}
#define DICE_TWO_TENSORS std::tuple<Tensor, Tensor>

namespace at {

class Tensor;
using TensorList = c10::ArrayRef<Tensor>;
namespace indexing { struct TensorIndex; }

class DeprecatedTypeProperties {
 public:
  DeprecatedTypeProperties(c10::ScalarType type, bool is_cuda) : type_(type), is_cuda_(is_cuda) {}
  c10::ScalarType scalarType() const { return type_; }
  bool is_cuda() const { return is_cuda_; }
  operator c10::TensorOptions() const { return c10::TensorOptions(type_).device(is_cuda_ ? c10::kCUDA : c10::kCPU); }
  friend bool operator==(const DeprecatedTypeProperties& a, const DeprecatedTypeProperties& b) {
    return a.type_ == b.type_ && a.is_cuda_ == b.is_cuda_;
  }
  friend bool operator!=(const DeprecatedTypeProperties& a, const DeprecatedTypeProperties& b) { return !(a == b); }
  void write_to(std::string& out) const { out += std::string(is_cuda_ ? "CUDA" : "CPU") + c10::toString(type_) + "Type"; }

 private:
  c10::ScalarType type_;
  bool is_cuda_;
};

class Tensor {
 public:
  Tensor() = default;
  static Tensor steal(AtenTensorHandle handle);
  AtenTensorHandle handle() const {
    TORCH_CHECK(defined(), "Expected a proper Tensor but got None (or an undefined Tensor in C++)");
    return handle_.get();
  }

  // ---- metadata
  bool defined() const { return handle_ != nullptr; }
  void reset() { handle_.reset(); }
  bool is_same(const Tensor& other) const {
    return defined() && other.defined() && data_ptr() == other.data_ptr() && sizes() == other.sizes();
  }
  int64_t dim() const { return query<int64_t>(aoti_torch_get_dim); }
  int64_t ndimension() const { return dim(); }
  int64_t numel() const { return query<int64_t>(aoti_torch_get_numel); }
  int64_t storage_offset() const { return query<int64_t>(aoti_torch_get_storage_offset); }
  c10::IntArrayRef sizes() const { return {query<int64_t*>(aoti_torch_get_sizes), static_cast<size_t>(dim())}; }
  c10::IntArrayRef strides() const { return {query<int64_t*>(aoti_torch_get_strides), static_cast<size_t>(dim())}; }
  int64_t size(int64_t d) const { return sizes()[wrap_dim(d)]; }
  int64_t stride(int64_t d) const { return strides()[wrap_dim(d)]; }
  c10::ScalarType scalar_type() const { return static_cast<c10::ScalarType>(query<int32_t>(aoti_torch_get_dtype)); }
  caffe2::TypeMeta dtype() const { return scalar_type(); }
  int64_t element_size() const { return static_cast<int64_t>(c10::elementSize(scalar_type())); }
  size_t itemsize() const { return c10::elementSize(scalar_type()); }
  size_t nbytes() const { return static_cast<size_t>(numel()) * itemsize(); }
  c10::Layout layout() const { return static_cast<c10::Layout>(query<int32_t>(aoti_torch_get_layout)); }
  bool has_storage() const { return defined(); }
#if defined(DICE_EMULATED)
  // Every tensor of an emulated run stands for one on the device.
  c10::Device device() const { handle(); return c10::Device(c10::kCUDA, 0); }
#else
  c10::Device device() const {
    // A tensor without data (a meta tensor) stands for one on the device, see dice/verify/candidate/capture.py.
    if (query<int32_t>(aoti_torch_get_device_type) == static_cast<int32_t>(c10::kMeta)) return c10::Device(c10::kCUDA, 0);
    return c10::Device(static_cast<c10::DeviceType>(query<int32_t>(aoti_torch_get_device_type)),
                       static_cast<c10::DeviceIndex>(query<int32_t>(aoti_torch_get_device_index)));
  }
#endif
  int64_t get_device() const { return device().index(); }
  bool is_cuda() const { return device().is_cuda(); }
  bool is_cpu() const { return device().is_cpu(); }
  bool is_floating_point() const { return c10::isFloatingType(scalar_type()); }
  bool is_complex() const { return c10::isComplexType(scalar_type()); }
  bool is_sparse() const { return layout() == c10::kSparse; }
  c10::TensorOptions options() const { return c10::TensorOptions(scalar_type()).device(device()).layout(layout()); }
  DeprecatedTypeProperties type() const { return {scalar_type(), is_cuda()}; }
  bool is_contiguous(c10::MemoryFormat format = c10::MemoryFormat::Contiguous) const;
  bool is_non_overlapping_and_dense() const;
  bool requires_grad() const;
  const Tensor& set_requires_grad(bool value) const;
  int64_t use_count() const { return handle_.use_count(); }

  // ---- data
#if defined(DICE_EMULATED)
  void* data_ptr() const {
    void* data = query<void*>(aoti_torch_get_data_ptr);
    if (dice_note_tensor != nullptr) dice_note_tensor(data, nbytes());
    return data;
  }
#else
  void* data_ptr() const { return query<void*>(aoti_torch_get_data_ptr); }
#endif
  const void* const_data_ptr() const { return data_ptr(); }
  void* mutable_data_ptr() const { return data_ptr(); }
  template <class Item> Item* data_ptr() const {
    check_type<std::remove_const_t<Item>>();
    return static_cast<Item*>(data_ptr());
  }
  template <class Item> const Item* const_data_ptr() const { return data_ptr<std::remove_const_t<Item>>(); }
  template <class Item> Item* mutable_data_ptr() const { return data_ptr<Item>(); }
  template <class Item> Item* data() const { return data_ptr<Item>(); }
  template <class Item> Item item() const;
  c10::Scalar item() const;

  template <class Item, size_t rank> TensorAccessor<Item, rank> accessor() const& {
    check_rank<rank>();
    return TensorAccessor<Item, rank>(data_ptr<Item>(), sizes().data(), strides().data());
  }
  template <class Item, size_t rank, template <class> class PtrTraits = DefaultPtrTraits, class Index = int64_t>
  GenericPackedTensorAccessor<Item, rank, PtrTraits, Index> generic_packed_accessor() const& {
    check_rank<rank>();
    return {data_ptr<Item>(), sizes().data(), strides().data()};
  }
  template <class Item, size_t rank, template <class> class PtrTraits = DefaultPtrTraits>
  PackedTensorAccessor32<Item, rank, PtrTraits> packed_accessor32() const& {
    TORCH_CHECK(numel() <= std::numeric_limits<int32_t>::max(),
                "numel needs to be smaller than int32_t max; otherwise, please use packed_accessor64");
    return generic_packed_accessor<Item, rank, PtrTraits, int32_t>();
  }
  template <class Item, size_t rank, template <class> class PtrTraits = DefaultPtrTraits>
  PackedTensorAccessor64<Item, rank, PtrTraits> packed_accessor64() const& {
    return generic_packed_accessor<Item, rank, PtrTraits, int64_t>();
  }
  template <class Item, size_t rank, template <class> class PtrTraits = DefaultPtrTraits, class Index = int64_t>
  GenericPackedTensorAccessor<Item, rank, PtrTraits, Index> packed_accessor() const& {
    return generic_packed_accessor<Item, rank, PtrTraits, Index>();
  }

  // ---- operators with arguments that the table of ops.h cannot describe
  Tensor contiguous(c10::MemoryFormat format = c10::MemoryFormat::Contiguous) const;
  Tensor to(const c10::TensorOptions& options, bool non_blocking = false, bool copy = false) const;
  Tensor to(c10::Device device, c10::ScalarType type, bool non_blocking = false, bool copy = false) const;
  Tensor to(const Tensor& other, bool non_blocking = false, bool copy = false) const;
  Tensor toType(c10::ScalarType type) const { return to(type); }
  Tensor cpu() const { return to(c10::kCPU); }
  Tensor cuda() const { return to(c10::kCUDA); }
  Tensor index(std::initializer_list<indexing::TensorIndex> indices) const;
  Tensor& index_put_(std::initializer_list<indexing::TensorIndex> indices, const Tensor& value);
  Tensor& index_put_(std::initializer_list<indexing::TensorIndex> indices, const c10::Scalar& value);
  Tensor operator[](int64_t index) const;
  Tensor operator-() const;
  Tensor& operator+=(const Tensor& other);
  Tensor& operator-=(const Tensor& other);
  Tensor& operator*=(const Tensor& other);
  Tensor& operator/=(const Tensor& other);
  Tensor& operator+=(const c10::Scalar& other);
  Tensor& operator-=(const c10::Scalar& other);
  Tensor& operator*=(const c10::Scalar& other);
  Tensor& operator/=(const c10::Scalar& other);
  Tensor max() const;
  Tensor max(const Tensor& other) const;
  std::tuple<Tensor, Tensor> max(int64_t dim, bool keepdim = false) const;
  Tensor min() const;
  Tensor min(const Tensor& other) const;
  std::tuple<Tensor, Tensor> min(int64_t dim, bool keepdim = false) const;
  Tensor clone(std::optional<c10::MemoryFormat> format = {}) const;
  c10::MaybeOwned<Tensor> expect_contiguous() const;
  c10::MemoryFormat suggest_memory_format() const;
  int64_t sym_size(int64_t d) const { return size(d); }
  c10::IntArrayRef sym_sizes() const { return sizes(); }
  int64_t sym_numel() const { return numel(); }

#define DICE_METHOD(name)                                                                                              \
  template <class... Args> Tensor name(const Args&... args) const { return ::dice::call<Tensor>(#name, *this, args...); } \
  template <class... Args> Tensor name(c10::IntArrayRef list, const Args&... args) const {                            \
    return ::dice::call<Tensor>(#name, *this, list, args...);                                                         \
  }
  DICE_SHARED_OPS(DICE_METHOD)
  DICE_METHOD_OPS(DICE_METHOD)
#undef DICE_METHOD
#define DICE_INPLACE_METHOD(name)                                             \
  template <class... Args> Tensor& name(const Args&... args) const {          \
    ::dice::call<Tensor>(#name, *this, args...);                              \
    return const_cast<Tensor&>(*this);                                        \
  }
  DICE_INPLACE_OPS(DICE_INPLACE_METHOD)
#undef DICE_INPLACE_METHOD
#define DICE_RESULT_METHOD(name, result) \
  template <class... Args> result name(const Args&... args) const { return ::dice::call<result>(#name, *this, args...); }
  DICE_RESULT_METHOD(norm, Tensor)
  DICE_RESULT_METHOD(equal, bool)
  DICE_RESULT_METHOD(allclose, bool)
  DICE_RESULT_METHOD(is_pinned, bool)
  DICE_RESULT_METHOD(split, std::vector<Tensor>)
  DICE_RESULT_METHOD(chunk, std::vector<Tensor>)
  DICE_RESULT_METHOD(unbind, std::vector<Tensor>)
  DICE_RESULT_METHOD(sort, DICE_TWO_TENSORS)
  DICE_RESULT_METHOD(topk, DICE_TWO_TENSORS)
#undef DICE_RESULT_METHOD

 private:
  template <class Value, class Query>
  Value query(Query function) const {
    Value value{};
    TORCH_CHECK(function(handle(), &value) == 0, "PyTorch could not answer a question about a tensor");
    return value;
  }
  size_t wrap_dim(int64_t d) const;
  template <class Item> void check_type() const {
    constexpr c10::ScalarType wanted = c10::CppTypeToScalarType<Item>::value;
    TORCH_CHECK(scalar_type() == wanted, "expected scalar type ", wanted, " but found ", scalar_type());
  }
  template <size_t rank> void check_rank() const {
    static_assert(rank > 0, "accessor is used for indexing tensor, for scalars use *data_ptr<T>()");
    TORCH_CHECK(dim() == static_cast<int64_t>(rank), "TensorAccessor expected ", rank, " dims but tensor has ", dim());
  }

  std::shared_ptr<AtenTensorOpaque> handle_;
};

DICE_MEMBER(Tensor Tensor::steal(AtenTensorHandle handle) {
  Tensor tensor;
  tensor.handle_ = std::shared_ptr<AtenTensorOpaque>(handle, [](AtenTensorHandle owned) { aoti_torch_delete_tensor_object(owned); });
  return tensor;
})
DICE_MEMBER(size_t Tensor::wrap_dim(int64_t d) const {
  const int64_t count = dim();
  TORCH_CHECK_INDEX(d >= -count && d < count, "Dimension out of range (expected to be in range of [", -count, ", ", count - 1,
                    "], but got ", d, ")");
  return static_cast<size_t>(d < 0 ? d + count : d);
})

}  // namespace at

namespace torch {
using at::Tensor;
using at::TensorList;
}  // namespace torch
