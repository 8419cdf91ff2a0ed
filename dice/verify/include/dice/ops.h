// PyTorch's operators as C++ methods and functions. Each call crosses to Python's operator table (dice/verify/candidate/ops.py),
// so every operator has PyTorch's own semantics, autograd and error messages; it costs some ten microseconds.
#pragma once
#include <dice/casters.h>

#if !defined(DICE_DEVICE_PASS)
extern "C" {
int PyGILState_Ensure();
void PyGILState_Release(int);
}

namespace dice {

// Whose turn it is within a bound function: that of host code, or PyTorch's.
template <bool on> struct HostCode {
#if defined(DICE_EMULATED)
  bool before = dice_host_code != nullptr && dice_host_code(on);
  ~HostCode() {
    if (dice_host_code != nullptr) dice_host_code(before);
  }
#endif
};

// Operators may be called by code that released Python's lock.
struct WithPython {
  int state = PyGILState_Ensure();
  ~WithPython() { PyGILState_Release(state); }
};

Object options_dict(const c10::TensorOptions& options);
template <class Value> constexpr bool is_options = std::is_same_v<Value, c10::TensorOptions>;

template <class Result, class... Args>
Result call(const char* name, const Args&... args) {
  const WithPython lock;
  [[maybe_unused]] const HostCode<false> scope;
  Object arguments = checked(PyTuple_New((0 + ... + (is_options<Args> ? 0 : 1))));
  Object options = Object::borrow(none());
  ptrdiff_t index = 0;
  const auto add = [&](const auto& value) {
    if constexpr (is_options<std::decay_t<decltype(value)>>) options = options_dict(value);
    else PyTuple_SetItem(arguments.get(), index++, to_python(value).release());
  };
  (add(args), ...);
  const Object result = checked(PyObject_CallFunctionObjArgs(runtime.call_op, utf8(name).get(), arguments.get(), options.get(), nullptr));
  return from_python<Result>(result.get());
}

}  // namespace dice

#endif

namespace at {

using TwoTensors = std::tuple<Tensor, Tensor>;
using ThreeTensors = std::tuple<Tensor, Tensor, Tensor>;
using c10::IntArrayRef;
using c10::Scalar;

// A braced list as the second argument, as in at::sum(x, {0, 1}), can only bind to a named type.
#define DICE_FUNCTION(name)                                                                                           \
  template <class... Args> Tensor name(const Tensor& self, const Args&... args) { return dice::call<Tensor>(#name, self, args...); } \
  template <class... Args> Tensor name(const Tensor& self, IntArrayRef list, const Args&... args) { return dice::call<Tensor>(#name, self, list, args...); }
DICE_SHARED_OPS(DICE_FUNCTION)
DICE_FUNCTION_OPS(DICE_FUNCTION)
#undef DICE_FUNCTION
#define DICE_INPLACE_FUNCTION(name) \
  template <class... Args> Tensor& name(Tensor& self, const Args&... args) { return self.name(args...); }
DICE_INPLACE_OPS(DICE_INPLACE_FUNCTION)
#undef DICE_INPLACE_FUNCTION
#define DICE_OUT_FUNCTION(name) \
  template <class... Args> Tensor& name(Tensor& out, const Args&... args) { dice::call<Tensor>(#name, out, args...); return out; }
DICE_OUT_OPS(DICE_OUT_FUNCTION)
#undef DICE_OUT_FUNCTION

Tensor cat(TensorList tensors, int64_t dim = 0) DICE_SHARED({ return dice::call<Tensor>("cat", tensors, dim); })
Tensor concat(TensorList tensors, int64_t dim = 0) DICE_SHARED({ return cat(tensors, dim); })
Tensor stack(TensorList tensors, int64_t dim = 0) DICE_SHARED({ return dice::call<Tensor>("stack", tensors, dim); })
Tensor hstack(TensorList tensors) DICE_SHARED({ return dice::call<Tensor>("hstack", tensors); })
Tensor vstack(TensorList tensors) DICE_SHARED({ return dice::call<Tensor>("vstack", tensors); })
Tensor einsum(const std::string& equation, TensorList tensors) DICE_SHARED({ return dice::call<Tensor>("einsum", equation, tensors); })
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) DICE_SHARED({ return dice::call<Tensor>("where", condition, a, b); })
Tensor where(const Tensor& condition, const Scalar& a, const Tensor& b) DICE_SHARED({ return dice::call<Tensor>("where", condition, a, b); })
Tensor where(const Tensor& condition, const Tensor& a, const Scalar& b) DICE_SHARED({ return dice::call<Tensor>("where", condition, a, b); })
Tensor clone(const Tensor& self) DICE_SHARED({ return self.clone(); })
bool equal(const Tensor& a, const Tensor& b) DICE_SHARED({ return dice::call<bool>("equal", a, b); })
bool allclose(const Tensor& a, const Tensor& b, double rtol = 1e-5, double atol = 1e-8, bool equal_nan = false) DICE_SHARED({
  return dice::call<bool>("allclose", a, b, rtol, atol, equal_nan);
})
Tensor norm(const Tensor& self, const Scalar& p = 2) DICE_SHARED({ return dice::call<Tensor>("norm", self, p); })
Tensor norm(const Tensor& self, const std::optional<Scalar>& p, IntArrayRef dim, bool keepdim = false) DICE_SHARED({
  return dice::call<Tensor>("norm", self, p, dim, keepdim);
})

#define DICE_CONVOLUTION(name)                                                                                        \
  Tensor name(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias = {}, IntArrayRef stride = 1,     \
                     IntArrayRef padding = 0, IntArrayRef dilation = 1, int64_t groups = 1) DICE_SHARED({                        \
    return dice::call<Tensor>(#name, input, weight, bias, stride, padding, dilation, groups);                        \
  })
DICE_CONVOLUTION(conv1d)
DICE_CONVOLUTION(conv2d)
DICE_CONVOLUTION(conv3d)
#undef DICE_CONVOLUTION
#define DICE_MAX_POOL(name)                                                                                           \
  Tensor name(const Tensor& self, IntArrayRef kernel, IntArrayRef stride = {}, IntArrayRef padding = 0,        \
                     IntArrayRef dilation = 1, bool ceil_mode = false) DICE_SHARED({                                              \
    return dice::call<Tensor>(#name, self, kernel, stride, padding, dilation, ceil_mode);                             \
  })
DICE_MAX_POOL(max_pool1d)
DICE_MAX_POOL(max_pool2d)
DICE_MAX_POOL(max_pool3d)
#undef DICE_MAX_POOL
#define DICE_AVG_POOL(name)                                                                                           \
  Tensor name(const Tensor& self, IntArrayRef kernel, IntArrayRef stride = {}, IntArrayRef padding = 0,        \
                     bool ceil_mode = false, bool count_include_pad = true) DICE_SHARED({                                         \
    return dice::call<Tensor>(#name, self, kernel, stride, padding, ceil_mode, count_include_pad);                    \
  })
DICE_AVG_POOL(avg_pool1d)
DICE_AVG_POOL(avg_pool2d)
DICE_AVG_POOL(avg_pool3d)
#undef DICE_AVG_POOL

// Operators whose result type depends on the arguments.
#define DICE_EXTREMUM(name)                                                                                           \
  Tensor name(const Tensor& self) DICE_SHARED({ return dice::call<Tensor>(#name, self); })                                  \
  Tensor name(const Tensor& self, const Tensor& other) DICE_SHARED({ return dice::call<Tensor>(#name, self, other); })      \
  TwoTensors name(const Tensor& self, int64_t dim, bool keepdim = false) DICE_SHARED({ return dice::call<TwoTensors>(#name, self, dim, keepdim); }) \
  DICE_MEMBER(Tensor Tensor::name() const { return dice::call<Tensor>(#name, *this); })                                     \
  DICE_MEMBER(Tensor Tensor::name(const Tensor& other) const { return dice::call<Tensor>(#name, *this, other); })           \
  DICE_MEMBER(TwoTensors Tensor::name(int64_t dim, bool keepdim) const { return dice::call<TwoTensors>(#name, *this, dim, keepdim); })
DICE_EXTREMUM(max)
DICE_EXTREMUM(min)
#undef DICE_EXTREMUM
#define DICE_PAIR(name) \
  template <class... Args> TwoTensors name(const Tensor& self, const Args&... args) { return dice::call<TwoTensors>(#name, self, args...); }
DICE_PAIR(sort) DICE_PAIR(topk) DICE_PAIR(var_mean) DICE_PAIR(std_mean) DICE_PAIR(cummax) DICE_PAIR(cummin)
DICE_PAIR(max_pool2d_with_indices) DICE_PAIR(kthvalue) DICE_PAIR(mode)
#undef DICE_PAIR
ThreeTensors native_batch_norm(const Tensor& self, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
                                      const std::optional<Tensor>& mean, const std::optional<Tensor>& variance, bool training,
                                      double momentum, double epsilon) DICE_SHARED({
  return dice::call<ThreeTensors>("native_batch_norm", self, weight, bias, mean, variance, training, momentum, epsilon);
})
template <class... Args> ThreeTensors native_layer_norm(const Tensor& self, IntArrayRef shape, const Args&... args) {
  return dice::call<ThreeTensors>("native_layer_norm", self, shape, args...);
}
#define DICE_PARTS(name) \
  template <class... Args> std::vector<Tensor> name(const Tensor& self, const Args&... args) { return dice::call<std::vector<Tensor>>(#name, self, args...); }
DICE_PARTS(split) DICE_PARTS(chunk) DICE_PARTS(unbind) DICE_PARTS(split_with_sizes) DICE_PARTS(tensor_split)
#undef DICE_PARTS

// ---- operators ------------------------------------------------------------------------------------------------
#define DICE_ARITHMETIC(op, name)                                                                                     \
  Tensor operator op(const Tensor& a, const Tensor& b) DICE_SHARED({ return dice::call<Tensor>(#name, a, b); })             \
  Tensor operator op(const Tensor& a, const Scalar& b) DICE_SHARED({ return dice::call<Tensor>(#name, a, b); })
DICE_ARITHMETIC(+, add) DICE_ARITHMETIC(-, sub) DICE_ARITHMETIC(*, mul) DICE_ARITHMETIC(/, div)
DICE_ARITHMETIC(<, lt) DICE_ARITHMETIC(<=, le) DICE_ARITHMETIC(>, gt) DICE_ARITHMETIC(>=, ge)
DICE_ARITHMETIC(==, eq) DICE_ARITHMETIC(!=, ne) DICE_ARITHMETIC(&, bitwise_and) DICE_ARITHMETIC(|, bitwise_or)
#undef DICE_ARITHMETIC
Tensor operator+(const Scalar& a, const Tensor& b) DICE_SHARED({ return dice::call<Tensor>("add", b, a); })
Tensor operator*(const Scalar& a, const Tensor& b) DICE_SHARED({ return dice::call<Tensor>("mul", b, a); })
Tensor operator-(const Scalar& a, const Tensor& b) DICE_SHARED({ return dice::call<Tensor>("rsub", b, a); })
Tensor operator/(const Scalar& a, const Tensor& b) DICE_SHARED({ return dice::call<Tensor>("mul", dice::call<Tensor>("reciprocal", b), a); })
Tensor operator~(const Tensor& a) DICE_SHARED({ return dice::call<Tensor>("bitwise_not", a); })
DICE_MEMBER(Tensor Tensor::operator-() const { return dice::call<Tensor>("neg", *this); })
#define DICE_UPDATE(op, name)                                                                     \
  DICE_MEMBER(Tensor& Tensor::operator op(const Tensor& other) { return name(other); })                 \
  DICE_MEMBER(Tensor& Tensor::operator op(const Scalar& other) { return name(other); })
DICE_UPDATE(+=, add_) DICE_UPDATE(-=, sub_) DICE_UPDATE(*=, mul_) DICE_UPDATE(/=, div_)
#undef DICE_UPDATE

// ---- methods --------------------------------------------------------------------------------------------------
DICE_MEMBER(bool Tensor::is_contiguous(c10::MemoryFormat format) const {
  if (format == c10::MemoryFormat::Contiguous) return query<bool>(aoti_torch_is_contiguous);
  return dice::call<bool>("is_contiguous", *this, format);
})
DICE_MEMBER(bool Tensor::is_non_overlapping_and_dense() const { return dice::call<bool>("is_non_overlapping_and_dense", *this); })
DICE_MEMBER(bool Tensor::requires_grad() const { return dice::call<bool>("requires_grad", *this); })
DICE_MEMBER(const Tensor& Tensor::set_requires_grad(bool value) const {
  dice::call<Tensor>("requires_grad_", *this, value);
  return *this;
})
DICE_MEMBER(Tensor Tensor::contiguous(c10::MemoryFormat format) const {
  if (is_contiguous(format)) return *this;
  return dice::call<Tensor>("contiguous", *this, c10::TensorOptions(format));
})
DICE_MEMBER(Tensor Tensor::clone(std::optional<c10::MemoryFormat> format) const {
  return format ? dice::call<Tensor>("clone", *this, c10::TensorOptions(*format)) : dice::call<Tensor>("clone", *this);
})
DICE_MEMBER(Tensor Tensor::to(const c10::TensorOptions& options, bool non_blocking, bool copy) const {
  return dice::call<Tensor>("to", *this, options, non_blocking, copy);
})
DICE_MEMBER(Tensor Tensor::to(c10::Device device, c10::ScalarType type, bool non_blocking, bool copy) const {
  return to(c10::TensorOptions(type).device(device), non_blocking, copy);
})
DICE_MEMBER(Tensor Tensor::to(const Tensor& other, bool non_blocking, bool copy) const { return to(other.options(), non_blocking, copy); })
DICE_MEMBER(Scalar Tensor::item() const { return dice::call<Scalar>("item", *this); })
template <class Item> Item Tensor::item() const { return item().to<Item>(); }
DICE_MEMBER(Tensor Tensor::operator[](int64_t index) const { return select(0, index); })

// ---- x.index({0, Slice(), None, "...", mask}) -----------------------------------------------------------------
namespace indexing {
enum class TensorIndexType { None, Ellipsis };
constexpr auto Ellipsis = TensorIndexType::Ellipsis;
constexpr auto None = std::nullopt;
struct Slice {
  Slice(std::optional<int64_t> start_ = {}, std::optional<int64_t> stop_ = {}, std::optional<int64_t> step_ = {})
      : start(start_), stop(stop_), step(step_) {}
  std::optional<int64_t> start, stop, step;
};
// Crosses to Python as a pair (kind, value).
struct TensorIndex {
  TensorIndex(std::nullopt_t);
  TensorIndex(TensorIndexType);
  TensorIndex(const char*);
  TensorIndex(int64_t value);
  TensorIndex(int value);
  TensorIndex(bool value);
  TensorIndex(const Tensor& value);
  TensorIndex(const Slice& value);
  dice::Object object;

 private:
  template <class Value> static dice::Object make(const char* kind, const Value& value) {
    return dice::to_python(std::make_tuple(std::string(kind), value));
  }
};
DICE_MEMBER(TensorIndex::TensorIndex(std::nullopt_t) : object(make("none", std::nullopt)) {})
DICE_MEMBER(TensorIndex::TensorIndex(TensorIndexType) : object(make("ellipsis", std::nullopt)) {})
DICE_MEMBER(TensorIndex::TensorIndex(const char*) : object(make("ellipsis", std::nullopt)) {})
DICE_MEMBER(TensorIndex::TensorIndex(int64_t value) : object(make("value", value)) {})
DICE_MEMBER(TensorIndex::TensorIndex(int value) : object(make("value", static_cast<int64_t>(value))) {})
DICE_MEMBER(TensorIndex::TensorIndex(bool value) : object(make("value", value)) {})
DICE_MEMBER(TensorIndex::TensorIndex(const Tensor& value) : object(make("value", value)) {})
DICE_MEMBER(TensorIndex::TensorIndex(const Slice& value) : object(make("slice", std::make_tuple(value.start, value.stop, value.step))) {})
}  // namespace indexing

}  // namespace at

#if !defined(DICE_DEVICE_PASS)
namespace dice {
template <> struct Caster<at::indexing::TensorIndex> {
  static Object cast(const at::indexing::TensorIndex& index) { return index.object; }
};
}  // namespace dice
#endif

namespace at {
DICE_MEMBER(Tensor Tensor::index(std::initializer_list<indexing::TensorIndex> indices) const {
  return dice::call<Tensor>("index", *this, c10::ArrayRef<indexing::TensorIndex>(indices));
})
DICE_MEMBER(Tensor& Tensor::index_put_(std::initializer_list<indexing::TensorIndex> indices, const Tensor& value) {
  dice::call<Tensor>("index_put_", *this, c10::ArrayRef<indexing::TensorIndex>(indices), value);
  return *this;
})
DICE_MEMBER(Tensor& Tensor::index_put_(std::initializer_list<indexing::TensorIndex> indices, const Scalar& value) {
  return index_put_(indices, dice::call<Tensor>("scalar_tensor", value, options()));
})
}  // namespace at
