// nvcuda::wmma: every shape and type, both layouts of every operand.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <mma.h>

using namespace nvcuda;

// Rows, or columns, lie 16 elements apart or more: a distance is to be a multiple of 16 bytes.
__host__ __device__ constexpr int apart(int length) { return length < 16 ? 16 : length; }

// A is m x k, B is k x n, each stored by rows or by columns; two warps, the second on the second problem.
template <int m, int n, int k, class T, class Stored, class Sum, class LayoutA, class LayoutB>
__global__ void product(const Stored* a, const Stored* b, const Sum* c, Sum* d, bool by_rows) {
  const int warp = threadIdx.x / 32;
  wmma::fragment<wmma::matrix_a, m, n, k, T, LayoutA> left;
  wmma::fragment<wmma::matrix_b, m, n, k, T, LayoutB> right;
  wmma::fragment<wmma::accumulator, m, n, k, Sum> sum;
  const wmma::layout_t layout = by_rows ? wmma::mem_row_major : wmma::mem_col_major;
  const bool a_rows = std::is_same<LayoutA, wmma::row_major>::value, b_rows = std::is_same<LayoutB, wmma::row_major>::value;
  wmma::load_matrix_sync(left, a + warp * (a_rows ? m * apart(k) : k * apart(m)), apart(a_rows ? k : m));
  wmma::load_matrix_sync(right, b + warp * (b_rows ? k * apart(n) : n * apart(k)), apart(b_rows ? n : k));
  wmma::load_matrix_sync(sum, c + warp * m * n, by_rows ? n : m, layout);
  wmma::mma_sync(sum, left, right, sum);
  wmma::store_matrix_sync(d + warp * m * n, sum, by_rows ? n : m, layout);
}

#define ENTRY(name, m, n, k, T, Stored, Sum)                                                                             \
  extern "C" void name(const Stored* a, const Stored* b, const Sum* c, Sum* d, int form) {                               \
    if (form == 0) product<m, n, k, T, Stored, Sum, wmma::row_major, wmma::row_major><<<1, 64>>>(a, b, c, d, true);      \
    if (form == 1) product<m, n, k, T, Stored, Sum, wmma::row_major, wmma::col_major><<<1, 64>>>(a, b, c, d, false);     \
    if (form == 2) product<m, n, k, T, Stored, Sum, wmma::col_major, wmma::row_major><<<1, 64>>>(a, b, c, d, false);     \
    if (form == 3) product<m, n, k, T, Stored, Sum, wmma::col_major, wmma::col_major><<<1, 64>>>(a, b, c, d, true);      \
  }
#define ENTRIES(suffix, m, n)                                                        \
  ENTRY(h_half_##suffix, m, n, 16, __half, __half, float)                            \
  ENTRY(h_short_##suffix, m, n, 16, __half, __half, __half)                          \
  ENTRY(h_bfloat_##suffix, m, n, 16, __nv_bfloat16, __nv_bfloat16, float)            \
  ENTRY(h_signed_##suffix, m, n, 16, signed char, signed char, int)                  \
  ENTRY(h_unsigned_##suffix, m, n, 16, unsigned char, unsigned char, int)
ENTRIES(square, 16, 16)
ENTRIES(tall, 32, 8)
ENTRIES(flat, 8, 32)
ENTRY(h_tf32, 16, 16, 8, wmma::precision::tf32, float, float)
ENTRY(h_double, 8, 8, 4, double, double, double)

// Elements are each in one lane: a sum over the lanes' own ones is the sum over the tile. Half precision of A holds
// each twice.
__global__ void elements(const __half* a, float* out) {
  wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> left;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
  wmma::load_matrix_sync(left, a, 16);
  wmma::fill_fragment(sum, 0.5f);
  float total = 0, filled = 0;
  for (int i = 0; i < left.num_elements; i++) total += __half2float(left.x[i]);
  for (int i = 0; i < sum.num_elements; i++) filled += sum.x[i] *= 2.0f;
  for (int k = 16; k > 0; k /= 2) {
    total += __shfl_xor_sync(0xffffffff, total, k);
    filled += __shfl_xor_sync(0xffffffff, filled, k);
  }
  if (threadIdx.x == 0) {
    out[0] = total;
    out[1] = filled;
    out[2] = wmma::__float_to_tf32(1.00073242f);
  }
}
extern "C" void h_elements(const __half* a, float* out) { elements<<<1, 32>>>(a, out); }

// One product after the other, with nothing between them that a warp meets at.
__global__ void twice(const float* a, const float* b, float* d) {
  wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::row_major> once, again;
  wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, wmma::row_major> right;
  wmma::fragment<wmma::accumulator, 16, 16, 8, float> sum;
  wmma::load_matrix_sync(once, a, 8);
  wmma::load_matrix_sync(right, b, 16);
  wmma::fill_fragment(sum, 0.0f);
  for (int i = 0; i < once.num_elements; i++) again.x[i] = 2.0f * once.x[i];
  wmma::mma_sync(sum, once, right, sum);
  wmma::mma_sync(sum, again, right, sum);
  wmma::store_matrix_sync(d, sum, 16, wmma::mem_row_major);
}
extern "C" void h_twice(const float* a, const float* b, float* d) { twice<<<1, 32>>>(a, b, d); }

__global__ void misused(int how) {
  __shared__ __align__(32) __half tile[16 * 24];
  wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> left;
  if (how == 1 && threadIdx.x < 16) return;
  wmma::load_matrix_sync(left, tile + (how == 2), how == 3 ? 17 : 24);
}
extern "C" int h_misused(int how) {
  misused<<<1, how == 0 ? 48 : 32>>>(how);
  return 0;
}

__global__ void limits(int* out) {
  wmma::fragment<wmma::matrix_a, 16, 16, 16, signed char, wmma::row_major> left;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, signed char, wmma::col_major> right;
  wmma::fragment<wmma::accumulator, 16, 16, 16, int> sum, wrapped;
  wmma::fill_fragment(left, (signed char)127);
  wmma::fill_fragment(right, (signed char)127);
  wmma::fill_fragment(sum, 2147483647);
  wmma::mma_sync(wrapped, left, right, sum);
  wmma::mma_sync(sum, left, right, sum, true);
  out[0] = sum.x[0];
  out[1] = wrapped.x[0];
}
extern "C" void h_limits(int* out) { limits<<<1, 32>>>(out); }
