// CUB inside a block and a warp.
#include <cub/cub.cuh>
#include <cuda/functional>
#include <cuda_runtime.h>

struct Longer {
  __device__ int operator()(int a, int b) const { return a > b ? a : b; }
};

__global__ void reductions(const int* x, int* out, int valid) {
  using Reduce = cub::BlockReduce<int, 96>;
  using Largest = cub::BlockReduce<cub::KeyValuePair<int, int>, 96>;
  __shared__ union { typename Reduce::TempStorage sum; typename Largest::TempStorage largest; } storage;
  int t = threadIdx.x;
  int total = Reduce(storage.sum).Sum(x[t]);
  __syncthreads();
  int part = Reduce(storage.sum).Sum(x[t], valid);
  __syncthreads();
  int most = Reduce(storage.sum).Reduce(x[t], cuda::maximum<>{});
  __syncthreads();
  int pair[2] = {x[t], 1000};
  int pairs = Reduce(storage.sum).Sum(pair);
  __syncthreads();
  cub::KeyValuePair<int, int> own{t, x[t]};
  own = Largest(storage.largest).Reduce(own, cub::ArgMax());
  __syncthreads();
  int mine = Reduce(storage.sum).Reduce(x[t], [](int a, int b) { return a < b ? a : b; });
  if (t == 0) out[0] = total, out[1] = part, out[2] = most, out[3] = pairs, out[4] = own.key, out[5] = own.value, out[6] = mine;
}

__global__ void planes(const int* x, int* out) {
  typedef cub::BlockReduce<int, 8, cub::BLOCK_REDUCE_RAKING, 4> Reduce;
  __shared__ Reduce::TempStorage storage;
  int own = threadIdx.y * 8 + threadIdx.x;
  int total = Reduce(storage).Reduce(x ? x[own] : own, Longer());
  if (out && threadIdx.x == 0 && threadIdx.y == 0) out[0] = total;
}

__global__ void scans(const int* x, int* out) {
  typedef cub::BlockScan<int, 64, cub::BLOCK_SCAN_WARP_SCANS> Scan;
  __shared__ typename Scan::TempStorage storage;
  int t = threadIdx.x, upto, before, all, most;
  Scan(storage).InclusiveSum(x[t], upto);
  __syncthreads();
  Scan(storage).ExclusiveSum(x[t], before, all);
  __syncthreads();
  Scan(storage).ExclusiveScan(x[t], most, -7, Longer());
  __syncthreads();
  out[t] = upto, out[64 + t] = before, out[128 + t] = all, out[192 + t] = most;
  int items[3] = {t, 1, x[t]};
  Scan(storage).InclusiveSum(items, items);
  for (int i = 0; i < 3; ++i) out[256 + 3 * t + i] = items[i];
}

__global__ void warps(const int* x, int* out) {
  __shared__ typename cub::WarpReduce<int, 16>::TempStorage halves[4];
  __shared__ typename cub::WarpScan<int>::TempStorage scan[2];
  int t = threadIdx.x, upto, before;
  int sum = cub::WarpReduce<int, 16>(halves[t / 16]).Sum(x[t]);
  int most = cub::WarpReduce<int, 16>(halves[t / 16]).Reduce(x[t], Longer(), 5);
  if (t % 16 == 0) out[t / 16] = sum, out[4 + t / 16] = most;
  cub::WarpScan<int>(scan[t / 32]).InclusiveSum(x[t], upto);
  cub::WarpScan<int>(scan[t / 32]).ExclusiveScan(x[t], before, 100, cuda::minimum<>());
  out[8 + t] = upto, out[72 + t] = before;
}

extern "C" void h_reductions(const int* x, int* out, int valid) { reductions<<<1, 96>>>(x, out, valid); }
extern "C" void h_planes(const int* x, int* out) { planes<<<1, dim3(8, 4)>>>(x, out); }
extern "C" int h_turned(int) {
  planes<<<1, dim3(4, 8)>>>(nullptr, nullptr);
  return cudaDeviceSynchronize();
}
extern "C" void h_scans(const int* x, int* out) { scans<<<1, 64>>>(x, out); }
extern "C" void h_warps(const int* x, int* out) { warps<<<1, 64>>>(x, out); }
