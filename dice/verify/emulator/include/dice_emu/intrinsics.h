// Device intrinsics: rounded arithmetic, conversions, bit tricks, cache hints, fast approximations.
#pragma once
#include <math.h>
#include <string.h>

#include "core.h"
#include "fast_math.h"
#include "math.h"

namespace dice_emu {

template <class To, class From>
To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast changes the size");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

// CUDA's float-to-integer conversions saturate and turn NaN into 0 (32 bits) or the lowest value (64 bits).
template <class Integer, class Real>
Integer saturating(Real rounded) {
  constexpr Integer lowest = static_cast<Integer>(Integer(-1) < Integer(0) ? Integer(1) << (sizeof(Integer) * 8 - 1) : 0);
  constexpr Integer highest = static_cast<Integer>(~lowest);
  if (rounded != rounded) return sizeof(Integer) == 8 ? static_cast<Integer>(Integer(1) << 63) : 0;
  if (rounded <= static_cast<Real>(lowest)) return lowest;
  if (rounded >= static_cast<Real>(highest)) return highest;
  return static_cast<Integer>(rounded);
}

}  // namespace dice_emu

// Directed rounding (_ru, _rd, _rz) differs from _rn by one unit in the last place; the emulator computes with _rn.
#define DICE_ROUNDED2(name, T, op)                                                                  \
  inline T __##name##_rn(T a, T b) { return a op b; }                                               \
  inline T __##name##_rz(T a, T b) { return a op b; }                                               \
  inline T __##name##_ru(T a, T b) { return a op b; }                                               \
  inline T __##name##_rd(T a, T b) { return a op b; }
DICE_ROUNDED2(fadd, float, +)
DICE_ROUNDED2(fsub, float, -)
DICE_ROUNDED2(fmul, float, *)
DICE_ROUNDED2(fdiv, float, /)
DICE_ROUNDED2(dadd, double, +)
DICE_ROUNDED2(dsub, double, -)
DICE_ROUNDED2(dmul, double, *)
DICE_ROUNDED2(ddiv, double, /)
#undef DICE_ROUNDED2
#define DICE_ROUNDED1(name, T, expression)                  \
  inline T __##name##_rn(T x) { return expression; }        \
  inline T __##name##_rz(T x) { return expression; }        \
  inline T __##name##_ru(T x) { return expression; }        \
  inline T __##name##_rd(T x) { return expression; }
DICE_ROUNDED1(fsqrt, float, sqrtf(x))
DICE_ROUNDED1(frcp, float, 1.0f / x)
DICE_ROUNDED1(dsqrt, double, ::sqrt(x))
DICE_ROUNDED1(drcp, double, 1.0 / x)
#undef DICE_ROUNDED1
#define DICE_FMA(suffix)                                                            \
  inline float __fmaf_##suffix(float a, float b, float c) { return fmaf(a, b, c); } \
  inline double __fma_##suffix(double a, double b, double c) { return ::fma(a, b, c); }
DICE_FMA(rn) DICE_FMA(rz) DICE_FMA(ru) DICE_FMA(rd)
#undef DICE_FMA
inline float __frsqrt_rn(float x) { return rsqrtf(x); }

#define DICE_TO_INTEGER(From, prefix, T, suffix)                                                     \
  inline T __##prefix##2##suffix##_rn(From x) { return dice_emu::saturating<T>(::nearbyint(x)); }    \
  inline T __##prefix##2##suffix##_rz(From x) { return dice_emu::saturating<T>(::trunc(x)); }        \
  inline T __##prefix##2##suffix##_ru(From x) { return dice_emu::saturating<T>(::ceil(x)); }         \
  inline T __##prefix##2##suffix##_rd(From x) { return dice_emu::saturating<T>(::floor(x)); }
DICE_TO_INTEGER(float, float, int, int)
DICE_TO_INTEGER(float, float, unsigned, uint)
DICE_TO_INTEGER(float, float, long long, ll)
DICE_TO_INTEGER(float, float, unsigned long long, ull)
DICE_TO_INTEGER(double, double, int, int)
DICE_TO_INTEGER(double, double, unsigned, uint)
DICE_TO_INTEGER(double, double, long long, ll)
DICE_TO_INTEGER(double, double, unsigned long long, ull)
#undef DICE_TO_INTEGER
#define DICE_FROM_INTEGER(T, prefix)                                                \
  inline float __##prefix##2float_rn(T x) { return static_cast<float>(x); }         \
  inline float __##prefix##2float_rz(T x) { return static_cast<float>(x); }         \
  inline float __##prefix##2float_ru(T x) { return static_cast<float>(x); }         \
  inline float __##prefix##2float_rd(T x) { return static_cast<float>(x); }         \
  inline double __##prefix##2double_rn(T x) { return static_cast<double>(x); }
DICE_FROM_INTEGER(int, int)
DICE_FROM_INTEGER(unsigned, uint)
DICE_FROM_INTEGER(long long, ll)
DICE_FROM_INTEGER(unsigned long long, ull)
#undef DICE_FROM_INTEGER
inline float __double2float_rn(double x) { return static_cast<float>(x); }
inline float __double2float_rz(double x) { return static_cast<float>(x); }
inline float __double2float_ru(double x) { return static_cast<float>(x); }
inline float __double2float_rd(double x) { return static_cast<float>(x); }

inline int __float_as_int(float x) { return dice_emu::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return dice_emu::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return dice_emu::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return dice_emu::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return dice_emu::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return dice_emu::bit_cast<double>(x); }
inline int __double2hiint(double x) { return static_cast<int>(__double_as_longlong(x) >> 32); }
inline int __double2loint(double x) { return static_cast<int>(__double_as_longlong(x)); }
inline double __hiloint2double(int hi, int lo) {
  return __longlong_as_double(static_cast<long long>(static_cast<unsigned long long>(static_cast<unsigned>(hi)) << 32 | static_cast<unsigned>(lo)));
}

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x)); }
inline unsigned long long __brevll(unsigned long long x) {
  unsigned long long reversed = 0;
  for (int i = 0; i < 64; ++i) reversed |= (x >> i & 1) << (63 - i);
  return reversed;
}
inline unsigned __brev(unsigned x) { return static_cast<unsigned>(__brevll(x) >> 32); }
// Bits 0-2 of each selector nibble choose one of eight bytes; bit 3 replicates that byte's sign.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const unsigned long long bytes = static_cast<unsigned long long>(y) << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned pick = selector >> (4 * i) & 0xF;
    unsigned byte = static_cast<unsigned>(bytes >> (8 * (pick & 7))) & 0xFF;
    if (pick & 8) byte = byte & 0x80 ? 0xFF : 0;
    result |= byte << (8 * i);
  }
  return result;
}
inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned shift) {
  const unsigned long long both = static_cast<unsigned long long>(hi) << 32 | lo;
  return static_cast<unsigned>(both << (shift & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned shift) {
  const unsigned long long both = static_cast<unsigned long long>(hi) << 32 | lo;
  return static_cast<unsigned>(both >> (shift & 31));
}
inline int __mulhi(int a, int b) { return static_cast<int>((static_cast<long long>(a) * b) >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>((static_cast<unsigned long long>(a) * b) >> 32); }
inline long long __mul64hi(long long a, long long b) { return static_cast<long long>((static_cast<__int128>(a) * b) >> 64); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>((static_cast<unsigned __int128>(a) * b) >> 64);
}
inline int __mul24(int a, int b) { return (a << 8 >> 8) * (b << 8 >> 8); }
inline unsigned __umul24(unsigned a, unsigned b) { return (a & 0xFFFFFF) * (b & 0xFFFFFF); }
inline int __hadd(int a, int b) { return static_cast<int>((static_cast<long long>(a) + b) >> 1); }
inline int __rhadd(int a, int b) { return static_cast<int>((static_cast<long long>(a) + b + 1) >> 1); }
inline unsigned __usad(unsigned a, unsigned b, unsigned c) { return c + (a > b ? a - b : b - a); }
inline unsigned __sad(int a, int b, unsigned c) { return c + static_cast<unsigned>(a > b ? a - b : b - a); }
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 32; i += 8) c += static_cast<signed char>(a >> i) * static_cast<signed char>(b >> i);
  return c;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  for (int i = 0; i < 32; i += 8) c += (a >> i & 0xFF) * (b >> i & 0xFF);
  return c;
}

inline int __dp4a(char4 a, char4 b, int c) { return c + a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }
inline unsigned __dp4a(uchar4 a, uchar4 b, unsigned c) {
  return c + static_cast<unsigned>(a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w);
}

// Cache hints do not change what is read or written.
#define DICE_LOAD(name) template <class T> inline T name(const T* address) { return *address; }
DICE_LOAD(__ldca) DICE_LOAD(__ldcg) DICE_LOAD(__ldcs) DICE_LOAD(__ldcv) DICE_LOAD(__ldlu)
#undef DICE_LOAD
// Of memory that nobody writes to while the kernel runs: else it may be what was there when the kernel began.
template <class T> inline T __ldg(const T* p) {
  T value = *p;
  if (__builtin_expect(dice_isolated, 0)) dice_read_only(p, &value, sizeof value);
  return value;
}
#define DICE_STORE(name) template <class T> inline void name(T* address, T value) { *address = value; }
DICE_STORE(__stwb) DICE_STORE(__stcg) DICE_STORE(__stcs) DICE_STORE(__stwt)
#undef DICE_STORE
inline void __prefetch_global_l1(const void*) {}
inline void __prefetch_global_l2(const void*) {}

inline unsigned __isGlobal(const void*) { return 1; }
inline void __builtin_assume(bool) {}
#define __builtin_assume_aligned(p, ...) (p)
template <class T> inline size_t __cvta_generic_to_shared(T* p) { return reinterpret_cast<size_t>(p); }

// Four bytes or two halves of a word, each for itself.
namespace dice_emu {
template <class Lane, class Operation> inline unsigned lanes(unsigned a, unsigned b, Operation operation) {
  unsigned word = 0;
  for (unsigned at = 0; at < 32; at += 8 * sizeof(Lane)) {
    const int found = operation(static_cast<int>(static_cast<Lane>(a >> at)), static_cast<int>(static_cast<Lane>(b >> at)));
    word |= (static_cast<unsigned>(found) & ((1u << 8 * sizeof(Lane)) - 1)) << at;
  }
  return word;
}
template <class Lane> inline unsigned distance(unsigned a, unsigned b) {
  unsigned sum = 0;
  for (unsigned at = 0; at < 32; at += 8 * sizeof(Lane))
    sum += static_cast<unsigned>(std::abs(static_cast<int>(static_cast<Lane>(a >> at)) - static_cast<int>(static_cast<Lane>(b >> at))));
  return sum;
}
}  // namespace dice_emu
#define DICE_LANES(count, S, U)                                                                                                  \
  inline unsigned __vadd##count(unsigned a, unsigned b) { return dice_emu::lanes<U>(a, b, [](int x, int y) { return x + y; }); }  \
  inline unsigned __vsub##count(unsigned a, unsigned b) { return dice_emu::lanes<U>(a, b, [](int x, int y) { return x - y; }); }  \
  inline unsigned __vmaxs##count(unsigned a, unsigned b) { return dice_emu::lanes<S>(a, b, [](int x, int y) { return x > y ? x : y; }); } \
  inline unsigned __vmins##count(unsigned a, unsigned b) { return dice_emu::lanes<S>(a, b, [](int x, int y) { return x < y ? x : y; }); } \
  inline unsigned __vmaxu##count(unsigned a, unsigned b) { return dice_emu::lanes<U>(a, b, [](int x, int y) { return x > y ? x : y; }); } \
  inline unsigned __vminu##count(unsigned a, unsigned b) { return dice_emu::lanes<U>(a, b, [](int x, int y) { return x < y ? x : y; }); } \
  inline unsigned __vavgu##count(unsigned a, unsigned b) { return dice_emu::lanes<U>(a, b, [](int x, int y) { return (x + y + 1) / 2; }); } \
  inline unsigned __vabsdiffs##count(unsigned a, unsigned b) { return dice_emu::lanes<S>(a, b, [](int x, int y) { return std::abs(x - y); }); } \
  inline unsigned __vabsdiffu##count(unsigned a, unsigned b) { return dice_emu::lanes<U>(a, b, [](int x, int y) { return std::abs(x - y); }); } \
  inline unsigned __vcmpeq##count(unsigned a, unsigned b) { return dice_emu::lanes<U>(a, b, [](int x, int y) { return -(x == y); }); } \
  inline unsigned __vcmpgtu##count(unsigned a, unsigned b) { return dice_emu::lanes<U>(a, b, [](int x, int y) { return -(x > y); }); } \
  inline unsigned __vcmpgts##count(unsigned a, unsigned b) { return dice_emu::lanes<S>(a, b, [](int x, int y) { return -(x > y); }); } \
  inline unsigned __vsads##count(unsigned a, unsigned b) { return dice_emu::distance<S>(a, b); }                                   \
  inline unsigned __vsadu##count(unsigned a, unsigned b) { return dice_emu::distance<U>(a, b); }
DICE_LANES(4, signed char, unsigned char)
DICE_LANES(2, short, unsigned short)
#undef DICE_LANES
