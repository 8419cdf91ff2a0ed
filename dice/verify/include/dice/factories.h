// Functions that make tensors. The ones a kernel's host code calls each time (empty, zeros, *_like) use PyTorch's C
// interface directly.
#pragma once
#include <dice/ops.h>

namespace at {

// Bodies in support.cpp.
Tensor from_blob(void* data, IntArrayRef sizes, const c10::TensorOptions& options = {});
Tensor from_blob(void* data, IntArrayRef sizes, IntArrayRef strides, const c10::TensorOptions& options = {});
Tensor empty(IntArrayRef sizes, const c10::TensorOptions& options = {}, std::optional<c10::MemoryFormat> format = {});
Tensor zeros(IntArrayRef sizes, const c10::TensorOptions& options = {});
Tensor empty_like(const Tensor& self, const c10::TensorOptions& options = {}, std::optional<c10::MemoryFormat> format = {});
Tensor zeros_like(const Tensor& self, const c10::TensorOptions& options = {}, std::optional<c10::MemoryFormat> format = {});
Tensor ones(IntArrayRef sizes, const c10::TensorOptions& options = {}) DICE_SHARED({ return dice::call<Tensor>("ones", sizes, options); })
Tensor full(IntArrayRef sizes, const Scalar& value, const c10::TensorOptions& options = {}) DICE_SHARED({
  return dice::call<Tensor>("full", sizes, value, options);
})
Tensor rand(IntArrayRef sizes, const c10::TensorOptions& options = {}) DICE_SHARED({ return dice::call<Tensor>("rand", sizes, options); })
Tensor randn(IntArrayRef sizes, const c10::TensorOptions& options = {}) DICE_SHARED({ return dice::call<Tensor>("randn", sizes, options); })
Tensor randint(int64_t high, IntArrayRef sizes, const c10::TensorOptions& options = {}) DICE_SHARED({
  return dice::call<Tensor>("randint", high, sizes, options);
})
Tensor randint(int64_t low, int64_t high, IntArrayRef sizes, const c10::TensorOptions& options = {}) DICE_SHARED({
  return dice::call<Tensor>("randint", low, high, sizes, options);
})
Tensor empty_strided(IntArrayRef sizes, IntArrayRef strides, const c10::TensorOptions& options = {}) DICE_SHARED({
  return dice::call<Tensor>("empty_strided", sizes, strides, options);
})
Tensor ones_like(const Tensor& self, const c10::TensorOptions& options = {}) DICE_SHARED({ return dice::call<Tensor>("ones_like", self, options); })
Tensor rand_like(const Tensor& self, const c10::TensorOptions& options = {}) DICE_SHARED({ return dice::call<Tensor>("rand_like", self, options); })
Tensor randn_like(const Tensor& self, const c10::TensorOptions& options = {}) DICE_SHARED({ return dice::call<Tensor>("randn_like", self, options); })
Tensor full_like(const Tensor& self, const Scalar& value, const c10::TensorOptions& options = {}) DICE_SHARED({
  return dice::call<Tensor>("full_like", self, value, options);
})
Tensor arange(const Scalar& end, const c10::TensorOptions& options = {}) DICE_SHARED({ return dice::call<Tensor>("arange", end, options); })
Tensor arange(const Scalar& start, const Scalar& end, const c10::TensorOptions& options = {}) DICE_SHARED({
  return dice::call<Tensor>("arange", start, end, options);
})
Tensor arange(const Scalar& start, const Scalar& end, const Scalar& step, const c10::TensorOptions& options = {}) DICE_SHARED({
  return dice::call<Tensor>("arange", start, end, step, options);
})
Tensor linspace(const Scalar& start, const Scalar& end, int64_t steps, const c10::TensorOptions& options = {}) DICE_SHARED({
  return dice::call<Tensor>("linspace", start, end, steps, options);
})
Tensor eye(int64_t n, const c10::TensorOptions& options = {}) DICE_SHARED({ return dice::call<Tensor>("eye", n, options); })
Tensor eye(int64_t n, int64_t m, const c10::TensorOptions& options = {}) DICE_SHARED({ return dice::call<Tensor>("eye", n, m, options); })
Tensor randperm(int64_t n, const c10::TensorOptions& options = {}) DICE_SHARED({ return dice::call<Tensor>("randperm", n, options); })
Tensor scalar_tensor(const Scalar& value, const c10::TensorOptions& options = {}) DICE_SHARED({ return dice::call<Tensor>("scalar_tensor", value, options); })

// at::tensor / torch::tensor: the type of the values decides the dtype unless the options do.
template <class Item> Tensor tensor(c10::ArrayRef<Item> values, const c10::TensorOptions& options = {}) {
  const c10::ScalarType type = c10::CppTypeToScalarType<Item>::value;
  return dice::call<Tensor>("tensor", values, options.has_dtype() ? options : options.dtype(type));
}
template <class Item> Tensor tensor(std::initializer_list<Item> values, const c10::TensorOptions& options = {}) {
  return tensor(c10::ArrayRef<Item>(values), options);
}
template <class Item> Tensor tensor(const std::vector<Item>& values, const c10::TensorOptions& options = {}) {
  return tensor(c10::ArrayRef<Item>(values), options);
}
template <class Number, std::enable_if_t<std::is_arithmetic_v<Number>, int> = 0>
Tensor tensor(Number value, const c10::TensorOptions& options = {}) {
  const c10::ScalarType type = c10::CppTypeToScalarType<Number>::value;
  return dice::call<Tensor>("tensor", value, options.has_dtype() ? options : options.dtype(type));
}

// Scoped switches of autograd.
struct AutoGradMode {
  explicit AutoGradMode(bool enabled) : before_(aoti_torch_grad_mode_is_enabled()) { aoti_torch_grad_mode_set_enabled(enabled); }
  ~AutoGradMode() { aoti_torch_grad_mode_set_enabled(before_); }

 private:
  bool before_;
};
struct NoGradGuard : AutoGradMode {
  NoGradGuard() : AutoGradMode(false) {}
};

}  // namespace at

namespace c10 {
// The host-side guard that is not about CUDA only.
struct DeviceGuard {
  explicit DeviceGuard(Device) {}
};
struct OptionalDeviceGuard {
  OptionalDeviceGuard() = default;
  explicit OptionalDeviceGuard(std::optional<Device>) {}
};
}  // namespace c10
namespace at {
std::optional<Device> device_of(const Tensor& tensor) DICE_SHARED({
  return tensor.defined() ? std::optional<Device>(tensor.device()) : std::nullopt;
})
}  // namespace at
