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

// What is registered for a GPU's tensors is for those in host memory.
#define DICE_KEY_CUDA CPU
#define DICE_KEY_CPU CPU
#define DICE_KEY_AutogradCUDA AutogradCPU
#define DICE_KEY_AutogradCPU AutogradCPU
#define DICE_KEY_Autograd Autograd
#define DICE_KEY_Meta Meta
#define DICE_KEY_CompositeExplicitAutograd CompositeExplicitAutograd
#define DICE_KEY_CompositeImplicitAutograd CompositeImplicitAutograd
#define DICE_LIBRARY_IMPL(ns, key, variable) _TORCH_LIBRARY_IMPL(ns, key, variable, C10_UID)
#undef TORCH_LIBRARY_IMPL
#define TORCH_LIBRARY_IMPL(ns, key, variable) DICE_LIBRARY_IMPL(ns, DICE_KEY_##key, variable)

#define kCUDA kCPU
#define is_cuda is_cpu
