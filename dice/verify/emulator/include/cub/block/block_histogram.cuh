// cub::BlockHistogram: how many of the block's items are of each bin, in memory of the caller's.
#pragma once
#include <cub/block/block_reduce.cuh>

namespace cub {

enum BlockHistogramAlgorithm { BLOCK_HISTO_SORT, BLOCK_HISTO_ATOMIC };

template <class T, int X, int Items, int Bins, BlockHistogramAlgorithm kind = BLOCK_HISTO_SORT, int Y = 1, int Z = 1, int = 0>
class BlockHistogram {
  static constexpr int kThreads = X * Y * Z;

 public:
  using TempStorage = details::Storage<T, kThreads * Items>;
  BlockHistogram(TempStorage& storage) : storage_(storage) {}

  template <class Counter> void InitHistogram(Counter histogram[Bins]) {
    for (int bin = details::thread_of<X, Y, Z>(); bin < Bins; bin += kThreads) histogram[bin] = 0;
  }
  template <class Counter> void Composite(T (&items)[Items], Counter histogram[Bins]) {
    const int thread = details::thread_of<X, Y, Z>();
    if constexpr (kind == BLOCK_HISTO_ATOMIC) {
      for (const T& item : items) atomicAdd(histogram + item, Counter(1));
      return;
    }
    // CUB sorts the items, and adds without atomic operations what it counts of each.
    for (int i = 0; i < Items; ++i) storage_[thread * Items + i] = items[i];
    __syncthreads();
    for (int bin = thread; bin < Bins; bin += kThreads)
      for (int i = 0; i < kThreads * Items; ++i) histogram[bin] += static_cast<Counter>(static_cast<int>(storage_[i]) == bin);
  }
  template <class Counter> void Histogram(T (&items)[Items], Counter histogram[Bins]) {
    InitHistogram(histogram);
    __syncthreads();
    Composite(items, histogram);
  }

 private:
  TempStorage& storage_;
};

}  // namespace cub
