// What __half and __nv_bfloat16 have in common: storage, implicit conversions, rounding.
#pragma once
#include <cuda_runtime.h>

#define DICE_CAT_NOW(a, b, c) a##b##c
#define DICE_CAT(a, b, c) DICE_CAT_NOW(a, b, c)

namespace dice_emu {

template <class H>
unsigned short bits_of(H h) {
  unsigned short bits;
  memcpy(&bits, &h, sizeof bits);
  return bits;
}

template <class H>
H from_bits16(unsigned short bits) {
  H h;
  memcpy(static_cast<void*>(&h), &bits, sizeof h);
  return h;
}

// Specialised for each type: the value, and the nearest representable number (ties to even).
template <class H> float to_float(H h);
template <class H> H from_float(float x);

// Rounded down (direction -1) or up (+1).
template <class H>
H from_float_directed(float x, int direction) {
  const H nearest = from_float<H>(x);
  const float got = to_float(nearest);
  if (got == x || x != x || (direction < 0 ? got < x : got > x)) return nearest;
  const unsigned short bits = bits_of(nearest);
  if ((bits & 0x7FFF) == 0) return from_bits16<H>(direction < 0 ? 0x8001 : 0x0001);
  const bool away_from_zero = (bits >> 15 != 0) == (direction < 0);
  return from_bits16<H>(static_cast<unsigned short>(away_from_zero ? bits + 1 : bits - 1));
}

// Through float with the last bit made sticky ("round to odd"), so that rounding twice equals rounding once.
template <class H>
H from_double(double x) {
  float nearest = static_cast<float>(x);
  if (static_cast<double>(nearest) != x && nearest == nearest && fabsf(nearest) != INFINITY) {
    unsigned bits = bit_cast<unsigned>(nearest);
    if (fabs(static_cast<double>(nearest)) > fabs(x)) --bits;
    nearest = bit_cast<float>(bits | 1);
  }
  return from_float<H>(nearest);
}

}  // namespace dice_emu

// CUDA's implicit conversions. PyTorch's extension builds switch them off (-D__CUDA_NO_HALF_CONVERSIONS__ and the
// like), so the headers that use this honour those macros: what nvcc rejects must be rejected here.
#define DICE_H_CONVERT(H, T)                                                                   \
  H(T value) { *this = dice_emu::from_double<H>(static_cast<double>(value)); }                 \
  H& operator=(T value) { return *this = dice_emu::from_double<H>(static_cast<double>(value)); } \
  operator T() const { return dice_emu::saturating<T>(truncf(dice_emu::to_float(*this))); }
#define DICE_H_CONVERSIONS(H)                                                                  \
  H(float value) { *this = dice_emu::from_float<H>(value); }                                   \
  H(double value) { *this = dice_emu::from_double<H>(value); }                                 \
  H& operator=(float value) { return *this = dice_emu::from_float<H>(value); }                 \
  H& operator=(double value) { return *this = dice_emu::from_double<H>(value); }               \
  operator float() const { return dice_emu::to_float(*this); }                                 \
  operator bool() const { return (dice_emu::bits_of(*this) & 0x7FFF) != 0; }                   \
  operator char() const { return dice_emu::saturating<char>(truncf(dice_emu::to_float(*this))); } \
  operator signed char() const { return dice_emu::saturating<signed char>(truncf(dice_emu::to_float(*this))); } \
  operator unsigned char() const { return dice_emu::saturating<unsigned char>(truncf(dice_emu::to_float(*this))); } \
  DICE_H_CONVERT(H, short) DICE_H_CONVERT(H, unsigned short) DICE_H_CONVERT(H, int)            \
  DICE_H_CONVERT(H, unsigned int) DICE_H_CONVERT(H, long) DICE_H_CONVERT(H, unsigned long)     \
  DICE_H_CONVERT(H, long long) DICE_H_CONVERT(H, unsigned long long)
