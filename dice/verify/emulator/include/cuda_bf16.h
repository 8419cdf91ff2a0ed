// __nv_bfloat16 and __nv_bfloat162.
#pragma once
#include "cuda_fp16.h"

struct __nv_bfloat16_raw { unsigned short x; };
struct alignas(4) __nv_bfloat162_raw { unsigned short x, y; };

struct __nv_bfloat16;
namespace dice_emu {
template <> inline float to_float(__nv_bfloat16 h);
template <> inline __nv_bfloat16 from_float<__nv_bfloat16>(float x);
}  // namespace dice_emu

struct alignas(2) __nv_bfloat16 {
  __nv_bfloat16() = default;
  constexpr __nv_bfloat16(const __nv_bfloat16_raw& raw) : __x(raw.x) {}
  __nv_bfloat16& operator=(const __nv_bfloat16_raw& raw) { return __x = raw.x, *this; }
  operator __nv_bfloat16_raw() const { return {__x}; }
#ifndef __CUDA_NO_BFLOAT16_CONVERSIONS__
  explicit __nv_bfloat16(const __half value) { *this = dice_emu::from_float<__nv_bfloat16>(dice_emu::to_float(value)); }
  DICE_H_CONVERSIONS(__nv_bfloat16)
#endif
 protected:
  unsigned short __x;
};

struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
  __nv_bfloat162() = default;
  constexpr __nv_bfloat162(const __nv_bfloat16& a, const __nv_bfloat16& b) : x(a), y(b) {}
  __nv_bfloat162(const __nv_bfloat162_raw& raw) : x(__nv_bfloat16_raw{raw.x}), y(__nv_bfloat16_raw{raw.y}) {}
  operator __nv_bfloat162_raw() const { return {__nv_bfloat16_raw(x).x, __nv_bfloat16_raw(y).x}; }
};

namespace dice_emu {

template <> inline float to_float(__nv_bfloat16 h) { return bit_cast<float>(static_cast<unsigned>(bits_of(h)) << 16); }
template <> inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  const unsigned bits = bit_cast<unsigned>(x);
  const unsigned rounded = x != x ? 0x7FFF : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
  return from_bits16<__nv_bfloat16>(static_cast<unsigned short>(rounded));
}

}  // namespace dice_emu

#ifndef __CUDA_NO_HALF_CONVERSIONS__
inline __half::__half(const __nv_bfloat16 value) { *this = dice_emu::from_float<__half>(dice_emu::to_float(value)); }
#endif

#define H __nv_bfloat16
#define H2 __nv_bfloat162
#define N bfloat16
#ifdef __CUDA_NO_BFLOAT16_OPERATORS__
#define DICE_NO_OPERATORS
#endif
#ifdef __CUDA_NO_BFLOAT162_OPERATORS__
#define DICE_NO_OPERATORS2
#endif
#include "dice_emu/half_functions.inc"
#undef H
#undef H2
#undef N
#undef DICE_NO_OPERATORS
#undef DICE_NO_OPERATORS2

#define CUDART_INF_BF16 __ushort_as_bfloat16((unsigned short)0x7F80)
#define CUDART_NAN_BF16 __ushort_as_bfloat16((unsigned short)0x7FFF)
#define CUDART_MAX_NORMAL_BF16 __ushort_as_bfloat16((unsigned short)0x7F7F)
#define CUDART_ZERO_BF16 __ushort_as_bfloat16((unsigned short)0x0000)
#define CUDART_ONE_BF16 __ushort_as_bfloat16((unsigned short)0x3F80)

typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;
