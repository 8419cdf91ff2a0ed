// What all device-wide functions do alike: told of no storage they say how much they need; else they run.
#pragma once
#include <cub/thread/thread_operators.cuh>
#include <dice_emu/library_kernel.h>
#include <cub/iterator/iterators.cuh>

#include <limits>

namespace cub::details {

using ::dice_emu::Count;

template <class Body, class... Arguments>
cudaError_t device_wide(const char* name, void* storage, size_t& bytes, size_t needed, cudaStream_t stream, const Body& body,
                        const Arguments&... arguments) {
  if (storage == nullptr) return bytes = needed, cudaSuccess;
  if (bytes < needed) return cudaErrorInvalidValue;
  const auto work = [=]() mutable {
    memset(storage, 0xFF, needed);
    Body own = body;
    own();
  };
  ::dice_emu::library_kernel(name, stream, work, storage, arguments...);
  return cudaSuccess;
}

// Of `Count` things, what is kept for every few thousand of them.
inline size_t for_tiles(Count n, size_t bytes_each) { return 255 + static_cast<size_t>(n / 2048 + 1) * (bytes_each + 8); }

template <class In> using ValueOf = ::dice_emu::ValueOf<In>;
template <class Out, class In> using ResultOf = ::dice_emu::ValueOr<typename ::dice_emu::OutputOf<Out>::type, ValueOf<In>>;
template <class Operation, class First, class Value>
using AccumulatorOf = std::decay_t<std::invoke_result_t<Operation, First, Value>>;

// Of numbers that the standard library does not know: those of two bytes, by their bits.
template <class T, class = void> struct IsHalf : std::false_type {};
template <class T> struct IsHalf<T, std::void_t<decltype(__half2float(std::declval<T>()))>> : std::true_type {};
template <class T> T of_bits(unsigned short bits) {
  static_assert(sizeof(T) == 2, "dice_emu: extremes of values of a type of its own in CUB");
  T value;
  memcpy(static_cast<void*>(&value), &bits, sizeof value);
  return value;
}
template <class T> T greatest() {
  if constexpr (std::numeric_limits<T>::is_specialized) return std::numeric_limits<T>::max();
  else return of_bits<T>(IsHalf<T>::value ? 0x7BFF : 0x7F7F);
}
template <class T> T smallest() {
  if constexpr (std::numeric_limits<T>::is_specialized) return std::numeric_limits<T>::lowest();
  else return of_bits<T>(IsHalf<T>::value ? 0xFBFF : 0xFF7F);
}

}  // namespace cub::details
