// What a kernel sees of the machine: indices, shared memory, barriers, and how a launch reaches the scheduler.
// Everything declared here with C linkage is defined in libdice_emu.so.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <type_traits>

#include "vectors.h"

// What nvcc 13.0 defines, and --expt-relaxed-constexpr, which extensions are compiled with. Both of its passes are one here.
#define __CUDACC__ 1
#define __NVCC__ 1
#define __CUDA_ARCH__ 900
#define __CUDA_ARCH_LIST__ 900
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#define __CUDACC_VER_BUILD__ 88
#define __CUDACC_RELAXED_CONSTEXPR__ 1
#define __CUDA_API_VER_MAJOR__ 13
#define __CUDA_API_VER_MINOR__ 0
#define __NVCC_DIAG_PRAGMA_SUPPORT__ 1
#define __CUDA_INCLUDE_COMPILER_INTERNAL_HEADERS__
#define __CUDA_FTZ 0
#define __CUDA_PREC_DIV 1
#define __CUDA_PREC_SQRT 1
#define DICE_EMULATED 1
// Stands before what marks a lambda as the device's.
#ifdef __CUDACC_EXTENDED_LAMBDA__
#define DICE_EMU_MARKED_LAMBDA
#else
#define DICE_EMU_MARKED_LAMBDA \
  _Pragma("GCC error \"__host__ or __device__ annotation on lambda requires --extended-lambda nvcc flag (extra_cuda_cflags)\"")
#endif

#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __device_builtin__
#define __builtin_align__(n) __align__(n)
#define CUDARTAPI

// Fibers never leave their OS thread, so plain thread-local storage is right after every switch.
#define DICE_TLS __thread __attribute__((tls_model("initial-exec")))
extern DICE_TLS uint3 threadIdx;
extern DICE_TLS uint3 blockIdx;
extern DICE_TLS dim3 blockDim;
extern DICE_TLS dim3 gridDim;
extern const int warpSize;  // not a constant expression, as in CUDA

typedef struct CUstream_st* cudaStream_t;

namespace dice_emu {

constexpr int kMaxWorkers = 64;

// One per `__global__` function (and per instantiation of a template); zero-initialised in the candidate.
struct Kernel {
  const char* name;
  unsigned max_dynamic_shared;  // bytes granted with cudaFuncSetAttribute; 0: CUDA's default of 48 KB
  bool polls;                   // its source has a loop that waits for what another thread writes
  unsigned most_threads;        // of a block, as its __launch_bounds__ say; 0: as many as any
  bool of_library;              // CUB's or Thrust's
};

// One `__shared__` declaration; `address[w]` is its storage on worker w, mapped on first use.
struct SharedSite {
  const char* name;
  char* address[kMaxWorkers];
};

using Entry = void (*)(const void* body);
// How a body is kept while its launch waits in a stream.
struct Keep {
  void* (*copy)(const void* body);
  void (*drop)(void* copied);
};

}  // namespace dice_emu

extern "C" {
extern DICE_TLS int dice_worker_id;
extern DICE_TLS char* dice_dynamic_shared;
void dice_configure(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream, bool cooperative);
void dice_launch(dice_emu::Kernel* kernel, dice_emu::Entry entry, const void* body, dice_emu::Keep keep);
bool dice_next_thread();
char* dice_map_shared(dice_emu::SharedSite* site, size_t bytes, size_t alignment);
void dice_syncthreads();
int dice_syncthreads_reduce(int op, int predicate);  // op 0 count, 1 and, 2 or
uint64_t dice_warp(int op, unsigned mask, uint64_t value, int source_lane);
unsigned dice_converge();  // lanes of the warp that came here, once nothing else in the block can go on
// Whether threads wait for each other after each store to a shared variable, as far as the credit for that lasts.
extern DICE_TLS bool dice_lockstep;
void dice_keep_step();
void dice_named_barrier(unsigned number, unsigned count, bool waits);  // `waits`: else it only arrives
extern DICE_TLS uint64_t dice_round;  // in which rounds of its loops the thread is: lanes in others do not come together
char* dice_shared_at(uint64_t address);  // what has this address, or these lower bits of one, in shared memory
void dice_copy_async(void* to, const void* from, size_t size, size_t zeros);
void dice_commit_copies();
void dice_wait_for_copies(size_t groups_left);
// While threads do not see what others have not synchronised (runtime/isolation.h).
extern DICE_TLS bool dice_isolated;
extern DICE_TLS bool dice_block_scope;  // the atomic under way is one for its own block
void dice_fence(bool for_block);  // or for all that see the memory
void dice_read_only(const void* address, void* to, size_t size);
void dice_before_atomic(const void* address, size_t size, bool locks);  // `locks`: one that locks are made of
void dice_after_atomic(const void* address, size_t size);
void dice_after_volatile_store(const void* address, size_t size);
void dice_relax();  // let the other threads of the block run, and other blocks when none can
void dice_sync_grid();
bool dice_in_kernel();
bool dice_is_cooperative();  // the launch that the thread belongs to
void dice_note_symbol(void* address, size_t bytes, bool constant);
bool dice_checks_arguments();
void dice_check_argument(const char* kernel, const char* name, const void* pointer, bool certain);
[[noreturn]] void dice_fault(const char* kind, const char* message);
[[noreturn]] void dice_out_of_array(const char* name, long long index, size_t size);
[[noreturn]] void dice_assert_failed(const char* expression, const char* file, int line);
}

namespace dice_emu {

inline void configure(dim3 grid, dim3 block, size_t shared_bytes = 0, cudaStream_t stream = nullptr) {
  dice_configure(grid, block, shared_bytes, stream, false);
}

// Body of a translated `__global__` function: `body` is the kernel's text as a lambda that holds the arguments by
// value. Every thread runs a copy of its own, because a kernel may assign to its parameters.
template <class Body>
void run(Kernel& kernel, const Body& body) {
  static_assert(sizeof(Body) <= 32764, "Formal parameter space overflowed (max 32764 bytes allowed)");
  const Entry entry = [](const void* shared_body) {
    while (dice_next_thread()) {
      Body own = *static_cast<const Body*>(shared_body);
      own();
    }
  };
  dice_launch(&kernel, entry, &body,
              {[](const void* shared_body) -> void* { return new Body(*static_cast<const Body*>(shared_body)); },
               [](void* copied) { delete static_cast<Body*>(copied); }});
}

// Where PyTorch's own headers say where a tensor's memory is, nothing here learns of what is outside the heap.
#if defined(DICE_FULL_HEADERS)
constexpr bool kKnowsTensors = false;
#else
constexpr bool kKnowsTensors = true;
#endif

// An argument of a launch: neither it nor, in a structure, what could be a pointer may point to the host's variables.
template <class T>
void argument(const Kernel& kernel, const char* name, const T& value) {
  if constexpr (std::is_pointer_v<T>) {
    if constexpr (!std::is_function_v<std::remove_pointer_t<T>>)
      if (dice_checks_arguments()) dice_check_argument(kernel.name, name, const_cast<const void*>(static_cast<const volatile void*>(value)), kKnowsTensors);
  } else if constexpr (std::is_class_v<T> && sizeof(T) >= sizeof(void*) && alignof(T) >= alignof(void*)) {
    if (!dice_checks_arguments()) return;
    const char* bytes = reinterpret_cast<const char*>(&value);
    for (size_t at = 0; at + sizeof(void*) <= sizeof value; at += sizeof(void*)) {
      const void* word;
      __builtin_memcpy(&word, bytes + at, sizeof word);
      dice_check_argument(kernel.name, name, word, false);
    }
  }
}

// A variable that is the device's: it tells the runtime where it is when its library is loaded.
struct Symbol {
  template <class T> explicit Symbol(T& variable) {
    dice_note_symbol(const_cast<void*>(reinterpret_cast<const volatile void*>(&variable)), sizeof(T), std::is_const_v<T>);
  }
};

template <class T>
T& shared(SharedSite& site, T*, size_t alignment = 16) {
  char* address = site.address[dice_worker_id];
  if (__builtin_expect(address == nullptr, 0))
    address = dice_map_shared(&site, sizeof(T), alignof(T) > alignment ? alignof(T) : alignment);
  return *reinterpret_cast<T*>(address);
}

// Around a loop, and in its condition, where a function asks which lanes came together.
class Loop {
 public:
  Loop() : before_(dice_round) {}
  ~Loop() { dice_round = before_; }
  Loop(const Loop&) = delete;
  bool once() {
    const bool first = !begun_;
    begun_ = true;
    return first;
  }
  bool next() {
    dice_round = (before_ ^ ++rounds_) * 0x9E3779B97F4A7C15ull;
    return true;
  }

 private:
  uint64_t before_, rounds_ = 0;
  bool begun_ = false;
};

// An index of what was declared as an array of one dimension. On a GPU another local variable may lie beyond its end.
template <class T, size_t N, class Index>
constexpr Index in_array(T (&)[N], Index index, const char* name) {
  if (__builtin_expect(static_cast<size_t>(index) >= N, 0)) dice_out_of_array(name, static_cast<long long>(index), N);
  return index;
}
template <class Other, class Index>
constexpr Index in_array(const Other&, Index index, const char*) {  // the name is something else here
  return index;
}

// After a store to a `__shared__` variable. Inlined everywhere, as the address of the call tells one from another.
__attribute__((always_inline)) inline void stored() {
  if (__builtin_expect(dice_lockstep, 0)) dice_keep_step();
}

template <class T>
T* dynamic_shared(T*) {
  return reinterpret_cast<T*>(dice_dynamic_shared);
}

}  // namespace dice_emu

inline void __syncthreads() { dice_syncthreads(); }
inline int __syncthreads_count(int predicate) { return dice_syncthreads_reduce(0, predicate); }
inline int __syncthreads_and(int predicate) { return dice_syncthreads_reduce(1, predicate); }
inline int __syncthreads_or(int predicate) { return dice_syncthreads_reduce(2, predicate); }

namespace dice_emu {

// Worker threads share memory like the host does; a full fence is at least as strong as each of CUDA's. Which of them it
// is only matters while others do not see what a thread has written.
inline void fence(bool for_block) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  if (dice_isolated) dice_fence(for_block);
}

}  // namespace dice_emu

inline void __threadfence() { dice_emu::fence(false); }
inline void __threadfence_block() { dice_emu::fence(true); }
inline void __threadfence_system() { __threadfence(); }

[[noreturn]] inline void __trap() { dice_fault("trap", "__trap() was reached"); }
inline void __nanosleep(unsigned) { dice_relax(); }
long long clock64();
long long wall_clock64();
