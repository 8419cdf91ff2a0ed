// What kernels take by `malloc` and `new`: from a heap of 8 MB, or of what cudaDeviceSetLimit says, in which all threads that
// a GPU has at once have their parts. Here threads and blocks run one after the other, so what a thread held at most counts
// as long as a GPU might hold its block beside the one that runs. Libraries are linked so that they call what is here.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <new>
#include <unordered_map>

#include "host.h"
#include "runtime.h"

namespace dice_emu {
namespace {

struct Use {
  size_t held, most;
};
struct Taken {
  size_t bytes;
  uint64_t launch, thread;  // who took it
};
struct Ended {
  uint64_t number;
  size_t bytes;
};

struct DeviceHeap {
  std::mutex mutex;
  size_t size = 8 << 20, taken = 0;
  std::atomic<size_t> pieces_count{0};
  std::unordered_map<void*, Taken> pieces;
  std::map<uint64_t, Use> threads;  // of the blocks that run, by block and thread
  std::deque<Ended> ended;          // blocks that a GPU might still hold, and what their threads held for a time
  std::atomic<bool> in_use{false};  // by the running launch
  uint64_t launch = 0, blocks_ended = 0;
};
// Never destroyed: other static objects' destructors give memory back.
DeviceHeap& heap() {
  static auto* instance = new DeviceHeap;
  return *instance;
}
using Lock = std::lock_guard<std::mutex>;

// CUB's device-wide functions and Thrust take what they need from elsewhere.
bool takes_from_heap() {
  return tls_worker != nullptr && tls_worker->running_thread() && !tls_worker->launch()->kernel->of_library;
}

void* take(size_t bytes) {
  const size_t size = bytes < 16 ? 16 : (bytes + 15) / 16 * 16;
  DeviceHeap& all = heap();
  const Lock lock(all.mutex);
  const uint64_t thread = tls_worker->block() * kMaxThreads + tls_worker->thread_number();
  Use& use = all.threads[thread];
  const size_t more = size > all.size ? size : use.held + size > use.most ? use.held + size - use.most : 0;
  if (all.taken + more > all.size) return nullptr;
  void* piece = malloc(size);
  if (piece == nullptr) return nullptr;
  memset(piece, kPoison, size);
  use.held += size;
  use.most += more;
  all.taken += more;
  all.pieces[piece] = {size, all.launch, thread};
  all.pieces_count = all.pieces.size();
  all.in_use = true;
  return piece;
}

// False where it is not the heap's.
bool give(void* pointer) {
  DeviceHeap& all = heap();
  if (all.pieces_count == 0) return false;
  {
    const Lock lock(all.mutex);
    const auto found = all.pieces.find(pointer);
    if (found == all.pieces.end()) return false;
    const Taken& piece = found->second;
    const auto owner = piece.launch == all.launch ? all.threads.find(piece.thread) : all.threads.end();
    if (owner != all.threads.end()) {
      owner->second.held -= piece.bytes;
    } else {
      all.taken -= piece.bytes;
    }
    all.pieces.erase(found);
    all.pieces_count = all.pieces.size();
  }
  free(pointer);
  return true;
}

}  // namespace

size_t device_heap_size() { return heap().size; }
void set_device_heap_size(size_t bytes) { heap().size = bytes; }

void device_heap_begin_launch() {
  ++heap().launch;
  heap().in_use = false;
  heap().blocks_ended = 0;
}

// `resident`: how many blocks a GPU holds at once.
void device_heap_end_block(uint64_t block, uint64_t resident) {
  DeviceHeap& all = heap();
  if (!all.in_use) return;
  const Lock lock(all.mutex);
  ++all.blocks_ended;
  size_t passing = 0;
  auto thread = all.threads.lower_bound(block * kMaxThreads);
  while (thread != all.threads.end() && thread->first < (block + 1) * kMaxThreads) {
    passing += thread->second.most - thread->second.held;
    thread = all.threads.erase(thread);
  }
  if (passing != 0) all.ended.push_back({all.blocks_ended, passing});
  while (!all.ended.empty() && all.ended.front().number + resident <= all.blocks_ended + 1) {
    all.taken -= all.ended.front().bytes;
    all.ended.pop_front();
  }
}

void device_heap_end_launch() {
  DeviceHeap& all = heap();
  for (const Ended& block : all.ended) all.taken -= block.bytes;
  all.ended.clear();
}

}  // namespace dice_emu

using namespace dice_emu;

extern "C" {
void* __wrap_malloc(size_t bytes) { return takes_from_heap() ? take(bytes) : malloc(bytes); }
void __wrap_free(void* pointer) {
  if (!give(pointer)) free(pointer);
}

// `new` and `new[]`, and `delete` of both, with and without the size.
void* __wrap__Znwm(size_t bytes) { return takes_from_heap() ? take(bytes) : ::operator new(bytes); }
void* __wrap__Znam(size_t bytes) { return takes_from_heap() ? take(bytes) : ::operator new[](bytes); }
void __wrap__ZdlPv(void* pointer) {
  if (!give(pointer)) ::operator delete(pointer);
}
void __wrap__ZdaPv(void* pointer) {
  if (!give(pointer)) ::operator delete[](pointer);
}
void __wrap__ZdlPvm(void* pointer, size_t) { __wrap__ZdlPv(pointer); }
void __wrap__ZdaPvm(void* pointer, size_t) { __wrap__ZdaPv(pointer); }
}
