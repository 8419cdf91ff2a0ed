// Fast approximations, as far from the truth as a GPU's special function unit is (the CUDA C Programming Guide's appendix on
// mathematical functions): it computes sines and cosines of fractions of a turn and logarithms near one to about 22 bits
// behind the point, and what stands before it is a product in single precision.
#pragma once
#include <math.h>

namespace dice_emu {

inline float to_grid(double value, double steps) { return static_cast<float>(::nearbyint(value * steps) / steps); }

// The fraction of a turn, of which the angle's size has left the fewer bits, the larger it is.
inline double angle_of_turns(float x) {
  const float turns = x * 0.15915494f;
  return 6.283185307179586 * (static_cast<double>(turns) - ::nearbyint(static_cast<double>(turns)));
}

}  // namespace dice_emu

inline float __sinf(float x) { return dice_emu::to_grid(::sin(dice_emu::angle_of_turns(x)), 0x1p21); }
inline float __cosf(float x) { return dice_emu::to_grid(::cos(dice_emu::angle_of_turns(x)), 0x1p21); }
inline void __sincosf(float x, float* s, float* c) { *s = __sinf(x), *c = __cosf(x); }
inline float __tanf(float x) { return __sinf(x) / __cosf(x); }
inline float __expf(float x) { return exp2f(x * 1.442695041f); }
inline float __exp10f(float x) { return exp2f(x * 3.321928095f); }
inline float __log2f(float x) { return x >= 0.5f && x <= 2.0f ? dice_emu::to_grid(::log2(static_cast<double>(x)), 0x1p22) : log2f(x); }
inline float __logf(float x) { return __log2f(x) * 0.6931471806f; }
inline float __log10f(float x) { return __log2f(x) * 0.3010299957f; }
inline float __powf(float x, float y) { return exp2f(y * __log2f(x)); }  // NaN for a negative base, as on the GPU
// Eleven bits are right.
inline float __tanhf(float x) {
  int exponent;
  const float fraction = frexpf(tanhf(x), &exponent);
  return ldexpf(rintf(fraction * 2048.0f), exponent - 11);
}
// A divisor beyond 2^126 has a reciprocal of nothing.
inline float __fdividef(float a, float b) { return a * (fabsf(b) > 0x1p126f ? 0.0f : 1.0f / b); }

// What -use_fast_math makes of functions in device code (emulator/fast_math.py): of those of a float. Others stay as they are.
namespace dice_emu::fast {

#define DICE_FAST(name)                                            \
  inline float name##f(float x) { return __##name##f(x); }         \
  inline float name(float x) { return __##name##f(x); }            \
  template <class T> auto name(const T& x) { return ::name(x); }
DICE_FAST(sin) DICE_FAST(cos) DICE_FAST(tan) DICE_FAST(exp) DICE_FAST(exp10) DICE_FAST(log) DICE_FAST(log2) DICE_FAST(log10)
#undef DICE_FAST
inline float powf(float x, float y) { return __powf(x, y); }
inline float pow(float x, float y) { return __powf(x, y); }
template <class X, class Y> auto pow(const X& x, const Y& y) { return ::pow(x, y); }
inline void sincosf(float x, float* s, float* c) { __sincosf(x, s, c); }
inline void sincos(float x, float* s, float* c) { __sincosf(x, s, c); }
inline void sincos(double x, double* s, double* c) { ::sincos(x, s, c); }

}  // namespace dice_emu::fast
