// Where an algorithm runs: on the host, on a stream of the device, or in the thread that calls it.
#pragma once
#include <dice_emu/library_kernel.h>
#include <thrust/iterator/iterator_base.h>

#include <new>

namespace thrust {

namespace detail {

struct here {};  // the calling thread
struct there {   // the device
  cudaStream_t stream = nullptr;
  bool waits = true;
  there on(cudaStream_t other) const { return {other, waits}; }
  template <class Allocator> there operator()(Allocator&&) const { return *this; }
};

template <class P> constexpr bool is_policy = std::is_same_v<std::decay_t<P>, here> || std::is_same_v<std::decay_t<P>, there>;

template <class Body, class... Its>
void perform(const there& policy, Body body, const Its&... its) {
  if (dice_in_kernel()) return body();
  ::dice_emu::library_kernel("_kernel_agent", policy.stream, body, its...);
  if (policy.waits) cudaStreamSynchronize(policy.stream);
}
template <class Body, class... Its>
void perform(const here&, Body body, const Its&...) { body(); }

// What `body` returns, brought to the host.
template <class Body, class... Its>
auto result(const here&, Body body, const Its&...) { return body(); }
template <class Body, class... Its>
auto result(const there& policy, Body body, const Its&... its) {
  using T = decltype(body());
  if (dice_in_kernel()) return body();
  T* place = nullptr;
  dice_stream_memory(reinterpret_cast<void**>(&place), sizeof(T));
  perform(policy, [=]() mutable { ::new (static_cast<void*>(place)) T(body()); }, its...);
  alignas(T) unsigned char bytes[sizeof(T)] = {};
  cudaMemcpyAsync(bytes, place, sizeof(T), cudaMemcpyDeviceToHost, policy.stream);
  cudaStreamSynchronize(policy.stream);
  cudaFreeAsync(place, policy.stream);
  return *reinterpret_cast<T*>(bytes);
}

// A number of things among `n`, brought to the host, where it may be anything when nothing has run.
template <class Policy, class Body, class... Its>
ptrdiff_t counted(const Policy& policy, ptrdiff_t n, const Body& body, const Its&... its) {
  const ptrdiff_t found = result(policy, body, its...);
  return found < 0 ? 0 : found > n ? n : found;
}

}  // namespace detail

constexpr detail::here host{}, seq{};
constexpr detail::there device{};
namespace cuda {
constexpr detail::there par{}, par_nosync{nullptr, false};
}
namespace cuda_cub { using cuda::par; using cuda::par_nosync; }

}  // namespace thrust
