// Meeting points of threads: block barriers and warp collectives (shuffles, votes, reductions).
#include "isolation.h"
#include "races.h"
#include "runtime.h"

DICE_TLS bool dice_lockstep;

namespace dice_emu {

constexpr unsigned kPatience = 1 << 10;  // meetings of a warp that go on before all others: it may wait for these
// NaN, and a very large and a very small number, of four bytes and of eight: a maximum takes no notice of a NaN.
constexpr uint64_t kAbsent[] = {~0ull, 0x7F0000007F000000ull, 0xFF000000FF000000ull};
constexpr int64_t kLockstepCredit = 1 << 16;  // stores after which a thread waits for others, until the order is set again
static std::atomic<int64_t> lockstep_credit{kLockstepCredit};
void renew_lockstep_credit() { lockstep_credit = kLockstepCredit; }

uint64_t Worker::syncthreads(int predicate) {
  Thread* self = current_;
  self->predicate = predicate;
  isolation_.leave(self->linear, false);
  push(now_.barrier, self);
  if (++now_.at_barrier + now_.exited == threads_) release_barrier();
  park(self);
  return self->result;
}

void Worker::release_barrier() {
  if (races != nullptr) races->barrier();
  isolation_.barrier();
  uint64_t count = 0;
  for (Thread* thread = now_.barrier.head; thread != nullptr; thread = thread->next) count += thread->predicate != 0;
  const uint64_t result = count << 1 | (count == now_.at_barrier);
  now_.at_barrier = 0;
  while (Thread* thread = pop(now_.barrier)) {
    thread->result = result;
    push(now_.ready, thread);
  }
}

// A warp arrives as a whole: lanes that never existed count as arrived with the first one.
void Worker::named_barrier(unsigned number, unsigned count, bool waits) {
  Thread* self = current_;
  if (number >= kNamedBarriers || count == 0 || count % kWarp != 0)
    fault("trap", "it met at barrier %u with %u threads: there are 16 barriers, for whole warps", number, count);
  NamedBarrier& barrier = now_.named[number];
  if (waits) {
    isolation_.leave(self->linear, false);
    push(barrier.waiting, self);
  } else {
    isolation_.yield(self->linear);
  }
  barrier.arrived += 1;
  if (self->linear % kWarp == 0) barrier.arrived += static_cast<unsigned>(__builtin_popcount(~warp_of(self).exists));
  if (barrier.arrived >= count) {
    if (races != nullptr) races->barrier();
    isolation_.barrier();
    barrier.arrived = 0;
    while (Thread* thread = pop(barrier.waiting)) push(now_.ready, thread);
  }
  if (waits) park(self);
  else isolation_.enter(self->linear);
}

// Lanes may come from different places in the program; what must agree is the operation and the mask. Lanes that have
// exited, or never existed in a partial warp, are not waited for.
uint64_t Worker::warp(int op, unsigned mask, uint64_t value, int source_lane) {
  Thread* self = current_;
  const unsigned lane = self->linear % kWarp;
  const unsigned warp_index = self->linear / kWarp;
  Warp& warp = warps_[warp_index];
  if ((mask >> lane & 1) == 0)
    fault("trap", "it called a warp collective with mask 0x%x, which does not name its own lane %u", mask, lane);
  isolation_.leave(self->linear, true);
  self->value = value;
  self->source_lane = source_lane;
  int which = 0;
  while (which < warp.meetings && (warp.meeting[which].mask != mask || warp.meeting[which].op != op)) ++which;
  if (which == warp.meetings) warp.meeting[warp.meetings++] = {mask, 0, op};
  Meeting& meeting = warp.meeting[which];
  meeting.arrived |= 1u << lane;
  if (((meeting.arrived | warp.exited) & mask & warp.exists) == (mask & warp.exists)) complete(warp_index, which);
  park(self);
  return self->result;
}

void Worker::complete(unsigned warp_index, int which) {
  Warp& warp = warps_[warp_index];
  const Meeting meeting = warp.meeting[which];
  warp.meeting[which] = warp.meeting[--warp.meetings];
  Thread* lanes = &threads_data_[warp_index * kWarp];
  compute(meeting, lanes);
  if (races != nullptr) races->order(warp_index, meeting.arrived);
  isolation_.meet(warp_index, meeting.arrived | warp.exited);
  // A warp that has met goes on before others, to the next barrier if it can: what it overwrites, these may still have to
  // read. Where threads are isolated all take turns.
  if (launch_->order == kIsolatedOrder || ++warp.met % kPatience == 0) {
    for (unsigned rest = meeting.arrived; rest != 0; rest &= rest - 1) push(now_.ready, &lanes[__builtin_ctz(rest)]);
    return;
  }
  for (unsigned lane = kWarp; lane-- > 0;)
    if ((meeting.arrived >> lane & 1) != 0) push_first(now_.ready, &lanes[lane]);
}

// Sets `result` of every lane that has arrived.
void Worker::compute(const Meeting& meeting, Thread* lanes) {
  const unsigned arrived = meeting.arrived;
  const auto each = [&](auto&& action) {
    for (unsigned rest = arrived; rest != 0; rest &= rest - 1) action(lanes[__builtin_ctz(rest)]);
  };
  const auto fold = [&](auto&& combine) {
    uint64_t total = lanes[__builtin_ctz(arrived)].value;
    for (unsigned rest = arrived & (arrived - 1); rest != 0; rest &= rest - 1)
      total = combine(total, lanes[__builtin_ctz(rest)].value);
    each([&](Thread& thread) { thread.result = total; });
  };
  const auto lanes_equal_to = [&](uint64_t value) {
    unsigned equal = 0;
    each([&](Thread& thread) { equal |= (thread.value == value ? 1u : 0u) << (thread.linear % kWarp); });
    return equal;
  };
  using Signed = int64_t;
  switch (meeting.op) {
    case kShfl:  // a lane outside the meeting has no defined value: hand out poison
      each([&](Thread& thread) {
        const bool there = arrived >> (thread.source_lane & 31) & 1;
        thread.result = there ? lanes[thread.source_lane & 31].value : kAbsent[thread.linear % 3];
      });
      break;
    case kSync:
      break;
    case kBallot: {
      unsigned ballot = 0;
      each([&](Thread& thread) { ballot |= (thread.value != 0 ? 1u : 0u) << (thread.linear % kWarp); });
      each([&](Thread& thread) { thread.result = ballot; });
      break;
    }
    case kMatchAny:
      each([&](Thread& thread) { thread.result = lanes_equal_to(thread.value); });
      break;
    case kMatchAll: {
      const bool all = lanes_equal_to(lanes[__builtin_ctz(arrived)].value) == arrived;
      each([&](Thread& thread) { thread.result = all ? arrived : 0; });
      break;
    }
    case kAddU:
    case kAddS:
      fold([](uint64_t a, uint64_t b) { return a + b; });
      break;
    case kMinU:
      fold([](uint64_t a, uint64_t b) { return a < b ? a : b; });
      break;
    case kMaxU:
      fold([](uint64_t a, uint64_t b) { return a > b ? a : b; });
      break;
    case kMinS:
      fold([](uint64_t a, uint64_t b) { return static_cast<Signed>(a) < static_cast<Signed>(b) ? a : b; });
      break;
    case kMaxS:
      fold([](uint64_t a, uint64_t b) { return static_cast<Signed>(a) > static_cast<Signed>(b) ? a : b; });
      break;
    case kAnd:
      fold([](uint64_t a, uint64_t b) { return a & b; });
      break;
    case kOr:
      fold([](uint64_t a, uint64_t b) { return a | b; });
      break;
    case kXor:
      fold([](uint64_t a, uint64_t b) { return a ^ b; });
      break;
    default:
      fault("unsupported", "the emulator has no warp operation %d", meeting.op);
  }
}

void Worker::relax() {
  isolation_.yield(current_->linear);
  ++now_.spinning;
  push(now_.relaxed, current_);
  park(current_);
}

// Hardware reconverges the lanes that took the same branch; here they wait until nothing else of the block can go on.
unsigned Worker::converge(const void* place) {
  Thread* self = current_;
  self->place = place;
  isolation_.leave(self->linear, true);
  push(now_.converging, self);
  park(self);
  return static_cast<unsigned>(self->result);
}

// After a store to a shared variable: the others of the block come to it, too, before any goes on. A variable that each of
// them takes for its own then holds the last one's value. In every second order: a missing barrier does not show in these.
void Worker::keep_step(const void* place) {
  if (lockstep_credit.fetch_sub(1, std::memory_order_relaxed) > 0) converge(place);
  else dice_lockstep = false;
}

// The first waiting lane and those of its warp that wait at the same place, in the same round of a loop, go on together.
void Worker::release_converging() {
  const Thread* first = now_.converging.head;
  const unsigned warp = first->linear / kWarp;
  const auto together = [&](const Thread* thread) {
    return thread->linear / kWarp == warp && thread->place == first->place && thread->round == first->round;
  };
  unsigned mask = 0;
  for (const Thread* thread = first; thread != nullptr; thread = thread->next)
    if (together(thread)) mask |= 1u << (thread->linear % kWarp);
  if (races != nullptr) races->order(warp, mask);
  isolation_.meet(warp, mask | warps_[warp].exited);
  Queue rest{};
  while (Thread* thread = pop(now_.converging)) {
    thread->result = mask;
    push(thread->linear / kWarp == warp && (mask >> (thread->linear % kWarp) & 1) ? now_.ready : rest, thread);
  }
  now_.converging = rest;
}

void Worker::report_deadlock() {
  if (now_.at_grid != 0)
    fault("deadlock", "no thread can go on: %u wait for the whole grid, and the others of the block never come there",
          now_.at_grid);
  unsigned waiting_in_warp = 0, mask = 0, arrived = 0, warp_index = 0;
  for (unsigned w = 0; w * kWarp < threads_; ++w) {
    for (int i = 0; i < warps_[w].meetings; ++i) {
      const Meeting& meeting = warps_[w].meeting[i];
      waiting_in_warp += static_cast<unsigned>(__builtin_popcount(meeting.arrived));
      if (mask != 0) continue;
      mask = meeting.mask;
      arrived = meeting.arrived;
      warp_index = w;
    }
  }
  if (mask == 0) fault("deadlock", "no thread of the block can go on");
  const unsigned missing = mask & ~arrived & warps_[warp_index].exists & ~warps_[warp_index].exited;
  fault("deadlock",
        "no thread can go on: %u wait at __syncthreads and %u in warp collectives; in warp %u, mask 0x%x names lanes "
        "0x%x which never came",
        now_.at_barrier, waiting_in_warp, warp_index, mask, missing);
}

}  // namespace dice_emu

void dice_syncthreads() { dice_emu::tls_worker->syncthreads(0); }

int dice_syncthreads_reduce(int op, int predicate) {
  const uint64_t packed = dice_emu::tls_worker->syncthreads(predicate);
  const int count = static_cast<int>(packed >> 1);
  return op == 0 ? count : op == 1 ? static_cast<int>(packed & 1) : count != 0;
}

uint64_t dice_warp(int op, unsigned mask, uint64_t value, int source_lane) {
  return dice_emu::tls_worker->warp(op, mask, value, source_lane);
}

unsigned dice_converge() { return dice_emu::tls_worker->converge(__builtin_return_address(0)); }
void dice_keep_step() { dice_emu::tls_worker->keep_step(__builtin_return_address(0)); }
void dice_named_barrier(unsigned number, unsigned count, bool waits) {
  dice_emu::tls_worker->named_barrier(number, count, waits);
}
void dice_relax() {
  if (dice_emu::tls_worker != nullptr) dice_emu::tls_worker->relax();  // else the host runs a function of both
}
bool dice_in_kernel() { return dice_emu::tls_worker != nullptr; }
void dice_sync_grid() { dice_emu::tls_worker->sync_grid(); }
bool dice_is_cooperative() { return dice_emu::tls_worker->launch()->cooperative; }
