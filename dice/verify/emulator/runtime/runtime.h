// The emulator's inside: fibers, the scheduler of one block, and the pieces they share.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "../include/dice_emu/core.h"

namespace dice_emu {

constexpr unsigned kWarp = 32;
constexpr unsigned kMaxThreads = 1024;             // per block
constexpr unsigned kMaxWarps = kMaxThreads / kWarp;
constexpr size_t kStaticSharedLimit = 48 * 1024;   // what ptxas accepts
constexpr size_t kDynamicSharedLimit = 227 * 1024; // what an H100 grants with cudaFuncSetAttribute
constexpr size_t kStackBytes = 256 * 1024;
constexpr int kFaultExit = 86;
constexpr int kIsolatedOrder = 1;  // the second of all trials: threads in reverse, isolated from each other (isolation.h)
constexpr bool keeps_step(int order) { return order > kIsolatedOrder && order % 2 == 0; }  // see Worker::keep_step
constexpr unsigned kMaxSites = 256;  // `__shared__` declarations of one library

enum WarpOp { kShfl, kSync, kBallot, kMatchAny, kAddU, kMinU, kMaxU, kAddS, kMinS, kMaxS, kAnd, kOr, kXor, kMatchAll };

// A stack that kernel code runs on. `stack_pointer` is valid while the fiber is switched out.
struct Fiber {
  void* stack_pointer;
  char* stack;  // lowest usable byte; the page below is a guard
  Fiber* next_free;
  unsigned number;
};

// One CUDA thread of the running block.
struct Thread {
  Thread* next;  // in the ready queue or a barrier's list
  Fiber* fiber;
  uint64_t value, result;
  uint3 index;
  unsigned linear;
  int source_lane;
  int predicate;
  const void* place;  // return address of a converge call
  uint64_t round;     // of the loops that it is in, when it last stopped
  bool live;          // it has started and not ended
};

// Lanes of one warp that meet in the same collective with the same mask.
struct Meeting {
  unsigned mask, arrived;
  int op;
};

struct Warp {
  unsigned exists, exited;
  int meetings;  // how many of `meeting` are in use
  unsigned met;  // how often lanes have met
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
  uint64_t until;   // where the blocks of this part of the launch end
  bool one_by_one;  // the blocks of this part, as if side by side: they do not see what others write to small tensors
  uint64_t chance;   // what it leaves open
  bool cooperative;  // all blocks are there at once, and may wait for the whole grid
  std::atomic<uint64_t> resident;  // blocks that have begun and not ended
};

// Bijection of [0, n) in which threads of a block, and blocks of a grid, are started.
class Order {
 public:
  Order() = default;
  Order(int mode, uint64_t n);
  Order(int mode, const dim3& grid, uint64_t chance);  // under isolation blocks at many distances are among the first
  uint64_t operator()(uint64_t i) const {
    if (const auto moved = moved_.find(i); moved != moved_.end()) i = moved->second;
    return mode_ == 0 ? i : mode_ == 1 ? n_ - 1 - i : static_cast<uint64_t>((static_cast<unsigned __int128>(i) * factor_ + offset_) % n_);
  }

 private:
  void begin_with(const std::vector<uint64_t>& blocks);

  int mode_ = 0;
  uint64_t n_ = 1, factor_ = 1, offset_ = 0;
  std::map<uint64_t, uint64_t> moved_;  // places that others have been exchanged with
};
uint64_t isolated_blocks(uint64_t blocks);  // how many of a launch run one by one

// heap.cpp: memory that ends, or begins, at an inaccessible page
struct Region {
  char *reserve, *reserve_end;  // guards included
  char *pages, *pages_end;      // accessible
  char* data;                   // `size` bytes; data + size is at most 15 bytes before pages_end, or data is pages
  size_t size;
  const char* kind;  // "tensor", "shared array", ...
  char label[120];
  bool live, guarded;
  bool closed;   // to everyone, while some thread runs host code
  bool shared;   // host code may touch it all the same, which is then known:
  bool touched;
  bool watched;  // read-only, but for the pages that the running launch has written to
  void* shadow;  // races.cpp
  Region *next, *previous;
};
constexpr unsigned char kPoison = 0xFF;
Region* new_region(size_t capacity, size_t guard, const char* kind);  // null when memory is exhausted
void place(Region* region, size_t size, size_t alignment, const char* label);
struct Piece {
  char* at;
  size_t size;
};
void watch_tensors();  // make them read-only: a first write to each of their pages is a fault that Isolation::touch mends
void unwatch_tensors();
// What the watched tensor has on the page of `address`, which may be written to from now on. Safe in a signal handler.
Piece open_page(const Region& region, const char* address);
const Region* region_at(const char* address);  // region whose reserve holds `address`; safe in a signal handler
// Whether the thread that was refused may go on: one that is not in host code, or memory of both. Safe in a signal handler.
bool reopened(const Region& region);
void note_host_bytes(size_t bytes);  // host.cpp

// memory.cpp: what a kernel may be given a pointer to
bool is_device_memory(const void* address);
const Piece* variables();  // small ones of the device that kernels may write to; the last is empty

// While a thread runs host code of a library it may not touch what is the GPU's. A scope in which it may: a launch, a copy.
bool set_host_code(bool on);  // what held before
bool is_host_code();
class OnDevice {
 public:
  OnDevice() : before_(set_host_code(false)) {}
  ~OnDevice() { set_host_code(before_); }
  OnDevice(const OnDevice&) = delete;

 private:
  bool before_;
};

class Isolation;  // isolation.h

struct Queue {
  Thread *head, *tail;
};

// Copies to shared memory that one thread has asked for, and that it has not waited for.
struct Copies {
  struct Copy {
    void* to;
    const void* from;
    size_t size, zeros;  // zeros: how many of the bytes, at the end
  };
  std::vector<Copy> asked;
  std::vector<size_t> groups;  // for each commit, how many were asked for by then
  void make(size_t count);     // the first ones
};

// A barrier with a number, that as many threads meet at as they say (`bar.sync`); those that only arrive do not wait.
constexpr unsigned kNamedBarriers = 16;
struct NamedBarrier {
  Queue waiting;
  unsigned arrived;
};

// Where the threads of a block are.
struct Progress {
  unsigned started, exited, at_barrier, at_grid, spinning;
  Queue barrier, ready, relaxed, converging, grid;
  NamedBarrier named[kNamedBarriers];
};

struct Resting;  // resting.cpp
uint64_t resident_blocks(unsigned threads, size_t shared_bytes);  // of a grid, that the GPU holds at once

// Runs blocks, one at a time, on one OS thread.
class Worker {
 public:
  explicit Worker(int id);

  void run(Launch& launch);  // take blocks until none is left
  bool next_thread();
  uint64_t syncthreads(int predicate);  // count of true predicates << 1 | all true
  void named_barrier(unsigned number, unsigned count, bool waits);
  uint64_t warp(int op, unsigned mask, uint64_t value, int source_lane);
  void sync_grid();
  void relax();
  unsigned converge(const void* place);
  void keep_step(const void* place);
  char* shared_at(uint64_t address);
  char* map_shared(SharedSite* site, size_t bytes, size_t alignment);
  void copy_async(const Copies::Copy& copy);
  void commit_copies();
  void wait_for_copies(size_t groups_left);
  [[noreturn]] void fiber_main();

  const Launch* launch() const { return launch_; }
  bool running_thread() const { return current_ != nullptr; }
  unsigned thread_number() const { return current_->linear; }
  uint64_t block() const { return block_; }
  Isolation& isolation() { return isolation_; }
  bool owns_stack_guard(const char* address) const;

 private:
  struct SharedUse {
    SharedSite* site;
    Region* region;
    bool in_use;  // by the running launch
  };

  void begin_block(uint64_t block);
  void set_block_index();
  void finish(Thread* thread);
  void park(Thread* self);    // switch away until somebody makes `self` ready
  void run_something_else();  // switch to a ready thread, or start one; leave the block, or fault, when there is none
  bool has_come_to_grid();    // and nothing else of the block can go on
  bool next_block(const Order& order);  // begin a block, or go on with one that was put aside
  bool begins_another(const Order& order);
  void put_aside();
  void take_up(const Resting& resting);
  void release_grid();
  void push(Queue& queue, Thread* thread);
  void push_first(Queue& queue, Thread* thread);
  Thread* pop(Queue& queue);
  Fiber* take_fiber();
  void switch_to(Fiber* fiber);
  [[noreturn]] void report_deadlock();

  Warp& warp_of(const Thread* thread) { return warps_[thread->linear / kWarp]; }
  void release_barrier();
  void release_converging();
  void complete(unsigned warp_index, int which);  // everybody has come to warps_[warp_index].meeting[which]
  void compute(const Meeting& meeting, Thread* lanes);

  void set_dynamic_shared();
  void check_dynamic_slack();
  void poison_shared();
  void release_shared();
  bool copies_late() const;
  void make_copies();  // all that the block has asked for

  int id_;
  Isolation& isolation_;
  Launch* launch_ = nullptr;
  Order thread_order_;
  unsigned threads_ = 0;
  uint64_t block_ = 0, turn_ = 0;  // the block that runs, and when it has its turn among those that rest
  uint64_t looked_ = 0;            // the turn of the last that went on, since any has ended
  Progress now_{};
  unsigned idle_ = 0;  // threads that spun since anything else of the block went on
  std::map<uint64_t, std::shared_ptr<Resting>> resting_;  // by their turns, from 1
  Thread* current_ = nullptr;
  Fiber main_{};  // the OS thread's own stack
  Fiber* running_ = &main_;
  Fiber* free_fibers_ = nullptr;
  Fiber* fibers_[kMaxThreads + 1] = {};
  unsigned fiber_count_ = 0;
  Region* dynamic_ = nullptr;
  size_t dynamic_slack_ = 0;
  SharedUse shared_[kMaxSites] = {};
  unsigned shared_count_ = 0;
  size_t static_shared_bytes_ = 0;
  Thread threads_data_[kMaxThreads] = {};
  Warp warps_[kMaxWarps] = {};
  Copies copies_[kMaxThreads];
  bool copies_wait_ = false;  // some thread of the block has asked for one
};

extern DICE_TLS Worker* tls_worker;  // non-null exactly while this OS thread runs a kernel

// fiber.cpp
Fiber* new_fiber(unsigned number);
void reset_fiber(Fiber* fiber);  // as if nothing had run on it
char* stack_end(const Fiber* fiber);
extern const bool kStacksCanBeCopied;
extern "C" void dice_switch_stack(void** save, void* load);

// fault.cpp
void install_handlers();
void ensure_alternate_stack();
[[noreturn]] void fault(const char* kind, const char* format, ...) __attribute__((format(printf, 2, 3)));

// collectives.cpp
void renew_lockstep_credit();

// launch.cpp
bool runs_against_the_grain();  // in the order in which threads are isolated, streams are done as late as they may be
bool runs_kernels();  // rather than that somebody asks which kernel it is, or that launches do nothing
Kernel* kernel_of(const void* function);  // null when it is no kernel

}  // namespace dice_emu
