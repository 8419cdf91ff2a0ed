// Grids, launches and the shapes in which kernels are written.
#include <cuda_runtime.h>

struct Scale { float factor; int offset; };

namespace inner {
namespace deep {
template <typename T>
__global__ void fill(T* y, T value, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = value;
}
}  // namespace deep
}  // namespace inner

__global__ void where(int* out) {
  int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  int size = blockDim.x * blockDim.y * blockDim.z;
  out[block * size + thread] = block * 1000 + thread + 1000000 * warpSize;
}

static __global__ void __launch_bounds__(128, 2) changes_its_parameters(const float* __restrict__ x, float* y, int n) {
  x += blockIdx.x * n;
  y += blockIdx.x * n;
  n -= 1;
  for (int i = threadIdx.x; i <= n; i += blockDim.x) y[i] = x[i] + n;
}

__global__ void arrivals(int* turn, int* out) { out[atomicAdd(turn, 1)] = blockIdx.x * 100 + threadIdx.x; }

__device__ __forceinline__ float twice(float x) { return 2.0f * x; }
__host__ __device__ inline float plus_one(float x) {
#ifdef __CUDA_ARCH__
  return x + 1.0f;
#else
  return x + 1.0f;
#endif
}
__noinline__ __device__ float slow(float x) { return x - 3.0f; }
__constant__ float table[4] = {1, 2, 3, 4};
__device__ int counter = 0;

extern "C" __global__ void mixed(float* y, Scale s, float x) {
  y[threadIdx.x] = plus_one(twice(x)) * s.factor + s.offset + table[threadIdx.x % 4] + slow(3.0f);
  if (threadIdx.x == 0) counter += 7;
}

template <typename T, int BLOCK, bool ADD>
__global__ void __launch_bounds__(BLOCK) templated(T* y, int n) {
  const int i = blockIdx.x * BLOCK + threadIdx.x;
  if (i >= n) return;
  if constexpr (ADD) {
    y[i] += T(BLOCK);
  } else {
    y[i] = T(BLOCK);
  }
}

__global__ void overloaded(float* y) { y[threadIdx.x] = 1.0f; }
__global__ void overloaded(int* y) { y[threadIdx.x] = 2; }

template <typename F>
__global__ void apply(float* y, int n, F f) {
  int i = threadIdx.x;
  if (i < n) y[i] = f(y[i]);
}
struct Triple { __device__ float operator()(float v) const { return 3 * v; } };

template <typename... P>
__global__ void sums(float* y, P... rest) { y[threadIdx.x] = (0.0f + ... + rest); }

#define DEFINE_UNARY(NAME, EXPRESSION)                  \
  __global__ void NAME##_kernel(float* y, int n) {      \
    int i = blockIdx.x * blockDim.x + threadIdx.x;      \
    if (i < n) { float v = y[i]; y[i] = EXPRESSION; }   \
  }
DEFINE_UNARY(negate, -v)
DEFINE_UNARY(square, v * v)

#define KERNEL __global__ void
KERNEL through_macro(float* y) { y[threadIdx.x] = 5; }

#define DISPATCH(TYPE, ...) [&] { using scalar_t = TYPE; __VA_ARGS__(); }()
#define LAUNCH(kernel, grid, block, ...) kernel<<<grid, block>>>(__VA_ARGS__)

extern "C" void h_where(int* out) { where<<<dim3(2, 3, 2), dim3(4, 2, 3)>>>(out); }
extern "C" void h_braces(int* out) { where<<<{2, 3, 2}, {4, 2, 3}>>>(out); }
extern "C" void h_parameters(const float* x, float* y, int rows, int n) { changes_its_parameters<<<rows, 128>>>(x, y, n); }
extern "C" void h_fill(float* y, int n) {
  cudaStream_t stream = 0;
  inner::deep::fill<float><<<(n + 255) / 256, 256, 0, stream>>>(y, 2.5f, n);
}
extern "C" void h_deduced(float* y, int n) { ::inner::deep::fill<<<(n + 31) / 32, 32>>>(y, 4.5f, n); }
extern "C" int h_mixed(float* y) {
  mixed<<<1, 8>>>(y, Scale{10.0f, 100}, 1.0f);
  int seen = 0;
  cudaMemcpyFromSymbol(&seen, counter, sizeof(int));
  return seen;
}
extern "C" void h_templated(float* y, int n) {
  const int threads = 64;
  DISPATCH(float, [&] {
    templated<scalar_t, threads, false><<<(n + threads - 1) / threads, threads>>>(y, n);
    templated<scalar_t, 32, (3 > 2)><<<(n + 31) / 32, 32>>>(
        y, n);
  });
}
extern "C" void h_overloaded(float* f, int* i) {
  overloaded<<<1, 4>>>(f);
  overloaded<<<1, 4>>>(i);
}
extern "C" void h_functor(float* y, int n) { apply<<<1, 32>>>(y, n, Triple()); }
extern "C" void h_pack(float* y) { sums<<<1, 2>>>(y, 1, 2.5f, 3u); }
extern "C" void h_macros(float* y, int n) {
  negate_kernel<<<1, 32>>>(y, n);
  LAUNCH(square_kernel, 1, 32, y, n);
  through_macro<<<1, 1>>>(y);
}
extern "C" void h_pointer(float* y, bool squared) {
  auto kernel = squared ? square_kernel : negate_kernel;
  kernel<<<1, 32>>>(y, 4);
  void (*table[2])(float*, int) = {negate_kernel, square_kernel};
  table[1]<<<1, 32>>>(y, 4);
}
extern "C" void h_launch_api(float* y, int n) {
  float value = 6.0f;
  void* arguments[] = {&y, &value, &n};
  cudaLaunchKernel((void*)inner::deep::fill<float>, dim3(1), dim3(32), arguments, 0, 0);
}
static float* fill_first(float* y) {
  inner::deep::fill<<<1, 32>>>(y, 1.0f, 4);
  return y;
}
extern "C" void h_nested_argument(float* y) { square_kernel<<<1, 32>>>(fill_first(y) + 1, 2), negate_kernel<<<1, 32>>>(y, 4); }
extern "C" void h_arrivals(int* turn, int* out, int threads) { arrivals<<<1, threads>>>(turn, out); }

#define OPERATION(name, expression)                                                          \
  __global__ void op_##name(float* y) { const float v = y[threadIdx.x]; y[threadIdx.x] = expression; } \
  extern "C" void h_op_##name(float* y) { op_##name<<<1, 4>>>(y); }
OPERATION(halve, v / 2)
