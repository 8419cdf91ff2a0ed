// CUDA_KERNEL_LOOP and the block counts that go with it.
#pragma once
#include <dice/foundation.h>
#include <cuda_runtime.h>

#define CUDA_KERNEL_LOOP_TYPE(i, n, index_type)                                  \
  int64_t dice_next_##i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; \
  for (index_type i = dice_next_##i; dice_next_##i < (n); dice_next_##i += blockDim.x * gridDim.x, i = dice_next_##i)
#define CUDA_KERNEL_LOOP(i, n) CUDA_KERNEL_LOOP_TYPE(i, n, int)

namespace at::cuda::detail {
constexpr int CUDA_NUM_THREADS = 1024;
inline int GET_BLOCKS(int64_t count, int64_t threads = CUDA_NUM_THREADS) {
  TORCH_INTERNAL_ASSERT(count > 0, "CUDA kernel launch blocks must be positive, but got N=", count);
  return static_cast<int>((count - 1) / threads + 1);
}
}  // namespace at::cuda::detail
