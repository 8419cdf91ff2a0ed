// nvcuda::wmma: a warp multiplies tiles that its lanes hold together. Which lane holds what is undefined in CUDA; here it
// is what today's hardware does for 16x16 tiles. Sums are in float, int or double.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include <type_traits>

namespace nvcuda {
namespace wmma {

struct row_major;
struct col_major;
struct matrix_a;
struct matrix_b;
struct accumulator;
enum layout_t { mem_row_major, mem_col_major };

namespace precision {
struct tf32;
}
namespace experimental {
namespace precision {
struct u4;
struct s4;
struct b1;
}  // namespace precision
}  // namespace experimental

template <class T> struct helper_traits {
  typedef T element_type;
  typedef T storage_element_type;
  typedef T fill_argument_type;
};
template <> struct helper_traits<precision::tf32> {
  typedef precision::tf32 element_type;
  typedef float storage_element_type;
  typedef float fill_argument_type;
};

template <class T, int size>
struct __align__(8) __frag_base {
  enum { num_elements = size, num_storage_elements = size };
  typedef T element_type;
  typedef typename helper_traits<T>::storage_element_type storage_element_type;
  storage_element_type x[size];
};

template <class Use, int m, int n, int k, class T, class Layout = void> class fragment;

#define DICE_MISSING(T)                                                                                \
  template <class Use, int m, int n, int k, class Layout> class fragment<Use, m, n, k, T, Layout> {    \
    static_assert(m < 0, "dice_emu: tensor-core fragments of less than a byte");                       \
  };
DICE_MISSING(experimental::precision::u4)
DICE_MISSING(experimental::precision::s4)
DICE_MISSING(experimental::precision::b1)
#undef DICE_MISSING

// Elements a lane holds of A and of B; half precision holds each twice.
#define DICE_FRAGMENTS(m, n, k, T, of_a, of_b)                                                  \
  template <> class fragment<matrix_a, m, n, k, T, row_major> : public __frag_base<T, of_a> {}; \
  template <> class fragment<matrix_a, m, n, k, T, col_major> : public __frag_base<T, of_a> {}; \
  template <> class fragment<matrix_b, m, n, k, T, row_major> : public __frag_base<T, of_b> {}; \
  template <> class fragment<matrix_b, m, n, k, T, col_major> : public __frag_base<T, of_b> {};
#define DICE_SUMS(m, n, k, T) \
  template <> class fragment<accumulator, m, n, k, T> : public __frag_base<T, m * n / 32> {};
#define DICE_SHAPE(m, n)                                         \
  DICE_FRAGMENTS(m, n, 16, __half, 16, 16)                       \
  DICE_FRAGMENTS(m, n, 16, __nv_bfloat16, m / 2, n / 2)          \
  DICE_FRAGMENTS(m, n, 16, signed char, m / 2, n / 2)            \
  DICE_FRAGMENTS(m, n, 16, unsigned char, m / 2, n / 2)          \
  DICE_SUMS(m, n, 16, __half) DICE_SUMS(m, n, 16, float) DICE_SUMS(m, n, 16, int)
DICE_SHAPE(16, 16)
DICE_SHAPE(32, 8)
DICE_SHAPE(8, 32)
DICE_FRAGMENTS(16, 16, 8, precision::tf32, 4, 4)
DICE_SUMS(16, 16, 8, float)
DICE_FRAGMENTS(8, 8, 4, double, 1, 1)
DICE_SUMS(8, 8, 4, double)
#undef DICE_SHAPE
#undef DICE_SUMS
#undef DICE_FRAGMENTS

namespace details {

template <class Fragment> struct Tile;
template <int m, int n, int k, class T, class Layout> struct Tile<fragment<matrix_a, m, n, k, T, Layout>> {
  static constexpr int rows = m, columns = k;
  static constexpr bool across = false, by_rows = std::is_same<Layout, row_major>::value;
};
template <int m, int n, int k, class T, class Layout> struct Tile<fragment<matrix_b, m, n, k, T, Layout>> {
  static constexpr int rows = k, columns = n;
  static constexpr bool across = true, by_rows = std::is_same<Layout, row_major>::value;
};
template <int m, int n, int k, class T> struct Tile<fragment<accumulator, m, n, k, T, void>> {
  static constexpr int rows = m, columns = n;
  static constexpr bool across = false;
};

struct Place {
  int row, column;
};

// Where in its tile the element x[index] of a lane is.
template <class Fragment> Place place(int lane, int index) {
  using T = Tile<Fragment>;
  constexpr int share = T::rows * T::columns / 32;
  index %= share;
  if (T::rows != 16 || T::columns != 16) {
    const int linear = lane * share + index;
    return {linear / T::columns, linear % T::columns};
  }
  const int first = lane / 4 + 8 * (index >> 1 & 1), second = lane % 4 * 2 + (index & 1) + 8 * (index >> 2);
  return T::across ? Place{second, first} : Place{first, second};
}

// Of an element in a stored tile whose rows, or columns, lie `ldm` apart.
inline size_t offset(Place at, unsigned ldm, bool by_rows) {
  return by_rows ? at.row * size_t(ldm) + at.column : at.column * size_t(ldm) + at.row;
}

// All lanes of the warp are here.
inline void together() {
  const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
  if ((dice_emu::linear_thread() | 31) >= threads || __ballot_sync(0xFFFFFFFFu, 1) != 0xFFFFFFFFu)
    dice_fault("wmma_part_of_a_warp", "an operation on tensor-core fragments was called by a part of a warp");
}

template <class T> void check(const T* tile, unsigned ldm) {
  if (reinterpret_cast<uintptr_t>(tile) % 16 != 0 || ldm * sizeof(T) % 16 != 0)
    dice_fault("wmma_alignment", "a tile of a tensor-core fragment, or the distance of its rows, is no multiple of 16 bytes");
}

template <class Fragment, class T> void load(Fragment& into, const T* tile, unsigned ldm, bool by_rows) {
  together();
  check(tile, ldm);
  for (int index = 0; index < into.num_elements; ++index) {
    into.x[index] = tile[offset(place<Fragment>(dice_emu::lane_id(), index), ldm, by_rows)];
  }
}

inline double wide(double value) { return value; }
inline float wide(float value) { return value; }
inline float wide(__half value) { return dice_emu::to_float(value); }
inline float wide(__nv_bfloat16 value) { return dice_emu::to_float(value); }
inline int wide(int value) { return value; }
inline int wide(signed char value) { return value; }
inline int wide(unsigned char value) { return value; }

// What the multiplier sees of an operand: of TF32, the leading bits alone.
template <class T, class Stored> auto operand(Stored value) { return wide(value); }
template <> inline auto operand<precision::tf32, float>(float value) {
  return dice_emu::bit_cast<float>(dice_emu::bit_cast<unsigned>(value) & 0xFFFFE000u);
}

template <class Wide> void narrow(Wide value, Wide& into) { into = value; }
inline void narrow(float value, __half& into) { into = dice_emu::from_float<__half>(value); }

}  // namespace details

template <class T, int size>
inline void fill_fragment(__frag_base<T, size>& into, const typename helper_traits<T>::fill_argument_type& value) {
  for (auto& element : into.x) element = value;
}

template <class Use, int m, int n, int k, class T, class Layout>
inline void load_matrix_sync(fragment<Use, m, n, k, T, Layout>& into,
                             const typename helper_traits<T>::storage_element_type* tile, unsigned ldm) {
  static_assert(!std::is_same<Use, accumulator>::value, "an accumulator is loaded with a layout_t");
  details::load(into, tile, ldm, details::Tile<fragment<Use, m, n, k, T, Layout>>::by_rows);
}
template <int m, int n, int k, class T>
inline void load_matrix_sync(fragment<accumulator, m, n, k, T>& into, const T* tile, unsigned ldm, layout_t layout) {
  details::load(into, tile, ldm, layout == mem_row_major);
}

template <int m, int n, int k, class T>
inline void store_matrix_sync(T* tile, const fragment<accumulator, m, n, k, T>& from, unsigned ldm, layout_t layout) {
  details::together();
  details::check(tile, ldm);
  for (int index = 0; index < from.num_elements; ++index) {
    const details::Place at = details::place<fragment<accumulator, m, n, k, T>>(dice_emu::lane_id(), index);
    tile[details::offset(at, ldm, layout == mem_row_major)] = from.x[index];
  }
}

// d = a b + c. Each lane lays its elements of a and b out for the warp, then computes its own of d.
template <int m, int n, int k, class T, class LayoutA, class LayoutB, class D, class C>
inline void mma_sync(fragment<accumulator, m, n, k, D>& d, const fragment<matrix_a, m, n, k, T, LayoutA>& a,
                     const fragment<matrix_b, m, n, k, T, LayoutB>& b, const fragment<accumulator, m, n, k, C>& c,
                     bool saturate = false) {
  using Wide = decltype(details::operand<T>(a.x[0]));
  static_assert(std::is_same<decltype(details::wide(c.x[0])), Wide>::value, "these fragments are not multiplied");
  static_assert(std::is_same<decltype(details::wide(d.x[0])), Wide>::value, "these fragments are not multiplied");
  static thread_local Wide rows[32][m * k], columns[32][n * k];  // by warp: a block runs on one thread of the host
  const unsigned warp = dice_emu::linear_thread() / 32;
  const int lane = dice_emu::lane_id();
  for (int index = 0; index < m * k / 32; ++index) {
    const details::Place at = details::place<fragment<matrix_a, m, n, k, T, LayoutA>>(lane, index);
    rows[warp][at.row * k + at.column] = details::operand<T>(a.x[index]);
  }
  for (int index = 0; index < n * k / 32; ++index) {
    const details::Place at = details::place<fragment<matrix_b, m, n, k, T, LayoutB>>(lane, index);
    columns[warp][at.column * k + at.row] = details::operand<T>(b.x[index]);
  }
  details::together();
  for (int index = 0; index < d.num_elements; ++index) {
    const details::Place at = details::place<fragment<accumulator, m, n, k, D>>(lane, index);
    const Wide *row = &rows[warp][at.row * k], *column = &columns[warp][at.column * k];
    Wide sum = 0;
    for (int i = 0; i < k; ++i) sum += row[i] * column[i];
    const Wide before = details::wide(c.x[index]);
    if constexpr (std::is_same<Wide, int>::value) {
      const long long whole = static_cast<long long>(sum) + before;
      const int most = whole < 0 ? INT32_MIN : INT32_MAX;
      sum = static_cast<int>(whole);
      if (saturate && sum != whole) sum = most;
    } else {
      sum += before;
    }
    details::narrow(sum, d.x[index]);
  }
  __syncwarp();
}

inline float __float_to_tf32(float value) {
  return dice_emu::bit_cast<float>((dice_emu::bit_cast<unsigned>(value) + 0x1000u) & 0xFFFFE000u);
}

}  // namespace wmma
}  // namespace nvcuda
