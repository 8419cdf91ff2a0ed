// cub::BlockExchange: items change hands by way of the block's memory.
#pragma once
#include <cub/block/block_reduce.cuh>

namespace cub {

template <class T, int X, int Items, bool = false, int Y = 1, int Z = 1, int = 0>
class BlockExchange {
  static constexpr int kThreads = X * Y * Z;

 public:
  using TempStorage = details::Storage<T, kThreads * Items>;
  BlockExchange(TempStorage& storage) : storage_(storage) {}
  template <class Out> void StripedToBlocked(const T (&from)[Items], Out (&to)[Items]) { move(from, to, striped, blocked); }
  template <class Out> void BlockedToStriped(const T (&from)[Items], Out (&to)[Items]) { move(from, to, blocked, striped); }
  template <class Out, class Rank> void ScatterToBlocked(const T (&from)[Items], Out (&to)[Items], const Rank (&ranks)[Items]) {
    move(from, to, [&](int, int i) { return static_cast<int>(ranks[i]); }, blocked);
  }
  template <class Out, class Rank> void ScatterToStriped(const T (&from)[Items], Out (&to)[Items], const Rank (&ranks)[Items]) {
    move(from, to, [&](int, int i) { return static_cast<int>(ranks[i]); }, striped);
  }
  void StripedToBlocked(T (&items)[Items]) { StripedToBlocked(items, items); }
  void BlockedToStriped(T (&items)[Items]) { BlockedToStriped(items, items); }
  template <class Rank> void ScatterToBlocked(T (&items)[Items], const Rank (&ranks)[Items]) { ScatterToBlocked(items, items, ranks); }
  template <class Rank> void ScatterToStriped(T (&items)[Items], const Rank (&ranks)[Items]) { ScatterToStriped(items, items, ranks); }

 private:
  static constexpr auto blocked = details::blocked<Items>, striped = details::striped<kThreads>;
  template <class Out, class Come, class Go> void move(const T (&from)[Items], Out (&to)[Items], Come come, Go go) {
    const int thread = details::thread_of<X, Y, Z>();
    for (int i = 0; i < Items; ++i) storage_[come(thread, i)] = from[i];
    __syncthreads();
    for (int i = 0; i < Items; ++i) to[i] = storage_[go(thread, i)];
  }
  TempStorage& storage_;
};

}  // namespace cub
