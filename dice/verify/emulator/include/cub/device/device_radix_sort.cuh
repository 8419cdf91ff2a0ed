// cub::DeviceRadixSort, cub::DeviceSegmentedRadixSort, cub::DeviceSegmentedSort and cub::DeviceMergeSort. All are stable here.
#pragma once
#include <cub/device/device_storage.cuh>

namespace cub {

// Two buffers of a length, of which one holds what is wanted.
template <class T>
struct DoubleBuffer {
  T* d_buffers[2];
  int selector;
  DoubleBuffer() : d_buffers{nullptr, nullptr}, selector(0) {}
  DoubleBuffer(T* current, T* alternate) : d_buffers{current, alternate}, selector(0) {}
  T* Current() { return d_buffers[selector]; }
  T* Alternate() { return d_buffers[selector ^ 1]; }
};

struct NullType {};

namespace details {

// The digits of a key in which the greater key has the greater number. The two zeros of floating point are equal.
template <class Key>
unsigned long long digits(const Key& key, int begin, int end) {
  constexpr int kBits = 8 * sizeof(Key);
  typename ::dice_emu::BitsOf<sizeof(Key)>::type bits;
  memcpy(&bits, &key, sizeof bits);
  unsigned long long wide = bits;
  constexpr unsigned long long sign = 1ull << (kBits - 1);
  constexpr unsigned long long all = kBits == 64 ? ~0ull : (1ull << kBits % 64) - 1;
  if constexpr (!std::is_integral_v<Key>) {
    wide = wide == sign ? 0 : wide;
    wide ^= (wide & sign) != 0 ? all : sign;
  } else if constexpr (std::is_signed_v<Key>) {
    wide ^= sign;
  }
  const int length = end - begin;
  return wide >> begin & (length >= 64 ? ~0ull : (1ull << length) - 1);
}

// `values` of NullType: there are none.
template <class Key, class Value>
void radix_sort(const Key* from, Key* to, const Value* values, Value* moved, Count n, bool descending, int begin, int end) {
  if (n <= 0) return;
  std::vector<std::pair<unsigned long long, Count>> order;
  order.reserve(static_cast<size_t>(n));
  for (Count i = 0; i < n; ++i) order.push_back({begin >= end ? 0 : digits(from[i], begin, end), i});
  std::stable_sort(order.begin(), order.end(), [=](const auto& a, const auto& b) { return descending ? b.first < a.first : a.first < b.first; });
  const std::vector<Key> keys(from, from + n);
  for (Count i = 0; i < n; ++i) to[i] = keys[static_cast<size_t>(order[static_cast<size_t>(i)].second)];
  if constexpr (!std::is_same_v<Value, NullType>) {
    const std::vector<Value> own(values, values + n);
    for (Count i = 0; i < n; ++i) moved[i] = own[static_cast<size_t>(order[static_cast<size_t>(i)].second)];
  }
}

// Sorts [begin[s], end[s]) for each segment. `scratch`: buffers that hold nothing afterwards, or null.
template <class Key, class Value>
struct Sorting {
  const Key* keys_in;
  Key* keys_out;
  const Value* values_in;
  Value* values_out;
  Count n;
  bool descending;
  int begin_bit, end_bit;
  Key* keys_scratch = nullptr;
  Value* values_scratch = nullptr;

  template <class Begin, class End>
  cudaError_t operator()(const char* name, void* storage, size_t& bytes, Count segments, Begin begin, End end, cudaStream_t stream) const {
    constexpr size_t kValue = std::is_same_v<Value, NullType> ? 0 : sizeof(Value);
    const size_t own = keys_scratch != nullptr ? 0 : static_cast<size_t>(n > 0 ? n : 0) * (sizeof(Key) + kValue);
    const Sorting it = *this;
    const auto work = [=]() mutable {
      for (Count s = 0; s < segments; ++s) {
        const Count first = begin[s];
        const Value* values = kValue != 0 ? it.values_in + first : nullptr;
        Value* moved = kValue != 0 ? it.values_out + first : nullptr;
        radix_sort(it.keys_in + first, it.keys_out + first, values, moved, static_cast<Count>(end[s]) - first, it.descending, it.begin_bit, it.end_bit);
      }
      if (it.n > 0 && it.keys_scratch != nullptr) memset(static_cast<void*>(it.keys_scratch), 0xFF, static_cast<size_t>(it.n) * sizeof(Key));
      if (it.n > 0 && it.values_scratch != nullptr) memset(static_cast<void*>(it.values_scratch), 0xFF, static_cast<size_t>(it.n) * kValue);
    };
    return device_wide(name, storage, bytes, 1023 + own + for_tiles(n, 1024), stream, work, keys_in, keys_out, values_in, values_out, begin, end);
  }
  // Of all n, as one.
  cudaError_t operator()(const char* name, void* storage, size_t& bytes, cudaStream_t stream) const {
    return (*this)(name, storage, bytes, 1, thrust::constant_iterator<Count>(0), thrust::constant_iterator<Count>(n), stream);
  }
};

// Of two pairs of buffers, whose selectors then point to the result: the others are overwritten.
template <class Key, class Value>
Sorting<Key, Value> swapped(DoubleBuffer<Key>& keys, DoubleBuffer<Value>& values, Count n, bool descending, int begin, int end, bool runs) {
  const Sorting<Key, Value> sorting{keys.Current(), keys.Alternate(), values.Current(), values.Alternate(), n, descending,
                                    begin, end, keys.Current(), values.Current()};
  if (runs) keys.selector ^= 1, values.selector ^= 1;
  return sorting;
}

constexpr NullType* kNone = nullptr;

}  // namespace details

#define DICE_CUB_SORTS(name, kernel, N, descending, parameters, bits, first, last, arguments)                                              \
  template <class Key DICE_CUB_TYPES>                                                                                                     \
  static cudaError_t SortKeys##name(void* storage, size_t& bytes, const Key* in, Key* out, N n parameters bits, cudaStream_t stream = nullptr) { \
    return details::Sorting<Key, NullType>{in, out, details::kNone, details::kNone, n, descending, first, last}(kernel, storage, bytes arguments, stream); \
  }                                                                                                                                       \
  template <class Key DICE_CUB_TYPES>                                                                                                     \
  static cudaError_t SortKeys##name(void* storage, size_t& bytes, DoubleBuffer<Key>& keys, N n parameters bits, cudaStream_t stream = nullptr) { \
    DoubleBuffer<NullType> none;                                                                                                          \
    return details::swapped(keys, none, n, descending, first, last, storage != nullptr)(kernel, storage, bytes arguments, stream);        \
  }                                                                                                                                       \
  template <class Key, class Value DICE_CUB_TYPES>                                                                                        \
  static cudaError_t SortPairs##name(void* storage, size_t& bytes, const Key* in, Key* out, const Value* values, Value* moved, N n parameters bits, \
                                     cudaStream_t stream = nullptr) {                                                                     \
    return details::Sorting<Key, Value>{in, out, values, moved, n, descending, first, last}(kernel, storage, bytes arguments, stream);    \
  }                                                                                                                                       \
  template <class Key, class Value DICE_CUB_TYPES>                                                                                        \
  static cudaError_t SortPairs##name(void* storage, size_t& bytes, DoubleBuffer<Key>& keys, DoubleBuffer<Value>& values, N n parameters bits, \
                                     cudaStream_t stream = nullptr) {                                                                     \
    return details::swapped(keys, values, n, descending, first, last, storage != nullptr)(kernel, storage, bytes arguments, stream);      \
  }
#define DICE_CUB_NOTHING
#define DICE_CUB_BITS , int begin_bit = 0, int end_bit = sizeof(Key) * 8
#define DICE_CUB_SEGMENTS , std::int64_t segments, Begin begin, End end
#define DICE_CUB_OF_SEGMENTS , segments, begin, end

struct DeviceRadixSort {
#define DICE_CUB_TYPES , class N
  DICE_CUB_SORTS(, "DeviceRadixSortOnesweepKernel", N, false, DICE_CUB_NOTHING, DICE_CUB_BITS, begin_bit, end_bit, DICE_CUB_NOTHING)
  DICE_CUB_SORTS(Descending, "DeviceRadixSortOnesweepKernel", N, true, DICE_CUB_NOTHING, DICE_CUB_BITS, begin_bit, end_bit, DICE_CUB_NOTHING)
#undef DICE_CUB_TYPES
};

#define DICE_CUB_TYPES , class Begin, class End
struct DeviceSegmentedRadixSort {
  DICE_CUB_SORTS(, "DeviceSegmentedRadixSortKernel", std::int64_t, false, DICE_CUB_SEGMENTS, DICE_CUB_BITS, begin_bit, end_bit, DICE_CUB_OF_SEGMENTS)
  DICE_CUB_SORTS(Descending, "DeviceSegmentedRadixSortKernel", std::int64_t, true, DICE_CUB_SEGMENTS, DICE_CUB_BITS, begin_bit, end_bit, DICE_CUB_OF_SEGMENTS)
};

struct DeviceSegmentedSort {
  DICE_CUB_SORTS(, "DeviceSegmentedSortKernel", std::int64_t, false, DICE_CUB_SEGMENTS, DICE_CUB_NOTHING, 0, sizeof(Key) * 8, DICE_CUB_OF_SEGMENTS)
  DICE_CUB_SORTS(Descending, "DeviceSegmentedSortKernel", std::int64_t, true, DICE_CUB_SEGMENTS, DICE_CUB_NOTHING, 0, sizeof(Key) * 8, DICE_CUB_OF_SEGMENTS)
  template <class... T> static cudaError_t StableSortKeys(T&&... all) { return SortKeys(std::forward<T>(all)...); }
  template <class... T> static cudaError_t StableSortKeysDescending(T&&... all) { return SortKeysDescending(std::forward<T>(all)...); }
  template <class... T> static cudaError_t StableSortPairs(T&&... all) { return SortPairs(std::forward<T>(all)...); }
  template <class... T> static cudaError_t StableSortPairsDescending(T&&... all) { return SortPairsDescending(std::forward<T>(all)...); }
};
#undef DICE_CUB_TYPES
#undef DICE_CUB_SORTS
#undef DICE_CUB_NOTHING
#undef DICE_CUB_BITS
#undef DICE_CUB_SEGMENTS
#undef DICE_CUB_OF_SEGMENTS

struct DeviceMergeSort {
  template <class Keys, class N, class Compare>
  static cudaError_t SortKeys(void* storage, size_t& bytes, Keys keys, N n, Compare compare, cudaStream_t stream = nullptr) {
    return details::device_wide("DeviceMergeSortMergeKernel", storage, bytes, needed<Keys, Keys>(n), stream,
                                [=]() mutable { ::dice_emu::sort(keys, n, compare); }, keys);
  }
  template <class Keys, class Values, class N, class Compare>
  static cudaError_t SortPairs(void* storage, size_t& bytes, Keys keys, Values values, N n, Compare compare, cudaStream_t stream = nullptr) {
    return details::device_wide("DeviceMergeSortMergeKernel", storage, bytes, needed<Keys, Values>(n), stream,
                                [=]() mutable { ::dice_emu::sort(keys, n, compare, values); }, keys, values);
  }
  template <class... T> static cudaError_t StableSortKeys(T&&... all) { return SortKeys(std::forward<T>(all)...); }
  template <class... T> static cudaError_t StableSortPairs(T&&... all) { return SortPairs(std::forward<T>(all)...); }

 private:
  template <class Keys, class Values>
  static size_t needed(details::Count n) {
    return 1023 + static_cast<size_t>(n > 0 ? n : 0) * (sizeof(details::ValueOf<Keys>) + sizeof(details::ValueOf<Values>));
  }
};

}  // namespace cub
