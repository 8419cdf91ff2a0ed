// Thrust's algorithms. Each is written once, as `detail::name(policy, ...)`; what is called says where by a policy, or by
// the iterators: those of the device's memory run there, others on the host.
#pragma once
#include <thrust/device_ptr.h>
#include <thrust/execution_policy.h>
#include <thrust/functional.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/permutation_iterator.h>
#include <thrust/iterator/transform_iterator.h>
#include <thrust/tuple.h>

#include <algorithm>
#include <optional>

namespace thrust {
namespace detail {

using ::dice_emu::Count;
template <class It> using value_t = iterator_value_t<It>;

// ---- mappings ------------------------------------------------------------------------------------------------------

template <class P, class It, class F> It for_each(P p, It first, It last, F f) {
  const Count n = last - first;
  perform(p, [=, a = raw(first)]() mutable { for (Count i = 0; i < n; ++i) f(a[i]); }, first);
  return last;
}
template <class P, class It, class N, class F> It for_each_n(P p, It first, N n, F f) { return for_each(p, first, first + n, f); }
template <class P, class It, class Out, class F> Out transform(P p, It first, It last, Out out, F f) {
  const Count n = last - first;
  perform(p, [=, a = raw(first), o = raw(out)]() mutable { for (Count i = 0; i < n; ++i) o[i] = f(a[i]); }, first, out);
  return out + n;
}
template <class P, class It, class Other, class Out, class F> Out transform(P p, It first, It last, Other other, Out out, F f) {
  const Count n = last - first;
  perform(p, [=, a = raw(first), b = raw(other), o = raw(out)]() mutable { for (Count i = 0; i < n; ++i) o[i] = f(a[i], b[i]); }, first, other, out);
  return out + n;
}
template <class P, class It, class Out, class F, class Wanted> Out transform_if(P p, It first, It last, Out out, F f, Wanted wanted) {
  const Count n = last - first;
  perform(p, [=, a = raw(first), o = raw(out)]() mutable { for (Count i = 0; i < n; ++i) if (wanted(a[i])) o[i] = f(a[i]); }, first, out);
  return out + n;
}
template <class P, class It, class Stencil, class Out, class F, class Wanted>
Out transform_if(P p, It first, It last, Stencil stencil, Out out, F f, Wanted wanted) {
  const Count n = last - first;
  perform(p, [=, a = raw(first), s = raw(stencil), o = raw(out)]() mutable { for (Count i = 0; i < n; ++i) if (wanted(s[i])) o[i] = f(a[i]); },
          first, stencil, out);
  return out + n;
}
template <class P, class It, class F> void tabulate(P p, It first, It last, F f) {
  const Count n = last - first;
  perform(p, [=, a = raw(first)]() mutable { for (Count i = 0; i < n; ++i) a[i] = f(i); }, first);
}
template <class P, class It, class F> void generate(P p, It first, It last, F f) { tabulate(p, first, last, [=](Count) mutable { return f(); }); }
template <class P, class It, class T> void fill(P p, It first, It last, T value) { tabulate(p, first, last, [=](Count) { return value; }); }
template <class P, class It, class N, class T> It fill_n(P p, It first, N n, T value) { return fill(p, first, first + n, value), first + n; }
template <class P, class It> void sequence(P p, It first, It last) { tabulate(p, first, last, [](Count i) { return static_cast<value_t<It>>(i); }); }
template <class P, class It, class T> void sequence(P p, It first, It last, T start, T step) {
  tabulate(p, first, last, [=](Count i) { return static_cast<value_t<It>>(start + static_cast<value_t<It>>(i) * step); });
}
template <class P, class It, class T> void sequence(P p, It first, It last, T start) { sequence(p, first, last, start, T(1)); }
template <class P, class It, class Map, class Out> Out scatter(P p, It first, It last, Map map, Out out) {
  const Count n = last - first;
  perform(p, [=, a = raw(first), m = raw(map), o = raw(out)]() mutable { for (Count i = 0; i < n; ++i) o[m[i]] = a[i]; }, first, map, out);
  return out + n;
}
template <class P, class Map, class It, class Out> Out gather(P p, Map first, Map last, It from, Out out) {
  const Count n = last - first;
  perform(p, [=, m = raw(first), a = raw(from), o = raw(out)]() mutable { for (Count i = 0; i < n; ++i) o[i] = a[m[i]]; }, first, from, out);
  return out + n;
}
template <class P, class It, class T> void replace(P p, It first, It last, T old, T next) {
  transform(p, first, last, first, [=](value_t<It> v) { return v == old ? static_cast<value_t<It>>(next) : v; });
}
template <class P, class It, class Wanted, class T> void replace_if(P p, It first, It last, Wanted wanted, T next) {
  transform(p, first, last, first, [=](value_t<It> v) mutable { return wanted(v) ? static_cast<value_t<It>>(next) : v; });
}
template <class P, class It> void reverse(P p, It first, It last) {
  const Count n = last - first;
  perform(p, [=, a = raw(first)]() mutable {
    for (Count i = 0; i < n / 2; ++i) {
      const value_t<It> one = a[i], other = a[n - 1 - i];
      a[i] = other, a[n - 1 - i] = one;
    }
  }, first);
}
template <class P, class It, class Out, class F> Out adjacent_difference(P p, It first, It last, Out out, F f) {
  const Count n = last - first;
  perform(p, [=, a = raw(first), o = raw(out)]() mutable {
    std::optional<value_t<It>> before;
    for (Count i = 0; i < n; ++i) {
      const value_t<It> own = a[i];
      if (before) o[i] = f(own, *before); else o[i] = own;
      before = own;
    }
  }, first, out);
  return out + n;
}
template <class P, class It, class Out> Out adjacent_difference(P p, It first, It last, Out out) { return adjacent_difference(p, first, last, out, minus<>()); }

// ---- reductions ----------------------------------------------------------------------------------------------------

template <class P, class It, class T, class F> T reduce(P p, It first, It last, T initial, F f) {
  const Count n = last - first;
  return result(p, [=, a = raw(first)]() mutable { return n == 0 ? initial : static_cast<T>(f(initial, ::dice_emu::fold<T>(a, n, f))); }, first);
}
template <class P, class It, class T> T reduce(P p, It first, It last, T initial) { return reduce(p, first, last, initial, plus<>()); }
template <class P, class It> value_t<It> reduce(P p, It first, It last) { return reduce(p, first, last, value_t<It>()); }
template <class P, class It, class F, class T, class G> T transform_reduce(P p, It first, It last, F f, T initial, G g) {
  return reduce(p, transform_iterator<F, It>(first, f), transform_iterator<F, It>(last, f), initial, g);
}
template <class P, class It, class Other, class T, class G, class F> T inner_product(P p, It first, It last, Other other, T initial, G g, F f) {
  const Count n = last - first;
  return result(p, [=, a = raw(first), b = raw(other)]() mutable {
    auto product = [=](Count i) mutable { return static_cast<T>(f(a[i], b[i])); };
    const transform_iterator<decltype(product), counting_iterator<Count>> each(counting_iterator<Count>(0), product);
    return n == 0 ? initial : static_cast<T>(g(initial, ::dice_emu::fold<T>(each, n, g)));
  }, first, other);
}
template <class P, class It, class Other, class T> T inner_product(P p, It first, It last, Other other, T initial) {
  return inner_product(p, first, last, other, initial, plus<>(), multiplies<>());
}
template <class P, class It, class Wanted> ptrdiff_t count_if(P p, It first, It last, Wanted wanted) {
  const Count n = last - first;
  return counted(p, n, [=, a = raw(first)]() mutable {
    Count found = 0;
    for (Count i = 0; i < n; ++i) found += wanted(a[i]) ? 1 : 0;
    return found;
  }, first);
}
template <class P, class It, class T> ptrdiff_t count(P p, It first, It last, T value) {
  return count_if(p, first, last, [=](const value_t<It>& v) { return v == value; });
}
template <class P, class It, class Wanted> It find_if(P p, It first, It last, Wanted wanted) {
  const Count n = last - first;
  return first + counted(p, n, [=, a = raw(first)]() mutable {
    Count i = 0;
    while (i < n && !wanted(a[i])) ++i;
    return i;
  }, first);
}
template <class P, class It, class T> It find(P p, It first, It last, T value) {
  return find_if(p, first, last, [=](const value_t<It>& v) { return v == value; });
}
template <class P, class It, class Wanted> bool any_of(P p, It first, It last, Wanted wanted) { return find_if(p, first, last, wanted) != last; }
template <class P, class It, class Wanted> bool none_of(P p, It first, It last, Wanted wanted) { return !any_of(p, first, last, wanted); }
template <class P, class It, class Wanted> bool all_of(P p, It first, It last, Wanted wanted) {
  return none_of(p, first, last, [=](const value_t<It>& v) mutable { return !wanted(v); });
}
template <class P, class It, class Other> bool equal(P p, It first, It last, Other other) {
  const Count n = last - first;
  return counted(p, n, [=, a = raw(first), b = raw(other)]() mutable {
    Count i = 0;
    while (i < n && a[i] == b[i]) ++i;
    return i;
  }, first, other) == n;
}
// `before(a, b)`: b takes the place of a.
template <class P, class It, class Before> It extreme(P p, It first, It last, Before before) {
  const Count n = last - first;
  return first + counted(p, n, [=, a = raw(first)]() mutable {
    Count best = 0;
    for (Count i = 1; i < n; ++i) best = before(a[best], a[i]) ? i : best;
    return best;
  }, first);
}
template <class P, class It, class Less> It max_element(P p, It first, It last, Less less) { return extreme(p, first, last, less); }
template <class P, class It> It max_element(P p, It first, It last) { return max_element(p, first, last, less<>()); }
template <class P, class It, class Less> It min_element(P p, It first, It last, Less less) {
  return extreme(p, first, last, [=](const auto& a, const auto& b) mutable { return less(b, a); });
}
template <class P, class It> It min_element(P p, It first, It last) { return min_element(p, first, last, less<>()); }
template <class P, class It, class... Less> pair<It, It> minmax_element(P p, It first, It last, Less... less) {
  return {min_element(p, first, last, less...), max_element(p, first, last, less...)};
}
template <class P, class It, class Less> bool is_sorted(P p, It first, It last, Less less) {
  const Count n = last - first;
  return counted(p, n, [=, a = raw(first)]() mutable {
    Count i = 1;
    while (i < n && !less(a[i], a[i - 1])) ++i;
    return std::min(i, n);
  }, first) == n;
}
template <class P, class It> bool is_sorted(P p, It first, It last) { return is_sorted(p, first, last, less<>()); }
template <class P, class Keys, class It, class KeysOut, class Out, class Equal, class F>
pair<KeysOut, Out> reduce_by_key(P p, Keys first, Keys last, It values, KeysOut keys_out, Out out, Equal equal, F f) {
  const Count n = last - first;
  const ptrdiff_t found = counted(p, n, [=, k = raw(first), v = raw(values), ko = raw(keys_out), o = raw(out)]() mutable {
    Count runs = 0;
    ::dice_emu::runs(k, n, equal, [&](Count begin, Count end) {
      ko[runs] = k[begin];
      o[runs++] = ::dice_emu::fold<value_t<It>>(v + begin, end - begin, f);
    });
    return runs;
  }, first, values, keys_out, out);
  return {keys_out + found, out + found};
}
template <class P, class Keys, class It, class KeysOut, class Out, class Equal>
pair<KeysOut, Out> reduce_by_key(P p, Keys first, Keys last, It values, KeysOut keys_out, Out out, Equal equal) {
  return reduce_by_key(p, first, last, values, keys_out, out, equal, plus<>());
}
template <class P, class Keys, class It, class KeysOut, class Out>
pair<KeysOut, Out> reduce_by_key(P p, Keys first, Keys last, It values, KeysOut keys_out, Out out) {
  return reduce_by_key(p, first, last, values, keys_out, out, equal_to<>());
}

// ---- scans ---------------------------------------------------------------------------------------------------------

template <class T, class P, class It, class Out, class F> Out scan(P p, It first, It last, Out out, F f, std::optional<T> before, bool inclusive) {
  const Count n = last - first;
  perform(p, [=, a = raw(first), o = raw(out)]() mutable { ::dice_emu::scan<T>(a, o, n, f, before, inclusive); }, first, out);
  return out + n;
}
template <class P, class It, class Out, class F> Out inclusive_scan(P p, It first, It last, Out out, F f) {
  return scan<value_t<It>>(p, first, last, out, f, std::nullopt, true);
}
template <class P, class It, class Out> Out inclusive_scan(P p, It first, It last, Out out) { return inclusive_scan(p, first, last, out, plus<>()); }
template <class P, class It, class Out, class T, class F> Out exclusive_scan(P p, It first, It last, Out out, T initial, F f) {
  return scan<T>(p, first, last, out, f, std::optional<T>(initial), false);
}
template <class P, class It, class Out, class T> Out exclusive_scan(P p, It first, It last, Out out, T initial) {
  return exclusive_scan(p, first, last, out, initial, plus<>());
}
template <class P, class It, class Out> Out exclusive_scan(P p, It first, It last, Out out) { return exclusive_scan(p, first, last, out, value_t<It>()); }
template <class P, class It, class Out, class F, class G> Out transform_inclusive_scan(P p, It first, It last, Out out, F f, G g) {
  return inclusive_scan(p, transform_iterator<F, It>(first, f), transform_iterator<F, It>(last, f), out, g);
}
template <class P, class It, class Out, class F, class T, class G> Out transform_exclusive_scan(P p, It first, It last, Out out, F f, T initial, G g) {
  return exclusive_scan(p, transform_iterator<F, It>(first, f), transform_iterator<F, It>(last, f), out, initial, g);
}
template <class T, class P, class Keys, class It, class Out, class Equal, class F>
Out scan_by_key(P p, Keys first, Keys last, It values, Out out, Equal equal, F f, std::optional<T> before, bool inclusive) {
  const Count n = last - first;
  perform(p, [=, k = raw(first), v = raw(values), o = raw(out)]() mutable {
    ::dice_emu::runs(k, n, equal, [&](Count begin, Count end) { ::dice_emu::scan<T>(v + begin, o + begin, end - begin, f, before, inclusive); });
  }, first, values, out);
  return out + n;
}
template <class P, class Keys, class It, class Out, class Equal, class F>
Out inclusive_scan_by_key(P p, Keys first, Keys last, It values, Out out, Equal equal, F f) {
  return scan_by_key<value_t<It>>(p, first, last, values, out, equal, f, std::nullopt, true);
}
template <class P, class Keys, class It, class Out> Out inclusive_scan_by_key(P p, Keys first, Keys last, It values, Out out) {
  return inclusive_scan_by_key(p, first, last, values, out, equal_to<>(), plus<>());
}
template <class P, class Keys, class It, class Out, class T, class Equal, class F>
Out exclusive_scan_by_key(P p, Keys first, Keys last, It values, Out out, T initial, Equal equal, F f) {
  return scan_by_key<T>(p, first, last, values, out, equal, f, std::optional<T>(initial), false);
}
template <class P, class Keys, class It, class Out, class T> Out exclusive_scan_by_key(P p, Keys first, Keys last, It values, Out out, T initial) {
  return exclusive_scan_by_key(p, first, last, values, out, initial, equal_to<>(), plus<>());
}
template <class P, class Keys, class It, class Out> Out exclusive_scan_by_key(P p, Keys first, Keys last, It values, Out out) {
  return exclusive_scan_by_key(p, first, last, values, out, value_t<It>());
}

// ---- orders --------------------------------------------------------------------------------------------------------

template <class P, class It, class Less> void stable_sort(P p, It first, It last, Less less) {
  const Count n = last - first;
  perform(p, [=, a = raw(first)]() mutable { ::dice_emu::sort(a, n, less); }, first);
}
template <class P, class It> void stable_sort(P p, It first, It last) { stable_sort(p, first, last, less<>()); }
template <class P, class It, class... Less> void sort(P p, It first, It last, Less... less) { stable_sort(p, first, last, less...); }
template <class P, class Keys, class It, class Less> void stable_sort_by_key(P p, Keys first, Keys last, It values, Less less) {
  const Count n = last - first;
  perform(p, [=, k = raw(first), v = raw(values)]() mutable { ::dice_emu::sort(k, n, less, v); }, first, values);
}
template <class P, class Keys, class It> void stable_sort_by_key(P p, Keys first, Keys last, It values) {
  stable_sort_by_key(p, first, last, values, less<>());
}
template <class P, class Keys, class It, class... Less> void sort_by_key(P p, Keys first, Keys last, It values, Less... less) {
  stable_sort_by_key(p, first, last, values, less...);
}
// Of one value, or for each of a range of values.
template <bool Upper, class A, class T, class Less> Count bound(A a, Count n, const T& value, Less& less) {
  Count first = 0;
  while (n > 0) {
    const Count half = n / 2;
    const bool right = Upper ? !less(value, a[first + half]) : less(a[first + half], value);
    if (right) first += half + 1, n -= half + 1;
    else n = half;
  }
  return first;
}
template <bool Upper, class P, class It, class T, class Less> It one_bound(P p, It first, It last, T value, Less less) {
  const Count n = last - first;
  return first + counted(p, n, [=, a = raw(first)]() mutable { return bound<Upper>(a, n, value, less); }, first);
}
template <bool Upper, class P, class It, class Values, class Out, class Less>
Out many_bounds(P p, It first, It last, Values values, Values values_last, Out out, Less less) {
  const Count n = last - first, m = values_last - values;
  perform(p, [=, a = raw(first), v = raw(values), o = raw(out)]() mutable { for (Count i = 0; i < m; ++i) o[i] = bound<Upper>(a, n, v[i], less); },
          first, values, out);
  return out + m;
}
#define DICE_THRUST_BOUND(name, Upper)                                                                                                \
  template <class P, class It, class T> It name(P p, It first, It last, T value) { return one_bound<Upper>(p, first, last, value, less<>()); } \
  template <class P, class It, class T, class Less> It name(P p, It first, It last, T value, Less less) {                             \
    return one_bound<Upper>(p, first, last, value, less);                                                                             \
  }                                                                                                                                   \
  template <class P, class It, class Values, class Out> Out name(P p, It first, It last, Values values, Values values_last, Out out) { \
    return many_bounds<Upper>(p, first, last, values, values_last, out, less<>());                                                    \
  }
DICE_THRUST_BOUND(lower_bound, false)
DICE_THRUST_BOUND(upper_bound, true)
#undef DICE_THRUST_BOUND

// ---- selections ----------------------------------------------------------------------------------------------------

template <class P, class It, class Stencil, class Out, class Wanted>
Out copy_if(P p, It first, It last, Stencil stencil, Out out, Wanted wanted) {
  const Count n = last - first;
  return out + counted(p, n, [=, a = raw(first), s = raw(stencil), o = raw(out)]() mutable {
    Count found = 0;
    for (Count i = 0; i < n; ++i)
      if (wanted(s[i])) o[found++] = static_cast<value_t<It>>(a[i]);
    return found;
  }, first, stencil, out);
}
template <class P, class It, class Out, class Wanted> Out copy_if(P p, It first, It last, Out out, Wanted wanted) {
  return copy_if(p, first, last, first, out, wanted);
}
template <class P, class It, class Wanted> It remove_if(P p, It first, It last, Wanted wanted) {
  return copy_if(p, first, last, first, [=](const value_t<It>& v) mutable { return !wanted(v); });
}
template <class P, class It, class Stencil, class Wanted> It remove_if(P p, It first, It last, Stencil stencil, Wanted wanted) {
  return copy_if(p, first, last, stencil, first, [=](const value_t<Stencil>& v) mutable { return !wanted(v); });
}
template <class P, class It, class T> It remove(P p, It first, It last, T value) {
  return copy_if(p, first, last, first, [=](const value_t<It>& v) { return !(v == value); });
}
template <class P, class It, class Out, class Equal> Out unique_copy(P p, It first, It last, Out out, Equal equal) {
  const Count n = last - first;
  return out + counted(p, n, [=, a = raw(first), o = raw(out)]() mutable {
    Count found = 0;
    std::optional<value_t<It>> before;
    for (Count i = 0; i < n; ++i) {
      const value_t<It> own = a[i];
      if (!before || !equal(*before, own)) o[found++] = own;
      before = own;
    }
    return found;
  }, first, out);
}
template <class P, class It, class Out> Out unique_copy(P p, It first, It last, Out out) { return unique_copy(p, first, last, out, equal_to<>()); }
template <class P, class It, class Equal> It unique(P p, It first, It last, Equal equal) { return unique_copy(p, first, last, first, equal); }
template <class P, class It> It unique(P p, It first, It last) { return unique(p, first, last, equal_to<>()); }
template <class P, class Keys, class It> pair<Keys, It> unique_by_key(P p, Keys first, Keys last, It values) {
  const Count n = last - first;
  const ptrdiff_t found = counted(p, n, [=, k = raw(first), v = raw(values)]() mutable {
    Count kept = 0;
    for (Count i = 0; i < n; ++i) {
      if (i != 0 && k[kept - 1] == k[i]) continue;
      k[kept] = static_cast<value_t<Keys>>(k[i]);
      v[kept++] = static_cast<value_t<It>>(v[i]);
    }
    return kept;
  }, first, values);
  return {first + found, values + found};
}
template <class P, class It, class Wanted> It stable_partition(P p, It first, It last, Wanted wanted) {
  const Count n = last - first;
  return first + counted(p, n, [=, a = raw(first)]() mutable {
    std::vector<value_t<It>> rest;
    Count found = 0;
    for (Count i = 0; i < n; ++i) {
      const value_t<It> own = a[i];
      if (wanted(own)) a[found++] = own; else rest.push_back(own);
    }
    for (size_t i = 0; i < rest.size(); ++i) a[found + static_cast<Count>(i)] = rest[i];
    return found;
  }, first);
}
template <class P, class It, class Wanted> It partition(P p, It first, It last, Wanted wanted) { return stable_partition(p, first, last, wanted); }

// ---- copies --------------------------------------------------------------------------------------------------------

template <class P, class It, class Out> Out copy(P p, It first, It last, Out out) {
  return transform(p, first, last, out, [](const value_t<It>& value) { return value; });
}
template <class P, class It, class N, class Out> Out copy_n(P p, It first, N n, Out out) { return copy(p, first, first + n, out); }

// Without a policy it may be from one side to the other.
template <class It, class Out> Out copy_across(It first, It last, Out out) {
  const auto n = static_cast<size_t>(last - first);
  if constexpr (place<It>::on_device == place<Out>::on_device) {
    if constexpr (place<It>::on_device) return copy(there(), first, last, out);
    else return std::copy(first, last, out);
  } else if constexpr (place<Out>::on_device) {
    const std::vector<value_t<Out>> staged(first, last);
    cudaMemcpy(raw(out), staged.data(), n * sizeof(value_t<Out>), cudaMemcpyHostToDevice);
    return out + n;
  } else {
    std::vector<value_t<It>> staged(n);
    cudaMemcpy(staged.data(), raw(first), n * sizeof(value_t<It>), cudaMemcpyDeviceToHost);
    return std::copy(staged.begin(), staged.end(), out);
  }
}

}  // namespace detail

#define DICE_THRUST(name)                                                                               \
  template <class First, class... Rest> auto name(First first, Rest... rest) {                          \
    if constexpr (detail::is_policy<First>) return detail::name(first, rest...);                        \
    else if constexpr ((detail::place<First>::on_device || ... || detail::place<Rest>::on_device)) return detail::name(detail::there(), first, rest...); \
    else return detail::name(detail::here(), first, rest...);                                           \
  }
DICE_THRUST(for_each) DICE_THRUST(for_each_n) DICE_THRUST(transform) DICE_THRUST(transform_if) DICE_THRUST(tabulate) DICE_THRUST(generate)
DICE_THRUST(fill) DICE_THRUST(fill_n) DICE_THRUST(sequence) DICE_THRUST(scatter) DICE_THRUST(gather) DICE_THRUST(replace) DICE_THRUST(replace_if)
DICE_THRUST(reverse) DICE_THRUST(adjacent_difference) DICE_THRUST(reduce) DICE_THRUST(transform_reduce) DICE_THRUST(inner_product)
DICE_THRUST(count_if) DICE_THRUST(count) DICE_THRUST(find_if) DICE_THRUST(find) DICE_THRUST(any_of) DICE_THRUST(none_of) DICE_THRUST(all_of)
DICE_THRUST(equal) DICE_THRUST(max_element) DICE_THRUST(min_element) DICE_THRUST(minmax_element) DICE_THRUST(is_sorted) DICE_THRUST(reduce_by_key)
DICE_THRUST(inclusive_scan) DICE_THRUST(exclusive_scan) DICE_THRUST(transform_inclusive_scan) DICE_THRUST(transform_exclusive_scan)
DICE_THRUST(inclusive_scan_by_key) DICE_THRUST(exclusive_scan_by_key) DICE_THRUST(stable_sort) DICE_THRUST(sort) DICE_THRUST(stable_sort_by_key)
DICE_THRUST(sort_by_key) DICE_THRUST(lower_bound) DICE_THRUST(upper_bound) DICE_THRUST(copy_if) DICE_THRUST(remove_if) DICE_THRUST(remove)
DICE_THRUST(unique_copy) DICE_THRUST(unique) DICE_THRUST(unique_by_key) DICE_THRUST(stable_partition) DICE_THRUST(partition)
#undef DICE_THRUST

template <class First, class... Rest> auto copy(First first, Rest... rest) {
  if constexpr (detail::is_policy<First>) return detail::copy(first, rest...);
  else return detail::copy_across(first, rest...);
}
template <class First, class... Rest> auto copy_n(First first, Rest... rest) {
  if constexpr (detail::is_policy<First>) return detail::copy_n(first, rest...);
  else return [](auto from, auto n, auto out) { return detail::copy_across(from, from + n, out); }(first, rest...);
}

}  // namespace thrust
