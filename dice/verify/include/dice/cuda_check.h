// C10_CUDA_CHECK and its relatives: a CUDA error becomes a Python exception.
#pragma once
#include <dice/foundation.h>
#include <cuda_runtime.h>

namespace dice {
inline void check_cuda(cudaError_t status) {
  if (C10_LIKELY(status == cudaSuccess)) return;
  (void)cudaGetLastError();  // the failure is reported here, so later calls start clean
  TORCH_CHECK(false, "CUDA error: ", cudaGetErrorString(status));
}
}  // namespace dice

#define C10_CUDA_CHECK(expr) ::dice::check_cuda(expr)
#define AT_CUDA_CHECK(expr) C10_CUDA_CHECK(expr)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() C10_CUDA_CHECK(cudaGetLastError())
#define TORCH_CUDA_KERNEL_LAUNCH_CHECK() C10_CUDA_KERNEL_LAUNCH_CHECK()
#define TORCH_CUDABLAS_CHECK(expr)                                                                    \
  do {                                                                                                \
    const int dice_status = static_cast<int>(expr);                                                   \
    TORCH_CHECK(dice_status == 0, "CUDA error: cuBLAS status ", dice_status, " when calling `" #expr "`"); \
  } while (0)
#define C10_CUDA_CHECK_WARN(expr)                                                                     \
  do {                                                                                                \
    const cudaError_t dice_status = (expr);                                                           \
    if (dice_status != cudaSuccess) TORCH_WARN("CUDA warning: ", cudaGetErrorString(dice_status));    \
  } while (0)
#define C10_CUDA_ERROR_HANDLED(expr) (expr)
#define C10_CUDA_IGNORE_ERROR(expr) ((void)(expr))
#define C10_CUDA_CLEAR_ERROR() ((void)cudaGetLastError())
