// half, half2, bfloat16 and bfloat162.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

__global__ void half_round_trip(float* out) {  // every bit pattern
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  half h = __ushort_as_half((unsigned short)i);
  out[i] = __half2float(h);
  if (!__hisnan(h) && __half_as_ushort(__float2half(out[i])) != i) out[i] = -12345.0f;
}
__global__ void from_float(const float* x, half* h, __nv_bfloat16* b, half* directed, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  h[i] = __float2half(x[i]);
  b[i] = __float2bfloat16(x[i]);
  directed[i * 3] = __float2half_rz(x[i]);
  directed[i * 3 + 1] = __float2half_ru(x[i]);
  directed[i * 3 + 2] = __float2half_rd(x[i]);
}

__global__ void from_double(const double* x, half* h) { h[threadIdx.x] = __double2half(x[threadIdx.x]); }

template <typename T>
__global__ void operators(const T* a, const T* b, T* y, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  T* out = y + i * 16;
  *out++ = a[i] + b[i];
  *out++ = a[i] - b[i];
  *out++ = a[i] * b[i];
  *out++ = a[i] / b[i];
  *out++ = -a[i];
  *out++ = __hfma(a[i], b[i], a[i]);
  *out++ = __hmax(a[i], b[i]);
  *out++ = a[i] < b[i] ? T(1.0f) : T(0.0f);
  *out++ = hexp(a[i]);
  *out++ = hsqrt(__habs(b[i]));
  *out++ = T((float)a[i] + 1.0f);
  T sum = a[i];
  sum += b[i];
  *out++ = sum;
  *out++ = T(3);
  *out++ = htanh(a[i]);
}

__global__ void pairs(const half2* x, half2* y, const __nv_bfloat162* b, __nv_bfloat162* c) {
  int i = threadIdx.x;
  half2 v = x[i];
  float2 f = __half22float2(v);
  half2 w = __floats2half2_rn(f.x + 1, f.y + 2);
  y[i] = __hfma2(v, w, __half2half2(__low2half(v))) + __lowhigh2highlow(v);
  if (__hbgt2(w, v)) y[i] = y[i] * __float2half2_rn(2.0f);
  __nv_bfloat162 p = b[i];
  c[i] = __hadd2(p, __floats2bfloat162_rn(__high2float(p), __low2float(p)));
}
__global__ void half_atomics(half* h, half2* h2, __nv_bfloat16* b) {
  atomicAdd(h, __float2half(1.0f));
  atomicAdd(h2, __floats2half2_rn(1.0f, 2.0f));
  atomicAdd(b, __float2bfloat16(1.0f));
}

extern "C" void h_round_trip(float* out) { half_round_trip<<<256, 256>>>(out); }
extern "C" void h_from_float(const float* x, void* h, void* b, void* directed, int n) {
  from_float<<<(n + 255) / 256, 256>>>(x, (half*)h, (__nv_bfloat16*)b, (half*)directed, n);
}
extern "C" void h_half_operators(const void* a, const void* b, void* y, int n) {
  operators<<<1, 64>>>((const half*)a, (const half*)b, (half*)y, n);
}
extern "C" void h_bfloat_operators(const void* a, const void* b, void* y, int n) {
  operators<<<1, 64>>>((const __nv_bfloat16*)a, (const __nv_bfloat16*)b, (__nv_bfloat16*)y, n);
}
extern "C" void h_pairs(const void* x, void* y, const void* b, void* c) {
  pairs<<<1, 16>>>((const half2*)x, (half2*)y, (const __nv_bfloat162*)b, (__nv_bfloat162*)c);
}
extern "C" void h_half_atomics(void* h, void* h2, void* b) { half_atomics<<<4, 16>>>((half*)h, (half2*)h2, (__nv_bfloat16*)b); }
extern "C" void h_from_double(const double* x, void* h, int n) { from_double<<<1, n>>>(x, (half*)h); }
