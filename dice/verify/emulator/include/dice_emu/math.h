// CUDA's mathematical functions beyond those of <math.h>, and its min and max.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

double dice_erfinv(double x) noexcept;
double dice_normcdfinv(double p) noexcept;
double dice_erfcx(double x) noexcept;
double dice_bessel_i0(double x) noexcept;
double dice_bessel_i1(double x) noexcept;

// CUDA's overload set: equal types, signed with unsigned of one width, float with double. Anything else is ambiguous.
#define DICE_MINMAX(R, A, B)                                                              \
  inline constexpr R min(A a, B b) { return (R)a < (R)b ? (R)a : (R)b; }                  \
  inline constexpr R max(A a, B b) { return (R)a > (R)b ? (R)a : (R)b; }
#define DICE_MINMAX_INTEGERS(S, U) \
  DICE_MINMAX(S, S, S) DICE_MINMAX(U, U, U) DICE_MINMAX(U, S, U) DICE_MINMAX(U, U, S)
DICE_MINMAX_INTEGERS(int, unsigned int)
DICE_MINMAX_INTEGERS(long, unsigned long)
DICE_MINMAX_INTEGERS(long long, unsigned long long)
#undef DICE_MINMAX_INTEGERS
#undef DICE_MINMAX
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return ::fmin(a, b); }
inline double max(double a, double b) { return ::fmax(a, b); }
inline double min(float a, double b) { return ::fmin(double(a), b); }
inline double max(float a, double b) { return ::fmax(double(a), b); }
inline double min(double a, float b) { return ::fmin(a, double(b)); }
inline double max(double a, float b) { return ::fmax(a, double(b)); }
inline constexpr unsigned umin(unsigned a, unsigned b) { return a < b ? a : b; }
inline constexpr unsigned umax(unsigned a, unsigned b) { return a > b ? a : b; }
inline constexpr long long llmin(long long a, long long b) { return a < b ? a : b; }
inline constexpr long long llmax(long long a, long long b) { return a > b ? a : b; }
inline constexpr unsigned long long ullmin(unsigned long long a, unsigned long long b) { return a < b ? a : b; }
inline constexpr unsigned long long ullmax(unsigned long long a, unsigned long long b) { return a > b ? a : b; }

namespace dice_emu {
constexpr double kPi = 3.14159265358979323846;

// Reduced exactly before the multiplication by pi, as sinpi promises for large arguments.
inline double sin_pi(double x) { return ::sin(kPi * ::remainder(x, 2.0)); }
inline double cos_pi(double x) { return ::cos(kPi * ::remainder(x, 2.0)); }
}  // namespace dice_emu

// One function in its three spellings: f(double), f(float) and ff(float).
#define DICE_MATH1(name, expression)                                        \
  inline double name(double x) noexcept { return (expression); }            \
  inline float name##f(float value) noexcept {                              \
    const double x = value;                                                 \
    return static_cast<float>(expression);                                  \
  }                                                                         \
  inline float name(float value) noexcept { return name##f(value); }
inline double rsqrt(double x) noexcept { return 1.0 / ::sqrt(x); }
inline float rsqrtf(float x) noexcept { return 1.0f / sqrtf(x); }
inline float rsqrt(float x) noexcept { return rsqrtf(x); }
DICE_MATH1(rcbrt, 1.0 / ::cbrt(x))
DICE_MATH1(sinpi, dice_emu::sin_pi(x))
DICE_MATH1(cospi, dice_emu::cos_pi(x))
DICE_MATH1(erfinv, dice_erfinv(x))
DICE_MATH1(erfcinv, -dice_normcdfinv(0.5 * x) * 0.70710678118654752440)
DICE_MATH1(erfcx, dice_erfcx(x))
DICE_MATH1(normcdf, 0.5 * ::erfc(-x * 0.70710678118654752440))
DICE_MATH1(normcdfinv, dice_normcdfinv(x))
DICE_MATH1(cyl_bessel_i0, dice_bessel_i0(x))
DICE_MATH1(cyl_bessel_i1, dice_bessel_i1(x))
#undef DICE_MATH1
inline float exp10(float x) noexcept { return exp10f(x); }
inline float j0(float x) noexcept { return j0f(x); }
inline float j1(float x) noexcept { return j1f(x); }
inline float y0(float x) noexcept { return y0f(x); }
inline float y1(float x) noexcept { return y1f(x); }

inline float fdividef(float a, float b) noexcept { return a / b; }
inline double fdivide(double a, double b) noexcept { return a / b; }
inline float fdivide(float a, float b) noexcept { return a / b; }
inline float rhypotf(float a, float b) noexcept { return 1.0f / hypotf(a, b); }
inline double rhypot(double a, double b) noexcept { return 1.0 / ::hypot(a, b); }
inline float norm3df(float a, float b, float c) noexcept { return static_cast<float>(::sqrt(double(a) * a + double(b) * b + double(c) * c)); }
inline double norm3d(double a, double b, double c) noexcept { return ::hypot(::hypot(a, b), c); }
inline float rnorm3df(float a, float b, float c) noexcept { return 1.0f / norm3df(a, b, c); }
inline float norm4df(float a, float b, float c, float d) noexcept { return hypotf(norm3df(a, b, c), d); }
inline float rnorm4df(float a, float b, float c, float d) noexcept { return 1.0f / norm4df(a, b, c, d); }
inline float normf(int n, const float* a) noexcept {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += double(a[i]) * a[i];
  return static_cast<float>(::sqrt(sum));
}
inline void sincospif(float x, float* s, float* c) noexcept { *s = sinpif(x), *c = cospif(x); }
inline void sincospi(double x, double* s, double* c) noexcept { *s = sinpi(x), *c = cospi(x); }
inline void sincos(float x, float* s, float* c) noexcept { sincosf(x, s, c); }

inline float saturate(float x) noexcept { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
inline float __saturatef(float x) { return saturate(x); }
