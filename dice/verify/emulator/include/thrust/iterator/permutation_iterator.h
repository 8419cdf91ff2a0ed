// thrust::permutation_iterator
#pragma once
#include <thrust/iterator/iterator_base.h>

namespace thrust {

template <class It, class Index>
class permutation_iterator : public detail::computed<permutation_iterator<It, Index>, iterator_value_t<It>, typename std::iterator_traits<It>::reference> {
 public:
  permutation_iterator(It it, Index index) : it_(it), index_(index) {}
  typename std::iterator_traits<It>::reference at(ptrdiff_t i) const { return it_[index_[i]]; }
  permutation_iterator advanced(ptrdiff_t i) const { return {it_, index_ + i}; }
  ptrdiff_t from(const permutation_iterator& other) const { return index_ - other.index_; }
  const It& base() const { return it_; }
  const Index& index() const { return index_; }

 private:
  It it_;
  Index index_;
};
template <class It, class Index> permutation_iterator<It, Index> make_permutation_iterator(It it, Index index) { return {it, index}; }

namespace detail {
template <class It, class Index> struct place<permutation_iterator<It, Index>> {
  static constexpr bool on_device = place<It>::on_device || place<Index>::on_device;
};
template <class It, class Index> auto raw(const permutation_iterator<It, Index>& it) {
  return permutation_iterator<decltype(raw(it.base())), decltype(raw(it.index()))>(raw(it.base()), raw(it.index()));
}
}  // namespace detail
}  // namespace thrust
