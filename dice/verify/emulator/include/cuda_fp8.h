// Floats of eight bits: E4M3, which has no infinity, and E5M2. Conversions round to nearest, ties to even.
#pragma once
#include <cmath>

#include "cuda_fp16.h"

typedef unsigned char __nv_fp8_storage_t;
typedef enum { __NV_NOSAT, __NV_SATFINITE } __nv_saturation_t;
typedef enum { __NV_E4M3, __NV_E5M2 } __nv_fp8_interpretation_t;

namespace dice_emu {

inline float from_fp8(unsigned code, bool e4m3) {
  const int mantissa_bits = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15;
  const int exponent = static_cast<int>(code >> mantissa_bits & (e4m3 ? 15 : 31)), mantissa = static_cast<int>(code & ((1u << mantissa_bits) - 1));
  float size = exponent == 0 ? ldexpf(static_cast<float>(mantissa), 1 - bias - mantissa_bits)
                             : ldexpf(static_cast<float>((1 << mantissa_bits) + mantissa), exponent - bias - mantissa_bits);
  if (e4m3 && (code & 127) == 127) size = NAN;
  if (!e4m3 && exponent == 31) size = mantissa != 0 ? NAN : INFINITY;
  return (code & 128) != 0 ? -size : size;
}

inline unsigned char to_fp8(float x, bool e4m3, bool saturates) {
  const int mantissa_bits = e4m3 ? 3 : 2, least = e4m3 ? -6 : -14;
  const unsigned largest = e4m3 ? 0x7e : 0x7b, sign = signbit(x) ? 128 : 0;
  if (x != x) return 0x7f;
  if (std::isinf(x)) return static_cast<unsigned char>(sign | (saturates ? largest : e4m3 ? 0x7f : 0x7c));
  if (x == 0.0f) return static_cast<unsigned char>(sign);
  int exponent = 0;
  frexpf(x, &exponent);
  exponent = exponent - 1 < least ? least : exponent - 1;
  const auto steps = static_cast<unsigned>(nearbyintf(ldexpf(fabsf(x), mantissa_bits - exponent)));
  // What is rounded up to the next power of two carries into the exponent.
  const unsigned code = steps + (static_cast<unsigned>(exponent - least) << mantissa_bits);
  if (code > largest) return static_cast<unsigned char>(sign | (saturates ? largest : e4m3 ? 0x7f : 0x7c));
  return static_cast<unsigned char>(sign | code);
}

}  // namespace dice_emu

inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float x, __nv_saturation_t saturation, __nv_fp8_interpretation_t kind) {
  return dice_emu::to_fp8(x, kind == __NV_E4M3, saturation == __NV_SATFINITE);
}

#define DICE_FP8(name, e4m3)                                                                     \
  struct __nv_fp8_##name {                                                                       \
    __nv_fp8_storage_t __x;                                                                      \
    __nv_fp8_##name() = default;                                                                 \
    explicit __nv_fp8_##name(float x) : __x(dice_emu::to_fp8(x, e4m3, true)) {}                  \
    explicit __nv_fp8_##name(double x) : __nv_fp8_##name(static_cast<float>(x)) {}               \
    explicit __nv_fp8_##name(int x) : __nv_fp8_##name(static_cast<float>(x)) {}                  \
    explicit __nv_fp8_##name(__half x) : __nv_fp8_##name(__half2float(x)) {}                     \
    explicit operator float() const { return dice_emu::from_fp8(__x, e4m3); }                    \
    explicit operator double() const { return dice_emu::from_fp8(__x, e4m3); }                   \
    explicit operator __half() const { return __float2half(dice_emu::from_fp8(__x, e4m3)); }     \
  };                                                                                             \
  struct __align__(2) __nv_fp8x2_##name {                                                        \
    unsigned short __x;                                                                          \
    __nv_fp8x2_##name() = default;                                                               \
    explicit __nv_fp8x2_##name(float2 v) : __x(static_cast<unsigned short>(dice_emu::to_fp8(v.x, e4m3, true) | dice_emu::to_fp8(v.y, e4m3, true) << 8)) {} \
    explicit operator float2() const { return {dice_emu::from_fp8(__x & 255u, e4m3), dice_emu::from_fp8(__x >> 8, e4m3)}; } \
  };                                                                                             \
  struct __align__(4) __nv_fp8x4_##name {                                                        \
    unsigned __x;                                                                                \
    __nv_fp8x4_##name() = default;                                                               \
    explicit __nv_fp8x4_##name(float4 v) : __x(0) {                                              \
      const float values[] = {v.x, v.y, v.z, v.w};                                               \
      for (int i = 0; i < 4; ++i) __x |= static_cast<unsigned>(dice_emu::to_fp8(values[i], e4m3, true)) << 8 * i; \
    }                                                                                            \
    explicit operator float4() const {                                                           \
      return {dice_emu::from_fp8(__x & 255u, e4m3), dice_emu::from_fp8(__x >> 8 & 255u, e4m3), dice_emu::from_fp8(__x >> 16 & 255u, e4m3), \
              dice_emu::from_fp8(__x >> 24, e4m3)};                                              \
    }                                                                                            \
  };
DICE_FP8(e4m3, true)
DICE_FP8(e5m2, false)
#undef DICE_FP8
