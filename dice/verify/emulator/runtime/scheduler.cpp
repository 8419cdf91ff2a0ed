// One block at a time on one OS thread. A CUDA thread starts on the current fiber; only when it blocks does another
// thread get another fiber, so a kernel without synchronisation is a plain loop over its threads.
#include <cstdio>
#include <cstring>

#include "runtime.h"

DICE_TLS uint3 threadIdx;
DICE_TLS uint3 blockIdx;
DICE_TLS dim3 blockDim;
DICE_TLS dim3 gridDim;
DICE_TLS int dice_worker_id;
DICE_TLS char* dice_dynamic_shared;
const int warpSize = 32;

namespace dice_emu {

DICE_TLS Worker* tls_worker;

static uint64_t greatest_common_divisor(uint64_t a, uint64_t b) {
  while (b != 0) {
    const uint64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

Order::Order(int mode, uint64_t n) : mode_(mode), n_(n == 0 ? 1 : n) {
  if (mode < 2) return;
  uint64_t seed = static_cast<uint64_t>(mode) * 0x9E3779B97F4A7C15ull;
  seed ^= seed >> 29;
  offset_ = seed % n_;
  factor_ = (seed >> 17) % n_ | 1;
  while (greatest_common_divisor(factor_, n_) != 1) ++factor_;
}

void Worker::run(Launch& launch) {
  launch_ = &launch;
  tls_worker = this;
  dice_worker_id = id_;
  blockDim = launch.block;
  gridDim = launch.grid;
  threads_ = launch.threads;
  thread_order_ = Order(launch.order, threads_);
  if (shared_owner_ != launch.kernel) {
    shared_owner_ = launch.kernel;
    shared_count_ = 0;
    static_shared_bytes_ = 0;
  }
  set_dynamic_shared();
  const Order block_order(launch.order, launch.blocks);
  for (;;) {
    const uint64_t i = launch.next_block.fetch_add(1, std::memory_order_relaxed);
    if (i >= launch.blocks) break;
    run_block(block_order(i));
  }
  tls_worker = nullptr;
  launch_ = nullptr;
}

void Worker::run_block(uint64_t block) {
  blockIdx.x = static_cast<unsigned>(block % gridDim.x);
  block /= gridDim.x;
  blockIdx.y = static_cast<unsigned>(block % gridDim.y);
  blockIdx.z = static_cast<unsigned>(block / gridDim.y);
  started_ = exited_ = at_barrier_ = 0;
  current_ = nullptr;
  const unsigned warps = (threads_ + kWarp - 1) / kWarp;
  for (unsigned w = 0; w < warps; ++w) {
    const unsigned lanes = threads_ - w * kWarp;
    warps_[w].exists = lanes >= kWarp ? ~0u : (1u << lanes) - 1;
    warps_[w].exited = warps_[w].started = 0;
    warps_[w].meetings = 0;
  }
  for (unsigned i = 0; i < shared_count_; ++i) memset(shared_[i].address, kPoison, shared_[i].bytes);
  if (launch_->shared_bytes != 0) memset(dice_dynamic_shared, kPoison, launch_->shared_bytes + dynamic_slack_);
  switch_to(take_fiber());
  check_dynamic_slack();
}

// Called by the entry loop on a fiber: finish the thread that ran here, then start the next one here if no other
// thread is ready to go on. False sends the fiber back to fiber_main().
bool Worker::next_thread() {
  if (current_ != nullptr) finish(current_);
  current_ = nullptr;
  if (ready_head_ != nullptr || started_ == threads_) return false;
  const auto linear = static_cast<unsigned>(thread_order_(started_++));
  Thread* thread = &threads_data_[linear];
  thread->linear = linear;
  thread->wait = Wait::none;
  thread->fiber = running_;
  warps_[linear / kWarp].started |= 1u << (linear % kWarp);
  const dim3& block = launch_->block;
  if (block.y == 1 && block.z == 1) {
    threadIdx = {linear, 0, 0};
  } else {
    threadIdx = {linear % block.x, linear / block.x % block.y, linear / block.x / block.y};
  }
  current_ = thread;
  return true;
}

void Worker::fiber_main() {
  for (;;) {
    launch_->entry(launch_->body);
    Fiber* self = running_;
    self->next_free = free_fibers_;
    free_fibers_ = self;
    if (exited_ == threads_) {
      switch_to(&main_);
    } else {
      run_something_else();
    }
  }
}

void Worker::finish(Thread* thread) {
  ++exited_;
  Warp& warp = warp_of(thread);
  warp.exited |= 1u << (thread->linear % kWarp);
  for (int i = warp.meetings - 1; i >= 0; --i) {
    const Meeting& meeting = warp.meeting[i];
    if (((meeting.arrived | warp.exited) & meeting.mask) == (meeting.mask & warp.exists))
      complete(warp, thread->linear / kWarp * kWarp, i);
  }
  if (at_barrier_ != 0 && at_barrier_ + exited_ == threads_) release_barrier();
}

void Worker::make_ready(Thread* thread) {
  thread->next = nullptr;
  thread->wait = Wait::none;
  if (ready_head_ == nullptr) {
    ready_head_ = thread;
  } else {
    ready_tail_->next = thread;
  }
  ready_tail_ = thread;
}

Thread* Worker::pop_ready() {
  Thread* thread = ready_head_;
  if (thread != nullptr) ready_head_ = thread->next;
  return thread;
}

void Worker::switch_to(Fiber* fiber) {
  Fiber* from = running_;
  if (from == fiber) return;
  running_ = fiber;
  dice_switch_stack(&from->stack_pointer, fiber->stack_pointer);
}

Fiber* Worker::take_fiber() {
  if (free_fibers_ == nullptr) {
    Fiber* fiber = new_fiber(fiber_count_);
    fibers_[fiber_count_++] = fiber;
    return fiber;
  }
  Fiber* fiber = free_fibers_;
  free_fibers_ = fiber->next_free;
  return fiber;
}

void Worker::run_something_else() {
  if (Thread* thread = pop_ready()) {
    current_ = thread;
    threadIdx = thread->index;
    switch_to(thread->fiber);
  } else if (started_ < threads_) {
    current_ = nullptr;
    switch_to(take_fiber());
  } else {
    report_deadlock();
  }
}

void Worker::park(Thread* self) {
  self->index = threadIdx;
  run_something_else();
}

void Worker::syncthreads(int predicate) {
  Thread* self = current_;
  self->predicate = predicate;
  self->wait = Wait::barrier;
  self->next = nullptr;
  if (at_barrier_++ == 0) {
    barrier_head_ = self;
  } else {
    barrier_tail_->next = self;
  }
  barrier_tail_ = self;
  if (at_barrier_ + exited_ == threads_) release_barrier();
  park(self);
}

// The result of each waiter is packed as count << 1 | all: see dice_syncthreads_reduce.
void Worker::release_barrier() {
  uint64_t count = 0;
  for (Thread* thread = barrier_head_; thread != nullptr; thread = thread->next) count += thread->predicate != 0;
  const uint64_t result = count << 1 | (count == at_barrier_);
  Thread* thread = barrier_head_;
  at_barrier_ = 0;
  while (thread != nullptr) {
    Thread* next = thread->next;
    thread->result = result;
    make_ready(thread);
    thread = next;
  }
}

void Worker::relax() {
  make_ready(current_);
  if (started_ < threads_) {  // a spinning thread must let unstarted ones run, or nobody can end its wait
    current_->index = threadIdx;
    current_ = nullptr;
    Thread* waiting = ready_head_;
    Thread* tail = ready_tail_;
    ready_head_ = nullptr;  // next_thread() prefers ready threads; hide them for one start
    switch_to(take_fiber());
    (void)waiting;
    (void)tail;
    return;
  }
  park(current_);
}

}  // namespace dice_emu
