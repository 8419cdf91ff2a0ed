// cub::BlockDiscontinuity: which items differ from the one before them, or from the one after.
#pragma once
#include <cub/block/block_reduce.cuh>

namespace cub {

template <class T, int X, int Y = 1, int Z = 1, int = 0>
class BlockDiscontinuity {
  static constexpr int kThreads = X * Y * Z;

 public:
  // The last items of all threads, then the first ones.
  using TempStorage = details::Storage<T, 2 * kThreads>;
  BlockDiscontinuity(TempStorage& storage) : storage_(storage) {}

  template <int Items, class Flag, class Differ> void FlagHeads(Flag (&heads)[Items], T (&items)[Items], Differ differ) {
    flag<Items>(heads, no_flags<Flag>(), items, differ, nullptr, nullptr);
  }
  template <int Items, class Flag, class Differ> void FlagHeads(Flag (&heads)[Items], T (&items)[Items], Differ differ, T before) {
    flag<Items>(heads, no_flags<Flag>(), items, differ, &before, nullptr);
  }
  template <int Items, class Flag, class Differ> void FlagTails(Flag (&tails)[Items], T (&items)[Items], Differ differ) {
    flag<Items>(no_flags<Flag>(), tails, items, differ, nullptr, nullptr);
  }
  template <int Items, class Flag, class Differ> void FlagTails(Flag (&tails)[Items], T (&items)[Items], Differ differ, T after) {
    flag<Items>(no_flags<Flag>(), tails, items, differ, nullptr, &after);
  }
  template <int Items, class Flag, class Differ>
  void FlagHeadsAndTails(Flag (&heads)[Items], Flag (&tails)[Items], T (&items)[Items], Differ differ) {
    flag<Items>(heads, tails, items, differ, nullptr, nullptr);
  }
  template <int Items, class Flag, class Differ>
  void FlagHeadsAndTails(Flag (&heads)[Items], Flag (&tails)[Items], T after, T (&items)[Items], Differ differ) {
    flag<Items>(heads, tails, items, differ, nullptr, &after);
  }
  template <int Items, class Flag, class Differ>
  void FlagHeadsAndTails(Flag (&heads)[Items], T before, Flag (&tails)[Items], T (&items)[Items], Differ differ) {
    flag<Items>(heads, tails, items, differ, &before, nullptr);
  }
  template <int Items, class Flag, class Differ>
  void FlagHeadsAndTails(Flag (&heads)[Items], T before, Flag (&tails)[Items], T after, T (&items)[Items], Differ differ) {
    flag<Items>(heads, tails, items, differ, &before, &after);
  }

 private:
  template <class Flag> static Flag* no_flags() { return nullptr; }
  // The first item of a block is a head and the last one a tail, unless it is told what stands beside them.
  template <int Items, class Flag, class Differ>
  void flag(Flag* heads, Flag* tails, T (&items)[Items], Differ differ, const T* before, const T* after) {
    const int thread = details::thread_of<X, Y, Z>();
    storage_[thread] = items[Items - 1], storage_[kThreads + thread] = items[0];
    __syncthreads();
    const T* left = thread > 0 ? &storage_[thread - 1] : before;
    const T* right = thread + 1 < kThreads ? &storage_[kThreads + thread + 1] : after;
    for (int i = 0; i < Items; ++i) {
      const T* previous = i > 0 ? &items[i - 1] : left;
      const T* next = i + 1 < Items ? &items[i + 1] : right;
      const int place = thread * Items + i;
      if (heads) heads[i] = static_cast<Flag>(previous ? differs(differ, *previous, items[i], place) : true);
      if (tails) tails[i] = static_cast<Flag>(next ? differs(differ, items[i], *next, place + 1) : true);
    }
  }
  // The operator may also ask where the second of the two is.
  template <class Differ> static bool differs(Differ& differ, const T& a, const T& b, int place) {
    if constexpr (std::is_invocable_v<Differ&, const T&, const T&, int>) return differ(a, b, place);
    else return differ(a, b);
  }
  TempStorage& storage_;
};

}  // namespace cub
