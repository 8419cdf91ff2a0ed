// thrust::transform_iterator
#pragma once
#include <thrust/iterator/iterator_base.h>

namespace thrust {

namespace detail {
template <class Function, class It, class T>
using transformed_t = std::conditional_t<std::is_void_v<T>, std::decay_t<std::invoke_result_t<Function, typename std::iterator_traits<It>::value_type>>, T>;
}  // namespace detail

template <class Function, class It, class T = void, class = void>
class transform_iterator : public detail::computed<transform_iterator<Function, It, T>, detail::transformed_t<Function, It, T>> {
 public:
  transform_iterator(It it, Function function) : it_(it), function_(function) {}
  explicit transform_iterator(It it) : it_(it), function_() {}
  transform_iterator& operator=(const transform_iterator& other) { return it_ = other.it_, *this; }  // lambdas have none
  transform_iterator(const transform_iterator&) = default;
  detail::transformed_t<Function, It, T> at(ptrdiff_t i) const { return function_(it_[i]); }
  transform_iterator advanced(ptrdiff_t i) const { return {it_ + i, function_}; }
  ptrdiff_t from(const transform_iterator& other) const { return it_ - other.it_; }
  const It& base() const { return it_; }
  Function functor() const { return function_; }

 private:
  It it_;
  mutable Function function_;
};
template <class It, class Function>
transform_iterator<Function, It> make_transform_iterator(It it, Function function) { return {it, function}; }

namespace detail {
template <class F, class It, class T> struct place<transform_iterator<F, It, T>> : place<It> {};
template <class F, class It, class T> auto raw(const transform_iterator<F, It, T>& it) {
  return transform_iterator<F, decltype(raw(it.base())), T>(raw(it.base()), it.functor());
}
}  // namespace detail
}  // namespace thrust
