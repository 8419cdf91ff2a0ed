// The runtime API around kernels.
#include <cuda_runtime.h>
#include <stdio.h>
#include <string.h>
#define CHECK(call) do { cudaError_t error = (call); if (error != cudaSuccess) { printf("%s\n", cudaGetErrorString(error)); return __LINE__; } } while (0)

__constant__ float weights[8];
__device__ float result[4];
__global__ void weigh(const float* x, float* y, int n) {
  int i = threadIdx.x;
  if (i < n) y[i] = x[i] * weights[i % 8];
  if (i < 4) result[i] = y[i];
}

extern "C" int h_everything(const float* x, float* y) {
  cudaStream_t stream;
  cudaEvent_t start, stop;
  CHECK(cudaStreamCreate(&stream));
  CHECK(cudaEventCreate(&start));
  CHECK(cudaEventCreateWithFlags(&stop, cudaEventDisableTiming));
  float *device_x, *device_y;
  CHECK(cudaMalloc(&device_x, 64 * sizeof(float)));
  CHECK(cudaMalloc((void**)&device_y, 64 * sizeof(float)));
  float host_weights[8];
  for (int i = 0; i < 8; ++i) host_weights[i] = i;
  CHECK(cudaMemcpyToSymbol(weights, host_weights, sizeof(host_weights)));
  CHECK(cudaMemcpyAsync(device_x, x, 64 * sizeof(float), cudaMemcpyHostToDevice, stream));
  CHECK(cudaMemsetAsync(device_y, 0, 64 * sizeof(float), stream));
  CHECK(cudaEventRecord(start, stream));
  weigh<<<1, 64, 0, stream>>>(device_x, device_y, 60);
  CHECK(cudaGetLastError());
  CHECK(cudaEventRecord(stop));
  CHECK(cudaEventSynchronize(stop));
  CHECK(cudaStreamSynchronize(stream));
  float milliseconds = -1;
  CHECK(cudaEventElapsedTime(&milliseconds, start, stop));
  if (milliseconds < 0) return 1;
  CHECK(cudaMemcpy(y, device_y, 64 * sizeof(float), cudaMemcpyDeviceToHost));
  float seen[4];
  CHECK(cudaMemcpyFromSymbol(seen, result, sizeof(seen)));
  if (memcmp(seen, y, sizeof(seen)) != 0) return 2;
  CHECK(cudaFree(device_x));
  CHECK(cudaFree(device_y));
  if (cudaFree(device_y) != cudaErrorInvalidValue || cudaGetLastError() != cudaErrorInvalidValue) return 3;
  if (cudaMemcpyToSymbol(weights, host_weights, 64) == cudaSuccess) return 4;
  CHECK(cudaEventDestroy(start));
  CHECK(cudaStreamDestroy(stream));
  int device = -1, count = 0, value = 0, blocks = 0, grid = 0, block = 0;
  CHECK(cudaGetDevice(&device));
  CHECK(cudaSetDevice(0));
  CHECK(cudaGetDeviceCount(&count));
  cudaDeviceProp properties;
  CHECK(cudaGetDeviceProperties(&properties, device));
  if (properties.major != 9 || properties.warpSize != 32 || properties.multiProcessorCount != 132) return 5;
  CHECK(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
  if (value != 232448 || count != 1) return 6;
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, weigh, 256, 0));
  CHECK(cudaOccupancyMaxPotentialBlockSize(&grid, &block, weigh, 0, 0));
  if (blocks != 8 || block != 1024) return 7;
  cudaFuncAttributes attributes;
  CHECK(cudaFuncGetAttributes(&attributes, weigh));
  CHECK(cudaFuncSetCacheConfig(weigh, cudaFuncCachePreferShared));
  if (strcmp(cudaGetErrorName(cudaErrorInvalidValue), "cudaErrorInvalidValue") != 0) return 8;
  CHECK(cudaDeviceSynchronize());
  return cudaSetDevice(3) == cudaErrorInvalidDevice && cudaGetLastError() == cudaErrorInvalidDevice ? 0 : 9;
}
__global__ void prints() { if (threadIdx.x == 1) printf("thread %d of %d\n", threadIdx.x, (int)blockDim.x); }
extern "C" int h_prints() { prints<<<1, 2>>>(); return cudaDeviceSynchronize(); }
