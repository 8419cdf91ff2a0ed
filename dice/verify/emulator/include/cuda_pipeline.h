// __pipeline_memcpy_async and its like: copies that are made when they are waited for, or before.
#pragma once
#include <cuda_runtime.h>

inline void __pipeline_memcpy_async(void* to, const void* from, size_t size, size_t zeros = 0) {
  dice_copy_async(to, from, size, zeros);
}
inline void __pipeline_commit() { dice_commit_copies(); }
inline void __pipeline_wait_prior(size_t groups) { dice_wait_for_copies(groups); }
