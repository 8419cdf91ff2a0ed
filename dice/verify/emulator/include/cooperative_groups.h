// Cooperative groups: the grid, the block, tiles of up to one warp, and coalesced threads.
#pragma once
#include <cuda_runtime.h>

namespace cooperative_groups {

namespace details {

// Values larger than a shuffle's 8 bytes travel in pieces.
template <class T>
T shuffle(unsigned mask, T value, int source_lane) {
  if constexpr (sizeof(T) <= 8) {
    return dice_emu::shuffle(mask, value, source_lane);
  } else {
    uint64_t words[(sizeof(T) + 7) / 8] = {};
    memcpy(words, &value, sizeof value);
    for (uint64_t& word : words) word = dice_emu::shuffle(mask, word, source_lane);
    memcpy(static_cast<void*>(&value), words, sizeof value);
    return value;
  }
}

inline unsigned block_size() { return blockDim.x * blockDim.y * blockDim.z; }

// Threads of a warp that a mask names, in the order of their lanes.
class warp_group {
 public:
  void sync() const { __syncwarp(mask_); }
  unsigned lanes() const { return mask_; }
  unsigned long long size() const { return static_cast<unsigned>(__popc(mask_)); }
  unsigned long long num_threads() const { return size(); }
  unsigned long long thread_rank() const { return static_cast<unsigned>(__popc(mask_ & ((1u << dice_emu::lane_id()) - 1))); }
  int any(int predicate) const { return __any_sync(mask_, predicate); }
  int all(int predicate) const { return __all_sync(mask_, predicate); }
  unsigned ballot(int predicate) const { return packed(__ballot_sync(mask_, predicate)); }
  template <class T> unsigned match_any(T value) const { return packed(__match_any_sync(mask_, value)); }
  template <class T> T shfl(T value, int rank) const { return shuffle(mask_, value, lane_of(rank)); }
  template <class T> T shfl_up(T value, unsigned delta) const {
    const int rank = static_cast<int>(thread_rank()) - static_cast<int>(delta);
    return shuffle(mask_, value, rank < 0 ? dice_emu::lane_id() : lane_of(rank));
  }
  template <class T> T shfl_down(T value, unsigned delta) const {
    const auto rank = thread_rank() + delta;
    return shuffle(mask_, value, rank >= size() ? dice_emu::lane_id() : lane_of(static_cast<int>(rank)));
  }
  template <class T> T shfl_xor(T value, unsigned lane_mask) const {
    const auto rank = thread_rank() ^ lane_mask;
    return shuffle(mask_, value, rank >= size() ? dice_emu::lane_id() : lane_of(static_cast<int>(rank)));
  }

 protected:
  explicit warp_group(unsigned mask) : mask_(mask) {}
  int lane_of(int rank) const {
    unsigned rest = mask_;
    for (rank %= static_cast<int>(size()); rank > 0; --rank) rest &= rest - 1;
    return __ffs(static_cast<int>(rest)) - 1;
  }
  unsigned packed(unsigned lanes) const {  // bit r for the lane of rank r
    unsigned bits = 0, rank = 0;
    for (unsigned rest = mask_; rest != 0; rest &= rest - 1, ++rank) bits |= (lanes >> (__ffs(static_cast<int>(rest)) - 1) & 1) << rank;
    return bits;
  }
  unsigned mask_;
};

}  // namespace details

class thread_block {
 public:
  void sync() const { __syncthreads(); }
  static unsigned thread_rank() { return dice_emu::linear_thread(); }
  static unsigned size() { return details::block_size(); }
  static unsigned num_threads() { return details::block_size(); }
  static dim3 group_index() { return blockIdx; }
  static dim3 thread_index() { return threadIdx; }
  static dim3 group_dim() { return blockDim; }
  static dim3 dim_threads() { return blockDim; }
};
inline thread_block this_thread_block() { return {}; }

class grid_group {
 public:
  static unsigned long long size() { return num_blocks() * details::block_size(); }
  static unsigned long long num_threads() { return size(); }
  static unsigned long long num_blocks() { return static_cast<unsigned long long>(gridDim.x) * gridDim.y * gridDim.z; }
  static unsigned long long block_rank() { return blockIdx.x + static_cast<unsigned long long>(gridDim.x) * (blockIdx.y + static_cast<unsigned long long>(gridDim.y) * blockIdx.z); }
  static unsigned long long thread_rank() { return block_rank() * details::block_size() + dice_emu::linear_thread(); }
  static dim3 group_dim() { return gridDim; }
  static dim3 dim_blocks() { return gridDim; }
  static dim3 block_index() { return blockIdx; }
  static dim3 thread_index() { return threadIdx; }
  static bool is_valid() { return dice_is_cooperative(); }
  void sync() const { dice_sync_grid(); }
};
inline grid_group this_grid() { return {}; }

template <unsigned Size, class Parent = void>
class thread_block_tile : public details::warp_group {
  static_assert(Size > 0 && (Size & (Size - 1)) == 0, "the size of a tile is a power of two");
  static_assert(Size <= 32, "dice_emu: cooperative group tiles of more than one warp");

 public:
  template <class Other> thread_block_tile(const thread_block_tile<Size, Other>&) : thread_block_tile() {}
  thread_block_tile() : warp_group((Size == 32 ? ~0u : (1u << (Size & 31)) - 1) << (dice_emu::lane_id() / static_cast<int>(Size) * static_cast<int>(Size))) {}
  static constexpr unsigned size() { return Size; }
  static constexpr unsigned num_threads() { return Size; }
  static unsigned thread_rank() { return dice_emu::linear_thread() % Size; }
  static unsigned meta_group_rank() { return dice_emu::linear_thread() / Size; }
  static unsigned meta_group_size() { return (details::block_size() + Size - 1) / Size; }
};
template <unsigned Size, class Parent>
thread_block_tile<Size, Parent> tiled_partition(const Parent&) { return {}; }

class coalesced_group : public details::warp_group {
 public:
  explicit coalesced_group(unsigned mask) : warp_group(mask) {}
  static unsigned meta_group_rank() { return 0; }
  static unsigned meta_group_size() { return 1; }
};
__attribute__((always_inline)) inline coalesced_group coalesced_threads() { return coalesced_group(__activemask()); }

// The threads of a group for which a value is the same.
template <class Group, class Label> coalesced_group labeled_partition(const Group& group, Label label) {
  return coalesced_group(__match_any_sync(group.lanes(), label));
}
template <class Group> coalesced_group binary_partition(const Group& group, bool predicate) {
  const unsigned chosen = __ballot_sync(group.lanes(), predicate);
  return coalesced_group(predicate ? chosen : group.lanes() & ~chosen);
}

// Any of the groups above, or a tile whose size is known only at run time.
class thread_group : public details::warp_group {
 public:
  thread_group(const thread_block&) : warp_group(0) {}
  thread_group(const details::warp_group& group) : warp_group(group) {}
  explicit thread_group(unsigned mask) : warp_group(mask) {}
  void sync() const { mask_ == 0 ? __syncthreads() : __syncwarp(mask_); }
  unsigned long long size() const { return mask_ == 0 ? details::block_size() : warp_group::size(); }
  unsigned long long num_threads() const { return size(); }
  unsigned long long thread_rank() const { return mask_ == 0 ? dice_emu::linear_thread() : warp_group::thread_rank(); }
};
inline thread_group tiled_partition(const thread_group&, unsigned size) {
  const unsigned lanes = size >= 32 ? ~0u : (1u << size) - 1;
  return thread_group(lanes << (static_cast<unsigned>(dice_emu::lane_id()) / size * size));
}

template <class Group> void sync(const Group& group) { group.sync(); }

template <class T> struct plus { T operator()(const T& a, const T& b) const { return a + b; } };
template <class T> struct less { T operator()(const T& a, const T& b) const { return b < a ? b : a; } };
template <class T> struct greater { T operator()(const T& a, const T& b) const { return a < b ? b : a; } };
template <class T> struct bit_and { T operator()(const T& a, const T& b) const { return a & b; } };
template <class T> struct bit_or { T operator()(const T& a, const T& b) const { return a | b; } };
template <class T> struct bit_xor { T operator()(const T& a, const T& b) const { return a ^ b; } };

}  // namespace cooperative_groups
