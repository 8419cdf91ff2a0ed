// Special functions that the C library lacks.
#include <cmath>
#include <limits>

#include "../include/dice_emu/math.h"

namespace {

constexpr double kSqrtHalf = 0.70710678118654752440;
constexpr double kSqrt2Pi = 2.50662827463100050242;
constexpr double kSqrtPi = 1.77245385090551602730;

// Quantile for 0 < p <= 0.5: a rational start (Abramowitz and Stegun 26.2.23), then Halley steps on erfc.
double lower_quantile(double p) {
  const double t = std::sqrt(-2.0 * std::log(p));
  double z = -(t - (2.515517 + t * (0.802853 + t * 0.010328)) /
                       (1.0 + t * (1.432788 + t * (0.189269 + t * 0.001308))));
  for (int step = 0; step < 3; ++step) {
    const double error = 0.5 * std::erfc(-z * kSqrtHalf) - p;
    const double slope = error * kSqrt2Pi * std::exp(0.5 * z * z);
    z -= slope / (1.0 + 0.5 * z * slope);
  }
  return z;
}

}  // namespace

double dice_normcdfinv(double p) noexcept {
  if (!(p >= 0.0 && p <= 1.0)) return std::numeric_limits<double>::quiet_NaN();
  if (p == 0.0) return -std::numeric_limits<double>::infinity();
  if (p == 1.0) return std::numeric_limits<double>::infinity();
  return p <= 0.5 ? lower_quantile(p) : -lower_quantile(1.0 - p);
}

double dice_erfinv(double x) noexcept {
  if (std::fabs(x) >= 0.5 || x != x)
    return std::copysign(-dice_normcdfinv(0.5 * (1.0 - std::fabs(x))) * kSqrtHalf, x);
  double y = x * kSqrtPi / 2;  // near zero, Newton's steps on erf keep the relative precision
  for (int step = 0; step < 5; ++step) y -= (std::erf(y) - x) * kSqrtPi / 2 * std::exp(y * y);
  return y;
}

double dice_erfcx(double x) noexcept {
  if (x < 20.0) return std::exp(x * x) * std::erfc(x);
  const double s = 1.0 / (2.0 * x * x);
  return (1.0 - s * (1.0 - 3.0 * s * (1.0 - 5.0 * s))) / (x * kSqrtPi);
}

double dice_bessel_i0(double x) noexcept { return std::cyl_bessel_i(0.0, std::fabs(x)); }
double dice_bessel_i1(double x) noexcept { return std::copysign(std::cyl_bessel_i(1.0, std::fabs(x)), x); }
