// Sums of each block's 256 numbers, by what is shared by fewer threads, or by more, than a kernel may believe.
#include <cuda_runtime.h>

struct Pair {
  float twice, once;
};

// ---- wrong -------------------------------------------------------------------------------------------------------

// A variable of the block, which each thread takes for its own.
__global__ void own_variable(const float* x, float* out) {
  __shared__ float mine;
  mine = x[blockIdx.x * blockDim.x + threadIdx.x];
  atomicAdd(&out[blockIdx.x], mine);
}

// An element for each of the warps, which each lane takes for its own.
__global__ void own_element(const float* x, float* out) {
  __shared__ float mine[8];
  const int warp = threadIdx.x / 32;
  mine[warp] = x[blockIdx.x * blockDim.x + threadIdx.x];
  if (mine[warp] != 0.0f) atomicAdd(&out[blockIdx.x], mine[warp]);
}

__global__ void own_member(const float* x, float* out) {
  extern __shared__ Pair pairs[];
  pairs[0].twice = 0.0f;
  for (int i = 0; i < 2; i++) pairs[0].twice += x[blockIdx.x * blockDim.x + threadIdx.x];
  atomicAdd(&out[blockIdx.x], pairs[0].twice / 2.0f);
}

// The sum of all numbers, in the first element: an atomic for its own block is none between blocks.
__global__ void blocks_by_atomics_of_a_block(const float* x, float* out) {
  atomicAdd_block(&out[0], x[blockIdx.x * blockDim.x + threadIdx.x]);
}

// Each warp meets only itself.
__global__ void barrier_of_one_warp(const float* x, float* out) {
  __shared__ float values[256];
  values[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
  asm volatile("bar.sync 1, 32;" ::: "memory");
  atomicAdd(&out[blockIdx.x], values[255 - threadIdx.x]);
}

// ---- right -------------------------------------------------------------------------------------------------------

__global__ void shared_in_turns(const float* x, float* out) {
  __shared__ float one;
  float sum = 0.0f;
  for (int i = 0; i < blockDim.x; ++i) {
    if (threadIdx.x == i) one = x[blockIdx.x * blockDim.x + i];
    __syncthreads();
    sum += one;
    __syncthreads();
  }
  if (threadIdx.x == 7) out[blockIdx.x] = sum;
}

__global__ void own_elements(const float* x, float* out) {
  __shared__ float values[256];
  for (int turn = 0; turn < 2; ++turn) values[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
  values[threadIdx.x] *= 2.0f;
  if (values[threadIdx.x] > 0.0f) atomicAdd(&out[blockIdx.x], values[threadIdx.x] / 2.0f);
}

__global__ void threads_by_atomics_of_a_block(const float* x, float* out) {
  __shared__ float total;
  if (threadIdx.x == 0) total = 0.0f;
  else if (threadIdx.x == 1) out[blockIdx.x] = 0.0f;
  __syncthreads();
  atomicAdd_block(&total, x[blockIdx.x * blockDim.x + threadIdx.x]);
  __syncthreads();
  if (threadIdx.x < 4) atomicAdd_block(&out[blockIdx.x], total / 4.0f);
}

// The lower half makes, the upper half takes; neither waits for the whole block.
__global__ void makers_and_takers(const float* x, float* out) {
  __shared__ float buffer[2][128];
  const int t = threadIdx.x % 128, full = 1, empty = 3;
  for (int part = 0; part < 4; ++part) {
    const int b = part & 1;
    if (threadIdx.x < 128) {
      if (part > 1) asm volatile("bar.sync %0, 256;" ::"r"(empty + b) : "memory");
      buffer[b][127 - t] = part < 2 ? x[blockIdx.x * 256 + part * 128 + t] : 0.0f;
      asm volatile("bar.arrive %0, 256;" ::"r"(full + b) : "memory");
    } else {
      asm volatile("barrier.sync %0, %1;" ::"r"(full + b), "n"(256) : "memory");
      atomicAdd(&out[blockIdx.x], buffer[b][t]);
      if (part < 2) asm volatile("bar.arrive %0, 256;" ::"r"(empty + b) : "memory");
    }
  }
}

#define ENTRY(name) \
  extern "C" void h_##name(const float* x, float* out, int blocks) { name<<<blocks, 256, sizeof(Pair)>>>(x, out); }
ENTRY(own_variable)
ENTRY(own_element)
ENTRY(own_member)
ENTRY(barrier_of_one_warp)
ENTRY(shared_in_turns)
ENTRY(own_elements)
ENTRY(threads_by_atomics_of_a_block)
ENTRY(makers_and_takers)

extern "C" void h_blocks_by_atomics_of_a_block(const float* x, float* out, int blocks) {
  float* total;
  cudaMalloc(&total, sizeof(float));
  cudaMemset(total, 0, sizeof(float));
  blocks_by_atomics_of_a_block<<<blocks, 256>>>(x, total);
  cudaMemcpy(out, total, sizeof(float), cudaMemcpyDeviceToHost);
  cudaFree(total);
}

// ---- barriers of libcu++, and groups by a value ----------------------------------------------------------------------
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda/barrier>
#include <cuda/std/array>
#include <cuda/std/cmath>
#include <cuda/std/cstddef>
#include <cuda/std/cstdint>
#include <cuda/std/limits>
#include <cuda/std/tuple>
#include <cuda/std/type_traits>
#include <cuda/std/utility>

template <bool waits> __global__ void turned_round(const float* x, float* y) {
  using Barrier = cuda::barrier<cuda::thread_scope_block>;
  __shared__ Barrier barrier;
  __shared__ float row[64];
  if (threadIdx.x == 0) init(&barrier, blockDim.x);
  __syncthreads();
  for (int round = 0; round < 3; ++round) {
    row[threadIdx.x] = x[threadIdx.x] + round;
    Barrier::arrival_token token = barrier.arrive();
    if (waits) barrier.wait(cuda::std::move(token));
    y[threadIdx.x] = row[63 - threadIdx.x];
    if (!waits) barrier.wait(cuda::std::move(token));
    barrier.arrive_and_wait();
  }
}
__global__ void grouped(const int* label, int* sums, int* less) {
  namespace cg = cooperative_groups;
  const auto warp = cg::tiled_partition<32>(cg::this_thread_block());
  const int t = threadIdx.x;
  const auto alike = cg::labeled_partition(warp, label[t]);
  sums[t] = cg::reduce(alike, t, cg::plus<int>());
  const auto half = cg::binary_partition(warp, label[t] < 2);
  less[t] = half.shfl(t, 0) + 100 * static_cast<int>(half.size());
}
__global__ void three_largest(const float* x, float* y, int n) {
  cuda::std::array<float, 3> top;
  top.fill(-cuda::std::numeric_limits<float>::infinity());
  for (int i = 0; i < n; ++i) {
    float v = x[i];
    for (auto& t : top)
      if (v > t) cuda::std::swap(v, t);
  }
  static_assert(cuda::std::is_same_v<cuda::std::uint32_t, unsigned> && sizeof(cuda::std::size_t) == 8);
  for (int i = 0; i < 3; ++i) y[i] = cuda::std::fabs(cuda::std::get<0>(cuda::std::make_tuple(top[i])));
}
extern "C" void h_turned_round(const float* x, float* y, int waits) {
  if (waits) turned_round<true><<<1, 64>>>(x, y);
  else turned_round<false><<<1, 64>>>(x, y);
}
extern "C" void h_grouped(const int* label, int* sums, int* less) { grouped<<<1, 32>>>(label, sums, less); }
extern "C" void h_three_largest(const float* x, float* y, int n) { three_largest<<<1, 1>>>(x, y, n); }
