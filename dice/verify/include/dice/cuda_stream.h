// c10::cuda::CUDAStream and the functions around devices and streams.
#pragma once
#include <dice/cuda_check.h>

extern "C" __attribute__((weak)) bool dice_without_data();
extern "C" int32_t aoti_torch_get_current_cuda_stream(int32_t device_index, void** result);
extern "C" int32_t aoti_torch_create_cuda_stream_guard(void* stream, int32_t device_index, void** result);
extern "C" int32_t aoti_torch_delete_cuda_stream_guard(void* guard);

namespace c10::cuda {

inline DeviceIndex current_device() {
  int device = 0;
  C10_CUDA_CHECK(cudaGetDevice(&device));
  return static_cast<DeviceIndex>(device);
}
inline void set_device(DeviceIndex device) { C10_CUDA_CHECK(cudaSetDevice(device)); }
inline void device_synchronize() { C10_CUDA_CHECK(cudaDeviceSynchronize()); }
inline DeviceIndex device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? static_cast<DeviceIndex>(count) : static_cast<DeviceIndex>(0);
}

class CUDAStream {
 public:
  CUDAStream(cudaStream_t stream, DeviceIndex device) : stream_(stream), device_(device) {}
  cudaStream_t stream() const { return stream_; }
  operator cudaStream_t() const { return stream_; }
  DeviceIndex device_index() const { return device_; }
  Device device() const { return Device(kCUDA, device_); }
  void synchronize() const { C10_CUDA_CHECK(cudaStreamSynchronize(stream_)); }
  bool query() const { return cudaStreamQuery(stream_) == cudaSuccess; }
  bool operator==(const CUDAStream& other) const { return stream_ == other.stream_ && device_ == other.device_; }
  bool operator!=(const CUDAStream& other) const { return !(*this == other); }

 private:
  cudaStream_t stream_;
  DeviceIndex device_;
};

inline CUDAStream getDefaultCUDAStream(DeviceIndex device = -1) { return {nullptr, device == -1 ? current_device() : device}; }
#if defined(DICE_EMULATED)
inline CUDAStream getCurrentCUDAStream(DeviceIndex = -1) { return {nullptr, 0}; }
#else
inline CUDAStream getCurrentCUDAStream(DeviceIndex device = -1) {
  const DeviceIndex index = device == -1 ? current_device() : device;
  void* stream = nullptr;
  if (dice_without_data != nullptr && dice_without_data()) return {nullptr, index};
  TORCH_CHECK(aoti_torch_get_current_cuda_stream(index, &stream) == 0, "PyTorch has no current CUDA stream");
  return {static_cast<cudaStream_t>(stream), index};
}
#endif
// A stream of our own, never destroyed: PyTorch's pool is not in its C interface, and streams are few.
inline CUDAStream getStreamFromPool(bool = false, DeviceIndex device = -1) {
  const DeviceIndex index = device == -1 ? current_device() : device;
  cudaStream_t stream = nullptr;
  C10_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return {stream, index};
}
inline CUDAStream getStreamFromExternal(cudaStream_t stream, DeviceIndex device) { return {stream, device}; }

}  // namespace c10::cuda
