// Every way of declaring shared memory.
#include <cuda_runtime.h>

struct Pair { float value; int index; };
template <typename T> struct Traits { struct Storage { T data[32]; }; };

extern __shared__ __align__(16) unsigned char arena[];
__shared__ int at_namespace_scope[64];

template <typename T, int N>
__global__ void reverse(const T* x, T* y) {
  __shared__ T tile[N], second[2][N + 1], scalar;
  __shared__ typename Traits<T>::Storage storage;
  int t = threadIdx.x;
  tile[t] = x[t];
  second[1][t] = x[t] * 2;
  storage.data[t] = x[t];
  if (t == 0) scalar = x[0];
  __syncthreads();
  y[t] = tile[N - 1 - t] + second[1][N - 1 - t] + scalar + storage.data[t];
}

__global__ void structs(const float* x, int* out) {
  __shared__ Pair best[64];
  static __shared__ __align__(16) float4 wide[16];
  __shared__ volatile int flag;
  __shared__ union { float f; int i; } bits;
  __shared__ struct { int a, b; } local;
  __shared__ float* pointer;
  int t = threadIdx.x;
  best[t] = {x[t], t};
  reinterpret_cast<float*>(wide)[t] = x[t];
  if (t == 0) { flag = 5; bits.f = 1.0f; local.a = 1; local.b = 2; pointer = &best[63].value; }
  __syncthreads();
  for (int k = 32; k > 0; k /= 2) {
    if (t < k && best[t + k].value > best[t].value) best[t] = best[t + k];
    __syncthreads();
  }
  if (t == 0) {
    out[0] = best[0].index;
    out[1] = flag + bits.i + local.a + local.b;
    out[2] = (int)wide[15].w;
    out[3] = (int)*pointer;
  }
}

__device__ float block_sum(float v) {
  __shared__ float partial[32];
  for (int o = 16; o > 0; o >>= 1) v += __shfl_down_sync(0xffffffff, v, o);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
  __syncthreads();
  v = threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0.0f;
  if (threadIdx.x < 32)
    for (int o = 16; o > 0; o >>= 1) v += __shfl_down_sync(0xffffffff, v, o);
  __syncthreads();
  return v;
}
__global__ void sum_rows(const float* x, float* y, int n) {
  float v = 0, w = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) { v += x[blockIdx.x * n + i]; w += 1; }
  v = block_sum(v);
  w = block_sum(w);
  if (threadIdx.x == 0) y[blockIdx.x] = v / w;
}

template <typename T>
__global__ void dynamic_in_function(const T* x, T* y, int n) {
  extern __shared__ char raw[];
  T* data = reinterpret_cast<T*>(raw);
  int t = threadIdx.x;
  data[t] = x[t];
  __syncthreads();
  y[t] = data[n - 1 - t];
}
__global__ void dynamic_rows(const float* x, float* y) {
  extern __shared__ float rows[][8];
  rows[threadIdx.y][threadIdx.x] = x[threadIdx.y * 8 + threadIdx.x];
  __syncthreads();
  y[threadIdx.x * 4 + threadIdx.y] = rows[threadIdx.y][threadIdx.x];
}
__device__ float read_arena(int i) { return ((float*)arena)[i]; }
__global__ void dynamic_at_namespace(const float* x, float* y, int n) {
  float* first = (float*)arena;
  int* second = (int*)&first[n];
  int t = threadIdx.x;
  first[t] = x[t];
  second[t] = t;
  at_namespace_scope[t] = 3;
  __syncthreads();
  y[t] = read_arena(n - 1 - t) + second[n - 1 - t] + at_namespace_scope[n - 1 - t];
}
__global__ void big_dynamic(float* y, int n) {
  extern __shared__ float big[];
  big[n - 1] = 9.0f;
  y[0] = big[n - 1];
}
__global__ void unwritten(float* y) {
  __shared__ float never[4];
  extern __shared__ float neither[];
  y[0] = never[1];
  y[1] = neither[1];
}

__global__ void every_other_block_writes(float* y) {
  __shared__ float kept[4];
  if (blockIdx.x % 2 == 0) kept[threadIdx.x] = 1.0f;
  y[blockIdx.x * 4 + threadIdx.x] = kept[threadIdx.x];
}

extern "C" void h_reverse(const float* x, float* y) { reverse<float, 32><<<1, 32>>>(x, y); }
extern "C" void h_structs(const float* x, int* out) { structs<<<1, 64>>>(x, out); }
extern "C" void h_sum_rows(const float* x, float* y, int rows, int n) { sum_rows<<<rows, 96>>>(x, y, n); }
extern "C" void h_dynamic(const double* x, double* y, int n) { dynamic_in_function<double><<<1, n, n * sizeof(double)>>>(x, y, n); }
extern "C" void h_dynamic_rows(const float* x, float* y) { dynamic_rows<<<1, dim3(8, 4), 4 * 8 * sizeof(float)>>>(x, y); }
extern "C" void h_dynamic_at_namespace(const float* x, float* y, int n) {
  dynamic_at_namespace<<<1, n, n * (sizeof(float) + sizeof(int))>>>(x, y, n);
}
extern "C" int h_big_dynamic(float* y, int kilobytes, bool ask) {
  int bytes = kilobytes * 1024;
  if (ask) {
    cudaError_t error = cudaFuncSetAttribute(big_dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) return 1000 + cudaGetLastError();
  }
  big_dynamic<<<1, 1, bytes>>>(y, bytes / 4);
  return cudaGetLastError();
}
extern "C" void h_unwritten(float* y) { unwritten<<<1, 1, 16>>>(y); }
extern "C" void h_every_other_block(float* y, int blocks) { every_other_block_writes<<<blocks, 4>>>(y); }

template <int half> __global__ void __launch_bounds__(2 * half, 1) bounded(float* y) { y[threadIdx.x] = 1.0f; }
extern "C" int h_bounded(float* y, int threads) {
  bounded<32><<<1, threads>>>(y);
  return cudaGetLastError();
}
extern "C" int h_bounds() {
  cudaFuncAttributes attributes;
  cudaFuncGetAttributes(&attributes, bounded<32>);
  return attributes.maxThreadsPerBlock;
}

// The sum of a block, twice through the same array: who is slow reads the second one's parts for the first one's.
template <bool waits> __device__ float block_sum(float v, float* parts) {
  for (int o = 16; o > 0; o /= 2) v += __shfl_xor_sync(~0u, v, o);
  if (waits) __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
  __syncthreads();
  float sum = 0;
  for (int w = 0; w < blockDim.x / 32; ++w) sum += parts[w];
  return sum;
}
template <bool waits> __global__ void sums_twice(const float* x, float* y) {
  __shared__ float parts[4];
  const float once = block_sum<waits>(x[threadIdx.x], parts);
  const float twice = block_sum<waits>(x[threadIdx.x] + 1, parts);
  y[threadIdx.x] = once + 1000 * twice;
}
extern "C" void h_sums_twice(const float* x, float* y, bool waits) {
  if (waits) sums_twice<true><<<1, 128>>>(x, y);
  else sums_twice<false><<<1, 128>>>(x, y);
}
// A warp that waits for what the last thread of the block writes, and meets over and over meanwhile.
__global__ void waits_by_meeting(float* y) {
  __shared__ int come;
  if (threadIdx.x == 0) come = 0;
  __syncthreads();
  if (threadIdx.x >= 32) atomicExch(&come, 1);
  else while (__any_sync(~0u, atomicAdd(&come, 0) == 0)) {}
  y[threadIdx.x] = come;
}
extern "C" void h_waits_by_meeting(float* y) { waits_by_meeting<<<1, 64>>>(y); }
