// PyTorch's allocator of GPU memory, for those who ask it for bytes: each stretch is the memory of a tensor.
#pragma once
#include <unordered_map>
#include <dice/factories.h>

namespace c10::cuda::CUDACachingAllocator {

namespace dice_detail {
// Never destroyed: PyTorch may be gone by then.
inline std::unordered_map<void*, at::Tensor>& stretches() {
  static auto& held = *new std::unordered_map<void*, at::Tensor>;
  return held;
}
}  // namespace dice_detail

inline void* raw_alloc(size_t bytes) {
  at::Tensor memory = at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions().dtype(at::kByte).device(at::kCUDA));
  void* place = memory.data_ptr();
  dice_detail::stretches().emplace(place, std::move(memory));
  return place;
}
template <class Stream> void* raw_alloc_with_stream(size_t bytes, Stream) { return raw_alloc(bytes); }
inline void raw_delete(void* place) { dice_detail::stretches().erase(place); }
inline void emptyCache() {}

}  // namespace c10::cuda::CUDACachingAllocator
