// Kernels with races (r_...), and right ones that look like them (ok_...). Each entry allocates what it needs.
#include <cuda_runtime.h>
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

constexpr int T = 128, B = 4, N = T * B;

template <class F>
void with_memory(F launch) {
  float *x, *y;
  cudaMalloc(&x, 4 * N * sizeof(float));
  cudaMalloc(&y, 4 * N * sizeof(float));
  for (int i = 0; i < 4 * N; ++i) x[i] = static_cast<float>(i * 37 % 101), y[i] = 0;
  launch(x, y);
  cudaFree(x);
  cudaFree(y);
}
#define ENTRY(name, kernel) \
  extern "C" void name() { with_memory([](float* x, float* y) { kernel<<<B, T, 4 * T * sizeof(float)>>>(x, y); }); }

// ---- a tree in shared memory ----
template <bool AfterLoad, bool InLoop>
__global__ void reduction(const float* x, float* y) {
  __shared__ float part[T];
  int t = threadIdx.x;
  part[t] = x[blockIdx.x * T + t];
  if (AfterLoad) __syncthreads();
  for (int s = T / 2; s > 0; s /= 2) {
    if (t < s) part[t] += part[t + s];
    if (InLoop) __syncthreads();
  }
  if (t == 0) y[blockIdx.x] = part[0];
}
ENTRY(ok_reduction, (reduction<true, true>))
ENTRY(r_reduction_load, (reduction<false, true>))
ENTRY(r_reduction_loop, (reduction<true, false>))

// ---- tiles ----
template <bool AfterLoad, bool AfterUse>
__global__ void tiled(const float* x, float* y) {
  __shared__ float tile[8][16];
  int r = threadIdx.x / 16, c = threadIdx.x % 16;
  float sum = 0;
  for (int step = 0; step < 3; ++step) {
    tile[r][c] = x[step * T + threadIdx.x];
    if (AfterLoad) __syncthreads();
    for (int k = 0; k < 8; ++k) sum += tile[k][c];
    if (AfterUse) __syncthreads();
  }
  y[blockIdx.x * T + threadIdx.x] = sum;
}
ENTRY(ok_tiled, (tiled<true, true>))
ENTRY(r_tile_load, (tiled<false, true>))
ENTRY(r_tile_end, (tiled<true, false>))

template <int Slip>
__global__ void double_buffer(const float* x, float* y) {
  __shared__ float buffer[2][T];
  int t = threadIdx.x;
  float sum = 0;
  buffer[0][t] = x[t];
  __syncthreads();
  for (int step = 0; step < 3; ++step) {
    buffer[(step + 1 + Slip) % 2][t] = x[(step + 1) * T + t];
    sum += buffer[step % 2][T - 1 - t];
    __syncthreads();
  }
  y[blockIdx.x * T + t] = sum;
}
ENTRY(ok_double_buffer, double_buffer<0>)
ENTRY(r_double_buffer, double_buffer<1>)

__global__ void transpose_without_barrier(const float* x, float* y) {
  __shared__ float tile[8][17];
  int r = threadIdx.x / 16, c = threadIdx.x % 16;
  tile[r][c] = x[threadIdx.x];
  y[blockIdx.x * T + threadIdx.x] = tile[c % 8][r * 2 + c / 8];
}
ENTRY(r_transpose, transpose_without_barrier)

// ---- block-wide values ----
template <bool Barrier>
__global__ void broadcast(const float* x, float* y) {
  __shared__ float first;
  if (threadIdx.x == 0) first = x[blockIdx.x * T];
  if (Barrier) __syncthreads();
  y[blockIdx.x * T + threadIdx.x] = first;
}
ENTRY(ok_broadcast, broadcast<true>)
ENTRY(r_broadcast, broadcast<false>)

template <bool Again>
__device__ float block_sum(float value, float* scratch) {
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int d = 16; d > 0; d /= 2) value += __shfl_down_sync(~0u, value, d);
  if (Again) __syncthreads();
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  value = 0;
  for (int w = 0; w < T / 32; ++w) value += scratch[w];
  return value;
}
template <bool Again>
__global__ void two_sums(const float* x, float* y) {
  __shared__ float scratch[32];
  float value = x[blockIdx.x * T + threadIdx.x];
  float mean = block_sum<Again>(value, scratch) / T;
  float variance = block_sum<Again>((value - mean) * (value - mean), scratch) / T;
  y[blockIdx.x * T + threadIdx.x] = (value - mean) * rsqrtf(variance);
}
ENTRY(ok_two_sums, two_sums<true>)
ENTRY(r_two_sums, two_sums<false>)

template <bool Copies>
__global__ void scan(const float* x, float* y) {
  __shared__ float s[T];
  int t = threadIdx.x;
  s[t] = x[t];
  __syncthreads();
  for (int d = 1; d < T; d *= 2) {
    float add = t >= d ? s[t - d] : 0;
    if (Copies) __syncthreads();
    s[t] += add;
    __syncthreads();
  }
  y[blockIdx.x * T + t] = s[t];
}
ENTRY(ok_scan, scan<true>)
ENTRY(r_scan, scan<false>)

__global__ void last_thread_wins(const float* x, float* y) {
  __shared__ float s;
  s = x[threadIdx.x];
  __syncthreads();
  y[blockIdx.x * T + threadIdx.x] = s;
}
ENTRY(r_different_values, last_thread_wins)
__global__ void same_value(const float* x, float* y) {
  __shared__ float s;
  __shared__ int found;
  s = x[blockIdx.x];
  if (threadIdx.x == 0) found = 0;
  __syncthreads();
  if (x[threadIdx.x] > 50) found = 1;
  __syncthreads();
  y[blockIdx.x * T + threadIdx.x] = s + found;
}
ENTRY(ok_same_value, same_value)

template <int Gap>
__global__ void two_dynamic_arrays(const float* x, float* y) {
  extern __shared__ float memory[];
  float* one = memory;
  float* two = memory + Gap;
  int t = threadIdx.x;
  one[t] = x[t];
  two[t] = x[T + t];
  __syncthreads();
  y[blockIdx.x * T + t] = one[T - 1 - t] + two[t];
}
ENTRY(ok_two_dynamic_arrays, two_dynamic_arrays<T>)
ENTRY(r_two_dynamic_arrays, two_dynamic_arrays<T / 2>)

// ---- atomics ----
template <bool Atomic, bool Barriers>
__global__ void histogram(const float* x, float* y) {
  __shared__ int count[16];
  int t = threadIdx.x;
  if (t < 16) count[t] = 0;
  if (Barriers) __syncthreads();
  int bin = static_cast<int>(x[t]) % 16;
  if (Atomic) atomicAdd(&count[bin], 1); else count[bin]++;
  if (Barriers) __syncthreads();
  if (t < 16) atomicAdd(&y[t], static_cast<float>(count[t]));
}
ENTRY(ok_histogram, (histogram<true, true>))
ENTRY(r_histogram, (histogram<false, true>))
ENTRY(r_histogram_barriers, (histogram<true, false>))

__global__ void global_histogram(const float* x, float* y) { y[static_cast<int>(x[threadIdx.x]) % 16] += 1; }
ENTRY(r_global_histogram, global_histogram)

__device__ float atomic_max(float* address, float value) {
  int* bits = reinterpret_cast<int*>(address);
  int old = *bits, assumed;
  do {
    assumed = old;
    if (__int_as_float(assumed) >= value) break;
    old = atomicCAS(bits, assumed, __float_as_int(value));
  } while (old != assumed);
  return __int_as_float(old);
}
__global__ void maximum(const float* x, float* y) {
  __shared__ float best;
  if (threadIdx.x == 0) best = -1;
  __syncthreads();
  atomic_max(&best, x[blockIdx.x * T + threadIdx.x]);
  __syncthreads();
  if (threadIdx.x == 0) atomic_max(y, best);
}
ENTRY(ok_atomic_max, maximum)

__device__ unsigned arrived;
template <bool Fence>
__global__ void last_block(const float* x, float* y) {
  __shared__ bool last;
  int t = threadIdx.x;
  if (t == 0) {
    y[1 + blockIdx.x] = x[blockIdx.x * T];
    if (Fence) __threadfence();
    last = atomicInc(&arrived, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && t == 0) {
    float sum = 0;
    for (int b = 0; b < gridDim.x; ++b) sum += y[1 + b];
    y[0] = sum;
  }
}
ENTRY(ok_last_block, last_block<true>)
ENTRY(r_last_block, last_block<false>)

__device__ int lock;
__global__ void locked(const float* x, float* y) {
  if (threadIdx.x % 32 != 0) return;
  while (atomicCAS(&lock, 0, 1) != 0) {
  }
  y[0] += x[blockIdx.x * T + threadIdx.x];
  __threadfence();
  atomicExch(&lock, 0);
}
ENTRY(ok_locked, locked)

__device__ float totals[8];
__global__ void sum_in_a_variable(const float* x, float* y) { totals[3] += x[threadIdx.x]; }
ENTRY(r_variable, sum_in_a_variable)

// ---- global memory ----
__global__ void sum_of_blocks(const float* x, float* y) {
  if (threadIdx.x == 0) y[0] += x[blockIdx.x];
}
ENTRY(r_blocks, sum_of_blocks)

__global__ void in_place_stencil(float* x, float* y) {
  int i = blockIdx.x * T + threadIdx.x;
  if (i > 0 && i < N - 1) x[i] = x[i - 1] + x[i + 1];
}
ENTRY(r_in_place_stencil, in_place_stencil)
__global__ void in_place_map(float* x, float* y) {
  for (int i = blockIdx.x * T + threadIdx.x; i < 4 * N; i += gridDim.x * T) x[i] = x[i] > 50 ? x[i] : 0;
}
ENTRY(ok_in_place_map, in_place_map)

__global__ void overlapping_rows(const float* x, float* y) {
  y[blockIdx.x * (T - 1) + threadIdx.x] = x[blockIdx.x * T + threadIdx.x];
}
ENTRY(r_overlapping_rows, overlapping_rows)

__global__ void vectors(const float* x, float* y) {
  float4 v = reinterpret_cast<const float4*>(x)[threadIdx.x];
  reinterpret_cast<float4*>(y)[blockIdx.x * T + threadIdx.x] = v;
}
ENTRY(ok_vectors, vectors)
__global__ void vectors_then_neighbours(const float* x, float* y) {
  __shared__ float4 s[T];
  s[threadIdx.x] = reinterpret_cast<const float4*>(x)[threadIdx.x];
  y[blockIdx.x * T + threadIdx.x] = reinterpret_cast<float*>(s)[threadIdx.x * 4 + 5 - 8 * (threadIdx.x > 64)];
}
ENTRY(r_vectors, vectors_then_neighbours)

template <bool Barrier>
__global__ void bytes(const float* x, float* y) {
  __shared__ unsigned char s[T];
  int t = threadIdx.x;
  s[t] = static_cast<unsigned char>(x[t]);
  if (Barrier) __syncthreads();
  s[t] += Barrier ? 1 : s[T - 1 - t];
  y[blockIdx.x * T + t] = s[t];
}
ENTRY(ok_bytes, bytes<true>)
ENTRY(r_bytes, bytes<false>)

// ---- warps ----
template <bool Sync>
__global__ void warp_exchange(const float* x, float* y) {
  __shared__ float s[T];
  int t = threadIdx.x;
  s[t] = x[t];
  if (Sync) __syncwarp();
  y[blockIdx.x * T + t] = s[t ^ 1];
}
ENTRY(ok_warp_exchange, warp_exchange<true>)
ENTRY(r_warp_exchange, warp_exchange<false>)

__global__ void half_warp_tiles(const float* x, float* y) {
  __shared__ float s[T];
  auto tile = cg::tiled_partition<16>(cg::this_thread_block());
  int t = threadIdx.x;
  s[t] = x[t];
  tile.sync();
  y[blockIdx.x * T + t] = s[t ^ 15];
}
ENTRY(ok_half_warp_tiles, half_warp_tiles)
__global__ void too_small_tiles(const float* x, float* y) {
  __shared__ float s[T];
  auto tile = cg::tiled_partition<16>(cg::this_thread_block());
  int t = threadIdx.x;
  s[t] = x[t];
  tile.sync();
  y[blockIdx.x * T + t] = s[t ^ 31];
}
ENTRY(r_too_small_tiles, too_small_tiles)

__device__ void last_warp(volatile float* s, int t) {
  s[t] += s[t + 32];
  s[t] += s[t + 16];
  s[t] += s[t + 8];
  s[t] += s[t + 4];
  s[t] += s[t + 2];
  s[t] += s[t + 1];
}
template <bool Barrier>
__global__ void volatile_reduction(const float* x, float* y) {
  __shared__ float s[T];
  int t = threadIdx.x;
  s[t] = x[blockIdx.x * T + t];
  __syncthreads();
  if (t < 64) s[t] += s[t + 64];
  if (Barrier) __syncthreads();
  if (t < 32) last_warp(s, t);
  if (t == 0) y[blockIdx.x] = s[0];
}
ENTRY(ok_volatile_reduction, volatile_reduction<true>)
ENTRY(r_volatile_reduction, volatile_reduction<false>)

__global__ void volatile_between_warps(const float* x, float* y) {
  __shared__ volatile float s[T];
  int t = threadIdx.x;
  s[t] = x[t];
  y[blockIdx.x * T + t] = s[T - 1 - t];
}
ENTRY(r_volatile_between_warps, volatile_between_warps)

// ---- larger right ones ----
__global__ void softmax_online(const float* x, float* y) {
  __shared__ float maxima[32], sums[32];
  int t = threadIdx.x, lane = t % 32, warp = t / 32;
  float m = -1e30f, s = 0;
  for (int i = t; i < N; i += T) {
    float next = fmaxf(m, x[i]);
    s = s * expf(m - next) + expf(x[i] - next);
    m = next;
  }
  for (int d = 16; d > 0; d /= 2) {
    float other = __shfl_xor_sync(~0u, m, d), total = __shfl_xor_sync(~0u, s, d), next = fmaxf(m, other);
    s = s * expf(m - next) + total * expf(other - next);
    m = next;
  }
  if (lane == 0) maxima[warp] = m, sums[warp] = s;
  __syncthreads();
  if (warp == 0) {
    m = lane < T / 32 ? maxima[lane] : -1e30f;
    s = lane < T / 32 ? sums[lane] : 0;
    for (int d = 16; d > 0; d /= 2) {
      float other = __shfl_xor_sync(~0u, m, d), total = __shfl_xor_sync(~0u, s, d), next = fmaxf(m, other);
      s = s * expf(m - next) + total * expf(other - next);
      m = next;
    }
    if (lane == 0) maxima[0] = m, sums[0] = s;
  }
  __syncthreads();
  for (int i = t; i < N; i += T)
    if (blockIdx.x == 0) y[i] = expf(x[i] - maxima[0]) / sums[0];
}
ENTRY(ok_softmax_online, softmax_online)

// Blocks take tickets and wait for the one before; flags are volatile, data is released by a fence.
__device__ unsigned ticket;
__device__ volatile int ready[B];
__global__ void look_back_scan(const float* x, float* y) {
  __shared__ float s[T];
  __shared__ unsigned block;
  __shared__ float before;
  int t = threadIdx.x;
  if (t == 0) block = atomicAdd(&ticket, 1) % B;
  __syncthreads();
  s[t] = x[block * T + t];
  __syncthreads();
  for (int d = 1; d < T; d *= 2) {
    float add = t >= d ? s[t - d] : 0;
    __syncthreads();
    s[t] += add;
    __syncthreads();
  }
  if (t == 0) {
    before = 0;
    if (block > 0) {
      while (ready[block - 1] == 0) __nanosleep(20);
      __threadfence();
      before = y[N + block - 1];
      ready[block - 1] = 0;
    }
    y[N + block] = before + s[T - 1];
    __threadfence();
    ready[block] = block + 1 < B;
  }
  __syncthreads();
  y[block * T + t] = before + s[t];
}
ENTRY(ok_look_back_scan, look_back_scan)

__global__ void attention(const float* x, float* y) {  // one query for each warp, keys in tiles of 8
  __shared__ float keys[8][33], values[8][33], scores[T / 32][8];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float query = x[warp * 32 + lane] * 0.01f, best = -1e30f, sum = 0, out = 0;
  for (int start = 0; start < 32; start += 8) {
    for (int k = warp; k < 8; k += T / 32) {
      keys[k][lane] = x[(start + k) * 32 + lane] * 0.01f;
      values[k][lane] = x[N + (start + k) % 16 * 32 + lane];
    }
    __syncthreads();
    for (int k = 0; k < 8; ++k) {
      float dot = query * keys[k][lane];
      for (int d = 16; d > 0; d /= 2) dot += __shfl_xor_sync(~0u, dot, d);
      if (lane == 0) scores[warp][k] = dot;
    }
    __syncwarp();
    float next = best;
    for (int k = 0; k < 8; ++k) next = fmaxf(next, scores[warp][k]);
    float scale = expf(best - next);
    sum *= scale, out *= scale, best = next;
    for (int k = 0; k < 8; ++k) {
      float p = expf(scores[warp][k] - best);
      sum += p, out += p * values[k][lane];
    }
    __syncthreads();
  }
  y[blockIdx.x * T + threadIdx.x] = out / sum;
}
ENTRY(ok_attention, attention)

__global__ void compact(const float* x, float* y) {  // one atomic for the lanes of a warp that have something
  int i = blockIdx.x * T + threadIdx.x;
  if (x[i] > 40) {
    auto active = cg::coalesced_threads();
    unsigned place = 0;
    if (active.thread_rank() == 0) place = atomicAdd(reinterpret_cast<unsigned*>(y), static_cast<unsigned>(active.size()));
    y[1 + active.shfl(place, 0) + active.thread_rank()] = x[i];
  }
}
ENTRY(ok_compact, compact)

__global__ void split_k(const float* x, float* y) {  // each block adds its part to every output
  for (int i = threadIdx.x; i < 64; i += T) {
    float sum = 0;
    for (int k = blockIdx.x; k < 32; k += gridDim.x) sum += x[i * 32 % N + k];
    atomicAdd(&y[i], sum);
  }
}
ENTRY(ok_split_k, split_k)

// ---- the whole grid ----
template <bool Between>
__global__ void phases(const float* x, float* y) {
  __shared__ float kept[T];
  cg::grid_group grid = cg::this_grid();
  const int i = grid.thread_rank();
  kept[threadIdx.x] = x[i];
  y[i] = 2 * x[i];
  if (Between) grid.sync();
  y[N + i] = y[(i + T) % N] + kept[(threadIdx.x + (Between ? 1 : 0)) % T];
}
#define COOPERATIVE(name, kernel)                                        \
  extern "C" void name() {                                               \
    with_memory([](float* x, float* y) {                                 \
      void* args[] = {&x, &y};                                           \
      cudaLaunchCooperativeKernel((void*)kernel, dim3(B), dim3(T), args); \
    });                                                                  \
  }
COOPERATIVE(ok_phases, (phases<true>))
COOPERATIVE(r_phases, (phases<false>))

template <bool Fence>
__global__ void own_barrier(const float* x, float* y) {
  __shared__ float kept[T];
  unsigned* come = reinterpret_cast<unsigned*>(y + 2 * N);
  const int i = blockIdx.x * T + threadIdx.x;
  kept[threadIdx.x] = x[i];
  y[i] = 2 * x[i];
  if (Fence) __threadfence();
  y[3 * N + i] = 1;  // for this thread alone
  __syncthreads();
  if (threadIdx.x == 0) {
    atomicAdd(come, 1u);
    while (atomicAdd(come, 0u) < gridDim.x);
  }
  __syncthreads();
  y[N + i] = y[(i + T) % N] + kept[(threadIdx.x + 1) % T] + y[3 * N + i];
}
ENTRY(ok_own_barrier, own_barrier<true>)
ENTRY(r_own_barrier, own_barrier<false>)
