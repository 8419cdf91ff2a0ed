// CUB's sorts of what the threads of a block or a warp hold, its loads and stores, flags, counts and differences.
#include <cub/cub.cuh>
#include <cuda_runtime.h>

struct Below {
  __device__ bool operator()(const float& a, const float& b) const { return a < b; }
};

__global__ void sorted(const float* x, float* y, int* places, int valid) {
  using Load = cub::BlockLoad<float, 32, 4, cub::BLOCK_LOAD_TRANSPOSE>;
  using Sort = cub::BlockRadixSort<float, 32, 4, int>;
  using Store = cub::BlockStore<float, 32, 4, cub::BLOCK_STORE_WARP_TRANSPOSE>;
  __shared__ union { typename Load::TempStorage load; typename Sort::TempStorage sort; typename Store::TempStorage store; } storage;
  float keys[4];
  int from[4];
  Load(storage.load).Load(x, keys, valid, 1e9f);
  __syncthreads();
  for (int i = 0; i < 4; ++i) from[i] = threadIdx.x * 4 + i;
  Sort(storage.sort).Sort(keys, from);
  __syncthreads();
  Store(storage.store).Store(y, keys, valid);
  for (int i = 0; i < 4; ++i) places[threadIdx.x * 4 + i] = from[i];
}

__global__ void striped(const unsigned* x, unsigned* y) {
  using Load = cub::BlockLoad<unsigned, 64, 2, cub::BLOCK_LOAD_STRIPED>;
  using Sort = cub::BlockRadixSort<unsigned, 64, 2>;
  __shared__ typename Load::TempStorage load;
  __shared__ typename Sort::TempStorage sort;
  unsigned keys[2];
  Load(load).Load(x, keys);
  y[threadIdx.x] = keys[1];
  Sort(sort).SortDescendingBlockedToStriped(keys, 0, 4);  // by the four lowest bits alone
  for (int i = 0; i < 2; ++i) y[64 + i * 64 + threadIdx.x] = keys[i];
}

__global__ void merged(const float* x, float* y) {
  using Warp = cub::WarpMergeSort<float, 2, 16>;
  using Block = cub::BlockMergeSort<float, 64, 2>;
  __shared__ typename Warp::TempStorage warps[4];
  __shared__ typename Block::TempStorage block;
  float keys[2] = {x[2 * threadIdx.x], x[2 * threadIdx.x + 1]};
  Warp(warps[threadIdx.x / 16]).Sort(keys, Below());
  for (int i = 0; i < 2; ++i) y[2 * threadIdx.x + i] = keys[i];
  Block(block).StableSort(keys, [](float a, float b) { return a > b; });
  for (int i = 0; i < 2; ++i) y[128 + 2 * threadIdx.x + i] = keys[i];
}

__global__ void exchanged(const int* x, int* y) {
  using Exchange = cub::BlockExchange<int, 32, 2>;
  __shared__ typename Exchange::TempStorage storage;
  int items[2] = {x[threadIdx.x], x[32 + threadIdx.x]}, ranks[2], other[2];
  Exchange(storage).StripedToBlocked(items);
  for (int i = 0; i < 2; ++i) y[2 * threadIdx.x + i] = items[i], ranks[i] = 63 - (2 * threadIdx.x + i);
  __syncthreads();
  Exchange(storage).ScatterToBlocked(items, other, ranks);
  for (int i = 0; i < 2; ++i) y[64 + 2 * threadIdx.x + i] = other[i];
}

__global__ void flagged(const int* x, int* y) {
  using Flags = cub::BlockDiscontinuity<int, 32>;
  __shared__ typename Flags::TempStorage storage;
  int items[2] = {x[2 * threadIdx.x], x[2 * threadIdx.x + 1]}, heads[2], tails[2];
  Flags(storage).FlagHeads(heads, items, cub::Inequality());
  for (int i = 0; i < 2; ++i) y[2 * threadIdx.x + i] = heads[i];
  __syncthreads();
  Flags(storage).FlagHeadsAndTails(heads, x[0], tails, -1, items, [](int a, int b) { return a != b; });
  for (int i = 0; i < 2; ++i) y[64 + 2 * threadIdx.x + i] = heads[i], y[128 + 2 * threadIdx.x + i] = tails[i];
  __syncthreads();
  Flags(storage).FlagTails(tails, items, [](int a, int b, int place) { return a != b || place % 8 == 0; });
  for (int i = 0; i < 2; ++i) y[192 + 2 * threadIdx.x + i] = tails[i];
}

__global__ void counted(const unsigned char* x, unsigned* sorted, unsigned* added) {
  using Sorted = cub::BlockHistogram<unsigned char, 32, 4, 16>;
  using Added = cub::BlockHistogram<unsigned char, 32, 4, 16, cub::BLOCK_HISTO_ATOMIC>;
  __shared__ union { typename Sorted::TempStorage sorted; typename Added::TempStorage added; } storage;
  __shared__ unsigned counts[16];
  unsigned char items[4];
  for (int i = 0; i < 4; ++i) items[i] = x[threadIdx.x * 4 + i];
  Sorted(storage.sorted).Histogram(items, counts);
  __syncthreads();
  if (threadIdx.x < 16) sorted[threadIdx.x] = counts[threadIdx.x];
  Added(storage.added).Composite(items, added);  // to what is there
}

__global__ void differences(const int* x, int* y, int valid) {
  using Difference = cub::BlockAdjacentDifference<int, 32>;
  __shared__ typename Difference::TempStorage storage;
  int items[2] = {x[2 * threadIdx.x], x[2 * threadIdx.x + 1]}, out[2];
  Difference(storage).SubtractLeft(items, out, [](int a, int b) { return a - b; });
  for (int i = 0; i < 2; ++i) y[2 * threadIdx.x + i] = out[i];
  __syncthreads();
  Difference(storage).SubtractLeftPartialTile(items, out, [](int a, int b) { return a - b; }, valid, 7);
  for (int i = 0; i < 2; ++i) y[64 + 2 * threadIdx.x + i] = out[i];
  __syncthreads();
  Difference(storage).SubtractRight(items, out, [](int a, int b) { return a - b; }, 1000);
  for (int i = 0; i < 2; ++i) y[128 + 2 * threadIdx.x + i] = out[i];
  __syncthreads();
  Difference(storage).SubtractRightPartialTile(items, items, [](int a, int b) { return a - b; }, valid);
  for (int i = 0; i < 2; ++i) y[192 + 2 * threadIdx.x + i] = items[i];
}

__global__ void bytes(const unsigned* x, unsigned* y) {
  const unsigned a = x[0], b = x[1];
  y[0] = __vadd4(a, b), y[1] = __vsub4(a, b), y[2] = __vmaxs4(a, b), y[3] = __vminu4(a, b), y[4] = __vabsdiffu4(a, b);
  y[5] = __vsadu4(a, b), y[6] = __vcmpgts4(a, b), y[7] = __vavgu4(a, b), y[8] = __vadd2(a, b), y[9] = __vsads2(a, b);
}

extern "C" void h_flagged(const int* x, int* y) { flagged<<<1, 32>>>(x, y); }
extern "C" void h_counted(const unsigned char* x, unsigned* y, unsigned* z) { counted<<<1, 32>>>(x, y, z); }
extern "C" void h_differences(const int* x, int* y, int valid) { differences<<<1, 32>>>(x, y, valid); }
extern "C" void h_exchanged(const int* x, int* y) { exchanged<<<1, 32>>>(x, y); }
extern "C" void h_bytes(const unsigned* x, unsigned* y) { bytes<<<1, 1>>>(x, y); }
extern "C" void h_sorted(const float* x, float* y, int* places, int valid) { sorted<<<1, 32>>>(x, y, places, valid); }
extern "C" void h_striped(const unsigned* x, unsigned* y) { striped<<<1, 64>>>(x, y); }
extern "C" void h_merged(const float* x, float* y) { merged<<<1, 64>>>(x, y); }
