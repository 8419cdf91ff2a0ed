// Complex numbers of CUDA: pairs of floats or doubles, and functions on them.
#pragma once
#include <cmath>
#include <cuda_runtime.h>

typedef float2 cuFloatComplex;
typedef double2 cuDoubleComplex;
typedef cuFloatComplex cuComplex;

#define DICE_COMPLEX(Complex, Real, f, make)                                                            \
  inline Complex make(Real r, Real i) { return {r, i}; }                                                \
  inline Real cuCreal##f(Complex x) { return x.x; }                                                     \
  inline Real cuCimag##f(Complex x) { return x.y; }                                                     \
  inline Complex cuConj##f(Complex x) { return {x.x, -x.y}; }                                           \
  inline Complex cuCadd##f(Complex x, Complex y) { return {x.x + y.x, x.y + y.y}; }                     \
  inline Complex cuCsub##f(Complex x, Complex y) { return {x.x - y.x, x.y - y.y}; }                     \
  inline Complex cuCmul##f(Complex x, Complex y) {                                                      \
    return {x.x * y.x - x.y * y.y, x.x * y.y + x.y * y.x};                                              \
  }                                                                                                     \
  inline Complex cuCdiv##f(Complex x, Complex y) {                                                      \
    const Real s = Real(1) / (std::fabs(y.x) + std::fabs(y.y));                                         \
    const Real a = x.x * s, b = x.y * s, c = y.x * s, d = y.y * s, o = Real(1) / (c * c + d * d);       \
    return {(a * c + b * d) * o, (b * c - a * d) * o};                                                  \
  }                                                                                                     \
  inline Complex cuCfma##f(Complex x, Complex y, Complex d) {                                           \
    return {x.x * y.x + d.x - x.y * y.y, x.x * y.y + d.y + x.y * y.x};                                  \
  }                                                                                                     \
  inline Real cuCabs##f(Complex x) { return std::hypot(x.x, x.y); }
DICE_COMPLEX(cuFloatComplex, float, f, make_cuFloatComplex)
DICE_COMPLEX(cuDoubleComplex, double, , make_cuDoubleComplex)
#undef DICE_COMPLEX

inline cuComplex make_cuComplex(float x, float y) { return make_cuFloatComplex(x, y); }
inline cuDoubleComplex cuComplexFloatToDouble(cuFloatComplex x) { return {x.x, x.y}; }
inline cuFloatComplex cuComplexDoubleToFloat(cuDoubleComplex x) { return {static_cast<float>(x.x), static_cast<float>(x.y)}; }
