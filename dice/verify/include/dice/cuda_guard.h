// c10::cuda::CUDAGuard: another current device for the length of a scope.
#pragma once
#include <dice/cuda_stream.h>

namespace c10::cuda {

class OptionalCUDAGuard {
 public:
  OptionalCUDAGuard() = default;
  explicit OptionalCUDAGuard(std::optional<Device> device) { if (device) set_device(*device); }
  explicit OptionalCUDAGuard(std::optional<DeviceIndex> index) { if (index) set_index(*index); }
  explicit OptionalCUDAGuard(Device device) { set_device(device); }
  explicit OptionalCUDAGuard(DeviceIndex index) { set_index(index); }
  OptionalCUDAGuard(const OptionalCUDAGuard&) = delete;
  OptionalCUDAGuard& operator=(const OptionalCUDAGuard&) = delete;
  ~OptionalCUDAGuard() { reset(); }

  void set_device(Device device) {
    TORCH_CHECK(device.is_cuda(), "Expected a CUDA device, but got ", device);
    if (device.has_index()) set_index(device.index());
  }
  void set_index(DeviceIndex index) {
    if (!before_) before_ = cuda::current_device();
    if (index != cuda::current_device()) cuda::set_device(index);
    now_ = index;
  }
  void reset() {
    if (before_ && now_ != before_) (void)cudaSetDevice(*before_);
    before_.reset();
  }
  std::optional<Device> original_device() const { return before_ ? std::optional<Device>(Device(kCUDA, *before_)) : std::nullopt; }
  std::optional<Device> current_device() const { return now_ ? std::optional<Device>(Device(kCUDA, *now_)) : std::nullopt; }

 private:
  std::optional<DeviceIndex> before_, now_;
};

class CUDAGuard {
 public:
  explicit CUDAGuard(DeviceIndex index) : guard_(index) {}
  explicit CUDAGuard(Device device) : guard_(device) {}
  void set_device(Device device) { guard_.set_device(device); }
  void set_index(DeviceIndex index) { guard_.set_index(index); }
  Device original_device() const { return *guard_.original_device(); }
  Device current_device() const { return *guard_.current_device(); }

 private:
  OptionalCUDAGuard guard_;
};

class CUDAStreamGuard {
 public:
  explicit CUDAStreamGuard(CUDAStream stream) : before_(getCurrentCUDAStream(stream.device_index())), now_(stream) { enter(); }
  CUDAStreamGuard(const CUDAStreamGuard&) = delete;
  CUDAStreamGuard& operator=(const CUDAStreamGuard&) = delete;
  ~CUDAStreamGuard() { leave(); }
  CUDAStream original_stream() const { return before_; }
  CUDAStream current_stream() const { return now_; }

 private:
#if defined(DICE_EMULATED)
  void enter() { dice_stream_of_torch(now_.stream()); }
  void leave() {}
#else
  void enter() {
    TORCH_CHECK(aoti_torch_create_cuda_stream_guard(now_.stream(), now_.device_index(), &guard_) == 0, "PyTorch cannot change its current CUDA stream");
  }
  void leave() { aoti_torch_delete_cuda_stream_guard(guard_); }
  void* guard_ = nullptr;
#endif
  CUDAStream before_, now_;
};

}  // namespace c10::cuda
