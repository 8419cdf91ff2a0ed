// PyTorch's atomic functions for all of its types: gpuAtomicAdd, -Mul, -Max and -Min, and atomicAdd where CUDA has none.
// A host compiler that compiles the host's half alone has no device functions; nothing calls these there.
#pragma once
#include <cuda_runtime.h>
#include <dice/foundation.h>
#include <ATen/OpMathType.h>

#include <cstring>

namespace dice {

// Replace *address by change(*address) atomically; the old value. Types smaller than a word share theirs with neighbours.
template <class Value, class Change> __device__ Value atomic_change(Value* address, Change change) {
#if defined(DICE_EMULATED)
  return dice_emu::atomic_update(address, change);
#elif !defined(__CUDACC__)
  return change(*address);
#else
  using Word = std::conditional_t<sizeof(Value) == 8, unsigned long long, unsigned>;
  const size_t offset = reinterpret_cast<size_t>(address) % sizeof(Word);
  auto* word = reinterpret_cast<Word*>(reinterpret_cast<char*>(address) - offset);
  Word seen = *word, assumed;
  Value old;
  do {
    assumed = seen;
    Word wanted = assumed;
    memcpy(&old, reinterpret_cast<const char*>(&assumed) + offset, sizeof old);
    const Value next = change(old);
    memcpy(reinterpret_cast<char*>(&wanted) + offset, &next, sizeof next);
    seen = atomicCAS(word, assumed, wanted);
  } while (seen != assumed);
  return old;
#endif
}

template <class Value> __device__ bool is_nan(Value value) { return value != value; }
// NaN wins, as in PyTorch.
template <class Value> __device__ Value larger(Value one, Value other) { return is_nan(one) || one > other ? one : other; }
template <class Value> __device__ Value smaller(Value one, Value other) { return is_nan(one) || one < other ? one : other; }

}  // namespace dice

#define DICE_GPU_ATOMIC(name, Value, expression)                                    \
  inline __device__ Value name(Value* address, Value value) {                       \
    using Math = at::opmath_type<Value>;                                            \
    return dice::atomic_change(address, [=](Value before) -> Value {                \
      const Math old = static_cast<Math>(before), by = static_cast<Math>(value);    \
      return static_cast<Value>(expression);                                        \
    });                                                                             \
  }
// Where CUDA has an atomic addition of its own, that is it.
#if defined(DICE_EMULATED) || defined(__CUDACC__)
#define DICE_GPU_NATIVE(Value, As)                                                                    \
  inline __device__ Value gpuAtomicAdd(Value* address, Value value) {                                 \
    return static_cast<Value>(atomicAdd(reinterpret_cast<As*>(address), static_cast<As>(value)));     \
  }
#else
#define DICE_GPU_NATIVE(Value, As) DICE_GPU_ATOMIC(gpuAtomicAdd, Value, old + by)
#endif
#define DICE_GPU_PLAIN(Value) \
  inline __device__ Value atomicAdd(Value* address, Value value) { return gpuAtomicAdd(address, value); }
#define DICE_GPU_OTHERS(Value)                                                                          \
  inline __device__ void gpuAtomicAddNoReturn(Value* address, Value value) { gpuAtomicAdd(address, value); } \
  DICE_GPU_ATOMIC(gpuAtomicMul, Value, old * by)                                                        \
  DICE_GPU_ATOMIC(gpuAtomicMax, Value, dice::larger(old, by))                                           \
  DICE_GPU_ATOMIC(gpuAtomicMin, Value, dice::smaller(old, by))
#define DICE_GPU_TYPE(Value)                         \
  DICE_GPU_ATOMIC(gpuAtomicAdd, Value, old + by)     \
  DICE_GPU_PLAIN(Value)                              \
  DICE_GPU_OTHERS(Value)

DICE_GPU_NATIVE(float, float)
DICE_GPU_NATIVE(double, double)
DICE_GPU_NATIVE(int32_t, int)
DICE_GPU_NATIVE(int64_t, unsigned long long)
DICE_GPU_PLAIN(int64_t)
DICE_GPU_OTHERS(float)
DICE_GPU_OTHERS(double)
DICE_GPU_OTHERS(int32_t)
DICE_GPU_OTHERS(int64_t)
DICE_GPU_TYPE(uint8_t)
DICE_GPU_TYPE(int8_t)
DICE_GPU_TYPE(int16_t)
DICE_GPU_TYPE(c10::Half)
DICE_GPU_TYPE(c10::BFloat16)
DICE_GPU_ATOMIC(gpuAtomicAdd, bool, old || by)
DICE_GPU_PLAIN(bool)
inline __device__ void gpuAtomicAddNoReturn(bool* address, bool value) { gpuAtomicAdd(address, value); }
#undef DICE_GPU_ATOMIC
#undef DICE_GPU_NATIVE
#undef DICE_GPU_PLAIN
#undef DICE_GPU_OTHERS
#undef DICE_GPU_TYPE
