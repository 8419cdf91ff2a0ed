// cub::BlockReduce: only thread 0 gets the result; the others keep their value.
#pragma once
#include <cub/warp/warp_reduce.cuh>

namespace cub {

enum BlockReduceAlgorithm {
  BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY,
  BLOCK_REDUCE_RAKING,
  BLOCK_REDUCE_WARP_REDUCTIONS,
  BLOCK_REDUCE_WARP_REDUCTIONS_NONDETERMINISTIC
};

namespace details {

// One value a thread, in memory that a union may share, as CUB's is.
template <class T, int Threads>
struct Storage {
  alignas(T) unsigned char bytes[sizeof(T) * Threads];
  T& operator[](int thread) { return reinterpret_cast<T*>(bytes)[thread]; }
};

// CUB reads what every thread of the block that it was made for left: without them the result is anything.
template <int X, int Y, int Z>
int thread_of() {
  if (blockDim.x != X || blockDim.y != Y || blockDim.z != Z)
    dice_fault("cub_block_size", "an operation of CUB was made for blocks of another shape than the one it runs in");
  return static_cast<int>(dice_emu::linear_thread());
}

// Where item i of a thread is among all: a thread's items follow each other, or lie as many apart as there are threads.
template <int Items> int blocked(int thread, int i) { return thread * Items + i; }
template <int Threads> int striped(int thread, int i) { return thread + i * Threads; }

}  // namespace details

template <class T, int X, BlockReduceAlgorithm = BLOCK_REDUCE_WARP_REDUCTIONS, int Y = 1, int Z = 1, int = 0>
class BlockReduce {
  static constexpr int kThreads = X * Y * Z;

 public:
  using TempStorage = details::Storage<T, kThreads>;
  BlockReduce(TempStorage& storage) : storage_(storage) {}

  template <class Operation>
  T Reduce(T value, Operation operation, int valid) {
    const int thread = details::thread_of<X, Y, Z>();
    if constexpr (kThreads <= 32) return details::LogicalWarp<kThreads>().reduce(value, operation, valid);
    storage_[thread] = value;
    __syncthreads();
    if (thread != 0) return value;
    T total = storage_[0];
    for (int other = 1; other < kThreads && other < valid; ++other) total = operation(total, storage_[other]);
    return total;
  }
  template <class Operation> T Reduce(T value, Operation operation) { return Reduce(value, operation, kThreads); }
  template <int Items, class Operation> T Reduce(T (&values)[Items], Operation operation) {
    return Reduce(details::fold(values, operation), operation);
  }
  T Sum(T value) { return Reduce(value, ::cuda::std::plus<>()); }
  T Sum(T value, int valid) { return Reduce(value, ::cuda::std::plus<>(), valid); }
  template <int Items> T Sum(T (&values)[Items]) { return Reduce(values, ::cuda::std::plus<>()); }

 private:
  TempStorage& storage_;
};

}  // namespace cub
