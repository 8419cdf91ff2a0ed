// Blocks that wait for each other: for the whole grid in cooperative launches, and by counters and flags of their own.
#include <cooperative_groups.h>
#include <cuda_runtime.h>

namespace cg = cooperative_groups;

// Softmax of all of x in three phases. `synchronised`: which of the two barriers are there.
__global__ void softmax_kernel(const float* x, float* y, float* part, int n, int synchronised) {
  cg::grid_group grid = cg::this_grid();
  __shared__ float row[64];
  float largest = -INFINITY;
  for (unsigned long long i = grid.thread_rank(); i < n; i += grid.size()) largest = fmaxf(largest, x[i]);
  row[threadIdx.x] = largest;
  __syncthreads();
  for (int o = 32; o > 0; o >>= 1) {
    if (threadIdx.x < o) row[threadIdx.x] = fmaxf(row[threadIdx.x], row[threadIdx.x + o]);
    __syncthreads();
  }
  if (threadIdx.x == 0) part[blockIdx.x] = row[0];
  if (synchronised & 1) grid.sync();
  for (int b = 0; b < gridDim.x; ++b) largest = fmaxf(largest, part[b]);
  float sum = 0;
  for (unsigned long long i = grid.thread_rank(); i < n; i += grid.size()) sum += expf(x[i] - largest);
  __syncthreads();
  row[threadIdx.x] = sum;
  __syncthreads();
  for (int o = 32; o > 0; o >>= 1) {
    if (threadIdx.x < o) row[threadIdx.x] += row[threadIdx.x + o];
    __syncthreads();
  }
  if (threadIdx.x == 0) part[gridDim.x + blockIdx.x] = row[0];
  if (synchronised & 2) cg::sync(grid);
  sum = 0;
  for (int b = 0; b < gridDim.x; ++b) sum += part[gridDim.x + b];
  for (unsigned long long i = grid.thread_rank(); i < n; i += grid.size()) y[i] = expf(x[i] - largest) / sum;
}

// Each step replaces every number by what its neighbours were. Shared and local memory outlive the barriers.
__global__ void rotates(float* x, float* y, int steps) {
  cg::grid_group grid = cg::this_grid();
  extern __shared__ float kept[];
  float own[3] = {1, 2, 3};
  const int i = grid.thread_rank(), n = grid.num_threads();
  kept[threadIdx.x] = x[i];
  for (int s = 0; s < steps; ++s) {
    float* from = s % 2 == 0 ? x : y;
    float* to = s % 2 == 0 ? y : x;
    to[i] = from[(i + 1) % n];
    own[s % 3] += s;
    grid.sync();
  }
  float* last = steps % 2 == 0 ? y : x;
  last[i] = 1000 * kept[threadIdx.x] + own[0] + own[1] + own[2];
}

__global__ void asks(int* out) {
  cg::grid_group grid = cg::this_grid();
  if (threadIdx.x != 0) return;
  int* own = out + 8 * blockIdx.x;
  own[0] = grid.is_valid(), own[1] = grid.size(), own[2] = grid.num_blocks(), own[3] = grid.block_rank();
  own[4] = grid.group_dim().x, own[5] = grid.thread_rank(), own[6] = grid.num_threads();
}

__device__ unsigned arrived;
__device__ volatile unsigned generation;

// Without cooperative groups: the last one to come lets the others go on.
__device__ void own_barrier(int polls) {
  __syncthreads();
  if (threadIdx.x == 0) {
    const unsigned now = generation;
    __threadfence();
    if (atomicAdd(&arrived, 1u) == gridDim.x - 1) {
      arrived = 0;
      __threadfence();
      generation = now + 1;
    } else if (polls == 0) {
      while (generation == now);
    } else if (polls == 1) {
      do { __threadfence(); } while (generation == now);
    } else {
      while (true) {
        if (*(volatile unsigned*)&generation != now) break;
      }
    }
    __threadfence();
  }
  __syncthreads();
}
__global__ void own_barriers(const float* x, float* part, float* y, int polls) {
  atomicAdd(&part[blockIdx.x], x[blockIdx.x * blockDim.x + threadIdx.x]);
  own_barrier(polls);
  float all = 0;
  for (int b = 0; b < gridDim.x; ++b) all += part[b];
  own_barrier(polls);
  if (threadIdx.x == 0) part[blockIdx.x] = 0;
  y[blockIdx.x * blockDim.x + threadIdx.x] = all;
}
__device__ unsigned counter;
__global__ void counts_up(int* out) {
  if (threadIdx.x == 0) {
    atomicAdd(&counter, 1);
    while (atomicAdd(&counter, 0) < gridDim.x);
  }
  __syncthreads();
  if (threadIdx.x == 0) out[blockIdx.x] = counter;
}

// Each block waits for the sum of the one before it, as a scan does that passes over its input once.
__global__ void chained_scan(const int* x, int* y, volatile int* sums, volatile int* ready) {
  if (threadIdx.x == 0) {
    int total = 0;
    if (blockIdx.x != 0) {
      while (ready[blockIdx.x - 1] == 0) __nanosleep(40);
      __threadfence();
      total = sums[blockIdx.x - 1];
    }
    for (int i = 0; i < 4; ++i) y[4 * blockIdx.x + i] = total += x[4 * blockIdx.x + i];
    sums[blockIdx.x] = total;
    __threadfence();
    ready[blockIdx.x] = 1;
  }
}

// ---- what cannot be ------------------------------------------------------------------------------------------------

__global__ void leaves_some_out() {
  if (blockIdx.x == 1) return;
  cg::this_grid().sync();
}
__global__ void leaves_the_first_out() {
  if (threadIdx.x == 0) return;
  cg::this_grid().sync();
}
__global__ void leaves_others_out() {
  if (threadIdx.x >= 8) return;
  cg::this_grid().sync();
}
__global__ void mixes() {
  if (threadIdx.x % 2 == 0) __syncthreads();
  cg::this_grid().sync();
}

extern "C" {
int h_grid_softmax(const float* x, float* y, float* part, int n, int blocks, int synchronised) {
  void* args[] = {&x, &y, &part, &n, &synchronised};
  return cudaLaunchCooperativeKernel((void*)softmax_kernel, dim3(blocks), dim3(64), args, 0, 0);
}
int h_rotates(float* x, float* y, int blocks, int threads, int steps) {
  void* args[] = {&x, &y, &steps};
  const int error = cudaLaunchCooperativeKernel((const void*)rotates, blocks, threads, args, threads * sizeof(float), nullptr);
  return cudaGetLastError() == error ? error : -1;
}
// The same in tensors so small that blocks do not see what others write to them before they meet.
int h_rotates_little(float* x, float* y, int blocks, int threads, int steps) {
  const size_t bytes = blocks * threads * sizeof(float);
  float *own, *other;
  cudaMalloc(&own, bytes);
  cudaMalloc(&other, bytes);
  cudaMemcpy(own, x, bytes, cudaMemcpyHostToDevice);
  cudaMemcpy(other, y, bytes, cudaMemcpyHostToDevice);
  const int error = h_rotates(own, other, blocks, threads, steps);
  cudaMemcpy(x, own, bytes, cudaMemcpyDeviceToHost);
  cudaMemcpy(y, other, bytes, cudaMemcpyDeviceToHost);
  cudaFree(own);
  cudaFree(other);
  return error;
}
int h_asks(int* out, int cooperative) {
  void* args[] = {&out};
  if (!cooperative) asks<<<3, 5>>>(out);
  return cooperative ? cudaLaunchCooperativeKernel(asks, dim3(3), dim3(5), args) : 0;
}
int h_capacity(int threads, int shared) {
  int blocks = 0, sms = 0, cooperative = 0;
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, asks, threads, shared);
  cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0);
  cudaDeviceGetAttribute(&cooperative, cudaDevAttrCooperativeLaunch, 0);
  return cooperative ? blocks * sms : 0;
}
void h_own_barriers(const float* x, float* part, float* y, int blocks, int polls) {
  own_barriers<<<blocks, 32>>>(x, part, y, polls);
  cudaDeviceSynchronize();
}
void h_counts_up(int* out, int blocks, int shared) {
  unsigned zero = 0;
  cudaMemcpyToSymbol(counter, &zero, sizeof zero);
  cudaFuncSetAttribute(counts_up, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  counts_up<<<blocks, 64, shared>>>(out);
  cudaDeviceSynchronize();
}
void h_chained_scan(const int* x, int* y, int* sums, int* ready, int blocks) {
  chained_scan<<<blocks, 32>>>(x, y, sums, ready);
  cudaDeviceSynchronize();
}
int h_dies(int which) {
  void* args[] = {nullptr};
  void (*kernels[])() = {leaves_some_out, leaves_the_first_out, mixes, leaves_others_out};
  if (which == 4) leaves_others_out<<<2, 32>>>();
  else cudaLaunchCooperativeKernel((const void*)kernels[which], dim3(2), dim3(32), args, 0, 0);
  return cudaDeviceSynchronize();
}
}
