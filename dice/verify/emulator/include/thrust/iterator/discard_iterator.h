// thrust::discard_iterator, to which anything may be written
#pragma once
#include <thrust/iterator/iterator_base.h>

namespace thrust {

namespace detail {
struct anything {
  template <class T> const anything& operator=(const T&) const { return *this; }
};
}  // namespace detail

template <class = void>
class discard_iterator : public detail::computed<discard_iterator<>, void, detail::anything> {
 public:
  explicit discard_iterator(ptrdiff_t index = 0) : index_(index) {}
  detail::anything at(ptrdiff_t) const { return {}; }
  discard_iterator advanced(ptrdiff_t i) const { return discard_iterator(index_ + i); }
  ptrdiff_t from(const discard_iterator& other) const { return index_ - other.index_; }

 private:
  ptrdiff_t index_;
};
inline discard_iterator<> make_discard_iterator(ptrdiff_t index = 0) { return discard_iterator<>(index); }

}  // namespace thrust
