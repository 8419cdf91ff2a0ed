// Atomic functions. Blocks run on several OS threads, so these are real atomics.
#pragma once
#include <string.h>

#include "core.h"

namespace dice_emu {

template <size_t Bytes> struct BitsOf;
template <> struct BitsOf<1> { using type = unsigned char; };
template <> struct BitsOf<2> { using type = unsigned short; };
template <> struct BitsOf<4> { using type = unsigned int; };
template <> struct BitsOf<8> { using type = unsigned long long; };

// An atomic, for the length of its own scope, acts on what all threads of the block have written.
class Merged {
 public:
  template <class T>
  explicit Merged(T* address, bool locks = false) : address_(address), size_(sizeof(T)) {
    if (__builtin_expect(dice_isolated, 0)) dice_before_atomic(address_, size_, locks);
  }
  ~Merged() {
    if (__builtin_expect(dice_isolated, 0)) dice_after_atomic(address_, size_);
  }

 private:
  const void* address_;
  size_t size_;
};

// Replace *address by change(*address) atomically; the old value.
template <class T, class Change>
T atomic_update(T* address, Change change) {
  using Bits = typename BitsOf<sizeof(T)>::type;
  auto* bits = reinterpret_cast<Bits*>(address);
  const Merged merged(address);
  Bits seen = __atomic_load_n(bits, __ATOMIC_RELAXED);
  for (;;) {
    T old;
    memcpy(static_cast<void*>(&old), &seen, sizeof old);
    const T next = change(old);
    Bits wanted;
    memcpy(&wanted, &next, sizeof wanted);
    if (__atomic_compare_exchange_n(bits, &seen, wanted, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return old;
  }
}

// A thread that repeats an atomic may be waiting for another one of its block: let that one run now and then.
inline void maybe_relax() {
  static DICE_TLS unsigned calls;
  if ((++calls & 0xFFF) != 0) return;
  const bool for_block = dice_block_scope;  // of this thread's atomic, not of the others'
  dice_block_scope = false;
  dice_relax();
  dice_block_scope = for_block;
}

// Called again and again by a loop that waits for what another thread writes.
inline void spin() {
  static DICE_TLS unsigned calls;
  if ((++calls & 0x3F) == 0) dice_relax();
}

// An atomic for its own block is a plain access to all others.
class BlockScope {
 public:
  BlockScope() { dice_block_scope = true; }
  ~BlockScope() { dice_block_scope = false; }
};

}  // namespace dice_emu

#define DICE_ATOMIC_SCOPES(R, name, parameters, arguments)           \
  inline R name##_block parameters {                                 \
    const dice_emu::BlockScope scope;                                \
    return name arguments;                                           \
  }                                                                  \
  inline R name##_system parameters { return name arguments; }

#define DICE_ATOMIC_FETCH(name, T, builtin)                                                          \
  inline T name(T* address, T value) {                                                               \
    const dice_emu::Merged merged(address);                                                          \
    return builtin(address, value, __ATOMIC_RELAXED);                                                \
  }                                                                                                  \
  DICE_ATOMIC_SCOPES(T, name, (T* address, T value), (address, value))
#define DICE_ATOMIC_UPDATE(name, T, expression)                                                      \
  inline T name(T* address, T value) {                                                               \
    return dice_emu::atomic_update(address, [=](T old) -> T { return (expression); });               \
  }                                                                                                  \
  DICE_ATOMIC_SCOPES(T, name, (T* address, T value), (address, value))
#define DICE_ATOMIC_CAS(T)                                                                           \
  inline T atomicCAS(T* address, T compare, T value) {                                               \
    dice_emu::maybe_relax();                                                                         \
    const dice_emu::Merged merged(address, true);                                                    \
    __atomic_compare_exchange_n(address, &compare, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
    return compare;                                                                                  \
  }                                                                                                  \
  DICE_ATOMIC_SCOPES(T, atomicCAS, (T* address, T compare, T value), (address, compare, value))
#define DICE_ATOMIC_EXCH(T)                                                                          \
  inline T atomicExch(T* address, T value) {                                                         \
    dice_emu::maybe_relax();                                                                         \
    const dice_emu::Merged merged(address, value == 0); /* a lock is opened; else a flag is raised */ \
    T old;                                                                                           \
    __atomic_exchange(address, &value, &old, __ATOMIC_SEQ_CST);                                      \
    return old;                                                                                      \
  }                                                                                                  \
  DICE_ATOMIC_SCOPES(T, atomicExch, (T* address, T value), (address, value))
#define DICE_ATOMIC_INTEGERS(T)                                   \
  DICE_ATOMIC_FETCH(atomicAnd, T, __atomic_fetch_and)             \
  DICE_ATOMIC_FETCH(atomicOr, T, __atomic_fetch_or)               \
  DICE_ATOMIC_FETCH(atomicXor, T, __atomic_fetch_xor)             \
  DICE_ATOMIC_UPDATE(atomicMin, T, value < old ? value : old)     \
  DICE_ATOMIC_UPDATE(atomicMax, T, value > old ? value : old)     \
  DICE_ATOMIC_CAS(T)                                              \
  DICE_ATOMIC_EXCH(T)

DICE_ATOMIC_INTEGERS(int)
DICE_ATOMIC_INTEGERS(unsigned int)
DICE_ATOMIC_INTEGERS(unsigned long long int)
DICE_ATOMIC_CAS(unsigned short int)
DICE_ATOMIC_EXCH(float)
DICE_ATOMIC_FETCH(atomicAnd, long long int, __atomic_fetch_and)
DICE_ATOMIC_FETCH(atomicOr, long long int, __atomic_fetch_or)
DICE_ATOMIC_FETCH(atomicXor, long long int, __atomic_fetch_xor)
DICE_ATOMIC_UPDATE(atomicMin, long long int, value < old ? value : old)
DICE_ATOMIC_UPDATE(atomicMax, long long int, value > old ? value : old)

// Adding is also how kernels poll a counter, so it may relax.
#define DICE_ATOMIC_ADD(T)                                                 \
  inline T atomicAdd(T* address, T value) {                                \
    dice_emu::maybe_relax();                                               \
    const dice_emu::Merged merged(address);                                \
    return __atomic_fetch_add(address, value, __ATOMIC_SEQ_CST);           \
  }                                                                        \
  DICE_ATOMIC_SCOPES(T, atomicAdd, (T* address, T value), (address, value))
DICE_ATOMIC_ADD(int)
DICE_ATOMIC_ADD(unsigned int)
DICE_ATOMIC_ADD(unsigned long long int)
#undef DICE_ATOMIC_ADD
DICE_ATOMIC_UPDATE(atomicAdd, float, old + value)
DICE_ATOMIC_UPDATE(atomicAdd, double, old + value)
DICE_ATOMIC_FETCH(atomicSub, int, __atomic_fetch_sub)
DICE_ATOMIC_FETCH(atomicSub, unsigned int, __atomic_fetch_sub)
DICE_ATOMIC_UPDATE(atomicInc, unsigned int, old >= value ? 0u : old + 1u)
DICE_ATOMIC_UPDATE(atomicDec, unsigned int, old == 0u || old > value ? value : old - 1u)

// Vector atomics are atomic for each element on its own, as CUDA documents.
inline float2 atomicAdd(float2* address, float2 value) {
  return {atomicAdd(&address->x, value.x), atomicAdd(&address->y, value.y)};
}
inline float4 atomicAdd(float4* address, float4 value) {
  return {atomicAdd(&address->x, value.x), atomicAdd(&address->y, value.y), atomicAdd(&address->z, value.z),
          atomicAdd(&address->w, value.w)};
}
