// A launch: its configuration, its checks, and the OS threads among which its blocks are shared.
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "host.h"
#include "isolation.h"
#include "races.h"
#include "runtime.h"
#include "streams.h"

namespace dice_emu {
namespace {

struct Configuration {
  dim3 grid, block;
  size_t shared_bytes;
  cudaStream_t stream;
  bool cooperative;
};

// Nested because a launch's arguments may call a function that launches another kernel.
constexpr int kMaxPending = 64;
thread_local Configuration* pending = nullptr;  // on the heap: static thread-local storage is scarce in a plug-in
thread_local int pending_count = 0;
thread_local Kernel** asked_kernel = nullptr;

std::recursive_mutex launch_mutex;
std::map<std::string, uint64_t>& counts() {
  static auto* map = new std::map<std::string, uint64_t>;
  return *map;
}
int order = 0;
bool muted = false;
char last_launch_error[300];

// OS threads that help the caller. They belong to one process: a forked child starts its own.
class Pool {
 public:
  void run(Launch& launch) {
    start();
    pthread_mutex_lock(&mutex_);
    launch_ = &launch;
    ++generation_;
    busy_ = helpers_;
    pthread_cond_broadcast(&wake_);
    pthread_mutex_unlock(&mutex_);
    worker(0).run(launch);
    pthread_mutex_lock(&mutex_);
    while (busy_ != 0) pthread_cond_wait(&done_, &mutex_);
    pthread_mutex_unlock(&mutex_);
  }

  Worker& worker(int id) {
    if (workers_[id] == nullptr) workers_[id] = new Worker(id);
    return *workers_[id];
  }

 private:
  struct Start {
    Pool* pool;
    int id;
  };

  static int wanted() {
    if (const char* text = getenv("DICE_EMU_THREADS")) return atoi(text) < 1 ? 1 : atoi(text);
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    return static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  }

  void start() {
    if (started_) return;
    started_ = true;
    int count = wanted();
    if (count > 16) count = 16;
    for (int id = 1; id < count; ++id) {
      auto* argument = new Start{this, id};
      pthread_t thread;
      if (pthread_create(&thread, nullptr, main, argument) != 0) {  // a process limit; go on with fewer
        delete argument;
        break;
      }
      pthread_detach(thread);
      ++helpers_;
    }
  }

  static void* main(void* argument) {
    const Start start = *static_cast<Start*>(argument);
    delete static_cast<Start*>(argument);
    ensure_alternate_stack();
    start.pool->serve(start.id);
    return nullptr;
  }

  [[noreturn]] void serve(int id) {
    uint64_t seen = 0;
    for (;;) {
      pthread_mutex_lock(&mutex_);
      while (generation_ == seen) pthread_cond_wait(&wake_, &mutex_);
      seen = generation_;
      Launch* launch = launch_;
      pthread_mutex_unlock(&mutex_);
      worker(id).run(*launch);
      pthread_mutex_lock(&mutex_);
      if (--busy_ == 0) pthread_cond_signal(&done_);
      pthread_mutex_unlock(&mutex_);
    }
  }

  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t wake_ = PTHREAD_COND_INITIALIZER, done_ = PTHREAD_COND_INITIALIZER;
  Launch* launch_ = nullptr;
  uint64_t generation_ = 0;
  int helpers_ = 0, busy_ = 0;
  bool started_ = false;
  Worker* workers_[kMaxWorkers] = {};
};

Pool& pool() {
  static Pool* instance = nullptr;
  static pid_t owner = 0;
  if (owner != getpid()) {  // also in the child of a fork, where the parent's threads do not exist
    instance = new Pool;
    owner = getpid();
  }
  return *instance;
}

// CUDA's launch checks; null when the configuration is fine.
const char* refusal(const Kernel& kernel, const Configuration& c, int* error) {
  *error = kErrorInvalidConfiguration;
  const uint64_t threads = uint64_t{c.block.x} * c.block.y * c.block.z;
  if (c.grid.x == 0 || c.grid.y == 0 || c.grid.z == 0) return "the grid has a dimension of 0";
  if (threads == 0) return "the block has a dimension of 0";
  if (threads > kMaxThreads) return "the block has more than 1024 threads";
  if (c.block.x > 1024 || c.block.y > 1024 || c.block.z > 64) return "a block dimension exceeds (1024, 1024, 64)";
  if (c.grid.x > 0x7FFFFFFFu || c.grid.y > 65535 || c.grid.z > 65535)
    return "a grid dimension exceeds (2147483647, 65535, 65535)";
  *error = kErrorInvalidValue;
  if (kernel.most_threads != 0 && threads > kernel.most_threads) return "the block has more threads than its __launch_bounds__ say";
  const size_t granted = kernel.max_dynamic_shared != 0 ? kernel.max_dynamic_shared : kStaticSharedLimit;
  if (c.shared_bytes > kDynamicSharedLimit) return "the dynamic shared memory exceeds 227 KB";
  if (c.shared_bytes > granted)
    return "more than 48 KB of dynamic shared memory needs cudaFuncSetAttribute(MaxDynamicSharedMemorySize)";
  *error = kErrorCooperativeLaunchTooLarge;
  if (c.cooperative && uint64_t{c.grid.x} * c.grid.y * c.grid.z > resident_blocks(static_cast<unsigned>(threads), c.shared_bytes))
    return "it is cooperative, and the grid has more blocks than the GPU can hold at once";
  return nullptr;
}

struct HeapOfLaunch {
  HeapOfLaunch() { device_heap_begin_launch(); }
  ~HeapOfLaunch() { device_heap_end_launch(); }
};

void run(const Kernel& kernel, Entry entry, const void* body, const Configuration& c) {
  const std::lock_guard<std::recursive_mutex> lock(launch_mutex);
  ensure_alternate_stack();
  install_handlers();
  const OnDevice scope;
  const HeapOfLaunch heap;
  Launch job{};
  job.kernel = &kernel;
  job.entry = entry;
  job.body = body;
  job.grid = c.grid;
  job.block = c.block;
  job.shared_bytes = c.shared_bytes;
  job.blocks = uint64_t{c.grid.x} * c.grid.y * c.grid.z;
  job.threads = c.block.x * c.block.y * c.block.z;
  job.order = order;
  job.until = job.blocks;
  job.chance = static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  job.cooperative = c.cooperative;
  job.one_by_one = order == kIsolatedOrder && races == nullptr;
  if (c.cooperative) {
    if (!kStacksCanBeCopied) fault("unsupported", "it is a cooperative launch, which is emulated on x86-64 and AArch64 alone");
    pool().worker(0).run(job);
    return;
  }
  if (job.one_by_one) {
    job.until = isolated_blocks(job.blocks);
    pool().worker(0).run(job);
    if (job.until == job.blocks) return;  // also where the first ones waited for others
    job.one_by_one = false;
    job.next_block = job.until;
    job.until = job.blocks;
  }
  if (job.blocks == 1 || races != nullptr) {
    pool().worker(0).run(job);
  } else {
    pool().run(job);
  }
}

void launch(Kernel& kernel, Entry entry, const void* body, Keep keep, const Configuration& c) {
  int error = 0;
  if (const char* why = refusal(kernel, c, &error)) {
    set_last_error(error);
    snprintf(last_launch_error, sizeof last_launch_error,
             "kernel %s was not launched: %s (grid (%u,%u,%u), block (%u,%u,%u), %zu bytes of dynamic shared memory).",
             kernel.name, why, c.grid.x, c.grid.y, c.grid.z, c.block.x, c.block.y, c.block.z, c.shared_bytes);
    return;
  }
  {
    const std::lock_guard<std::recursive_mutex> lock(launch_mutex);
    ++counts()[kernel.name];
  }
  if (muted) {  // what waits for a stream does so all the same
    if (is_deferred(c.stream)) enqueue(c.stream, [] {});
    return;
  }
  if (!is_deferred(c.stream)) {
    turn_to_default_stream();
    run(kernel, entry, body, c);
    return;
  }
  void* kept = keep.copy(body);
  enqueue(c.stream, [&kernel, entry, kept, keep, c] {
    run(kernel, entry, kept, c);
    keep.drop(kept);
  });
}

}  // namespace

bool runs_against_the_grain() { return order == kIsolatedOrder; }
bool runs_kernels() { return asked_kernel == nullptr && !muted; }

// A kernel function that is called while somebody asks returns its Kernel and does not run; see host.cpp.
Kernel* kernel_of(const void* function) {
  Kernel* found = nullptr;
  asked_kernel = &found;
  reinterpret_cast<void (*)()>(const_cast<void*>(function))();
  asked_kernel = nullptr;
  return found;
}

}  // namespace dice_emu

using namespace dice_emu;

extern "C" {

void dice_configure(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream, bool cooperative) {
  if (tls_worker != nullptr) fault("unsupported", "it launches a kernel itself (dynamic parallelism), which is not emulated");
  if (pending == nullptr) pending = new Configuration[kMaxPending];
  if (pending_count == kMaxPending) pending_count = 0;  // left by arguments that threw
  pending[pending_count++] = {grid, block, shared_bytes, stream, cooperative};
}

void dice_launch(Kernel* kernel, Entry entry, const void* body, Keep keep) {
  if (asked_kernel != nullptr) {
    *asked_kernel = kernel;
    return;
  }
  if (tls_worker != nullptr || pending_count == 0)
    fault("launch_error", "the __global__ function %s was called like an ordinary function", kernel->name);
  const Configuration configuration = pending[--pending_count];
  launch(*kernel, entry, body, keep, configuration);
}

void dice_set_order(int mode) {
  order = mode;
  renew_isolation_credit();
  renew_lockstep_credit();
}

// From now on launches are checked and counted, and do nothing. 2: nor do copies, as tensors have no memory.
void dice_set_muted(int how) {
  muted = how != 0;
  without_data = how == 2;
}

// {"name": times launched, ...}; valid until the next call.
const char* dice_launches_json() {
  static auto* text = new std::string;
  const std::lock_guard<std::recursive_mutex> lock(launch_mutex);
  *text = "{";
  for (const auto& [name, count] : counts())
    *text += (text->size() > 1 ? ", \"" : "\"") + name + "\": " + std::to_string(count);
  *text += "}";
  return text->c_str();
}

void dice_launches_reset() {
  const std::lock_guard<std::recursive_mutex> lock(launch_mutex);
  counts().clear();
  last_launch_error[0] = '\0';
}

const char* dice_last_launch_error() { return last_launch_error; }
}
