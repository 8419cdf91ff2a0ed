// thrust::zip_iterator. What it points at are tuples of references.
#pragma once
#include <thrust/iterator/iterator_base.h>
#include <thrust/tuple.h>

namespace thrust {

namespace detail {

// A tuple of references that is assigned to even where it is a temporary.
template <class... R>
struct references : tuple<R...> {
  using tuple<R...>::tuple;
  template <class Other> const references& operator=(const Other& other) const {
    const_cast<references*>(this)->tuple<R...>::operator=(other);
    return *this;
  }
  references(const references&) = default;
  const references& operator=(const references& other) const {
    const_cast<references*>(this)->tuple<R...>::operator=(static_cast<const tuple<R...>&>(other));
    return *this;
  }
};

template <class Tuple> struct zipped;
template <class... It> struct zipped<tuple<It...>> {
  using value = tuple<iterator_value_t<It>...>;
  using reference = references<typename std::iterator_traits<It>::reference...>;
  static constexpr bool on_device = (place<It>::on_device || ...);
};

}  // namespace detail

template <class Tuple>
class zip_iterator : public detail::computed<zip_iterator<Tuple>, typename detail::zipped<Tuple>::value, typename detail::zipped<Tuple>::reference> {
 public:
  zip_iterator(Tuple its) : its_(its) {}
  typename detail::zipped<Tuple>::reference at(ptrdiff_t i) const {
    return std::apply([i](const auto&... it) { return typename detail::zipped<Tuple>::reference(it[i]...); }, its_);
  }
  zip_iterator advanced(ptrdiff_t i) const {
    return std::apply([i](const auto&... it) { return zip_iterator(Tuple(it + i...)); }, its_);
  }
  ptrdiff_t from(const zip_iterator& other) const { return std::get<0>(its_) - std::get<0>(other.its_); }
  const Tuple& get_iterator_tuple() const { return its_; }

 private:
  Tuple its_;
};
template <class... It> zip_iterator<tuple<It...>> make_zip_iterator(tuple<It...> its) { return its; }
template <class... It> zip_iterator<tuple<It...>> make_zip_iterator(It... its) { return tuple<It...>(its...); }

// A function of several arguments, as one of a tuple.
template <class Function>
class zip_function {
 public:
  zip_function(Function function) : function_(function) {}
  template <class Tuple> decltype(auto) operator()(Tuple&& tuple) const { return std::apply(function_, std::forward<Tuple>(tuple)); }

 private:
  mutable Function function_;
};
template <class Function> zip_function<Function> make_zip_function(Function function) { return function; }

namespace detail {
template <class Tuple> struct place<zip_iterator<Tuple>> : zipped<Tuple> {};
template <class Tuple> auto raw(const zip_iterator<Tuple>& it) {
  return std::apply([](const auto&... one) { return make_zip_iterator(raw(one)...); }, it.get_iterator_tuple());
}
}  // namespace detail
}  // namespace thrust

namespace std {
template <class... R> struct tuple_size<thrust::detail::references<R...>> : tuple_size<tuple<R...>> {};
template <size_t I, class... R> struct tuple_element<I, thrust::detail::references<R...>> : tuple_element<I, tuple<R...>> {};
}  // namespace std
