// thrust::counting_iterator
#pragma once
#include <thrust/iterator/iterator_base.h>

namespace thrust {

template <class T, class = void, class = void, class = void>
class counting_iterator : public detail::computed<counting_iterator<T>, T> {
 public:
  counting_iterator() : value_() {}
  counting_iterator(T value) : value_(value) {}
  T at(ptrdiff_t i) const { return static_cast<T>(value_ + i); }
  counting_iterator advanced(ptrdiff_t i) const { return at(i); }
  ptrdiff_t from(const counting_iterator& other) const { return static_cast<ptrdiff_t>(value_ - other.value_); }

 private:
  T value_;
};
template <class T> counting_iterator<T> make_counting_iterator(T value) { return value; }

}  // namespace thrust
