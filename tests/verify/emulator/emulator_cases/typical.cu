// The kernels that language models write most: softmax, matmul, convolution, activations, vector loads.
#include <cuda_runtime.h>
#include <cuda_fp16.h>
#include <cfloat>
#include <cmath>
#include <algorithm>
#include <vector>
using namespace std;
#define BLOCK_SIZE 256
#define CEIL_DIV(a, b) (((a) + (b) - 1) / (b))
#define CUDA_CHECK(x) do { cudaError_t e_ = (x); if (e_ != cudaSuccess) return; } while (0)
namespace {
template <typename scalar_t> __device__ __forceinline__ scalar_t sigmoid(scalar_t z) { return 1.0 / (1.0 + exp(-z)); }
enum class Act { Relu, Gelu };
template <Act A> struct ActFn;
template <> struct ActFn<Act::Relu> { static __device__ __forceinline__ float apply(float x) { return fmaxf(x, 0.f); } };
template <> struct ActFn<Act::Gelu> { __device__ static float apply(float x) { return 0.5f * x * (1.0f + erff(x * M_SQRT1_2)); } };
struct __align__(8) MD { float m; float d; };
__device__ __forceinline__ MD combine(MD a, MD b) { bool big = a.m > b.m; MD x = big ? a : b, y = big ? b : a; MD r; r.d = x.d + y.d * __expf(y.m - x.m); r.m = x.m; return r; }
template <int THREADS>
__launch_bounds__(THREADS) __global__ void online_softmax(const float* __restrict__ x, float* __restrict__ y, const int V) {
  x += blockIdx.x * V; y += blockIdx.x * V;
  MD p; p.m = -FLT_MAX; p.d = 0.f;
  for (int i = threadIdx.x; i < V; i += THREADS) { MD n; n.m = x[i]; n.d = 1.0f; p = combine(p, n); }
  #pragma unroll
  for (int o = 16; o > 0; o >>= 1) { MD q; q.m = __shfl_xor_sync(0xffffffffu, p.m, o); q.d = __shfl_xor_sync(0xffffffffu, p.d, o); p = combine(p, q); }
  __shared__ MD sm[THREADS / 32 > 0 ? THREADS / 32 : 1];
  const int lane = threadIdx.x & 31, w = threadIdx.x >> 5;
  if (!lane) sm[w] = p;
  __syncthreads();
  if (w == 0) { p = lane < THREADS / 32 ? sm[lane] : MD{-FLT_MAX, 0.f};
    for (int o = 16; o; o >>= 1) { MD q{__shfl_xor_sync(~0u, p.m, o), __shfl_xor_sync(~0u, p.d, o)}; p = combine(p, q); }
    if (lane == 0) sm[0] = p; }
  __syncthreads();
  const float inv = __fdividef(1.0F, sm[0].d), m = sm[0].m;
  for (int i = threadIdx.x; i < V; i += THREADS) y[i] = __expf(x[i] - m) * inv;
}
template <typename T> __global__ void smem_a(const T* a, T* o) { extern __shared__ __align__(sizeof(double)) unsigned char my_smem[]; T* s = reinterpret_cast<T*>(my_smem); s[threadIdx.x] = a[threadIdx.x]; __syncthreads(); o[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x]; }
__global__ void smem_b(const int* a, int* o) { extern __shared__ int sdata[]; sdata[threadIdx.x] = a[threadIdx.x]; __syncthreads(); o[threadIdx.x] = sdata[0]; }
__global__ void smem_c(const float* a, float* o) { extern __shared__ float row[]; auto add = [&](int i) { row[i] += 1.0f; }; row[threadIdx.x] = a[threadIdx.x]; add(threadIdx.x); __syncthreads(); o[threadIdx.x] = row[0]; }
}
template <const int BM, const int BN, const int BK, const int TM, const int TN>
__global__ void __launch_bounds__((BM * BN) / (TM * TN), 1) sgemm(int M, int N, int K, float alpha, float* A, float* B, float beta, float* C) {
  const uint cRow = blockIdx.y; const uint cCol = blockIdx.x;
  __shared__ float As[BM * BK]; __shared__ float Bs[BK * BN];
  A += cRow * BM * K; B += cCol * BN; C += cRow * BM * N + cCol * BN;
  const uint innerRowA = threadIdx.x / (BK / 4), innerColA = threadIdx.x % (BK / 4);
  const uint innerRowB = threadIdx.x / (BN / 4), innerColB = threadIdx.x % (BN / 4);
  const int threadCol = threadIdx.x % (BN / TN), threadRow = threadIdx.x / (BN / TN);
  float threadResults[TM * TN] = {0.0}; float regM[TM] = {0.0}; float regN[TN] = {0.0};
  for (uint bk = 0; bk < K; bk += BK) {
    float4 tmp = reinterpret_cast<float4 *>(&A[innerRowA * K + innerColA * 4])[0];
    As[(innerColA * 4 + 0) * BM + innerRowA] = tmp.x; As[(innerColA * 4 + 1) * BM + innerRowA] = tmp.y;
    As[(innerColA * 4 + 2) * BM + innerRowA] = tmp.z; As[(innerColA * 4 + 3) * BM + innerRowA] = tmp.w;
    reinterpret_cast<float4 *>(&Bs[innerRowB * BN + innerColB * 4])[0] = reinterpret_cast<float4 *>(&B[innerRowB * N + innerColB * 4])[0];
    __syncthreads();
    A += BK; B += BK * N;
    for (uint d = 0; d < BK; ++d) {
      for (uint i = 0; i < TM; ++i) regM[i] = As[d * BM + threadRow * TM + i];
      for (uint i = 0; i < TN; ++i) regN[i] = Bs[d * BN + threadCol * TN + i];
      for (uint a = 0; a < TM; ++a) for (uint b = 0; b < TN; ++b) threadResults[a * TN + b] += regM[a] * regN[b];
    }
    __syncthreads();
  }
  for (uint a = 0; a < TM; a += 1) for (uint b = 0; b < TN; b += 4) {
    float4 t = reinterpret_cast<float4 *>(&C[(threadRow * TM + a) * N + threadCol * TN + b])[0];
    t.x = alpha * threadResults[a * TN + b] + beta * t.x; t.y = alpha * threadResults[a * TN + b + 1] + beta * t.y;
    t.z = alpha * threadResults[a * TN + b + 2] + beta * t.z; t.w = alpha * threadResults[a * TN + b + 3] + beta * t.w;
    reinterpret_cast<float4 *>(&C[(threadRow * TM + a) * N + threadCol * TN + b])[0] = t;
  }
}
template <Act A> __global__ void act(const float4* __restrict__ in, float4* __restrict__ out, size_t n4, int64_t total) {
  for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n4; i += (size_t)gridDim.x * blockDim.x) {
    float4 v = __ldg(in + i); float* f = (float*)&v;
#pragma unroll 4
    for (int j = 0; j < 4; j++) f[j] = ActFn<A>::apply(f[j]);
    out[i] = v;
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) for (int64_t i = n4 * 4; i < total; ++i) ((float*)out)[i] = ActFn<A>::apply(((const float*)in)[i]);
}
__device__ __constant__ float kGauss[3][3] = {{1, 2, 1}, {2, 4, 2}, {1, 2, 1}};
__global__ void conv2d(const float* x, const float* w, const float* b, float* y, int N, int C, int H, int W, int O, int KH, int KW, int stride, int pad) {
  int ow = blockIdx.x * blockDim.x + threadIdx.x, oh = blockIdx.y * blockDim.y + threadIdx.y, no = blockIdx.z, n = no / O, o = no % O;
  int OH = (H + 2 * pad - KH) / stride + 1, OW = (W + 2 * pad - KW) / stride + 1;
  if (ow >= OW || oh >= OH) return;
  float acc = b ? b[o] : 0.0f;
  for (int c = 0; c < C; ++c) for (int i = 0; i < KH; ++i) for (int j = 0; j < KW; ++j) {
    const int ih = oh * stride - pad + i, iw = ow * stride - pad + j;
    if (ih >= 0 && ih < H && iw >= 0 && iw < W) acc = fmaf(x[((n * C + c) * H + ih) * W + iw], w[((o * C + c) * KH + i) * KW + j], acc);
  }
  y[((n * O + o) * OH + oh) * OW + ow] = acc + 0 * kGauss[1][1];
}
__global__ void half_vec(const __half* a, __half* o, int n) {
  int i = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
  if (i + 7 < n) { float4 raw = *reinterpret_cast<const float4*>(a + i); __half2* h = reinterpret_cast<__half2*>(&raw);
    #pragma unroll
    for (int k = 0; k < 4; ++k) h[k] = __hmul2(h[k], __float2half2_rn(2.0f));
    *reinterpret_cast<float4*>(o + i) = raw; }
}
template <typename T, typename F> __global__ void elementwise(T* o, const T* a, int n, F f) { const int idx = blockIdx.x * blockDim.x + threadIdx.x; if (idx < n) { o[idx] = f(a[idx]); } }
extern "C" void h_softmax(const float* x, float* y, int r, int v) { online_softmax<BLOCK_SIZE><<<r, BLOCK_SIZE>>>(x, y, v); CUDA_CHECK(cudaGetLastError()); }
extern "C" void h_sgemm(float* a, float* b, float* c, int n) { dim3 grid(CEIL_DIV(n, 64), CEIL_DIV(n, 64)); sgemm<64, 64, 8, 8, 4><<<grid, dim3((64 * 64) / (8 * 4))>>>(n, n, n, 1.f, a, b, 0.f, c); }
extern "C" void h_act(const float* x, float* y, int n, bool gelu) {
  const int threads = 256; const auto blocks = std::min<int>((n / 4 + threads - 1) / threads, 1024);
  if (gelu) act<Act::Gelu><<<std::max(1, blocks), threads>>>((const float4*)x, (float4*)y, n / 4, n); else act<Act::Relu><<<std::max(1, blocks), threads>>>(reinterpret_cast<const float4*>(x), reinterpret_cast<float4*>(y), n / 4, n);
}
extern "C" void h_conv(const float* x, const float* w, const float* b, float* y, int N, int C, int H, int W, int O) {
  dim3 block(16, 16), grid((W + 15) / 16, (H + 15) / 16, N * O); conv2d<<<grid, block, 0, (cudaStream_t)0>>>(x, w, b, y, N, C, H, W, O, 3, 3, 1, 1);
}
extern "C" void h_misc(float* a, int* b, void* h) {
  smem_a<<<1, 32, 32 * sizeof(float)>>>(a, a); smem_b<<<1, 32, 32 * sizeof(int)>>>(b, b); smem_c<<<1, 32, 128>>>(a, a);
  half_vec<<<1, 4>>>((__half*)h, (__half*)h, 32);
}
