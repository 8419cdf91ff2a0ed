// Kernels that go wrong; each entry allocates its own device memory.
#include <assert.h>
#include <cuda_runtime.h>

__global__ void no_bounds_check(float* y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = 1.0f;
}
__global__ void reads_at(const float* x, float* y, int i) { y[0] = x[i]; }
__global__ void shared_row_too_many(float* y, int row) {
  __shared__ float before[32][32];
  __shared__ float tile[32][32];
  before[threadIdx.x][0] = 1.0f;
  tile[row][threadIdx.x] = 1.0f;
  y[threadIdx.x] = tile[row][threadIdx.x] + before[0][0];
}
__global__ void dynamic_at(int i) {
  extern __shared__ float data[];
  data[i] = 1.0f;
}
__global__ void half_of_the_warp_shuffles(int* y) {
  if (threadIdx.x < 16) y[threadIdx.x] = __shfl_sync(0xffffffff, 1, 0);
  else __syncthreads();
}
__global__ void not_in_its_mask(int* y) { y[threadIdx.x] = __shfl_sync(0x1, 5, 0); }
__global__ void traps(int i) { if (blockIdx.x == 2 && threadIdx.x == 3) __trap(); }
__global__ void asserts(int n) { assert(threadIdx.x < n && "n is big enough"); }
__device__ int deep(int n, int* sink) {
  int local[512];
  for (int i = 0; i < 512; ++i) local[i] = sink[0] + i;
  sink[0] = local[n & 511];
  return n == 0 ? 0 : deep(n - 1, sink) + local[(n * 7) & 511];
}
__global__ void recurses(int* y, int n) { y[0] = deep(n, y); }
__global__ void divides(int* y, int by) { y[0] = 7 / by; }
__global__ void misaligned(float* x, int offset) {
  float4 v = *reinterpret_cast<float4*>(x + offset);
  *reinterpret_cast<float4*>(x + offset + 4) = v;
}
__global__ void too_much_shared(float* y) {
  __shared__ float big[12289];
  big[threadIdx.x] = 1.0f;
  y[0] = big[0];
}
__global__ void fine(float* y) { y[threadIdx.x] = 1.0f; }

template <typename T>
static T* device(int n) {
  T* data = nullptr;
  cudaMalloc(&data, n * sizeof(T));
  return data;
}

extern "C" int h_no_bounds_check(int n) { no_bounds_check<<<(n + 255) / 256, 256>>>(device<float>(n)); return 0; }
extern "C" int h_reads_at(int n, int i) {
  float* y = device<float>(1);
  reads_at<<<1, 1>>>(device<float>(n), y, i);
  return y[0] != y[0] ? -1 : 1;
}
extern "C" int h_shared_row(int row) { shared_row_too_many<<<1, 32>>>(device<float>(32), row); return 0; }
extern "C" int h_dynamic_at(int bytes, int i) { dynamic_at<<<1, 1, bytes>>>(i); return 0; }
extern "C" int h_half_warp() { half_of_the_warp_shuffles<<<1, 32>>>(device<int>(32)); return 0; }
extern "C" int h_not_in_mask() { not_in_its_mask<<<1, 32>>>(device<int>(32)); return 0; }
extern "C" int h_traps() { traps<<<4, 32>>>(0); return 0; }
extern "C" int h_asserts(int n) { asserts<<<1, 32>>>(n); return 0; }
extern "C" int h_recurses(int n) { recurses<<<1, 1>>>(device<int>(1), n); return 0; }
extern "C" int h_divides(int by) { divides<<<1, 1>>>(device<int>(1), by); return 0; }
extern "C" int h_misaligned(int offset) { misaligned<<<1, 1>>>(device<float>(64), offset); return 0; }
extern "C" int h_null() { fine<<<1, 1>>>(nullptr); return 0; }
extern "C" int h_freed() {
  float* y = device<float>(64);
  cudaFree(y);
  fine<<<1, 64>>>(y);
  return 0;
}
extern "C" int h_too_much_shared() { too_much_shared<<<1, 32>>>(device<float>(1)); return 0; }
extern "C" int h_configuration(int gx, int gy, int bx, int bz) {
  fine<<<dim3(gx, gy), dim3(bx, 1, bz)>>>(device<float>(4096));
  int first = cudaGetLastError();
  return first * 1000 + cudaGetLastError();
}
