// at::cuda: the names of c10::cuda plus what ATen/cuda/CUDAContext.h adds.
#pragma once
#include <dice/cuda_stream.h>
#if !defined(DICE_EMULATED)
#include <dlfcn.h>

struct cublasContext;
struct cusparseContext;
struct cusolverDnContext;

namespace dice {
// PyTorch's handle of a library, from a function that is exported but in no C interface. Its name depends on whether
// this PyTorch lets callers skip the handle's set-up.
template <class Context> Context* library_handle(const char* plain, const char* with_setup) {
  void* torch = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
  TORCH_CHECK(torch != nullptr, "PyTorch's CUDA library is not loaded");
  if (void* found = dlsym(torch, plain)) return reinterpret_cast<Context* (*)()>(found)();
  void* found = dlsym(torch, with_setup);
  TORCH_CHECK(found != nullptr, "this PyTorch has no ", plain);
  return reinterpret_cast<Context* (*)(bool)>(found)(true);
}
}  // namespace dice
#endif

namespace at::cuda {
using namespace c10::cuda;

#if !defined(DICE_EMULATED)
#define DICE_LIBRARY_HANDLE(context, name, symbol)                                                 \
  inline context* name(bool = true) {                                                              \
    return dice::library_handle<context>("_ZN2at4cuda" symbol "Ev", "_ZN2at4cuda" symbol "Eb");    \
  }
DICE_LIBRARY_HANDLE(cublasContext, getCurrentCUDABlasHandle, "24getCurrentCUDABlasHandle")
DICE_LIBRARY_HANDLE(cusparseContext, getCurrentCUDASparseHandle, "26getCurrentCUDASparseHandle")
DICE_LIBRARY_HANDLE(cusolverDnContext, getCurrentCUDASolverDnHandle, "28getCurrentCUDASolverDnHandle")
#undef DICE_LIBRARY_HANDLE
#endif

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
