// cub::BlockRadixSort, cub::BlockMergeSort and cub::WarpMergeSort: the first of the threads sorts what all have laid down.
#pragma once
#include <cub/block/block_scan.cuh>
#include <cub/device/device_radix_sort.cuh>

namespace cub {

namespace details {

// Keys, and values unless those are `NullType`, of `Threads` threads with `Items` each.
template <class Key, class Value, int Threads, int Items>
struct Laid {
  Storage<Key, Threads * Items> keys;
  Storage<Value, Threads * Items> values;

  // `meet`: a barrier of these threads, of which the own is `thread`; `order(keys, values)` sorts.
  template <class Meet, class Order>
  void sort(int thread, Key (&own)[Items], Value* others, bool striped, Meet meet, Order order) {
    constexpr bool pairs = !std::is_same_v<Value, NullType>;
    for (int i = 0; i < Items; ++i) {
      keys[thread * Items + i] = own[i];
      if constexpr (pairs) values[thread * Items + i] = others[i];
    }
    meet();
    if (thread == 0) order(&keys[0], &values[0]);
    meet();
    for (int i = 0; i < Items; ++i) {
      const int place = striped ? details::striped<Threads>(thread, i) : details::blocked<Items>(thread, i);
      own[i] = keys[place];
      if constexpr (pairs) others[i] = values[place];
    }
  }
};

template <class Key, class Value, int Count, class Less>
void sort_by(Key* keys, Value* values, Less less) {
  std::vector<int> order(Count);
  for (int i = 0; i < Count; ++i) order[static_cast<size_t>(i)] = i;
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return less(keys[a], keys[b]); });
  const std::vector<Key> from(keys, keys + Count);
  for (int i = 0; i < Count; ++i) keys[i] = from[static_cast<size_t>(order[static_cast<size_t>(i)])];
  if constexpr (!std::is_same_v<Value, NullType>) {
    const std::vector<Value> moved(values, values + Count);
    for (int i = 0; i < Count; ++i) values[i] = moved[static_cast<size_t>(order[static_cast<size_t>(i)])];
  }
}

}  // namespace details

template <class Key, int X, int Items, class Value = NullType, int = 4, bool = true, BlockScanAlgorithm = BLOCK_SCAN_WARP_SCANS,
          cudaSharedMemConfig = cudaSharedMemBankSizeFourByte, int Y = 1, int Z = 1, int = 0>
class BlockRadixSort {
  static constexpr int kThreads = X * Y * Z, kBits = 8 * sizeof(Key);
  using Keys = Key[Items];
  using Values = Value[Items];

 public:
  using TempStorage = details::Laid<Key, Value, kThreads, Items>;
  BlockRadixSort(TempStorage& storage) : storage_(storage) {}
  void Sort(Keys& keys, int begin = 0, int end = kBits) { sort(keys, nullptr, false, false, begin, end); }
  void Sort(Keys& keys, Values& values, int begin = 0, int end = kBits) { sort(keys, values, false, false, begin, end); }
  void SortDescending(Keys& keys, int begin = 0, int end = kBits) { sort(keys, nullptr, true, false, begin, end); }
  void SortDescending(Keys& keys, Values& values, int begin = 0, int end = kBits) { sort(keys, values, true, false, begin, end); }
  void SortBlockedToStriped(Keys& keys, int begin = 0, int end = kBits) { sort(keys, nullptr, false, true, begin, end); }
  void SortBlockedToStriped(Keys& keys, Values& values, int begin = 0, int end = kBits) { sort(keys, values, false, true, begin, end); }
  void SortDescendingBlockedToStriped(Keys& keys, int begin = 0, int end = kBits) { sort(keys, nullptr, true, true, begin, end); }
  void SortDescendingBlockedToStriped(Keys& keys, Values& values, int begin = 0, int end = kBits) { sort(keys, values, true, true, begin, end); }

 private:
  void sort(Keys& keys, Value* values, bool descending, bool striped, int begin, int end) {
    storage_.sort(details::thread_of<X, Y, Z>(), keys, values, striped, [] { __syncthreads(); }, [=](Key* all, Value* others) {
      details::radix_sort<Key, Value>(all, all, others, others, kThreads * Items, descending, begin, end);
    });
  }
  TempStorage& storage_;
};

namespace details {

// What the merge sorts of a block and of a warp have in common. `Team`: which thread this is, and how all of them meet.
template <class Key, class Value, int Threads, int Items, class Team>
class MergeSort {
  using Keys = Key[Items];
  using Values = Value[Items];

 public:
  using TempStorage = Laid<Key, Value, Threads, Items>;
  MergeSort(TempStorage& storage) : storage_(storage) {}
  template <class Less> void Sort(Keys& keys, Less less) { sort(keys, nullptr, less); }
  template <class Less> void Sort(Keys& keys, Values& values, Less less) { sort(keys, values, less); }
  template <class Less> void StableSort(Keys& keys, Less less) { sort(keys, nullptr, less); }
  template <class Less> void StableSort(Keys& keys, Values& values, Less less) { sort(keys, values, less); }

 private:
  template <class Less> void sort(Keys& keys, Value* values, Less less) {
    const Team team;
    storage_.sort(team.thread(), keys, values, false, [&] { team.meet(); },
                  [=](Key* all, Value* others) { sort_by<Key, Value, Threads * Items>(all, others, less); });
  }
  TempStorage& storage_;
};

template <int X, int Y, int Z> struct WholeBlock {
  int thread() const { return thread_of<X, Y, Z>(); }
  void meet() const { __syncthreads(); }
};
template <int Lanes> struct WarpOfLanes {
  LogicalWarp<Lanes> warp;
  int thread() const { return warp.rank; }
  void meet() const { __syncwarp(warp.mask); }
};

}  // namespace details

template <class Key, int X, int Items, class Value = NullType, int Y = 1, int Z = 1>
class BlockMergeSort : public details::MergeSort<Key, Value, X * Y * Z, Items, details::WholeBlock<X, Y, Z>> {
  using details::MergeSort<Key, Value, X * Y * Z, Items, details::WholeBlock<X, Y, Z>>::MergeSort;
};

template <class Key, int Items, int Lanes = 32, class Value = NullType>
class WarpMergeSort : public details::MergeSort<Key, Value, Lanes, Items, details::WarpOfLanes<Lanes>> {
  using details::MergeSort<Key, Value, Lanes, Items, details::WarpOfLanes<Lanes>>::MergeSort;
};

}  // namespace cub
