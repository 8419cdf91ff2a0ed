// What inline PTX becomes: registers hold bits, and an instruction reads and writes them as its own type.
#pragma once
#include <cmath>
#include <cstring>
#include <type_traits>

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

}  // namespace dice_emu::ptx
