// What nvcc refuses and the emulator can only refuse when it runs.
#include <cuda_runtime.h>

__global__ void fine(float* y) { y[threadIdx.x] = 1.0f; }
__device__ void helper(float* y) { fine(y); }
__global__ void calls_a_kernel(float* y) { helper(y); }
extern "C" int h_without_configuration() { fine(nullptr); return 0; }
extern "C" int h_from_a_kernel() { calls_a_kernel<<<1, 1>>>(nullptr); return 0; }
