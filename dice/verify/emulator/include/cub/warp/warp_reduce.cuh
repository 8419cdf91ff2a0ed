// cub::WarpReduce: only the first lane of each logical warp gets the result; the others keep their value.
#pragma once
#include <cooperative_groups.h>
#include <cub/thread/thread_operators.cuh>

namespace cub {

namespace details {

// Lanes first, first + 1, ... of one warp that reduce or scan together.
template <int Lanes>
struct LogicalWarp {
  static_assert(Lanes >= 1 && Lanes <= 32, "a logical warp has at most 32 threads");
  const int first = dice_emu::lane_id() / Lanes * Lanes;
  const int rank = dice_emu::lane_id() - first;
  const unsigned mask = (Lanes == 32 ? 0xFFFFFFFFu : (1u << Lanes % 32) - 1) << first;

  template <class T> T of(int rank, T value) const { return cooperative_groups::details::shuffle(mask, value, first + rank); }

  template <class T, class Operation>
  T reduce(T value, Operation operation, int valid) const {
    T total = of(0, value);
    for (int other = 1; other < Lanes; ++other) {
      const T next = of(other, value);
      if (other < valid) total = operation(total, next);
    }
    return rank == 0 ? total : value;
  }
  // `before`: of the lanes in front, undefined (the own value) for the first. Returns the aggregate of all.
  template <class T, class Operation>
  T scan(T value, T& upto, T& before, Operation operation) const {
    T total = of(0, value);
    upto = total, before = value;
    for (int other = 1; other < Lanes; ++other) {
      const T next = of(other, value);
      if (other == rank) before = total;
      total = operation(total, next);
      if (other == rank) upto = total;
    }
    return total;
  }
};

}  // namespace details

template <class T, int Lanes = 32>
class WarpReduce {
 public:
  struct TempStorage {};
  WarpReduce(TempStorage&) {}
  template <class Operation> T Reduce(T value, Operation operation) { return warp_.reduce(value, operation, Lanes); }
  template <class Operation> T Reduce(T value, Operation operation, int valid) { return warp_.reduce(value, operation, valid); }
  T Sum(T value) { return Reduce(value, ::cuda::std::plus<>()); }
  T Sum(T value, int valid) { return Reduce(value, ::cuda::std::plus<>(), valid); }

 private:
  details::LogicalWarp<Lanes> warp_;
};

}  // namespace cub
