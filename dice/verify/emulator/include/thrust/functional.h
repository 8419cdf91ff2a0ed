// Function objects
#pragma once
#include <cuda/functional>

#include <functional>

namespace thrust {

using std::bit_and;
using std::bit_or;
using std::bit_xor;
using std::divides;
using std::equal_to;
using std::greater;
using std::greater_equal;
using std::less;
using std::less_equal;
using std::logical_and;
using std::logical_not;
using std::logical_or;
using std::minus;
using std::modulus;
using std::multiplies;
using std::negate;
using std::not_equal_to;
using std::plus;
template <class T = void> using maximum = ::cuda::maximum<T>;
template <class T = void> using minimum = ::cuda::minimum<T>;
template <class T = void> struct identity {
  template <class U> U&& operator()(U&& value) const { return std::forward<U>(value); }
};
template <class T = void> struct square {
  template <class U> auto operator()(const U& value) const { return value * value; }
};

}  // namespace thrust
