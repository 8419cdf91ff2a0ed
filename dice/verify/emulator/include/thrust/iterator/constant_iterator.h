// thrust::constant_iterator
#pragma once
#include <thrust/iterator/iterator_base.h>

namespace thrust {

template <class T, class = void, class = void>
class constant_iterator : public detail::computed<constant_iterator<T>, T> {
 public:
  explicit constant_iterator(T value, ptrdiff_t index = 0) : value_(value), index_(index) {}
  T at(ptrdiff_t) const { return value_; }
  constant_iterator advanced(ptrdiff_t i) const { return constant_iterator(value_, index_ + i); }
  ptrdiff_t from(const constant_iterator& other) const { return index_ - other.index_; }

 private:
  T value_;
  ptrdiff_t index_;
};
template <class T> constant_iterator<T> make_constant_iterator(T value, ptrdiff_t index = 0) { return constant_iterator<T>(value, index); }

}  // namespace thrust
