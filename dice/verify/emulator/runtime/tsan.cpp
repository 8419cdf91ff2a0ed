// What g++ calls in code compiled with -fsanitize=thread: our functions, not libtsan's. Each reports one access of the
// running CUDA thread; the atomic ones are also the operation itself.
#include <cstring>

#include "races.h"

namespace {

using dice_emu::kAtomic;
using dice_emu::kVolatile;
using dice_emu::kWrites;

// Host code is instrumented too, and does not count.
inline bool running() {
  return dice_emu::races != nullptr && dice_emu::tls_worker != nullptr && dice_emu::tls_worker->running_thread();
}

inline void note(const volatile void* address, size_t size, unsigned flags, const void* place) {
  if (running()) dice_emu::races->access(const_cast<const void*>(address), size, flags, place);
}

}  // namespace

#define PLACE __builtin_return_address(0)
#define PLAIN(name, size)                                                            \
  void __tsan_read##name(void* a) { note(a, size, 0, PLACE); }                       \
  void __tsan_write##name(void* a) { note(a, size, kWrites, PLACE); }                \
  void __tsan_volatile_read##name(void* a) { note(a, size, kVolatile, PLACE); }      \
  void __tsan_volatile_write##name(void* a) { note(a, size, kVolatile | kWrites, PLACE); }
#define UNALIGNED(size)                                                                      \
  void __tsan_unaligned_read##size(void* a) { note(a, size, 0, PLACE); }                     \
  void __tsan_unaligned_write##size(void* a) { note(a, size, kWrites, PLACE); }              \
  void __tsan_unaligned_volatile_read##size(void* a) { note(a, size, kVolatile, PLACE); }    \
  void __tsan_unaligned_volatile_write##size(void* a) { note(a, size, kVolatile | kWrites, PLACE); }

#define FETCH(bits, T, name)                                                         \
  T __tsan_atomic##bits##_fetch_##name(volatile T* a, T value, int) {                \
    note(a, sizeof(T), kAtomic | kWrites, PLACE);                                    \
    return __atomic_fetch_##name(a, value, __ATOMIC_SEQ_CST);                        \
  }
#define ATOMICS(bits, T)                                                                                     \
  T __tsan_atomic##bits##_load(const volatile T* a, int) {                                                   \
    note(a, sizeof(T), kAtomic, PLACE);                                                                      \
    return __atomic_load_n(a, __ATOMIC_SEQ_CST);                                                             \
  }                                                                                                          \
  void __tsan_atomic##bits##_store(volatile T* a, T value, int) {                                            \
    note(a, sizeof(T), kAtomic | kWrites, PLACE);                                                            \
    __atomic_store_n(a, value, __ATOMIC_SEQ_CST);                                                            \
  }                                                                                                          \
  T __tsan_atomic##bits##_exchange(volatile T* a, T value, int) {                                            \
    note(a, sizeof(T), kAtomic | kWrites, PLACE);                                                            \
    return __atomic_exchange_n(a, value, __ATOMIC_SEQ_CST);                                                  \
  }                                                                                                          \
  bool __tsan_atomic##bits##_compare_exchange_strong(volatile T* a, T* expected, T value, int, int) {        \
    note(a, sizeof(T), kAtomic | kWrites, PLACE);                                                            \
    return __atomic_compare_exchange_n(a, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);       \
  }                                                                                                          \
  bool __tsan_atomic##bits##_compare_exchange_weak(volatile T* a, T* expected, T value, int, int) {          \
    note(a, sizeof(T), kAtomic | kWrites, PLACE);                                                            \
    return __atomic_compare_exchange_n(a, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);       \
  }                                                                                                          \
  FETCH(bits, T, add) FETCH(bits, T, sub) FETCH(bits, T, and) FETCH(bits, T, or) FETCH(bits, T, xor)         \
  FETCH(bits, T, nand)

extern "C" {
PLAIN(1, 1) PLAIN(2, 2) PLAIN(4, 4) PLAIN(8, 8) PLAIN(16, 16)
UNALIGNED(2) UNALIGNED(4) UNALIGNED(8) UNALIGNED(16)
void __tsan_read_range(void* a, size_t size) { note(a, size, 0, PLACE); }
void __tsan_write_range(void* a, size_t size) { note(a, size, kWrites, PLACE); }
ATOMICS(8, unsigned char)
ATOMICS(16, unsigned short)
ATOMICS(32, unsigned)
ATOMICS(64, unsigned long long)
void __tsan_atomic_thread_fence(int) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  if (running()) dice_emu::races->fence();
}
void __tsan_atomic_signal_fence(int) {}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

// Copies that stay calls are not instrumented; the linker sends them here (--wrap).
void* __wrap_memcpy(void* to, const void* from, size_t size) {
  note(from, size, 0, PLACE);
  note(to, size, kWrites, PLACE);
  return memcpy(to, from, size);
}
void* __wrap_memmove(void* to, const void* from, size_t size) {
  note(from, size, 0, PLACE);
  note(to, size, kWrites, PLACE);
  return memmove(to, from, size);
}
void* __wrap_memset(void* to, int value, size_t size) {
  note(to, size, kWrites, PLACE);
  return memset(to, value, size);
}
}
