// First include of a source that is emulated against PyTorch's own headers. Those are read as plain C++, before any
// CUDA name exists; then tensors in host memory answer as tensors on the device do.
#pragma once

// PyTorch calls this directly; the emulator's <assert.h> does not declare it.
extern "C" [[noreturn]] void __assert_fail(const char*, const char*, unsigned, const char*) noexcept;
#include <torch/extension.h>

#include <cuda_runtime.h>

// What PyTorch declares for nvcc alone.
namespace at {
template <class Item> struct RestrictPtrTraits { using PtrType = Item* __restrict__; };
}  // namespace at

#define kCUDA kCPU
#define is_cuda is_cpu
