// Warp shuffles, votes, matches and reductions.
#pragma once
#include <string.h>

#include "core.h"

namespace dice_emu {

enum { kShfl, kSync, kBallot, kMatchAny, kAddU, kMinU, kMaxU, kAddS, kMinS, kMaxS, kAnd, kOr, kXor, kMatchAll };

inline unsigned linear_thread() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
inline int lane_id() { return static_cast<int>(linear_thread() & 31); }

// Any trivially copyable value of up to 8 bytes, zero-extended.
template <class T>
uint64_t to_bits(T value) {
  static_assert(sizeof(T) <= 8, "a warp shuffle moves at most 8 bytes");
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  return bits;
}

template <class T>
T from_bits(uint64_t bits) {
  T value;
  memcpy(static_cast<void*>(&value), &bits, sizeof value);
  return value;
}

template <class T>
T shuffle(unsigned mask, T value, int source_lane) {
  return from_bits<T>(dice_warp(kShfl, mask, to_bits(value), source_lane));
}

}  // namespace dice_emu

inline void __syncwarp(unsigned mask = 0xFFFFFFFFu) { dice_warp(dice_emu::kSync, mask, 0, 0); }
// Inlined everywhere, so that the address of the call tells one place in the program from another.
__attribute__((always_inline)) inline unsigned __activemask() { return dice_converge(); }

// Lanes are grouped into segments of `width`; a source outside the own segment means the own value.
template <class T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const int lane = dice_emu::lane_id();
  return dice_emu::shuffle(mask, value, (lane & ~(width - 1)) | (source & (width - 1)));
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = dice_emu::lane_id();
  const int source = lane - static_cast<int>(delta);
  return dice_emu::shuffle(mask, value, source < (lane & ~(width - 1)) ? lane : source);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = dice_emu::lane_id();
  const int source = lane + static_cast<int>(delta);
  return dice_emu::shuffle(mask, value, source > (lane | (width - 1)) ? lane : source);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32) {
  const int lane = dice_emu::lane_id();
  const int source = lane ^ lane_mask;
  return dice_emu::shuffle(mask, value, source > (lane | (width - 1)) ? lane : source);
}

namespace dice_emu {

// A store through a volatile array: all lanes at this place have computed before any writes, and all have written
// before any goes on.
template <class T, class V>
__attribute__((always_inline)) inline void store(T& target, const V& value) {
  dice_converge();
  target = value;
  if (__builtin_expect(dice_isolated, 0)) dice_after_volatile_store(const_cast<const void*>(static_cast<const volatile void*>(&target)), sizeof target);
  dice_converge();
}

}  // namespace dice_emu

inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return static_cast<unsigned>(dice_warp(dice_emu::kBallot, mask, predicate != 0, 0));
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }
inline int __uni_sync(unsigned mask, int predicate) {
  const unsigned yes = __ballot_sync(mask, predicate);
  return yes == 0 || yes == (mask & __ballot_sync(mask, 1));
}
template <class T>
inline unsigned __match_any_sync(unsigned mask, T value) {
  return static_cast<unsigned>(dice_warp(dice_emu::kMatchAny, mask, dice_emu::to_bits(value), 0));
}
template <class T>
inline unsigned __match_all_sync(unsigned mask, T value, int* all_equal) {
  const auto lanes = static_cast<unsigned>(dice_warp(dice_emu::kMatchAll, mask, dice_emu::to_bits(value), 0));
  *all_equal = lanes != 0;
  return lanes;
}

#define DICE_REDUCE(name, U, S)                                                                                    \
  inline unsigned __reduce_##name##_sync(unsigned mask, unsigned value) {                                          \
    return static_cast<unsigned>(dice_warp(dice_emu::U, mask, value, 0));                                          \
  }                                                                                                                \
  inline int __reduce_##name##_sync(unsigned mask, int value) {                                                    \
    return static_cast<int>(dice_warp(dice_emu::S, mask, static_cast<uint64_t>(static_cast<int64_t>(value)), 0)); \
  }
DICE_REDUCE(add, kAddU, kAddS)
DICE_REDUCE(min, kMinU, kMinS)
DICE_REDUCE(max, kMaxU, kMaxS)
#undef DICE_REDUCE
inline unsigned __reduce_and_sync(unsigned mask, unsigned value) { return static_cast<unsigned>(dice_warp(dice_emu::kAnd, mask, value, 0)); }
inline unsigned __reduce_or_sync(unsigned mask, unsigned value) { return static_cast<unsigned>(dice_warp(dice_emu::kOr, mask, value, 0)); }
inline unsigned __reduce_xor_sync(unsigned mask, unsigned value) { return static_cast<unsigned>(dice_warp(dice_emu::kXor, mask, value, 0)); }
