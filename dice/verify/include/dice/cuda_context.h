// at::cuda: the names of c10::cuda plus what ATen/cuda/CUDAContext.h adds.
#pragma once
#include <dice/cuda_stream.h>

namespace at::cuda {
using namespace c10::cuda;

inline cudaDeviceProp* getDeviceProperties(c10::DeviceIndex device) {
  static cudaDeviceProp properties[64];
  static bool known[64];
  TORCH_CHECK(device >= 0 && device < 64, "there is no CUDA device ", static_cast<int>(device));
  if (!known[device]) C10_CUDA_CHECK(cudaGetDeviceProperties(&properties[device], device));
  known[device] = true;
  return &properties[device];
}
inline cudaDeviceProp* getCurrentDeviceProperties() { return getDeviceProperties(current_device()); }
inline int warp_size() { return getCurrentDeviceProperties()->warpSize; }
inline bool is_available() { return device_count() > 0; }
inline int64_t getNumGPUs() { return device_count(); }
template <class Number> constexpr C10_HOST_DEVICE Number ATenCeilDiv(Number a, Number b) { return (a + b - 1) / b; }
}  // namespace at::cuda
