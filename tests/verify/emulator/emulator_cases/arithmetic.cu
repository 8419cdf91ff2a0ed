// Math functions, intrinsics, vector types and atomics.
#include <cuda_runtime.h>
#include <float.h>
#include <math_constants.h>

#define UNARY(X) X(sqrtf) X(rsqrtf) X(expf) X(exp2f) X(exp10f) X(expm1f) X(logf) X(log2f) X(log10f) X(log1pf) X(sinf) \
  X(cosf) X(tanf) X(asinhf) X(atanf) X(sinhf) X(coshf) X(tanhf) X(erff) X(erfcf) X(cbrtf) X(fabsf) X(floorf)         \
  X(ceilf) X(roundf) X(rintf) X(truncf) X(lgammaf) X(tgammaf) X(j0f) X(normcdff) X(sinpif) X(cospif) X(rcbrtf)       \
  X(__expf) X(__logf) X(__sinf) X(__cosf) X(__saturatef) X(__frsqrt_rn) X(__frcp_rn) X(__fsqrt_rn) X(erfcxf)

__global__ void unary(const float* x, float* y, int n, int rows) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int row = 0;
#define X(f) y[row++ * n + i] = f(x[i]);
  UNARY(X)
#undef X
  if (row != rows) __trap();
}

__global__ void generic(const float* x, float* y, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  float a = x[i], b = 0.75f;
  double d = a;
  float* out = y + i * 24;
  *out++ = exp(a) + sqrt(a) + log(a) + pow(a, 2) + powf(a, b) + pow(a, b);
  *out++ = (float)(exp(d) + rsqrt(d) + fabs(-d) + erf(d) + sinpi(d));
  *out++ = max(a, b) + min(a, b) + max(a, 0.5) + min(1, 2) + max(3u, 4) + min(5ll, 6ll) + fmaxf(a, NAN);
  *out++ = __fdividef(a, b) + fdividef(a, b) + __powf(a, b) + __fmaf_rn(a, b, 1.0f) + __fadd_rn(a, b) * __fmul_rn(a, b);
  *out++ = hypotf(a, b) + atan2f(a, b) + fmodf(a, b) + copysignf(a, -b) + remainderf(a, b) + fdimf(a, b);
  float s, c;
  sincosf(a, &s, &c);
  *out++ = s + 2 * c;
  __sincosf(a, &s, &c);
  *out++ = s + 2 * c;
  *out++ = erfinvf(a / 4) + erfcinvf(a / 4) + normcdfinvf(a / 4);
  *out++ = (float)(erfinv(d / 4) - erfinvf(a / 4));
  *out++ = isnan(a) + 2 * isinf(CUDART_INF_F) + 4 * isfinite(a) + 8 * (a < FLT_MAX) + 16 * signbit(-a);
  *out++ = abs(-3) + abs(-2.5f) + fabs(-1.5f) + abs(-4ll);
  *out++ = floor(a) + ceil(a) + round(a) + trunc(a) + lrintf(a);
  *out++ = norm3df(a, 1, 2) + rhypotf(a, 1) + cyl_bessel_i0f(a);
  *out++ = (float)M_PI * a + INFINITY * 0 + CUDART_PI_F;
}

__global__ void bits(int* out) {
  if (threadIdx.x != 0) return;
  *out++ = __popc(0xF0F0u) * 100 + __popcll(~0ull);
  *out++ = __ffs(8) * 1000 + __ffs(0) * 100 + __clz(1) + __clzll(1) * 10000;
  *out++ = (int)__brev(1u);
  *out++ = (int)__byte_perm(0x33221100u, 0x77665544u, 0x7531);
  *out++ = __float_as_int(1.0f);
  *out++ = __float2int_rn(2.5f) * 1000 + __float2int_rz(-2.7f) * 100 + __float2int_ru(2.1f) * 10 + __float2int_rd(2.9f);
  *out++ = __float2int_rz(1e30f);
  *out++ = __float2int_rn(NAN);
  *out++ = (int)(__int_as_float(0x40000000) * 10) + (int)__uint2float_rn(7u);
  *out++ = __mulhi(1 << 30, 16) * 100 + (int)__umulhi(1u << 31, 4u);
  *out++ = (int)__funnelshift_l(0x80000000u, 1u, 1) * 1000 + (int)__funnelshift_r(0u, 1u, 31);
  *out++ = __dp4a(0x01020304, 0x01010101, 5) + 100 * __dp4a(make_char4(-1, 2, 3, 4), make_char4(1, 1, 1, 2), 1) - (int)__dp4a(make_uchar4(255, 0, 0, 1), make_uchar4(2, 1, 1, 1), 0u);
  *out++ = (int)__double2int_rn(3.5) + __mul24(3, -4);
  *out++ = __hadd(3, 5) + __rhadd(3, 6) + (int)__sad(3, 8, 1);
  *out++ = (int)__double_as_longlong(1.0) + __double2hiint(1.0) + (int)__hiloint2double(0x3FF00000, 0);
}

__global__ void vectors(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i * 4 >= n) return;
  float4 v = reinterpret_cast<const float4*>(x)[i];
  float2 w = make_float2(v.x, v.y);
  int3 k = make_int3(1, 2, 3);
  uchar4 u = make_uchar4(1, 2, 3, 4);
  longlong2 q = {5, 6};
  v = make_float4(v.w + k.z, v.z + u.w, w.y + q.x, w.x + sizeof(float3) + alignof(double2));
  __stcs(reinterpret_cast<float4*>(y) + i, v);
  y[i * 4] += __ldg(&x[i * 4]) - __ldcs(x + i * 4);
}

__global__ void atomics(int* i, unsigned* u, unsigned long long* l, float* f, double* d) {
  int t = blockIdx.x * blockDim.x + threadIdx.x;
  atomicAdd(&i[0], 1);
  atomicSub(&i[1], 2);
  atomicMax(&i[2], t);
  atomicMin(&i[3], -t);
  atomicOr(&i[4], 1 << (t % 20));
  atomicAnd(&i[5], ~(1 << (t % 3)));
  atomicXor(&i[6], t);
  int seen = i[7], expected;
  do { expected = seen; seen = atomicCAS(&i[7], expected, expected + 3); } while (seen != expected);
  atomicAdd_block(&i[8], 1);
  atomicAdd_system(&i[9], 1);
  atomicInc(&u[0], 99);
  atomicDec(&u[1], 9);
  atomicMax(&u[2], 4000000000u);
  if (atomicExch(&u[3], 1u) == 0) u[4] = 1;
  atomicAdd(&l[0], 1ull << 33);
  atomicMax(&l[1], (unsigned long long)t);
  atomicAdd(&f[0], 0.5f);
  atomicExch(&f[1], 8.0f);
  atomicAdd(&d[0], 0.25);
  int* as_int = (int*)&f[2];
  int old = *as_int, assumed;
  do {
    assumed = old;
    old = atomicCAS(as_int, assumed, __float_as_int(fmaxf((float)t, __int_as_float(assumed))));
  } while (assumed != old);
}

__device__ unsigned finished = 0;
__global__ void last_block(const float* x, float* partial, float* y, int n) {
  __shared__ bool last;
  __shared__ float s[64];
  s[threadIdx.x] = x[blockIdx.x * 64 + threadIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) {
    float sum = 0;
    for (int i = 0; i < 64; ++i) sum += s[i];
    partial[blockIdx.x] = sum;
    __threadfence();
    last = atomicInc(&finished, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    float sum = 0;
    for (int i = 0; i < gridDim.x; ++i) sum += ((volatile float*)partial)[i];
    *y = sum;
  }
}

extern "C" void h_unary(const float* x, float* y, int n, int rows) { unary<<<(n + 63) / 64, 64>>>(x, y, n, rows); }
extern "C" void h_generic(const float* x, float* y, int n) { generic<<<1, 64>>>(x, y, n); }
extern "C" void h_bits(int* out) { bits<<<1, 32>>>(out); }
extern "C" void h_vectors(const float* x, float* y, int n) { vectors<<<(n / 4 + 31) / 32, 32>>>(x, y, n); }
extern "C" void h_atomics(int* i, unsigned* u, unsigned long long* l, float* f, double* d) { atomics<<<50, 40>>>(i, u, l, f, d); }
extern "C" void h_last_block(const float* x, float* partial, float* y, int blocks) { last_block<<<blocks, 64>>>(x, partial, y, blocks * 64); }
