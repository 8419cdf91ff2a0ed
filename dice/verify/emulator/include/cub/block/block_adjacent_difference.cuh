// cub::BlockAdjacentDifference: each item combined with the one before it, or with the one after.
#pragma once
#include <cub/block/block_reduce.cuh>

namespace cub {

template <class T, int X, int Y = 1, int Z = 1, int = 0>
class BlockAdjacentDifference {
  static constexpr int kThreads = X * Y * Z;

 public:
  using TempStorage = details::Storage<T, kThreads>;
  BlockAdjacentDifference(TempStorage& storage) : storage_(storage) {}

  template <int Items, class Out, class Combine> void SubtractLeft(T (&items)[Items], Out (&to)[Items], Combine combine) {
    left<Items>(items, to, combine, kThreads * Items, nullptr);
  }
  template <int Items, class Out, class Combine> void SubtractLeft(T (&items)[Items], Out (&to)[Items], Combine combine, T before) {
    left<Items>(items, to, combine, kThreads * Items, &before);
  }
  template <int Items, class Out, class Combine>
  void SubtractLeftPartialTile(T (&items)[Items], Out (&to)[Items], Combine combine, int valid) {
    left<Items>(items, to, combine, valid, nullptr);
  }
  template <int Items, class Out, class Combine>
  void SubtractLeftPartialTile(T (&items)[Items], Out (&to)[Items], Combine combine, int valid, T before) {
    left<Items>(items, to, combine, valid, &before);
  }
  template <int Items, class Out, class Combine> void SubtractRight(T (&items)[Items], Out (&to)[Items], Combine combine) {
    right<Items>(items, to, combine, kThreads * Items, nullptr);
  }
  template <int Items, class Out, class Combine> void SubtractRight(T (&items)[Items], Out (&to)[Items], Combine combine, T after) {
    right<Items>(items, to, combine, kThreads * Items, &after);
  }
  template <int Items, class Out, class Combine>
  void SubtractRightPartialTile(T (&items)[Items], Out (&to)[Items], Combine combine, int valid) {
    right<Items>(items, to, combine, valid, nullptr);
  }

 private:
  // Items without a neighbour, and those that are not valid, stay what they are. From the far end, as `to` may be `items`.
  template <int Items, class Out, class Combine>
  void left(T (&items)[Items], Out (&to)[Items], Combine combine, int valid, const T* before) {
    const int thread = details::thread_of<X, Y, Z>();
    storage_[thread] = items[Items - 1];
    __syncthreads();
    const T* first = thread > 0 ? &storage_[thread - 1] : before;
    for (int i = Items - 1; i >= 0; --i) {
      const T* previous = i > 0 ? &items[i - 1] : first;
      to[i] = thread * Items + i < valid && previous ? combine(items[i], *previous) : items[i];
    }
  }
  template <int Items, class Out, class Combine>
  void right(T (&items)[Items], Out (&to)[Items], Combine combine, int valid, const T* after) {
    const int thread = details::thread_of<X, Y, Z>();
    storage_[thread] = items[0];
    __syncthreads();
    const T* last = thread + 1 < kThreads ? &storage_[thread + 1] : after;
    for (int i = 0; i < Items; ++i) {
      const T* next = i + 1 < Items ? &items[i + 1] : last;
      const bool paired = next && (valid == kThreads * Items || thread * Items + i + 1 < valid);
      to[i] = paired ? combine(items[i], *next) : items[i];
    }
  }
  TempStorage& storage_;
};

}  // namespace cub
