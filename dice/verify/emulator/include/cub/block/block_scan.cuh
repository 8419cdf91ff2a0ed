// cub::BlockScan, of one value a thread or of several.
#pragma once
#include <cub/block/block_reduce.cuh>

namespace cub {

enum BlockScanAlgorithm { BLOCK_SCAN_RAKING, BLOCK_SCAN_RAKING_MEMOIZE, BLOCK_SCAN_WARP_SCANS };

template <class T, int X, BlockScanAlgorithm = BLOCK_SCAN_RAKING, int Y = 1, int Z = 1, int = 0>
class BlockScan {
  static constexpr int kThreads = X * Y * Z;
  using Plus = ::cuda::std::plus<>;

 public:
  using TempStorage = details::Storage<T, 2 * kThreads + 1>;
  BlockScan(TempStorage& storage) : storage_(storage) {}

  template <int Items, class Operation>
  void InclusiveScan(T (&values)[Items], T (&outputs)[Items], Operation operation, T& aggregate) {
    T total = details::fold(values, operation), before;
    const bool first = !scan(total, operation, before, aggregate);
    for (int i = 0; i < Items; ++i) {
      before = first && i == 0 ? values[i] : operation(before, values[i]);
      outputs[i] = before;
    }
  }
  template <int Items, class Operation>
  void InclusiveScan(T (&values)[Items], T (&outputs)[Items], Operation operation) {
    T aggregate;
    InclusiveScan(values, outputs, operation, aggregate);
  }
  template <class Operation> void InclusiveScan(T value, T& output, Operation operation, T& aggregate) {
    T values[1] = {value}, outputs[1];
    InclusiveScan(values, outputs, operation, aggregate);
    output = outputs[0];
  }
  template <class Operation> void InclusiveScan(T value, T& output, Operation operation) {
    T aggregate;
    InclusiveScan(value, output, operation, aggregate);
  }

  template <int Items, class Operation>
  void ExclusiveScan(T (&values)[Items], T (&outputs)[Items], T initial, Operation operation, T& aggregate) {
    T total = details::fold(values, operation), before;
    T running = scan(total, operation, before, aggregate) ? operation(initial, before) : initial;
    for (int i = 0; i < Items; ++i) {
      const T next = operation(running, values[i]);
      outputs[i] = running;
      running = next;
    }
  }
  template <int Items, class Operation>
  void ExclusiveScan(T (&values)[Items], T (&outputs)[Items], T initial, Operation operation) {
    T aggregate;
    ExclusiveScan(values, outputs, initial, operation, aggregate);
  }
  template <class Operation> void ExclusiveScan(T value, T& output, T initial, Operation operation, T& aggregate) {
    T values[1] = {value}, outputs[1];
    ExclusiveScan(values, outputs, initial, operation, aggregate);
    output = outputs[0];
  }
  template <class Operation> void ExclusiveScan(T value, T& output, T initial, Operation operation) {
    T aggregate;
    ExclusiveScan(value, output, initial, operation, aggregate);
  }

  void InclusiveSum(T value, T& output) { InclusiveScan(value, output, Plus()); }
  void InclusiveSum(T value, T& output, T& aggregate) { InclusiveScan(value, output, Plus(), aggregate); }
  template <int Items> void InclusiveSum(T (&values)[Items], T (&outputs)[Items]) { InclusiveScan(values, outputs, Plus()); }
  template <int Items> void InclusiveSum(T (&values)[Items], T (&outputs)[Items], T& aggregate) {
    InclusiveScan(values, outputs, Plus(), aggregate);
  }
  void ExclusiveSum(T value, T& output) { ExclusiveScan(value, output, T(), Plus()); }
  void ExclusiveSum(T value, T& output, T& aggregate) { ExclusiveScan(value, output, T(), Plus(), aggregate); }
  template <int Items> void ExclusiveSum(T (&values)[Items], T (&outputs)[Items]) { ExclusiveScan(values, outputs, T(), Plus()); }
  template <int Items> void ExclusiveSum(T (&values)[Items], T (&outputs)[Items], T& aggregate) {
    ExclusiveScan(values, outputs, T(), Plus(), aggregate);
  }

  // With a prefix: what `prefix` makes of the block's aggregate, in its first warp, comes before everything.
  template <int Items, class Operation, class Prefix>
  void InclusiveScan(T (&values)[Items], T (&outputs)[Items], Operation operation, Prefix& prefix) {
    T total = details::fold(values, operation), before, aggregate;
    const bool follows = scan(total, operation, before, aggregate);
    const T first = prefix_of(prefix, aggregate);
    T running = follows ? operation(first, before) : first;
    for (int i = 0; i < Items; ++i) outputs[i] = running = operation(running, values[i]);
  }
  template <int Items, class Operation, class Prefix, class = std::enable_if_t<!std::is_convertible_v<Operation, T>>>
  void ExclusiveScan(T (&values)[Items], T (&outputs)[Items], Operation operation, Prefix& prefix) {
    T total = details::fold(values, operation), before, aggregate;
    const bool follows = scan(total, operation, before, aggregate);
    const T first = prefix_of(prefix, aggregate);
    T running = follows ? operation(first, before) : first;
    for (int i = 0; i < Items; ++i) {
      const T next = operation(running, values[i]);
      outputs[i] = running;
      running = next;
    }
  }
  template <class Operation, class Prefix> void InclusiveScan(T value, T& output, Operation operation, Prefix& prefix) {
    T values[1] = {value}, outputs[1];
    InclusiveScan(values, outputs, operation, prefix);
    output = outputs[0];
  }
  template <class Operation, class Prefix, class = std::enable_if_t<!std::is_convertible_v<Operation, T>>>
  void ExclusiveScan(T value, T& output, Operation operation, Prefix& prefix) {
    T values[1] = {value}, outputs[1];
    ExclusiveScan(values, outputs, operation, prefix);
    output = outputs[0];
  }
  template <class Prefix> void InclusiveSum(T value, T& output, Prefix& prefix) { InclusiveScan(value, output, Plus(), prefix); }
  template <class Prefix> void ExclusiveSum(T value, T& output, Prefix& prefix) { ExclusiveScan(value, output, Plus(), prefix); }
  template <int Items, class Prefix> void InclusiveSum(T (&values)[Items], T (&outputs)[Items], Prefix& prefix) {
    InclusiveScan(values, outputs, Plus(), prefix);
  }
  template <int Items, class Prefix> void ExclusiveSum(T (&values)[Items], T (&outputs)[Items], Prefix& prefix) {
    ExclusiveScan(values, outputs, Plus(), prefix);
  }

 private:
  template <class Prefix> T prefix_of(Prefix& prefix, T aggregate) {
    const int thread = details::thread_of<X, Y, Z>();
    if (thread < 32) {
      const T made = prefix(aggregate);
      if (thread == 0) storage_[2 * kThreads] = made;
    }
    __syncthreads();
    return storage_[2 * kThreads];
  }

  // The fold of what the threads in front hold, which the first has none of: then it returns false.
  template <class Operation>
  bool scan(T value, Operation operation, T& before, T& aggregate) {
    const int thread = details::thread_of<X, Y, Z>();
    storage_[thread] = value;
    __syncthreads();
    if (thread == 0) {
      T total = storage_[0];
      for (int other = 1; other < kThreads; ++other) {
        storage_[kThreads + other] = total;
        total = operation(total, storage_[other]);
      }
      storage_[kThreads] = total;
    }
    __syncthreads();
    aggregate = storage_[kThreads];
    if (thread != 0) before = storage_[kThreads + thread];
    return thread != 0;
  }
  TempStorage& storage_;
};

}  // namespace cub
