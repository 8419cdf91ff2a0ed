// cub::WarpScan
#pragma once
#include <cub/warp/warp_reduce.cuh>

namespace cub {

template <class T, int Lanes = 32>
class WarpScan {
 public:
  struct TempStorage {};
  WarpScan(TempStorage&) {}

  template <class Operation> void InclusiveScan(T value, T& output, Operation operation, T& aggregate) {
    T before;
    aggregate = warp_.scan(value, output, before, operation);
  }
  template <class Operation> void InclusiveScan(T value, T& output, Operation operation) {
    T aggregate;
    InclusiveScan(value, output, operation, aggregate);
  }
  template <class Operation> void ExclusiveScan(T value, T& output, T initial, Operation operation, T& aggregate) {
    T upto, before;
    aggregate = warp_.scan(value, upto, before, operation);
    output = warp_.rank == 0 ? initial : operation(initial, before);
  }
  template <class Operation> void ExclusiveScan(T value, T& output, T initial, Operation operation) {
    T aggregate;
    ExclusiveScan(value, output, initial, operation, aggregate);
  }
  template <class Operation> void ExclusiveScan(T value, T& output, Operation operation) {
    T upto;
    warp_.scan(value, upto, output, operation);
  }
  void InclusiveSum(T value, T& output) { InclusiveScan(value, output, ::cuda::std::plus<>()); }
  void InclusiveSum(T value, T& output, T& aggregate) { InclusiveScan(value, output, ::cuda::std::plus<>(), aggregate); }
  void ExclusiveSum(T value, T& output) { ExclusiveScan(value, output, T(), ::cuda::std::plus<>()); }
  void ExclusiveSum(T value, T& output, T& aggregate) { ExclusiveScan(value, output, T(), ::cuda::std::plus<>(), aggregate); }
  T Broadcast(T value, unsigned rank) { return warp_.of(static_cast<int>(rank), value); }

 private:
  details::LogicalWarp<Lanes> warp_;
};

}  // namespace cub
