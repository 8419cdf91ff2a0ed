// Cooperative groups inside a block.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cuda_runtime.h>
namespace cg = cooperative_groups;

__device__ int sum(cg::thread_group g, int* temp, int value) {
  int rank = g.thread_rank();
  for (int i = g.size() / 2; i > 0; i /= 2) {
    temp[rank] = value;
    g.sync();
    if (rank < i) value += temp[rank + i];
    g.sync();
  }
  return value;
}

__global__ void blocks_and_tiles(float* tiles, int* out) {
  extern __shared__ int temp[];
  cg::thread_block block = cg::this_thread_block();
  cg::thread_block_tile<16> tile = cg::tiled_partition<16>(block);
  float v = cg::reduce(tile, (float)block.thread_rank(), cg::plus<float>());
  if (tile.thread_rank() == 0) tiles[tile.meta_group_rank()] = v;
  int total = sum(block, temp, block.thread_rank());
  int t = threadIdx.x;
  if (t == 0) out[0] = total;
  out[1] = block.size();
  out[64 + t] = cg::inclusive_scan(tile, t, cg::plus<int>());
  out[128 + t] = cg::exclusive_scan(tile, t, cg::plus<int>());
  out[192 + t] = tile.shfl_xor(t, 1) * 1000 + tile.shfl_down(t, 3);
  out[256 + t] = tile.any(t == 20) * 10 + tile.all(t < 60);
  out[320 + t] = (int)tile.ballot(t % 4 == 0);
  out[384 + t] = cg::reduce(cg::tiled_partition<32>(block), t, cg::greater<int>());
  cg::sync(block);
}
__global__ void coalesced(int* out) {
  int t = threadIdx.x;
  if (t % 3 == 0) {
    cg::coalesced_group active = cg::coalesced_threads();
    out[t] = active.size() * 100 + active.thread_rank();
    out[64 + t] = active.shfl(t, 2);
  } else {
    out[t] = __popc(__activemask());
  }
}

extern "C" void h_tiles(float* tiles, int* out) { blocks_and_tiles<<<1, 64, 64 * sizeof(int)>>>(tiles, out); }
extern "C" void h_coalesced(int* out) { coalesced<<<1, 64>>>(out); }
