// half and half2.
#pragma once
#include "dice_emu/half_types.h"

struct __half_raw { unsigned short x; };
struct alignas(4) __half2_raw { unsigned short x, y; };
struct __nv_bfloat16;

struct __half;
namespace dice_emu {
template <> inline float to_float(__half h);
template <> inline __half from_float<__half>(float x);
}  // namespace dice_emu

struct alignas(2) __half {
  __half() = default;
  constexpr __half(const __half_raw& raw) : __x(raw.x) {}
  __half& operator=(const __half_raw& raw) { return __x = raw.x, *this; }
  operator __half_raw() const { return {__x}; }
#ifndef __CUDA_NO_HALF_CONVERSIONS__
  explicit __half(const __nv_bfloat16 value);  // defined in cuda_bf16.h
  DICE_H_CONVERSIONS(__half)
#endif
 protected:
  unsigned short __x;
};

struct alignas(4) __half2 {
  __half x, y;
  __half2() = default;
  constexpr __half2(const __half& a, const __half& b) : x(a), y(b) {}
  __half2(const __half2_raw& raw) : x(__half_raw{raw.x}), y(__half_raw{raw.y}) {}
  operator __half2_raw() const { return {__half_raw(x).x, __half_raw(y).x}; }
};

namespace dice_emu {

#if defined(__F16C__)
using Floats = float __attribute__((vector_size(16)));
using Shorts = short __attribute__((vector_size(16)));
template <> inline float to_float(__half h) {
  return __builtin_ia32_vcvtph2ps(Shorts{static_cast<short>(bits_of(h))})[0];
}
template <> inline __half from_float<__half>(float x) {
  return from_bits16<__half>(static_cast<unsigned short>(__builtin_ia32_vcvtps2ph(Floats{x}, 0)[0]));
}
#else
template <> inline float to_float(__half h) {
  const unsigned bits = bits_of(h), exponent = bits >> 10 & 0x1F, fraction = bits & 0x3FF;
  float magnitude;
  if (exponent == 0x1F) {
    magnitude = bit_cast<float>(0x7F800000u | fraction << 13);
  } else if (exponent == 0) {
    magnitude = static_cast<float>(fraction) * 0x1p-24f;
  } else {
    magnitude = bit_cast<float>((exponent + 112) << 23 | fraction << 13);
  }
  return bits >> 15 ? -magnitude : magnitude;
}
template <> inline __half from_float<__half>(float x) {
  const unsigned bits = bit_cast<unsigned>(x);
  const unsigned sign = bits >> 16 & 0x8000;
  const unsigned magnitude = bits & 0x7FFFFFFF;
  unsigned half;
  if (magnitude > 0x7F800000) {
    half = 0x7FFF;
  } else if (magnitude >= 0x477FF000) {  // 65520 and above round to infinity
    half = 0x7C00;
  } else if (magnitude < 0x38800000) {  // subnormal: adding 0.5 makes the FPU round at bit 2^-24
    half = bit_cast<unsigned>(bit_cast<float>(magnitude) + 0.5f) - 0x3F000000;
  } else {
    half = (magnitude + 0xFFF + (magnitude >> 13 & 1) - 0x38000000) >> 13;
  }
  return from_bits16<__half>(static_cast<unsigned short>(sign | half));
}
#endif

}  // namespace dice_emu

#define H __half
#define H2 __half2
#define N half
#ifdef __CUDA_NO_HALF_OPERATORS__
#define DICE_NO_OPERATORS
#endif
#ifdef __CUDA_NO_HALF2_OPERATORS__
#define DICE_NO_OPERATORS2
#endif
#include "dice_emu/half_functions.inc"
#undef H
#undef H2
#undef N
#undef DICE_NO_OPERATORS
#undef DICE_NO_OPERATORS2

#define CUDART_INF_FP16 __ushort_as_half((unsigned short)0x7C00)
#define CUDART_NAN_FP16 __ushort_as_half((unsigned short)0x7FFF)
#define CUDART_MAX_NORMAL_FP16 __ushort_as_half((unsigned short)0x7BFF)
#define CUDART_ZERO_FP16 __ushort_as_half((unsigned short)0x0000)
#define CUDART_ONE_FP16 __ushort_as_half((unsigned short)0x3C00)

typedef __half half;
typedef __half2 half2;
typedef __half __nv_half;
typedef __half2 __nv_half2;
typedef __half nv_half;
typedef __half2 nv_half2;
