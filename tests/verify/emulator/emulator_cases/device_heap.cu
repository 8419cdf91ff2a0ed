// Memory that kernels take by malloc and new.
#include <cuda_runtime.h>

__device__ void* kept;

// How many threads get none, where each holds as much until its block's others have theirs; `times` one after the other.
__global__ void holds(int* without, int bytes, int times) {
  for (int i = 0; i < times; ++i) {
    char* own = static_cast<char*>(malloc(bytes));
    if (own == nullptr) atomicAdd(without, 1);
    __syncthreads();
    free(own);
  }
}
__global__ void holds_new(int* without, int bytes, int times) {
  for (int i = 0; i < times; ++i) {
    char* own = new char[bytes];
    if (own == nullptr) atomicAdd(without, 1);
    __syncthreads();
    delete[] own;
  }
}
__global__ void keeps(int* without, int bytes) {
  kept = malloc(bytes);
  if (kept == nullptr) atomicAdd(without, 1);
}
__global__ void gives_back() { free(kept); }
__global__ void looks(int* without, int bytes) {
  const float* own = static_cast<float*>(malloc(bytes));
  if (own[bytes / 4 - 1] == 0.0f) atomicAdd(without, 1);
}

static int* counter() {
  int* without;
  cudaMalloc(&without, sizeof(int));
  cudaMemset(without, 0, sizeof(int));
  return without;
}
static int count(int* without) {
  int found;
  cudaMemcpy(&found, without, sizeof found, cudaMemcpyDeviceToHost);
  cudaFree(without);
  return found;
}

extern "C" int h_holds(int blocks, int threads, int bytes, int times, int by_new) {
  int* without = counter();
  if (by_new) holds_new<<<blocks, threads>>>(without, bytes, times);
  else holds<<<blocks, threads>>>(without, bytes, times);
  return count(without);
}
extern "C" int h_raised(int megabytes, int blocks, int threads, int bytes) {
  size_t before, now;
  cudaDeviceGetLimit(&before, cudaLimitMallocHeapSize);
  cudaDeviceSetLimit(cudaLimitMallocHeapSize, size_t(megabytes) << 20);
  cudaDeviceGetLimit(&now, cudaLimitMallocHeapSize);
  const int without = h_holds(blocks, threads, bytes, 1, 0);
  cudaDeviceSetLimit(cudaLimitMallocHeapSize, before);
  return before == 8 << 20 && now == size_t(megabytes) << 20 ? without : -1;
}
// What one launch keeps, the next lacks, until it is given back.
extern "C" int h_keeps(int bytes) {
  int *first = counter(), *second = counter(), *third = counter();
  keeps<<<1, 1>>>(first, bytes);
  holds<<<1, 1>>>(second, bytes, 1);
  gives_back<<<1, 1>>>();
  holds<<<1, 1>>>(third, bytes, 1);
  return count(first) + 10 * count(second) + 100 * count(third);
}
extern "C" int h_looks(int bytes) {
  int* without = counter();
  looks<<<1, 1>>>(without, bytes);
  return count(without);
}
