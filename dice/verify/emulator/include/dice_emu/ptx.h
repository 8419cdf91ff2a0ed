// What inline PTX becomes: registers hold bits, and an instruction reads and writes them as its own type.
#pragma once
#include <cmath>
#include <cstring>
#include <type_traits>

#include "warp.h"

namespace dice_emu::ptx {

template <class To, class From> To as(const From& from) {
  if constexpr (std::is_pointer_v<From>) {
    return (To)(unsigned long long)from;
  } else if constexpr (sizeof(To) == sizeof(From) && std::is_floating_point_v<To> != std::is_floating_point_v<From>) {
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
  } else {
    return static_cast<To>(from);
  }
}
template <class To, class From> void put(To& to, From from) {
  if constexpr (std::is_pointer_v<To>) to = (To)(unsigned long long)from;
  else to = as<To>(from);
}
template <class T> T least(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return std::fmin(a, b);
  else return b < a ? b : a;
}
template <class T> T most(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return std::fmax(a, b);
  else return a < b ? b : a;
}
template <class T> T fma(T a, T b, T c) { return std::fma(a, b, c); }
// PTX shifts by any amount, where C++ does only by less than the width.
template <class T> T left(T a, unsigned by) { return by >= 8 * sizeof(T) ? T(0) : T(a << by); }
template <class T> T right(T a, unsigned by) {
  if (by >= 8 * sizeof(T)) return a < T(0) ? T(-1) : T(0);
  return T(a >> by);
}
// The upper half of a product.
template <class T> T high(T a, T b) {
  using Wide = std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
  return static_cast<T>(static_cast<Wide>(a) * b >> 8 * sizeof(T));
}
// Bit i of `table` is the answer where the bits of c, b and a say i.
template <class T> T logic(T a, T b, T c, T table) {
  T found = 0;
  for (unsigned i = 0; i < 8; ++i) {
    if ((table >> i & 1) != 0) found |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
  }
  return found;
}
// A field of `length` bits from bit `from` on; what lies beyond the top is the sign of signed numbers, or nothing.
template <class T> T extract(T a, unsigned from, unsigned length) {
  constexpr unsigned width = 8 * sizeof(T);
  from &= 0xff, length &= 0xff;
  if (length == 0) return 0;
  const unsigned top = from + length - 1 < width ? from + length - 1 : width - 1;
  const bool sign = std::is_signed_v<T> && (a >> top & 1) != 0;
  T found = sign ? T(-1) : T(0);
  for (unsigned i = 0; i < length && i < width; ++i) {
    const bool bit = from + i < width ? (a >> (from + i) & 1) != 0 : sign;
    const T mask = static_cast<T>(T(1) << i);
    found = bit ? found | mask : found & ~mask;
  }
  return found;
}
template <class T> T insert(T field, T a, unsigned from, unsigned length) {
  from &= 0xff, length &= 0xff;
  for (unsigned i = 0; i < length && from + i < 8 * sizeof(T); ++i) {
    const T mask = static_cast<T>(T(1) << (from + i));
    a = (field >> i & 1) != 0 ? a | mask : a & ~mask;
  }
  return a;
}

// What a 32-bit register of a tile holds: `count` elements of one row (left) or column (right) that follow each other.
struct Half {
  static constexpr int count = 2;
  static float at(unsigned bits, int i) {
    const unsigned half = bits >> 16 * i & 0xffff, exponent = half >> 10 & 31, mantissa = half & 1023;
    const float value = exponent == 31 ? (mantissa != 0 ? NAN : INFINITY)
                        : exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                                        : std::ldexp(static_cast<float>(1024 + mantissa), static_cast<int>(exponent) - 25);
    return half >> 15 != 0 ? -value : value;
  }
};
struct Brain {
  static constexpr int count = 2;
  static float at(unsigned bits, int i) { return as<float>(i == 0 ? bits << 16 : bits & 0xffff0000u); }
};
struct Single {
  static constexpr int count = 1;
  static float at(unsigned bits, int) { return as<float>(bits & 0xffffe000u); }  // TF32 has ten bits behind the point
};
template <class Byte> struct Bytes {
  static constexpr int count = 4;
  static int at(unsigned bits, int i) { return static_cast<Byte>(bits >> 8 * i); }
};

inline char* shared(uint64_t address) { return dice_shared_at(address); }

// Lane 8 i + r holds where row r of the i-th tile begins, which is eight by eight of two bytes; each lane gets of each tile
// two elements that follow each other in a row, or, `across`, in a column.
template <int tiles, bool across> void matrices(unsigned (&to)[tiles], const char* row) {
  const int group = lane_id() / 4, pair = lane_id() % 4 * 2;
  for (int tile = 0; tile < tiles; ++tile) {
    to[tile] = 0;
    for (int i = 0; i < 2; ++i) {
      const auto* from = reinterpret_cast<const char*>(shuffle(~0u, reinterpret_cast<uint64_t>(row), 8 * tile + (across ? pair + i : group)));
      unsigned short bits;
      std::memcpy(&bits, from + 2 * (across ? group : pair + i), sizeof bits);
      to[tile] |= static_cast<unsigned>(bits) << 16 * i;
    }
  }
}

// sums += left * right, for tiles of 16 rows and 8 columns: lane 4g + q holds of the left one rows g and g + 8, of the
// right one column g, and of the sums columns 2q and 2q + 1 of rows g and g + 8.
template <class Kind, class Sum, int registers> void multiply(Sum (&sums)[4], const unsigned (&left)[registers], const unsigned (&right)[registers / 2]) {
  const int group = lane_id() / 4, quarter = lane_id() % 4;
  for (int block = 0; block < registers / 2; ++block)
    for (int lane = 0; lane < 4; ++lane) {
      const unsigned rows[2] = {shuffle(~0u, left[2 * block], 4 * group + lane), shuffle(~0u, left[2 * block + 1], 4 * group + lane)};
      const unsigned columns[2] = {shuffle(~0u, right[block], 8 * quarter + lane), shuffle(~0u, right[block], 8 * quarter + 4 + lane)};
      for (int i = 0; i < Kind::count; ++i)
        for (int at = 0; at < 4; ++at) sums[at] += Kind::at(rows[at / 2], i) * Kind::at(columns[at % 2], i);
    }
}

}  // namespace dice_emu::ptx
