// Blocks that wait for other blocks: in a cooperative launch for the whole grid, in any launch for what others write to a
// flag or a counter that they poll. One block runs at a time, so the others are put aside: their threads' stacks, from
// each stack pointer to the stack's end, and their shared memory are copied away, and back to the same addresses before
// the block goes on. So each block finds all its pointers as they were, and what waits costs what it uses.
#include <sched.h>

#include <cstring>
#include <vector>

#include "isolation.h"
#include "races.h"
#include "runtime.h"

namespace dice_emu {

struct Resting {
  uint64_t block;
  bool polls;     // else it waits, or has waited, for the whole grid
  bool for_grid;  // it still does
  Progress progress;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<std::pair<Fiber*, void*>> fibers;  // with their stack pointers
  std::vector<Piece> pieces;
  std::vector<char> bytes;  // of all pieces, one after the other
};

void Worker::sync_grid() {
  if (!launch_->cooperative)
    fault("trap", "it synchronises the whole grid in a launch that is not cooperative (cudaLaunchCooperativeKernel)");
  Thread* self = current_;
  isolation_.leave(self->linear, false);
  push(now_.grid, self);
  ++now_.at_grid;
  park(self);
}

// CUDA counts a block by its first thread.
bool Worker::has_come_to_grid() {
  if (now_.at_grid == 0 || now_.at_grid + now_.exited != threads_) return false;
  if (!threads_data_[0].live) fault("deadlock", "threads wait for the whole grid, and the first of their block has ended");
  return true;
}

// In the order in which a GPU starts blocks there are only as many at once as it holds: where those wait for one that
// comes later, they wait for ever, here as there. In other orders that would be true also of blocks that wait for earlier
// ones, which is right.
bool Worker::begins_another(const Order& order) {
  Launch& launch = *launch_;
  if (launch.next_block.load(std::memory_order_relaxed) >= launch.until) return false;
  const bool limited = launch.order == 0 && !launch.cooperative;
  if (launch.resident.fetch_add(1) >= (limited ? resident_blocks(launch.threads, launch.shared_bytes) : launch.blocks)) {
    --launch.resident;
    return false;
  }
  const uint64_t i = launch.next_block.fetch_add(1, std::memory_order_relaxed);
  if (i >= launch.until) {
    --launch.resident;
    return false;
  }
  begin_block(order(i));
  turn_ = 1 + (launch.cooperative ? i : block_);
  return true;
}

// New blocks first, as they may be what the others wait for. Those that poll have their turns from the first block on,
// since who waits for one other mostly waits for the one before.
bool Worker::next_block(const Order& order) {
  Launch& launch = *launch_;
  if (resting_.empty()) return begins_another(order);
  if (launch.one_by_one) launch.until = launch.blocks;  // no other worker is here, and they may wait for any
  if (begins_another(order)) return true;
  auto next = resting_.upper_bound(looked_);
  // All of this worker's have had their turns in vain, so another worker is waited for. To yield at each turn would cost
  // thousands of time slices where others are busy on this machine.
  if (next == resting_.end() && !launch.cooperative && !launch.one_by_one) sched_yield();
  for (size_t seen = 0; seen <= resting_.size(); ++seen) {
    if (next == resting_.end()) next = resting_.begin();
    if (!next->second->for_grid) break;
    ++next;
  }
  if (next == resting_.end() || next->second->for_grid) {
    release_grid();
    next = resting_.begin();
  }
  const std::shared_ptr<Resting> resting = next->second;
  looked_ = turn_ = next->first;
  resting_.erase(next);
  take_up(*resting);
  return true;
}

void Worker::release_grid() {
  if (resting_.size() != launch_->blocks)
    fault("deadlock", "%zu of %llu blocks wait for the whole grid, and the others have ended", resting_.size(),
          static_cast<unsigned long long>(launch_->blocks));
  for (auto& [turn, resting] : resting_) {
    Progress& progress = resting->progress;
    resting->for_grid = false;
    progress.ready = progress.grid;
    progress.grid = {};
    progress.at_grid = 0;
  }
  isolation_.restart();
  if (races != nullptr) races->sync_grid();
}

void Worker::put_aside() {
  auto resting = std::make_shared<Resting>();
  resting->block = block_;
  resting->polls = now_.relaxed.head != nullptr;
  resting->for_grid = !resting->polls;
  if (resting->for_grid) {
    isolation_.rest();
  } else {
    isolation_.give_up();
  }
  make_copies();
  resting->progress = now_;
  resting->threads.assign(threads_data_, threads_data_ + threads_);
  resting->warps.assign(warps_, warps_ + (threads_ + kWarp - 1) / kWarp);
  for (const Thread& thread : resting->threads) {
    if (!thread.live) continue;
    Fiber* fiber = thread.fiber;
    auto* from = static_cast<char*>(fiber->stack_pointer);
    resting->fibers.push_back({fiber, from});
    resting->pieces.push_back({from, static_cast<size_t>(stack_end(fiber) - from)});
  }
  for (unsigned i = 0; i < shared_count_; ++i)
    if (shared_[i].in_use) resting->pieces.push_back({shared_[i].region->data, shared_[i].region->size});
  if (launch_->shared_bytes != 0) resting->pieces.push_back({dynamic_->data, launch_->shared_bytes + dynamic_slack_});
  size_t total = 0;
  for (const Piece& piece : resting->pieces) total += piece.size;
  resting->bytes.reserve(total);
  for (const Piece& piece : resting->pieces) resting->bytes.insert(resting->bytes.end(), piece.at, piece.at + piece.size);
  for (const auto& [fiber, pointer] : resting->fibers) {
    reset_fiber(fiber);
    fiber->next_free = free_fibers_;
    free_fibers_ = fiber;
  }
  resting_[turn_] = std::move(resting);
}

void Worker::take_up(const Resting& resting) {
  block_ = resting.block;
  now_ = resting.progress;
  set_block_index();
  std::copy(resting.threads.begin(), resting.threads.end(), threads_data_);
  std::copy(resting.warps.begin(), resting.warps.end(), warps_);
  const char* bytes = resting.bytes.data();
  poison_shared();  // what it had not used when it was put aside
  for (const Piece& piece : resting.pieces) {
    memcpy(piece.at, bytes, piece.size);
    bytes += piece.size;
  }
  bool used[kMaxThreads + 1] = {};
  for (const auto& [fiber, pointer] : resting.fibers) {
    fiber->stack_pointer = pointer;
    used[fiber->number] = true;
  }
  free_fibers_ = nullptr;
  for (unsigned i = fiber_count_; i-- > 0;) {
    if (used[i]) continue;
    fibers_[i]->next_free = free_fibers_;
    free_fibers_ = fibers_[i];
  }
  if (races != nullptr) races->begin_block(block_, true);
  if (resting.polls) {
    isolation_.open();
  } else {
    isolation_.begin_block();
  }
}

}  // namespace dice_emu
