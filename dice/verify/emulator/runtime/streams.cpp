// Streams and events. Work on the default stream is done when it is enqueued: PyTorch, whose operators run on it, reads
// it without asking us. The default stream waits for streams that are not declared non-blocking: within host code of a
// library, of which we know when it turns to the default stream or to PyTorch, their work is kept until then; else it is
// done at once, too. See streams.h for the others. Where there are such others, and threads are isolated, the default
// stream's work within host code is kept as well, until PyTorch's turn comes: what is enqueued on it behind an event is
// not what others wait for with that event.
#include "streams.h"

#include <time.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "host.h"
#include "runtime.h"

struct CUstream_st {
  struct Work {
    uint64_t number;
    std::function<void()> run;
  };
  bool deferred;  // or done at once, for PyTorch runs on it
  bool blocking;  // the default stream waits for it
  uint64_t last;  // number of the work that was enqueued last
  std::deque<Work> queue;
};

struct CUevent_st {
  double seconds;
  std::shared_ptr<CUstream_st> stream;  // null: what was recorded is done
  uint64_t number;
};

namespace dice_emu {
namespace {

using Stream = std::shared_ptr<CUstream_st>;

// Never destroyed: destructors of candidates' static objects may still wait for their streams.
struct Streams {
  std::recursive_mutex mutex;
  std::map<cudaStream_t, Stream> open;
  std::vector<Stream> left;  // destroyed with work in their queues, which is done all the same
  uint64_t enqueued = 0;
  bool finishing = false;  // work of streams is being done, which may wait for that of others
};
Streams& streams() {
  static auto* all = new Streams;
  return *all;
}

cudaError_t create(cudaStream_t* stream, bool blocking) {
  if (stream == nullptr) return cudaErrorInvalidValue;
  const std::lock_guard<std::recursive_mutex> lock(streams().mutex);
  const auto made = std::make_shared<CUstream_st>();
  made->deferred = true;
  made->blocking = blocking;
  streams().open[made.get()] = made;
  *stream = made.get();
  return cudaSuccess;
}

// What the default stream does beside the host's code, or has still to do.
cudaStream_t beside_the_host() {
  static cudaStream_t stream = nullptr;
  if (stream == nullptr) create(&stream, true);
  return stream;
}

Stream of_default() { return streams().open.find(beside_the_host())->second; }

// Whether the default stream's work is kept, too, as streams that it does not wait for may overtake it.
bool keeps_default() {
  if (!is_host_code() || !runs_against_the_grain()) return false;
  for (const auto& [handle, stream] : streams().open)
    if (stream->deferred && !stream->blocking) return true;
  return false;
}

Stream find(cudaStream_t stream) {
  const auto found = streams().open.find(stream);
  if (found == streams().open.end() || !found->second->deferred) return keeps_default() ? of_default() : nullptr;
  const bool at_once = found->second->blocking && found->second->queue.empty() && !is_host_code();
  return at_once ? nullptr : found->second;
}

void run_first(CUstream_st& stream) {
  const std::function<void()> run = std::move(stream.queue.front().run);
  stream.queue.pop_front();
  run();
}

// Of those streams that have work: the one whose next was enqueued last, or first of all.
Stream next_of(const Stream& except, bool last, bool blocking = false) {
  Stream next;
  const auto look_at = [&](const Stream& stream) {
    if (stream->queue.empty() || stream == except || (blocking && !stream->blocking)) return;
    if (next == nullptr || (stream->queue.front().number < next->queue.front().number) != last) next = stream;
  };
  for (const auto& [handle, stream] : streams().open) look_at(stream);
  for (const Stream& stream : streams().left) look_at(stream);
  return next;
}

// Nothing orders two streams but events and who waits for them. In the order in which threads are isolated, all that other
// streams have to do comes before what is waited for; in the others, after it.
void finish(const Stream& stream, uint64_t number) {
  if (stream == nullptr) return;
  const bool before = streams().finishing;
  streams().finishing = true;
  while (const Stream other = runs_against_the_grain() && !before ? next_of(stream, true) : nullptr) run_first(*other);
  while (!stream->queue.empty() && stream->queue.front().number <= number) run_first(*stream);
  streams().finishing = before;
}

void finish_these(bool blocking) {
  Streams& all = streams();
  const bool before = all.finishing;
  all.finishing = true;
  while (const Stream next = next_of(nullptr, runs_against_the_grain(), blocking)) run_first(*next);
  all.finishing = before;
}

double now_seconds() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// Before more is enqueued on the stream, while the default one's work is kept: that and blocking streams wait for each other.
void keep_order(const Stream& stream) {
  if (!stream->blocking || !keeps_default()) return;
  const Stream of_host = of_default();
  for (const auto& [handle, other] : streams().open) {
    const bool waits = other->blocking && other != stream && (stream == of_host || other == of_host);
    if (waits && !other->queue.empty()) finish(other, UINT64_MAX);
  }
}

bool is_pinned(const void* pointer) {
  const Region* region = region_at(static_cast<const char*>(pointer));
  return region != nullptr && region->shared;
}

}  // namespace

bool is_deferred(cudaStream_t stream) {
  const std::lock_guard<std::recursive_mutex> lock(streams().mutex);
  return find(stream) != nullptr;
}

void enqueue(cudaStream_t stream, std::function<void()> work) {
  std::unique_lock<std::recursive_mutex> lock(streams().mutex);
  if (const Stream found = find(stream)) {
    keep_order(found);
    found->last = ++streams().enqueued;
    found->queue.push_back({found->last, std::move(work)});
    return;
  }
  lock.unlock();
  turn_to_default_stream();
  work();
}

// In the order in which it was enqueued, whatever the stream; or the other way round, as far as streams do not wait.
void finish_all() {
  Streams& all = streams();
  const std::lock_guard<std::recursive_mutex> lock(all.mutex);
  finish_these(false);
  all.left.clear();
}

void turn_to_default_stream() {
  const std::lock_guard<std::recursive_mutex> lock(streams().mutex);
  if (streams().finishing) return;
  if (const Stream own = of_default(); !own->queue.empty()) finish(own, UINT64_MAX);
  finish_these(true);
}

}  // namespace dice_emu

using namespace dice_emu;
using Lock = std::lock_guard<std::recursive_mutex>;

extern "C" {

void dice_finish() { finish_all(); }

cudaError_t cudaDeviceSynchronize() { return finish_all(), cudaSuccess; }
cudaError_t cudaDeviceReset() { return finish_all(), cudaSuccess; }

cudaError_t cudaStreamCreate(cudaStream_t* stream) { return create(stream, true); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return create(stream, (flags & cudaStreamNonBlocking) == 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Lock lock(streams().mutex);
  const auto found = streams().open.find(stream);
  if (found == streams().open.end()) return cudaErrorInvalidResourceHandle;
  if (!found->second->queue.empty()) streams().left.push_back(found->second);
  streams().open.erase(found);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const Lock lock(streams().mutex);
  const Stream found = find(stream);
  if (found == nullptr || found == of_default()) turn_to_default_stream();
  finish(found, UINT64_MAX);
  return cudaSuccess;
}
// Who asks often enough is told that it is done.
cudaError_t cudaStreamQuery(cudaStream_t stream) { return cudaStreamSynchronize(stream); }

// PyTorch's operators run on this stream from now on, and they do not ask what is in its queue.
void dice_stream_of_torch(cudaStream_t stream) {
  const Lock lock(streams().mutex);
  const Stream found = find(stream);
  finish(found, UINT64_MAX);
  if (found != of_default() && found != nullptr) found->deferred = false;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return *event = new CUevent_st{}, cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (!is_deferred(stream)) turn_to_default_stream();
  const Lock lock(streams().mutex);
  event->seconds = now_seconds();
  event->stream = find(stream);
  event->number = event->stream != nullptr ? event->stream->last : 0;
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Lock lock(streams().mutex);
  finish(event->stream, event->number);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) { return cudaEventSynchronize(event); }

// The event may be recorded anew or destroyed before the stream comes to wait for it.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const Lock lock(streams().mutex);
  enqueue(stream, [recorded = event->stream, number = event->number] { finish(recorded, number); });
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  *milliseconds = static_cast<float>((end->seconds - start->seconds) * 1e3);
  return cudaSuccess;
}

// What comes to the host is there when this returns, and what comes from it is taken now, unless that memory is pinned:
// then the copy waits in its stream like anything else. On the default one it does so in the order in which threads are
// isolated, until host code asks for something more.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  const bool beside = !without_data && to != nullptr && from != nullptr && (is_pinned(to) || is_pinned(from));
  if (beside && !is_deferred(stream) && is_host_code() && runs_against_the_grain()) stream = beside_the_host();
  if (beside && is_deferred(stream)) {
    enqueue(stream, [=] { cudaMemcpy(to, from, bytes, kind); });
    return cudaSuccess;
  }
  if (!is_deferred(stream) || without_data) return cudaMemcpy(to, from, bytes, kind);
  const auto on_device = [](const void* pointer) { return region_at(static_cast<const char*>(pointer)) != nullptr; };
  const bool known = kind != cudaMemcpyDefault;
  if (known ? kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyHostToHost : !on_device(to)) {
    cudaStreamSynchronize(stream);
    return cudaMemcpy(to, from, bytes, kind);
  }
  if (to == nullptr || from == nullptr) return cudaMemcpy(to, from, bytes, kind);
  if (known ? kind == cudaMemcpyDeviceToDevice : on_device(from)) {
    enqueue(stream, [=] { cudaMemcpy(to, from, bytes, kind); });
  } else {
    const auto* first = static_cast<const char*>(from);
    enqueue(stream, [=, taken = std::vector<char>(first, first + bytes)] { cudaMemcpy(to, taken.data(), bytes, kind); });
  }
  return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream) {
  if (without_data || width > to_pitch || width > from_pitch) return cudaMemcpy2D(to, to_pitch, from, from_pitch, width, height, kind);
  cudaError_t error = cudaSuccess;
  for (size_t row = 0; row < height && error == cudaSuccess; ++row)
    error = cudaMemcpyAsync(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width, kind, stream);
  return error;
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  if (!is_deferred(stream) || without_data || to == nullptr) return cudaMemset(to, value, bytes);
  enqueue(stream, [=] { cudaMemset(to, value, bytes); });
  return cudaSuccess;
}

cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  enqueue(stream, [=] { free_now(pointer); });
  return cudaSuccess;
}
}
