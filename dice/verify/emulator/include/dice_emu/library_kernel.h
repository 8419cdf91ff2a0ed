// What CUB's device-wide functions and Thrust are made of: their work is done by one thread of a kernel of its own, so that
// it waits for its stream, is counted and muted, and may touch what a kernel may. Sums are formed as trees, since a GPU
// loses as little to rounding.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

namespace dice_emu {

// Launch `body` on the stream. `arguments`: what a kernel would be given, and could be pointers.
template <class Body, class... Arguments>
void library_kernel(const char* name, cudaStream_t stream, const Body& body, const Arguments&... arguments) {
  static Kernel kernel{name, 0};
  kernel.name = name;
  kernel.of_library = true;
  (argument(kernel, "an argument", arguments), ...);
  configure(1, 1, 0, stream);
  run(kernel, body);
}

template <class It> using ValueOf = typename std::iterator_traits<It>::value_type;
// A `void` value type is that of an iterator that can only be written to.
template <class Out, class Otherwise> using ValueOr = std::conditional_t<std::is_void_v<Out>, Otherwise, Out>;
template <class It, class = void> struct OutputOf { using type = void; };
template <class It> struct OutputOf<It, std::void_t<ValueOf<It>>> { using type = ValueOf<It>; };

using Count = long long;

// At least one value.
template <class T, class In, class Operation>
T fold(In in, Count n, Operation& operation) {
  constexpr Count kLeaf = 32;
  if (n <= kLeaf) {
    T total = static_cast<T>(in[0]);
    for (Count i = 1; i < n; ++i) total = static_cast<T>(operation(total, static_cast<T>(in[i])));
    return total;
  }
  const Count half = (n / 2 + kLeaf - 1) / kLeaf * kLeaf;
  const T left = fold<T>(in, half, operation);
  return static_cast<T>(operation(left, fold<T>(in + half, n - half, operation)));
}

// In place, too. Each tile is folded by itself before what came in front of it is added.
template <class T, class In, class Out, class Operation>
void scan(In in, Out out, Count n, Operation& operation, std::optional<T> before, bool inclusive) {
  constexpr Count kTile = 1024, kPart = 32;
  std::vector<T> tile;
  tile.reserve(static_cast<size_t>(std::min(n, kTile)));
  for (Count first = 0; first < n; first += kTile) {
    const Count end = std::min(n, first + kTile);
    tile.clear();
    for (Count part = first; part < end; part += kPart) {
      const std::optional<T> ahead = tile.empty() ? std::nullopt : std::optional<T>(tile.back());
      T total = static_cast<T>(in[part]);
      for (Count i = part; i < std::min(end, part + kPart); ++i) {
        if (i != part) total = static_cast<T>(operation(total, static_cast<T>(in[i])));
        tile.push_back(ahead ? static_cast<T>(operation(*ahead, total)) : total);
      }
    }
    const std::optional<T> ahead = before;
    for (Count i = first; i < end; ++i) {
      const T& own = tile[static_cast<size_t>(i - first)];
      const T upto = ahead ? static_cast<T>(operation(*ahead, own)) : own;
      if (inclusive) {
        out[i] = upto;
      } else {
        out[i] = *before;
      }
      before = upto;
    }
  }
}

// Calls `each(first, end)` for each run of equal keys.
template <class Keys, class Equal, class Each>
void runs(Keys keys, Count n, Equal& equal, Each each) {
  for (Count first = 0, end; first < n; first = end) {
    for (end = first + 1; end < n && equal(keys[end - 1], keys[end]);) ++end;
    each(first, end);
  }
}

template <class T, class In>
std::vector<T> taken(In in, Count n) {
  std::vector<T> values;
  values.reserve(static_cast<size_t>(n));
  for (Count i = 0; i < n; ++i) values.push_back(static_cast<T>(in[i]));
  return values;
}

// Stable, in place. Values, if any, go where their keys go.
template <class Keys, class Compare, class... Values>
void sort(Keys keys, Count n, Compare& compare, Values... values) {
  using Key = ValueOf<Keys>;
  const std::vector<Key> from = taken<Key>(keys, n);
  std::vector<Count> places(static_cast<size_t>(n));
  for (Count i = 0; i < n; ++i) places[static_cast<size_t>(i)] = i;
  std::stable_sort(places.begin(), places.end(), [&](Count a, Count b) { return compare(from[static_cast<size_t>(a)], from[static_cast<size_t>(b)]); });
  const auto put = [&](const auto& what, auto to) {
    for (Count i = 0; i < n; ++i) to[i] = what[static_cast<size_t>(places[static_cast<size_t>(i)])];
  };
  put(from, keys);
  (put(taken<ValueOf<Values>>(values, n), values), ...);
}

}  // namespace dice_emu
