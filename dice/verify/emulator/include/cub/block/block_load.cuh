// cub::BlockLoad and cub::BlockStore. However CUB moves them, a thread's items follow each other, or lie a block apart.
#pragma once
#include <cub/block/block_reduce.cuh>

namespace cub {

enum BlockLoadAlgorithm {
  BLOCK_LOAD_DIRECT,
  BLOCK_LOAD_STRIPED,
  BLOCK_LOAD_VECTORIZE,
  BLOCK_LOAD_TRANSPOSE,
  BLOCK_LOAD_WARP_TRANSPOSE,
  BLOCK_LOAD_WARP_TRANSPOSE_TIMESLICED
};
enum BlockStoreAlgorithm {
  BLOCK_STORE_DIRECT,
  BLOCK_STORE_STRIPED,
  BLOCK_STORE_VECTORIZE,
  BLOCK_STORE_TRANSPOSE,
  BLOCK_STORE_WARP_TRANSPOSE,
  BLOCK_STORE_WARP_TRANSPOSE_TIMESLICED
};

namespace details {

struct NoStorage {
  char unused;
};

}  // namespace details

template <class T, int X, int Items, BlockLoadAlgorithm kind = BLOCK_LOAD_DIRECT, int Y = 1, int Z = 1, int = 0>
class BlockLoad {
  static constexpr int kThreads = X * Y * Z;
  static constexpr auto place = kind == BLOCK_LOAD_STRIPED ? details::striped<kThreads> : details::blocked<Items>;

 public:
  using TempStorage = details::NoStorage;
  BlockLoad() {}
  BlockLoad(TempStorage&) {}
  template <class In> void Load(In in, T (&items)[Items]) { Load(in, items, kThreads * Items); }
  template <class In> void Load(In in, T (&items)[Items], int valid) {
    const int thread = details::thread_of<X, Y, Z>();
    for (int i = 0; i < Items; ++i)
      if (place(thread, i) < valid) items[i] = in[place(thread, i)];
  }
  template <class In, class Other> void Load(In in, T (&items)[Items], int valid, Other other) {
    for (T& item : items) item = static_cast<T>(other);
    Load(in, items, valid);
  }
};

template <class T, int X, int Items, BlockStoreAlgorithm kind = BLOCK_STORE_DIRECT, int Y = 1, int Z = 1, int = 0>
class BlockStore {
  static constexpr int kThreads = X * Y * Z;
  static constexpr auto place = kind == BLOCK_STORE_STRIPED ? details::striped<kThreads> : details::blocked<Items>;

 public:
  using TempStorage = details::NoStorage;
  BlockStore() {}
  BlockStore(TempStorage&) {}
  template <class Out> void Store(Out out, T (&items)[Items]) { Store(out, items, kThreads * Items); }
  template <class Out> void Store(Out out, T (&items)[Items], int valid) {
    const int thread = details::thread_of<X, Y, Z>();
    for (int i = 0; i < Items; ++i)
      if (place(thread, i) < valid) out[place(thread, i)] = items[i];
  }
};

}  // namespace cub
