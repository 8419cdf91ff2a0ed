// Shared memory that threads use without synchronising, as no order of whole threads would show; and with it.
#include <cooperative_groups.h>
#include <cuda_runtime.h>
#include <cuda/atomic>

namespace cg = cooperative_groups;

// ---- wrong -------------------------------------------------------------------------------------------------------

__global__ void sum_without_atomics(const float* x, float* out) {
  __shared__ float total;
  if (threadIdx.x == 0) total = 0.0f;
  __syncthreads();
  total += x[blockIdx.x * blockDim.x + threadIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) out[blockIdx.x] = total;
}

__global__ void warps_without_atomics(const float* x, float* out) {
  extern __shared__ float totals[];
  if (threadIdx.x == 0) totals[0] = 0.0f;
  __syncthreads();
  float v = x[blockIdx.x * blockDim.x + threadIdx.x];
  for (int o = 16; o > 0; o >>= 1) v += __shfl_down_sync(0xffffffffu, v, o);
  if (threadIdx.x % 32 == 0) totals[0] += v;
  __syncthreads();
  if (threadIdx.x == 0) out[blockIdx.x] = totals[0];
}

// Thread t passes on what its upper neighbour has put down: right where threads run from the last to the first.
__global__ void chain_without_barriers(const float* x, float* out) {
  __shared__ float behind[257];
  const int t = threadIdx.x;
  if (t == 0) behind[blockDim.x] = 0.0f;
  __syncthreads();
  behind[t] = x[blockIdx.x * blockDim.x + t] + behind[t + 1];
  __syncthreads();
  if (t == 0) out[blockIdx.x] = behind[0];
}

// Inside a warp, where a __syncwarp is needed before a lane reads what the one below it has put down.
__global__ void chain_without_syncwarp(const float* x, float* out) {
  __shared__ float before[257];
  const int t = threadIdx.x;
  before[t + 1] = 0.0f;
  __syncwarp();
  before[t + 1] = x[blockIdx.x * blockDim.x + t] + (t % 32 == 0 ? 0.0f : before[t]);
  __syncthreads();
  float sum = 0.0f;
  for (int w = 32; w <= blockDim.x; w += 32) sum += before[w];
  if (t == 0) out[blockIdx.x] = sum;
}

__global__ void blocks_without_atomics(const float* x, float* total) {
  __shared__ float sums[256];
  sums[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
  __syncthreads();
  for (int o = 128; o > 0; o >>= 1) {
    if (threadIdx.x < o) sums[threadIdx.x] += sums[threadIdx.x + o];
    __syncthreads();
  }
  if (threadIdx.x == 0) total[0] += sums[0];
}

__global__ void threads_without_atomics(const float* x, float* total) {
  total[0] += x[blockIdx.x * blockDim.x + threadIdx.x];
}

// One thread of each block: without a fence a counter tells the last block nothing of what the others wrote.
template <class Fence>
__device__ void add_up_by_the_last(const float* x, float* total, Fence fence) {
  if (threadIdx.x != 0) return;
  float sum = 0.0f;
  for (int t = 0; t < blockDim.x; ++t) sum += x[blockIdx.x * blockDim.x + t];
  total[2 + blockIdx.x] = sum;
  fence();
  if (atomicInc(reinterpret_cast<unsigned*>(total) + 1, gridDim.x - 1) != gridDim.x - 1) return;
  float all = 0.0f;
  for (int b = 0; b < gridDim.x; ++b) all += total[2 + b];
  total[0] = all;
}
__global__ void last_block_without_a_fence(const float* x, float* total) {
  add_up_by_the_last(x, total, [] {});
}
// A fence for the block tells other blocks as little.
__global__ void last_block_fenced_for_itself(const float* x, float* total) {
  add_up_by_the_last(x, total, [] { __threadfence_block(); });
}
__global__ void last_block_fenced_for_itself_in_ptx(const float* x, float* total) {
  add_up_by_the_last(x, total, [] { asm volatile("fence.acq_rel.cta;" ::: "memory"); });
}
__global__ void last_block_fenced_for_itself_by_scope(const float* x, float* total) {
  add_up_by_the_last(x, total, [] { cuda::atomic_thread_fence(cuda::memory_order_seq_cst, cuda::thread_scope_block); });
}
__global__ void last_block_fenced(const float* x, float* total) {
  add_up_by_the_last(x, total, [] { __threadfence(); });
}
__global__ void last_block_fenced_in_ptx(const float* x, float* total) {
  add_up_by_the_last(x, total, [] { asm volatile("fence.acq_rel.gpu;" ::: "memory"); });
}
__global__ void last_block_fenced_by_scope(const float* x, float* total) {
  add_up_by_the_last(x, total, [] { cuda::atomic_thread_fence(cuda::memory_order_seq_cst, cuda::thread_scope_device); });
}

// References whose atomics are for one block, or for all.
__global__ void blocks_with_references_of_their_own(const float* x, float* total) {
  cuda::atomic_ref<float, cuda::thread_scope_block> sum(total[0]);
  sum.fetch_add(x[blockIdx.x * blockDim.x + threadIdx.x], cuda::memory_order_relaxed);
}
__global__ void blocks_with_references(const float* x, float* total) {
  cuda::atomic_ref<float, cuda::thread_scope_device> sum(total[0]);
  sum.fetch_add(x[blockIdx.x * blockDim.x + threadIdx.x], cuda::memory_order_relaxed);
}
__global__ void sum_with_references_of_the_block(const float* x, float* out) {
  __shared__ float total;
  if (threadIdx.x == 0) total = 0.0f;
  __syncthreads();
  cuda::atomic_ref<float, cuda::thread_scope_block>(total).fetch_add(x[blockIdx.x * blockDim.x + threadIdx.x]);
  __syncthreads();
  if (threadIdx.x == 0) out[blockIdx.x] = total;
}

__device__ float in_a_variable;
__global__ void variable_without_atomics(const float* x, float* total) {
  if (threadIdx.x != 0) return;
  for (int t = 0; t < blockDim.x; ++t) in_a_variable += x[blockIdx.x * blockDim.x + t];
}
__global__ void variable_with_atomics(const float* x, float* total) {
  atomicAdd(&in_a_variable, x[blockIdx.x * blockDim.x + threadIdx.x]);
}

// Blocks that are `distance` apart in the grid add to one place. Each adds 1.
__global__ void partners(float* places, int distance, bool atomically) {
  const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  if (threadIdx.x != 0) return;
  if (atomically) {
    atomicAdd(&places[block % distance], 1.0f);
  } else {
    places[block % distance] += 1.0f;
  }
}

// ---- right -------------------------------------------------------------------------------------------------------

__global__ void sum_with_atomics(const float* x, float* out) {
  __shared__ float total;
  if (threadIdx.x == 0) total = 0.0f;
  __syncthreads();
  atomicAdd(&total, x[blockIdx.x * blockDim.x + threadIdx.x]);
  __syncthreads();
  if (threadIdx.x == 0) out[blockIdx.x] = total;
}

__global__ void sum_under_a_lock(const float* x, float* out) {
  __shared__ int lock;
  __shared__ float total;
  if (threadIdx.x == 0) lock = 0, total = 0.0f;
  __syncthreads();
  for (bool done = false; !done;) {
    if (atomicCAS(&lock, 0, 1) == 0) {
      total += x[blockIdx.x * blockDim.x + threadIdx.x];
      __threadfence_block();
      atomicExch(&lock, 0);
      done = true;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) out[blockIdx.x] = total;
}

// Each warp's last lane waits for the warp behind it, by a flag.
__global__ void sum_by_flags(const float* x, float* out) {
  __shared__ float sums[9];
  __shared__ volatile int ready[9];
  const int w = threadIdx.x / 32, warps = blockDim.x / 32;
  if (threadIdx.x <= warps) ready[threadIdx.x] = threadIdx.x == warps;
  if (threadIdx.x == 0) sums[warps] = 0.0f;
  __syncthreads();
  float v = x[blockIdx.x * blockDim.x + threadIdx.x];
  for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
  if (threadIdx.x % 32 == 0) {
    while (ready[w + 1] == 0) __nanosleep(20);
    __threadfence_block();
    sums[w] = v + sums[w + 1];
    __threadfence_block();
    ready[w] = 1;
  }
  __syncwarp();
  const float mine = sums[w];  // of all warps from this one on, as its first lane knows and the others may
  __syncthreads();
  if (threadIdx.x == 5 && mine == sums[0]) out[blockIdx.x] = mine;
}

// Who comes last, says a counter, adds up what the others have left.
__global__ void sum_by_the_last(const float* x, float* out) {
  __shared__ float left[256];
  __shared__ unsigned arrived;
  if (threadIdx.x == 0) arrived = 0;
  __syncthreads();
  left[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
  __threadfence_block();
  if (atomicAdd(&arrived, 1u) == blockDim.x - 1) {
    float sum = 0.0f;
    for (int t = 0; t < blockDim.x; ++t) sum += left[t];
    out[blockIdx.x] = sum;
  }
}

// The same without a fence: CUDA's atomics are relaxed, so the counter orders nothing of what else was written.
__global__ void sum_by_the_last_unfenced(const float* x, float* out) {
  __shared__ float left[256];
  __shared__ unsigned arrived;
  if (threadIdx.x == 0) arrived = 0;
  __syncthreads();
  left[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
  if (atomicAdd(&arrived, 1u) == blockDim.x - 1) {
    float sum = 0.0f;
    for (int t = 0; t < blockDim.x; ++t) sum += left[t];
    out[blockIdx.x] = sum;
  }
}

// What an atomic returns is each thread's own: places taken so need no fence, only a barrier before others read them.
__global__ void sum_of_places_taken(const float* x, float* out) {
  __shared__ float left[256];
  __shared__ unsigned taken;
  if (threadIdx.x == 0) taken = 0;
  __syncthreads();
  const float v = x[blockIdx.x * blockDim.x + threadIdx.x];
  if (v != 0.0f) left[atomicAdd(&taken, 1u)] = v;
  __syncthreads();
  if (threadIdx.x == 0) {
    float sum = 0.0f;
    for (int t = 0; t < taken; ++t) sum += left[t];
    out[blockIdx.x] = sum;
  }
}

__global__ void sum_in_tiles(const float* x, float* out) {
  extern __shared__ float left[];
  cg::thread_block block = cg::this_thread_block();
  cg::thread_block_tile<8> tile = cg::tiled_partition<8>(block);
  const int t = threadIdx.x;
  left[t] = x[blockIdx.x * blockDim.x + t];
  tile.sync();
  for (int o = 4; o > 0; o >>= 1) {
    const float v = left[t / 8 * 8 + (t % 8 + o) % 8];
    tile.sync();
    left[t] += v;
    tile.sync();
  }
  block.sync();
  if (t == 0) {
    float sum = 0.0f;
    for (int i = 0; i < blockDim.x; i += 8) sum += left[i];
    out[blockIdx.x] = sum;
  }
}

__global__ void sum_of_bytes(const float* x, float* out) {
  __shared__ unsigned char bytes[259];
  const int t = threadIdx.x;
  bytes[t + 3] = static_cast<unsigned char>(x[blockIdx.x * blockDim.x + t]);
  if (t < 3) bytes[t] = 0;
  __syncthreads();
  for (int o = 128; o > 0; o >>= 1) {
    const int v = t < o ? bytes[t + 3] + bytes[t + 3 + o] : bytes[t + 3];
    __syncthreads();
    if (t < o && o > 4) bytes[t + 3] = static_cast<unsigned char>(v);
    __syncthreads();
  }
  if (t == 0) {
    float sum = 0.0f;
    for (int i = 0; i < 11; ++i) sum += bytes[i];
    out[blockIdx.x] = sum;
  }
}

// Many arrays' worth: more than is isolated everywhere.
__global__ void sum_in_much_memory(const float* x, float* out) {
  extern __shared__ float rows[];  // [40][256]
  const int t = threadIdx.x;
  for (int r = 0; r < 40; ++r) rows[r * 256 + t] = r == 7 ? x[blockIdx.x * 256 + t] : 0.0f;
  __syncthreads();
  for (int o = 128; o > 0; o >>= 1) {
    if (t < o)
      for (int r = 0; r < 40; ++r) rows[r * 256 + t] += rows[r * 256 + t + o];
    __syncthreads();
  }
  for (int r = t; r < 40; r += 256) atomicAdd(&rows[1], r == 0 || r == 1 ? 0.0f : rows[r * 256]);
  __syncthreads();
  if (t == 0) out[blockIdx.x] = rows[1];
}

__global__ void blocks_with_atomics(const float* x, float* total) {
  float v = x[blockIdx.x * blockDim.x + threadIdx.x];
  for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
  if (threadIdx.x % 32 == 0) atomicAdd(total, v);
}

// total: a counter of blocks that have come, the result, and a sum for each block.
__global__ void last_block(const float* x, float* total) {
  __shared__ float sum;
  __shared__ bool last;
  if (threadIdx.x == 0) sum = 0.0f;
  __syncthreads();
  atomicAdd(&sum, x[blockIdx.x * blockDim.x + threadIdx.x]);
  __syncthreads();
  if (threadIdx.x == 0) {
    total[2 + blockIdx.x] = sum;
    __threadfence();
    last = atomicInc(reinterpret_cast<unsigned*>(total), gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    float all = 0.0f;
    for (int b = 0; b < gridDim.x; ++b) all += reinterpret_cast<volatile float*>(total)[2 + b];
    total[1] = all;
    total[0] = all;
  }
}

__global__ void blocks_under_a_lock(const float* x, float* total) {
  if (threadIdx.x != 0) return;
  float sum = 0.0f;
  for (int t = 0; t < blockDim.x; ++t) sum += x[blockIdx.x * blockDim.x + t];
  int* lock = reinterpret_cast<int*>(total + 8);
  while (atomicCAS(lock, 0, 1) != 0) {}
  total[0] += sum;
  __threadfence();
  atomicExch(lock, 0);
}

// Each block reads what it has written as if nobody wrote to it.
__global__ void read_only_loads(const float* x, float* total) {
  float* mine = total + 1 + blockIdx.x;
  if (threadIdx.x == 0) {
    *mine = 0.0f;
    for (int t = 0; t < blockDim.x; ++t) *mine += __ldg(x + blockIdx.x * blockDim.x + t);
    atomicAdd(total, __ldg(mine));
  }
}

// Each block writes its own element, and every thread passes its block's on.
__global__ void own_elements(const float* x, float* total) {
  float* mine = total + 1 + blockIdx.x;
  if (threadIdx.x == 7) *mine = 0.0f;
  __syncthreads();
  for (int t = 0; t < blockDim.x; ++t) {
    if (threadIdx.x == t) *mine += x[blockIdx.x * blockDim.x + t];
    __syncthreads();
  }
  if (threadIdx.x == 0) atomicAdd(total, *mine);
}

// In much global memory: places of a histogram, which many threads of many blocks add to.
constexpr int kPlaces = 100000;
__device__ int place_of(int i) { return i * 37 % 11 * (kPlaces / 11); }

__global__ void histogram_without_atomics(const float* x, float* places) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  places[place_of(i)] += x[i];
}

__global__ void histogram_with_atomics(const float* x, float* places) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (x[i] != 0.0f) atomicAdd(&places[place_of(i)], x[i]);
}

// The lock is a page away from what it guards.
__global__ void histogram_under_a_lock(const float* x, float* places) {
  if (threadIdx.x % 64 != 0) return;
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  for (bool done = false; !done;) {
    if (atomicCAS(reinterpret_cast<int*>(places + 5000), 0, 1) != 0) continue;
    for (int t = 0; t < 64; ++t) places[place_of(i + t) + t] += x[i + t];
    __threadfence();
    atomicExch(reinterpret_cast<int*>(places + 5000), 0);
    done = true;
  }
}

// All write the same, and each its own beside it.
__global__ void same_value_by_all(const float* x, float* places) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  places[70000] = 1.0f;
  if (i == 0) places[70001] = -1.0f;
  places[80000 + i] = x[i];
}

// Blocks pass on what they have, by a flag and a fence each.
__global__ void chain_of_blocks(const float* x, float* places) {
  if (threadIdx.x != 0) return;
  float sum = 0.0f;
  for (int t = 0; t < blockDim.x; ++t) sum += x[blockIdx.x * blockDim.x + t];
  volatile float* flags = places + 50000;
  if (blockIdx.x > 0) {
    while (flags[blockIdx.x - 1] == 0.0f) {}
    __threadfence();
    sum += places[blockIdx.x * 2000 - 2000];
    places[blockIdx.x * 2000 - 2000] = 0.0f;
    flags[blockIdx.x - 1] = 0.0f;
  }
  places[blockIdx.x * 2000] = sum;
  if (blockIdx.x + 1 == gridDim.x) return;
  __threadfence();
  flags[blockIdx.x] = 1.0f;
}

__global__ void add_up(float* places) {
  float sum = 0.0f;
  for (int i = 0; i < kPlaces; ++i) sum += places[i];
  places[0] = sum;
}

#define MANY(name)                                                               \
  extern "C" void h_##name(const float* x, float* out, int blocks) {             \
    float* places;                                                               \
    cudaMalloc(&places, kPlaces * sizeof(float));                                \
    cudaMemset(places, 0, kPlaces * sizeof(float));                              \
    name<<<blocks, 256>>>(x, places);                                            \
    add_up<<<1, 1>>>(places);                                                    \
    cudaMemcpy(out, places, sizeof(float), cudaMemcpyDeviceToHost);              \
    cudaFree(places);                                                            \
  }
MANY(histogram_without_atomics)
MANY(histogram_with_atomics)
MANY(histogram_under_a_lock)
MANY(same_value_by_all)
MANY(chain_of_blocks)

#define TOTAL(name)                                                              \
  extern "C" void h_##name(const float* x, float* out, int blocks) {             \
    float* total;                                                                \
    cudaMalloc(&total, 32 * sizeof(float));                                      \
    cudaMemset(total, 0, 32 * sizeof(float));                                    \
    name<<<blocks, 256>>>(x, total);                                             \
    cudaMemcpy(out, total, sizeof(float), cudaMemcpyDeviceToHost);               \
    cudaFree(total);                                                             \
  }
TOTAL(blocks_without_atomics)
TOTAL(threads_without_atomics)
TOTAL(blocks_with_atomics)
TOTAL(last_block)
TOTAL(blocks_under_a_lock)
TOTAL(read_only_loads)
TOTAL(own_elements)

TOTAL(last_block_without_a_fence)
TOTAL(last_block_fenced_for_itself)
TOTAL(last_block_fenced_for_itself_in_ptx)
TOTAL(last_block_fenced_for_itself_by_scope)
TOTAL(last_block_fenced)
TOTAL(last_block_fenced_in_ptx)
TOTAL(last_block_fenced_by_scope)
TOTAL(blocks_with_references_of_their_own)
TOTAL(blocks_with_references)

#define VARIABLE(name)                                                                 \
  extern "C" void h_##name(const float* x, float* out, int blocks) {                   \
    const float zero = 0.0f;                                                           \
    cudaMemcpyToSymbol(in_a_variable, &zero, sizeof zero);                             \
    name<<<blocks, 256>>>(x, out);                                                     \
    cudaMemcpyFromSymbol(out, in_a_variable, sizeof zero);                             \
  }
VARIABLE(variable_without_atomics)
VARIABLE(variable_with_atomics)

extern "C" void h_partners(float* out, int x, int y, int z, int distance, int atomically) {
  float* places;
  cudaMalloc(&places, distance * sizeof(float));
  cudaMemset(places, 0, distance * sizeof(float));
  partners<<<dim3(x, y, z), 32>>>(places, distance, atomically != 0);
  cudaMemcpy(out, places, distance * sizeof(float), cudaMemcpyDeviceToHost);
  cudaFree(places);
}

#define ENTRY(name, shared) \
  extern "C" void h_##name(const float* x, float* out, int blocks) { name<<<blocks, 256, shared>>>(x, out); }
ENTRY(sum_without_atomics, 0)
ENTRY(warps_without_atomics, 4)
ENTRY(chain_without_barriers, 0)
ENTRY(chain_without_syncwarp, 0)
ENTRY(sum_with_atomics, 0)
ENTRY(sum_with_references_of_the_block, 0)
ENTRY(sum_under_a_lock, 0)
ENTRY(sum_by_flags, 0)
ENTRY(sum_by_the_last, 0)
ENTRY(sum_by_the_last_unfenced, 0)
ENTRY(sum_of_places_taken, 0)
ENTRY(sum_in_tiles, 1024)
ENTRY(sum_of_bytes, 0)
ENTRY(sum_in_much_memory, 40960)
