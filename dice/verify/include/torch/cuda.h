// torch::cuda, in sources that have the CUDA runtime; elsewhere a source that names it takes PyTorch's own headers.
#pragma once
#include <torch/types.h>
#if defined(DICE_HAS_CUDA) || defined(__CUDA_RUNTIME_H__)
namespace torch::cuda {
inline c10::DeviceIndex device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? static_cast<c10::DeviceIndex>(count) : c10::DeviceIndex(0);
}
inline bool is_available() { return device_count() > 0; }
inline void synchronize(int64_t device = -1) {
  TORCH_CHECK(is_available(), "No CUDA GPUs are available");
  TORCH_CHECK(device < device_count(), "Device index out of range: ", device);
  int current = 0;
  cudaGetDevice(&current);
  if (device >= 0) cudaSetDevice(static_cast<int>(device));
  const cudaError_t status = cudaDeviceSynchronize();
  cudaSetDevice(current);
  TORCH_CHECK(status == cudaSuccess, "CUDA error: ", cudaGetErrorString(status));
}
}  // namespace torch::cuda
#endif
