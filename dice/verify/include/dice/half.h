// c10::Half and c10::BFloat16: 16-bit storage types, computed in float, usable in kernels.
#pragma once
#include <dice/base.h>

// CUDA's own 16-bit types come along, unless the build saw that the source names none of them.
#if defined(DICE_HAS_CUDA) && !defined(DICE_NO_CUDA_HALF)
#define DICE_CUDA_HALF 1
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace dice {

C10_HOST_DEVICE inline uint32_t float_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
C10_HOST_DEVICE inline float float_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// IEEE binary32 -> binary16, round to nearest even.
C10_HOST_DEVICE inline uint16_t half_bits(float value) {
  const uint32_t bits = float_bits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);   // NaN
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds to infinity
  if (magnitude < 0x38800000u) {
    // Subnormal or zero: adding 0.5 lets the float unit round the mantissa at 2^-24.
    const float shifted = float_of_bits(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (float_bits(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | (rounded >> 13));
}
C10_HOST_DEVICE inline float float_of_half(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u) return float_of_bits(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  if (magnitude < 0x400u) {
    const float value = static_cast<float>(magnitude) * 5.9604644775390625e-8f;  // 2^-24
    return float_of_bits(sign | float_bits(value));
  }
  return float_of_bits(sign | ((magnitude << 13) + 0x38000000u));
}
C10_HOST_DEVICE inline uint16_t bfloat16_bits(float value) {
  const uint32_t bits = float_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0u;
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
C10_HOST_DEVICE inline float float_of_bfloat16(uint16_t bits) { return float_of_bits(static_cast<uint32_t>(bits) << 16); }

}  // namespace dice

namespace c10 {

struct alignas(2) Half {
  unsigned short x;
  struct from_bits_t {};
  static constexpr C10_HOST_DEVICE from_bits_t from_bits() { return from_bits_t(); }

  Half() = default;
  constexpr C10_HOST_DEVICE Half(unsigned short bits, from_bits_t) : x(bits) {}
#if defined(DICE_CUDA_HALF)
  C10_HOST_DEVICE Half(const __half& value) { memcpy(&x, &value, sizeof x); }
  C10_HOST_DEVICE operator __half() const {
    __half value;
    memcpy(static_cast<void*>(&value), &x, sizeof x);
    return value;
  }
#endif
#if defined(__CUDA_ARCH__) && defined(DICE_CUDA_HALF)
  inline __device__ Half(float value) : Half(__float2half(value)) {}
  inline __device__ operator float() const { return __half2float(static_cast<__half>(*this)); }
#else
  inline C10_HOST_DEVICE Half(float value) : x(dice::half_bits(value)) {}
  inline C10_HOST_DEVICE operator float() const { return dice::float_of_half(x); }
#endif
};

struct alignas(2) BFloat16 {
  unsigned short x;
  struct from_bits_t {};
  static constexpr C10_HOST_DEVICE from_bits_t from_bits() { return from_bits_t(); }

  BFloat16() = default;
  constexpr C10_HOST_DEVICE BFloat16(unsigned short bits, from_bits_t) : x(bits) {}
  inline C10_HOST_DEVICE BFloat16(float value) : x(dice::bfloat16_bits(value)) {}
  inline C10_HOST_DEVICE operator float() const { return dice::float_of_bfloat16(x); }
#if defined(DICE_CUDA_HALF)
  C10_HOST_DEVICE BFloat16(const __nv_bfloat16& value) { memcpy(&x, &value, sizeof x); }
  explicit C10_HOST_DEVICE operator __nv_bfloat16() const {
    __nv_bfloat16 value;
    memcpy(static_cast<void*>(&value), &x, sizeof x);
    return value;
  }
#endif
};

#define DICE_HALF_OPERATOR(type, op)                                                                    \
  inline C10_HOST_DEVICE type operator op(const type& a, const type& b) {                               \
    return static_cast<type>(static_cast<float>(a) op static_cast<float>(b));                           \
  }                                                                                                     \
  inline C10_HOST_DEVICE float operator op(type a, float b) { return static_cast<float>(a) op b; }      \
  inline C10_HOST_DEVICE float operator op(float a, type b) { return a op static_cast<float>(b); }      \
  inline C10_HOST_DEVICE double operator op(type a, double b) { return static_cast<double>(a) op b; }   \
  inline C10_HOST_DEVICE double operator op(double a, type b) { return a op static_cast<double>(b); }   \
  inline C10_HOST_DEVICE type operator op(type a, int b) { return a op static_cast<type>(static_cast<float>(b)); }         \
  inline C10_HOST_DEVICE type operator op(int a, type b) { return static_cast<type>(static_cast<float>(a)) op b; }         \
  inline C10_HOST_DEVICE type operator op(type a, int64_t b) { return a op static_cast<type>(static_cast<float>(b)); }     \
  inline C10_HOST_DEVICE type operator op(int64_t a, type b) { return static_cast<type>(static_cast<float>(a)) op b; }     \
  inline C10_HOST_DEVICE type& operator op##=(type& a, const type& b) { return a = a op b; }            \
  inline C10_HOST_DEVICE float& operator op##=(float& a, const type& b) { return a = a op static_cast<float>(b); }
#define DICE_HALF_OPERATORS(type) \
  DICE_HALF_OPERATOR(type, +)     \
  DICE_HALF_OPERATOR(type, -)     \
  DICE_HALF_OPERATOR(type, *)     \
  DICE_HALF_OPERATOR(type, /)     \
  inline C10_HOST_DEVICE type operator-(const type& a) { return static_cast<type>(-static_cast<float>(a)); }
DICE_HALF_OPERATORS(Half)
DICE_HALF_OPERATORS(BFloat16)
#undef DICE_HALF_OPERATORS
#undef DICE_HALF_OPERATOR

}  // namespace c10

namespace std {
#define DICE_HALF_LIMITS(type, digits_, digits10_, max_exponent_, min_exponent_, lowest_, min_, max_, epsilon_, inf_, nan_)   \
  template <>                                                                                                        \
  class numeric_limits<c10::type> {                                                                                  \
   public:                                                                                                           \
    static constexpr bool is_specialized = true, is_signed = true, is_integer = false, is_exact = false;             \
    static constexpr bool has_infinity = true, has_quiet_NaN = true, is_iec559 = true, is_bounded = true;            \
    static constexpr int digits = digits_, digits10 = digits10_, radix = 2;                                          \
    static constexpr int max_exponent = max_exponent_, min_exponent = min_exponent_;                                 \
    static constexpr C10_HOST_DEVICE c10::type min() { return c10::type(min_, c10::type::from_bits()); }             \
    static constexpr C10_HOST_DEVICE c10::type lowest() { return c10::type(lowest_, c10::type::from_bits()); }       \
    static constexpr C10_HOST_DEVICE c10::type max() { return c10::type(max_, c10::type::from_bits()); }             \
    static constexpr C10_HOST_DEVICE c10::type epsilon() { return c10::type(epsilon_, c10::type::from_bits()); }     \
    static constexpr C10_HOST_DEVICE c10::type infinity() { return c10::type(inf_, c10::type::from_bits()); }        \
    static constexpr C10_HOST_DEVICE c10::type quiet_NaN() { return c10::type(nan_, c10::type::from_bits()); }       \
  };
DICE_HALF_LIMITS(Half, 11, 3, 16, -13, 0xFBFF, 0x0400, 0x7BFF, 0x1400, 0x7C00, 0x7E00)
DICE_HALF_LIMITS(BFloat16, 8, 2, 128, -125, 0xFF7F, 0x0080, 0x7F7F, 0x3C00, 0x7F80, 0x7FC0)
#undef DICE_HALF_LIMITS
}  // namespace std
