// One block at a time on one OS thread. A CUDA thread starts on the current fiber; only when it blocks does another
// thread get another fiber, so a kernel without synchronisation is a plain loop over its threads.
#include <cstdio>
#include <cstring>

#include "host.h"
#include "isolation.h"
#include "races.h"
#include "runtime.h"

DICE_TLS uint3 threadIdx;
DICE_TLS uint3 blockIdx;
DICE_TLS dim3 blockDim;
DICE_TLS dim3 gridDim;
DICE_TLS int dice_worker_id;
DICE_TLS uint64_t dice_round;
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

// Of the blocks that run one by one, the near ones are neighbours and the others lie far behind, no further apart than the
// near ones are many: so in a grid of up to kRuled blocks there are two of them at any distance. In a larger grid the far
// ones are its thirty-seconds, beginnings of its rows and planes, and as many others as there may be, by chance.
constexpr uint64_t kLeastOneByOne = 64, kMostOneByOne = 256, kNear = 33, kBeside = 8, kParts = 32;
constexpr uint64_t kRuled = kMostOneByOne / 2 * (kMostOneByOne / 2 + 1);

static uint64_t far_blocks(uint64_t blocks) {
  uint64_t far = 1;
  while (far * (far + 1) < blocks) ++far;
  return far;
}

uint64_t isolated_blocks(uint64_t blocks) {
  if (blocks > kRuled) return kMostOneByOne;
  const uint64_t most = 2 * far_blocks(blocks);
  return most > kLeastOneByOne ? most : blocks < kLeastOneByOne ? blocks : kLeastOneByOne;
}

Order::Order(int mode, const dim3& grid, uint64_t chance) : Order(mode, uint64_t{grid.x} * grid.y * grid.z) {
  if (mode != kIsolatedOrder || n_ <= kLeastOneByOne) return;
  const uint64_t count = isolated_blocks(n_), plane = uint64_t{grid.x} * grid.y;
  std::vector<uint64_t> blocks;
  const auto add = [&](uint64_t first, uint64_t many, uint64_t step) {
    for (uint64_t i = 0; i < many && first + i * step < n_ && blocks.size() < count; ++i) blocks.push_back(first + i * step);
  };
  if (n_ <= kRuled) {
    uint64_t far = 1;
    while ((count - far) * (far + 1) < n_) ++far;
    add(0, count - far, 1);
    add(n_ - 1 - (far - 1) * (count - far), far, count - far);
  } else {
    add(0, kNear, 1);
    for (const uint64_t unit : {uint64_t{grid.x}, plane}) {
      add(unit, kBeside, 1);
      add(2 * unit, kParts, unit);
    }
    add(0, kParts, (n_ + kParts - 1) / kParts);
    while (blocks.size() < count) {
      chance = chance * 6364136223846793005ull + 1442695040888963407ull;
      blocks.push_back((chance >> 20) % n_);
    }
  }
  begin_with(blocks);
}

// The blocks that were in these places go where those have been.
void Order::begin_with(const std::vector<uint64_t>& blocks) {
  std::map<uint64_t, uint64_t> places;  // of blocks
  const auto of = [](const std::map<uint64_t, uint64_t>& map, uint64_t i) {
    const auto found = map.find(i);
    return found == map.end() ? i : found->second;
  };
  for (uint64_t i = 0; i < blocks.size(); ++i) {
    const uint64_t place = of(places, blocks[i]), other = of(moved_, i);
    if (place < i) continue;  // it was among them before
    moved_[i] = blocks[i];
    moved_[place] = other;
    places[blocks[i]] = i;
    places[other] = place;
  }
}

Worker::Worker(int id) : id_(id), isolation_(*new Isolation) {}

void Worker::run(Launch& launch) {
  launch_ = &launch;
  tls_worker = this;
  dice_worker_id = id_;
  blockDim = launch.block;
  gridDim = launch.grid;
  threads_ = launch.threads;
  thread_order_ = Order(launch.order, threads_);
  isolation_.begin_launch(launch.order == kIsolatedOrder && races == nullptr, launch.one_by_one, threads_);
  dice_lockstep = keeps_step(launch.order) && races == nullptr;
  set_dynamic_shared();
  if (races != nullptr) races->begin_launch(this);
  // Who polls mostly waits for the block before: isolated blocks that come in this order find what they wait for, and stay
  // isolated. Of many, those come first that others are near to or far from.
  const bool forward = launch.order == kIsolatedOrder && launch.kernel->polls && launch.blocks <= kLeastOneByOne;
  const Order block_order(forward ? 0 : launch.order, launch.grid, launch.chance);
  while (next_block(block_order)) {
    run_something_else();
    if (now_.exited != threads_) {
      put_aside();
      continue;
    }
    isolation_.end_block();
    check_dynamic_slack();
    device_heap_end_block(block_, resident_blocks(threads_, launch.shared_bytes));
    --launch.resident;
    looked_ = 0;
  }
  if (races != nullptr) races->end_launch();
  isolation_.end_launch();
  dice_lockstep = false;
  release_shared();
  tls_worker = nullptr;
  launch_ = nullptr;
}

void Worker::set_block_index() {
  uint64_t block = block_;
  blockIdx.x = static_cast<unsigned>(block % gridDim.x);
  block /= gridDim.x;
  blockIdx.y = static_cast<unsigned>(block % gridDim.y);
  blockIdx.z = static_cast<unsigned>(block / gridDim.y);
  current_ = nullptr;
  idle_ = 0;
}

void Worker::begin_block(uint64_t block) {
  if (races != nullptr) races->begin_block(block, false);
  block_ = block;
  now_ = {};
  set_block_index();
  const unsigned warps = (threads_ + kWarp - 1) / kWarp;
  for (unsigned w = 0; w < warps; ++w) {
    const unsigned lanes = threads_ - w * kWarp;
    warps_[w].exists = lanes >= kWarp ? ~0u : (1u << lanes) - 1;
    warps_[w].exited = 0;
    warps_[w].meetings = 0;
    warps_[w].met = 0;
  }
  for (unsigned i = 0; copies_wait_ && i < threads_; ++i) copies_[i] = {};  // that nobody waited for
  copies_wait_ = false;
  poison_shared();
  isolation_.begin_block();
}

// Called by the entry loop on a fiber: finish the thread that ran here, then start the next one here if no other
// thread is ready to go on. False sends the fiber back to fiber_main().
bool Worker::next_thread() {
  if (current_ != nullptr) finish(current_);
  current_ = nullptr;
  if (now_.ready.head != nullptr || now_.started == threads_) return false;
  const auto linear = static_cast<unsigned>(thread_order_(now_.started++));
  Thread* thread = &threads_data_[linear];
  thread->linear = linear;
  thread->fiber = running_;
  thread->live = true;
  const dim3& block = launch_->block;
  if (block.y == 1 && block.z == 1) {
    threadIdx = {linear, 0, 0};
  } else {
    threadIdx = {linear % block.x, linear / block.x % block.y, linear / block.x / block.y};
  }
  dice_round = 0;
  current_ = thread;
  isolation_.enter(linear);
  return true;
}

void Worker::fiber_main() {
  for (;;) {
    launch_->entry(launch_->body);
    Fiber* self = running_;
    self->next_free = free_fibers_;
    free_fibers_ = self;
    if (now_.exited == threads_) {
      switch_to(&main_);
    } else {
      run_something_else();
    }
  }
}

void Worker::finish(Thread* thread) {
  if (races != nullptr) races->settle();
  isolation_.leave(thread->linear, true);
  thread->live = false;
  ++now_.exited;
  Warp& warp = warp_of(thread);
  warp.exited |= 1u << (thread->linear % kWarp);
  for (int i = warp.meetings - 1; i >= 0; --i) {
    const Meeting& meeting = warp.meeting[i];
    if (((meeting.arrived | warp.exited) & meeting.mask) == (meeting.mask & warp.exists))
      complete(thread->linear / kWarp, i);
  }
  if (now_.at_barrier != 0 && now_.at_barrier + now_.exited == threads_) release_barrier();
}

void Worker::push(Queue& queue, Thread* thread) {
  thread->next = nullptr;
  if (queue.head == nullptr) {
    queue.head = thread;
  } else {
    queue.tail->next = thread;
  }
  queue.tail = thread;
}

void Worker::push_first(Queue& queue, Thread* thread) {
  if (queue.head == nullptr) queue.tail = thread;
  thread->next = queue.head;
  queue.head = thread;
}

Thread* Worker::pop(Queue& queue) {
  Thread* thread = queue.head;
  if (thread != nullptr) queue.head = thread->next;
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

// Ready threads first: a warp that only shuffles then never needs more than 32 stacks. Threads that spin (relax) come
// last, after all that could end their wait.
void Worker::run_something_else() {
  Thread* thread = pop(now_.ready);
  if (thread == nullptr && now_.started < threads_) {
    current_ = nullptr;
    idle_ = 0;
    switch_to(take_fiber());
    return;
  }
  if (thread == nullptr && now_.converging.head != nullptr) {
    release_converging();
    thread = pop(now_.ready);
  }
  if (thread != nullptr) {
    idle_ = 0;
  } else if (now_.relaxed.head == nullptr) {
    if (!has_come_to_grid()) report_deadlock();
    switch_to(&main_);
    return;
  } else if (kStacksCanBeCopied && launch_->blocks > 1 && ++idle_ > 2 * now_.spinning) {
    switch_to(&main_);  // each of them has looked again: they wait for other blocks
    return;
  } else {
    thread = pop(now_.relaxed);
    --now_.spinning;
  }
  current_ = thread;
  threadIdx = thread->index;
  dice_round = thread->round;
  isolation_.enter(thread->linear);
  switch_to(thread->fiber);
}

void Worker::park(Thread* self) {
  if (races != nullptr) races->settle();
  self->index = threadIdx;
  self->round = dice_round;
  run_something_else();
}

}  // namespace dice_emu

bool dice_next_thread() { return dice_emu::tls_worker->next_thread(); }
