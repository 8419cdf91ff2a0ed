// Old reductions that rely on a warp in lockstep through volatile, without __syncwarp.
#include <cuda_runtime.h>
template <unsigned B, typename T>
__device__ void warpReduce(volatile T* sdata, unsigned tid) {
  if (B >= 64) sdata[tid] += sdata[tid + 32];
  if (B >= 32) sdata[tid] += sdata[tid + 16];
  sdata[tid] += sdata[tid + 8]; sdata[tid] += sdata[tid + 4];
  sdata[tid] = sdata[tid] + sdata[tid + 2];
  sdata[tid] +=
    sdata[tid + 1];
}
__global__ void red(const float* x, float* y) {
  extern __shared__ float s[];
  unsigned t = threadIdx.x;
  s[t] = x[blockIdx.x * 256 + t];
  __syncthreads();
  for (unsigned k = 128; k > 32; k >>= 1) { if (t < k) s[t] += s[t + k]; __syncthreads(); }
  if (t < 32) warpReduce<256>(s, t);
  if (t == 0) y[blockIdx.x] = s[0];
}
__global__ void red2(const float* x, float* y) {
  __shared__ volatile float s[256];
  unsigned t = threadIdx.x;
  float mine = x[blockIdx.x * 256 + t];
  s[t] = mine;
  __syncthreads();
  for (unsigned k = 128; k > 32; k >>= 1) { if (t < k) s[t] = mine = mine + s[t + k]; __syncthreads(); }
  if (t < 32) {
    s[t] = mine = mine + s[t + 32]; s[t] = mine = mine + s[t + 16]; s[t] = mine = mine + s[t + 8];
    s[t] = mine = mine + s[t + 4]; s[t] = mine = mine + s[t + 2]; s[t] = mine = mine + s[t + 1];
  }
  if (t == 0) y[blockIdx.x] = s[0];
}
extern "C" void h_lockstep_pointer(const float* x, float* y, int blocks) { red<<<blocks, 256, 1024>>>(x, y); }
extern "C" void h_lockstep_array(const float* x, float* y, int blocks) { red2<<<blocks, 256>>>(x, y); }
