// The emulator's inside: fibers, the scheduler of one block, and the pieces they share.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "../include/dice_emu/core.h"

namespace dice_emu {

constexpr unsigned kWarp = 32;
constexpr unsigned kMaxThreads = 1024;             // per block
constexpr unsigned kMaxWarps = kMaxThreads / kWarp;
constexpr size_t kStaticSharedLimit = 48 * 1024;   // what ptxas accepts
constexpr size_t kDynamicSharedLimit = 227 * 1024; // what an H100 grants with cudaFuncSetAttribute
constexpr size_t kStackBytes = 256 * 1024;
constexpr int kFaultExit = 86;

enum WarpOp { kShfl, kSync, kBallot, kMatchAny, kAddU, kMinU, kMaxU, kAddS, kMinS, kMaxS, kAnd, kOr, kXor, kMatchAll };

// A stack that kernel code runs on. `stack_pointer` is valid while the fiber is switched out.
struct Fiber {
  void* stack_pointer;
  char* stack;  // lowest usable byte; the page below is a guard
  Fiber* next_free;
};

enum class Wait : uint8_t { none, barrier, warp, relax };

// One CUDA thread of the running block.
struct Thread {
  Thread* next;  // in the ready queue or a barrier's list
  Fiber* fiber;
  uint64_t value, result;
  uint3 index;
  unsigned linear;
  int source_lane;
  int predicate;
  Wait wait;
};

// Lanes of one warp that meet in the same collective with the same mask.
struct Meeting {
  unsigned mask, arrived;
  int op;
};

struct Warp {
  unsigned exists, exited, started;
  int meetings;  // how many of `meeting` are in use
  Meeting meeting[kWarp];
};

struct Launch {
  const Kernel* kernel;
  Entry entry;
  const void* body;
  dim3 grid, block;
  size_t shared_bytes;
  uint64_t blocks;
  unsigned threads;  // per block
  int order;
  std::atomic<uint64_t> next_block;
  std::atomic<bool> warned;
};

// Bijection of [0, n) in which threads of a block, and blocks of a grid, are started.
class Order {
 public:
  Order() = default;
  Order(int mode, uint64_t n);
  uint64_t operator()(uint64_t i) const {
    return mode_ == 0 ? i : mode_ == 1 ? n_ - 1 - i : static_cast<uint64_t>((static_cast<unsigned __int128>(i) * factor_ + offset_) % n_);
  }

 private:
  int mode_ = 0;
  uint64_t n_ = 1, factor_ = 1, offset_ = 0;
};

// Runs blocks, one at a time, on one OS thread.
class Worker {
 public:
  explicit Worker(int id) : id_(id) {}

  void run(Launch& launch);  // take blocks until none is left
  bool next_thread();
  void syncthreads(int predicate);
  uint64_t warp(int op, unsigned mask, uint64_t value, int source_lane);
  void relax();
  char* map_shared(SharedSite* site, size_t bytes, size_t alignment);

  const Launch* launch() const { return launch_; }
  Thread* current() { return current_; }
  Warp& warp_of(const Thread* thread) { return warps_[thread->linear / kWarp]; }
  bool owns_stack_guard(const char* address) const;
  int last_count() const { return count_; }
  [[noreturn]] void fiber_main();

 private:
  struct SharedUse {
    char* address;
    size_t bytes, capacity;
  };

  void run_block(uint64_t block);
  void set_dynamic_shared();
  void check_dynamic_slack();
  void finish(Thread* thread);
  void park(Thread* self);                // switch away until somebody makes `self` ready
  void run_something_else();              // switch to a ready thread, or start one; fault when there is none
  void make_ready(Thread* thread);
  Thread* pop_ready();
  void release_barrier();
  void complete(Warp& warp, unsigned first_linear, int which);
  void compute(const Meeting& meeting, Thread* lanes);
  Fiber* take_fiber();
  void switch_to(Fiber* fiber);
  [[noreturn]] void report_deadlock();

  int id_;
  Launch* launch_ = nullptr;
  Order thread_order_;
  unsigned threads_ = 0, started_ = 0, exited_ = 0;
  unsigned at_barrier_ = 0;
  int count_ = 0;
  Thread* current_ = nullptr;
  Thread* barrier_head_ = nullptr;
  Thread* barrier_tail_ = nullptr;
  Thread* ready_head_ = nullptr;
  Thread* ready_tail_ = nullptr;
  Fiber main_{};  // the OS thread's own stack
  Fiber* running_ = &main_;
  Fiber* free_fibers_ = nullptr;
  Fiber* fibers_[kMaxThreads + 1] = {};
  unsigned fiber_count_ = 0;
  char* dynamic_limit_ = nullptr;  // end of the dynamic shared memory's mapping
  size_t dynamic_slack_ = 0;
  SharedUse shared_[256] = {};
  unsigned shared_count_ = 0;
  size_t static_shared_bytes_ = 0;
  const Kernel* shared_owner_ = nullptr;
  Thread threads_data_[kMaxThreads] = {};
  Warp warps_[kMaxWarps] = {};
};

extern DICE_TLS Worker* tls_worker;  // non-null exactly while this OS thread runs a kernel

// fiber.cpp
Fiber* new_fiber(unsigned number);
extern "C" void dice_switch_stack(void** save, void* load);

// heap.cpp: memory against guard pages
struct Region {
  char *reserve, *reserve_end;  // guards included
  char* data;
  size_t size;
  const char* kind;  // "tensor", "shared", "dynamic", "cuda"
  char label[120];
  bool live;
  Region *next, *previous;
};
constexpr unsigned char kPoison = 0xFF;
Region* new_region(size_t size, size_t alignment, const char* kind, const char* label, size_t guard);
void relabel(Region* region, size_t size, char* data, const char* label);
const Region* region_at(const void* address);  // safe in a signal handler

// fault.cpp
void install_handlers();
void ensure_alternate_stack();
[[noreturn]] void fault(const char* kind, const char* format, ...) __attribute__((format(printf, 2, 3)));
bool read_of_running_kernel();

// launch.cpp
int thread_order();
void remember_launch_error(const char* sentence);

}  // namespace dice_emu
