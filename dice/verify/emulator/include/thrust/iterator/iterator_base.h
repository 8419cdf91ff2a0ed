// What iterators have in common that compute what they point at. `Derived` has `at(i)`, and `advanced(i)`.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <iterator>
#include <type_traits>
#include <utility>

namespace thrust {

using std::ptrdiff_t;
template <class It> using iterator_value_t = typename std::iterator_traits<It>::value_type;
template <class It> struct iterator_value { using type = iterator_value_t<It>; };
template <class It> struct iterator_difference { using type = typename std::iterator_traits<It>::difference_type; };
using std::iterator_traits;

template <class It> auto distance(It first, It last) { return last - first; }
template <class It, class N> void advance(It& it, N n) { it += n; }
template <class It> It next(It it, ptrdiff_t n = 1) { return it + n; }
template <class It> It prev(It it, ptrdiff_t n = 1) { return it - n; }

namespace detail {

template <class Derived, class Value, class Reference = Value>
class computed {
 public:
  using value_type = Value;
  using reference = Reference;
  using pointer = void;
  using difference_type = ptrdiff_t;
  using iterator_category = std::random_access_iterator_tag;

  Reference operator*() const { return self().at(0); }
  Reference operator[](ptrdiff_t i) const { return self().at(i); }
  Derived operator+(ptrdiff_t i) const { return self().advanced(i); }
  Derived operator-(ptrdiff_t i) const { return self().advanced(-i); }
  friend Derived operator+(ptrdiff_t i, const Derived& it) { return it.advanced(i); }
  Derived& operator+=(ptrdiff_t i) { return self() = self().advanced(i); }
  Derived& operator-=(ptrdiff_t i) { return self() = self().advanced(-i); }
  Derived& operator++() { return *this += 1; }
  Derived& operator--() { return *this -= 1; }
  Derived operator++(int) { const Derived before = self(); *this += 1; return before; }
  Derived operator--(int) { const Derived before = self(); *this -= 1; return before; }
  friend ptrdiff_t operator-(const Derived& a, const Derived& b) { return a.from(b); }
  friend bool operator==(const Derived& a, const Derived& b) { return a.from(b) == 0; }
  friend bool operator!=(const Derived& a, const Derived& b) { return a.from(b) != 0; }
  friend bool operator<(const Derived& a, const Derived& b) { return a.from(b) < 0; }
  friend bool operator>(const Derived& a, const Derived& b) { return a.from(b) > 0; }
  friend bool operator<=(const Derived& a, const Derived& b) { return a.from(b) <= 0; }
  friend bool operator>=(const Derived& a, const Derived& b) { return a.from(b) >= 0; }

 private:
  const Derived& self() const { return static_cast<const Derived&>(*this); }
  Derived& self() { return static_cast<Derived&>(*this); }
};

// Where what an iterator points at is: on the device, or wherever the others are. `raw`: the same, for device code.
template <class It> struct place { static constexpr bool on_device = false; };
template <class It> It raw(const It& it) { return it; }

}  // namespace detail
}  // namespace thrust
