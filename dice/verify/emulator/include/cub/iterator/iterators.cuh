// Iterators that compute what they point at. Those that only count, repeat and transform are Thrust's as well; CUB had names
// of its own for them before CUDA 13.
#pragma once
#include <cub/thread/thread_operators.cuh>
#include <thrust/iterator/constant_iterator.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/discard_iterator.h>
#include <thrust/iterator/transform_iterator.h>

namespace cub {

template <class T, class = ptrdiff_t> using CountingInputIterator = thrust::counting_iterator<T>;
template <class T, class = ptrdiff_t> using ConstantInputIterator = thrust::constant_iterator<T>;
template <class = ptrdiff_t> using DiscardOutputIterator = thrust::discard_iterator<>;

template <class T, class Function, class In, class = ptrdiff_t>
struct TransformInputIterator : thrust::transform_iterator<Function, In, T> {
  TransformInputIterator(In in, Function function) : thrust::transform_iterator<Function, In, T>(in, function) {}
};

template <class In, class Offset = ptrdiff_t, class T = typename std::iterator_traits<In>::value_type>
class ArgIndexInputIterator {
 public:
  using value_type = KeyValuePair<Offset, T>;
  using reference = value_type;
  using pointer = value_type*;
  using difference_type = Offset;
  using iterator_category = std::random_access_iterator_tag;
  ArgIndexInputIterator(In in, Offset offset = 0) : in_(in), offset_(offset) {}
  value_type operator[](Offset i) const { return {offset_ + i, static_cast<T>(in_[offset_ + i])}; }
  value_type operator*() const { return (*this)[0]; }
  ArgIndexInputIterator operator+(Offset i) const { return {in_, static_cast<Offset>(offset_ + i)}; }
  ArgIndexInputIterator& operator++() { return ++offset_, *this; }

 private:
  In in_;
  Offset offset_;
};

}  // namespace cub
