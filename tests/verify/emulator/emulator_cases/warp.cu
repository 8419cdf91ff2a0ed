// Barriers and warp collectives.
#include <cuda_runtime.h>
#include <cuda_fp16.h>

__global__ void shuffles(int* out) {
  int t = threadIdx.x;
  const unsigned full = 0xffffffffu;
  out[0 * 32 + t] = __shfl_sync(full, t, 5);
  out[1 * 32 + t] = __shfl_up_sync(full, t, 3);
  out[2 * 32 + t] = __shfl_down_sync(full, t, 3);
  out[3 * 32 + t] = __shfl_xor_sync(full, t, 9);
  out[4 * 32 + t] = __shfl_sync(full, t, 9, 8);
  out[5 * 32 + t] = __shfl_up_sync(full, t, 2, 8);
  out[6 * 32 + t] = __shfl_down_sync(full, t, 2, 8);
  out[7 * 32 + t] = __shfl_xor_sync(full, t, 16, 16);
  out[8 * 32 + t] = __shfl_sync(full, t, -1);
  long long wide = (long long)t << 40;
  out[9 * 32 + t] = (int)(__shfl_xor_sync(full, wide, 1) >> 40);
  double d = t + 0.5;
  out[10 * 32 + t] = (int)(2 * __shfl_down_sync(full, d, 1));
  half h = __float2half((float)t);
  out[11 * 32 + t] = (int)__half2float(__shfl_xor_sync(full, h, 2));
  unsigned char small = (unsigned char)t;
  out[12 * 32 + t] = __shfl_sync(full, (unsigned)small, 31);
}

__global__ void votes(unsigned* out) {
  int t = threadIdx.x;
  unsigned odd = __ballot_sync(0xffffffff, t & 1);
  out[t] = odd;
  out[32 + t] = __any_sync(0xffffffff, t == 7) * 2 + __all_sync(0xffffffff, t < 31);
  out[64 + t] = __match_any_sync(0xffffffff, t / 8);
  int all = 5;
  out[96 + t] = __match_all_sync(0xffffffff, 3, &all) + all;
  out[128 + t] = __reduce_add_sync(0xffffffff, (unsigned)t);
  out[160 + t] = (unsigned)__reduce_min_sync(0xffffffff, t - 5);
  out[192 + t] = __reduce_xor_sync(0xffffffff, (unsigned)(1 << (t % 4)));
  out[224 + t] = __popc(__activemask());
}

__global__ void masks(int* out) {  // the two halves of a warp meet at different places in the program
  int t = threadIdx.x, v = t;
  if (t < 16) {
    for (int o = 8; o > 0; o /= 2) v += __shfl_xor_sync(0x0000ffff, v, o);
  } else {
    v = 2 * __shfl_sync(0xffff0000, v, 20);
    __syncwarp(0xffff0000);
  }
  __syncwarp();
  out[t] = v + __shfl_sync(0xffffffff, v, 0);
}

__global__ void partial_warp(int* out, int n) {  // 40 threads: lanes 8 to 31 of the second warp do not exist
  int v = 1;
  for (int o = 16; o > 0; o /= 2) {
    int other = __shfl_down_sync(0xffffffff, v, o);
    if (threadIdx.x % 32 + o < (threadIdx.x < 32 ? 32 : n - 32)) v += other;
  }
  out[threadIdx.x] = v;
}

__global__ void exited(int* out) {  // threads that left do not take part in barriers any more
  if (threadIdx.x >= 48) return;
  __syncthreads();
  int votes = __syncthreads_count(threadIdx.x % 2);
  int all = __syncthreads_and(1), any = __syncthreads_or(threadIdx.x == 3), none = __syncthreads_or(0);
  unsigned ballot = __ballot_sync(0xffffffff, 1);
  out[threadIdx.x] = votes * 1000 + all * 100 + (any != 0) * 10 + none;
  out[64 + threadIdx.x] = ballot;
}

__global__ void spin_in_block(int* flag, int* out) {  // a thread waits for another one without a barrier
  if (threadIdx.x == 0) {
    while (atomicAdd(flag, 0) == 0) {}
    out[0] = 11;
  } else if (threadIdx.x == 33) {
    atomicExch(flag, 1);
  }
}

__global__ void scan(const float* x, float* y) {
  __shared__ float s[2][256];
  int t = threadIdx.x, from = 0;
  s[0][t] = x[blockIdx.x * 256 + t];
  __syncthreads();
  for (int o = 1; o < 256; o *= 2) {
    s[1 - from][t] = t >= o ? s[from][t] + s[from][t - o] : s[from][t];
    from = 1 - from;
    __syncthreads();
  }
  y[blockIdx.x * 256 + t] = s[from][t];
}

__global__ void missing_barrier(const int* x, int* y) {
  __shared__ int s[128];
  s[threadIdx.x] = x[threadIdx.x];
  y[threadIdx.x] = s[127 - threadIdx.x];
}

extern "C" void h_shuffles(int* out) { shuffles<<<1, 32>>>(out); }
extern "C" void h_votes(unsigned* out) { votes<<<1, 32>>>(out); }
extern "C" void h_masks(int* out) { masks<<<1, 32>>>(out); }
extern "C" void h_partial_warp(int* out) { partial_warp<<<1, 40>>>(out, 40); }
extern "C" void h_exited(int* out) { exited<<<1, 64>>>(out); }
extern "C" void h_spin(int* flag, int* out) { spin_in_block<<<1, 64>>>(flag, out); }
extern "C" void h_scan(const float* x, float* y, int blocks) { scan<<<blocks, 256>>>(x, y); }
extern "C" void h_missing_barrier(const int* x, int* y) { missing_barrier<<<1, 128>>>(x, y); }
