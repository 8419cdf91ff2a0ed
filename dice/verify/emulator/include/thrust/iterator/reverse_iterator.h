// thrust::reverse_iterator
#pragma once
#include <thrust/iterator/iterator_base.h>

namespace thrust {

template <class It>
class reverse_iterator : public detail::computed<reverse_iterator<It>, iterator_value_t<It>, typename std::iterator_traits<It>::reference> {
 public:
  explicit reverse_iterator(It it) : it_(it) {}
  typename std::iterator_traits<It>::reference at(ptrdiff_t i) const { return it_[-1 - i]; }
  reverse_iterator advanced(ptrdiff_t i) const { return reverse_iterator(it_ - i); }
  ptrdiff_t from(const reverse_iterator& other) const { return other.it_ - it_; }
  const It& base() const { return it_; }

 private:
  It it_;
};
template <class It> reverse_iterator<It> make_reverse_iterator(It it) { return reverse_iterator<It>(it); }

namespace detail {
template <class It> struct place<reverse_iterator<It>> : place<It> {};
template <class It> auto raw(const reverse_iterator<It>& it) { return reverse_iterator<decltype(raw(it.base()))>(raw(it.base())); }
}  // namespace detail
}  // namespace thrust
