// Work on streams of one's own: waited for in every way that CUDA has, and not at all.
#include <cuda_runtime.h>

__global__ void add(const float* x, float* y, float value, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] + value;
}

static cudaStream_t side() {
  cudaStream_t stream;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  return stream;
}
static void add_on(cudaStream_t stream, const float* x, float* y, float value) { add<<<1, 64, 0, stream>>>(x, y, value, 64); }

extern "C" {
void h_nobody(const float* x, float* y) {
  cudaStream_t stream = side();
  add_on(stream, x, y, 1);
  cudaStreamSynchronize(nullptr);  // which is another stream
  cudaStreamDestroy(stream);       // does not wait
}
void h_default(const float* x, float* y) { add_on(nullptr, x, y, 1); }
void h_per_thread(const float* x, float* y) { add_on(cudaStreamPerThread, x, y, 1); }
void h_blocking(const float* x, float* y) {  // what is next on the default stream waits for it
  cudaStream_t stream;
  cudaStreamCreate(&stream);
  add_on(stream, x, y, 1);
}
void h_stream(const float* x, float* y) {
  cudaStream_t stream = side();
  add_on(stream, x, y, 1);
  cudaStreamSynchronize(stream);
  cudaStreamDestroy(stream);
}
void h_device(const float* x, float* y) {
  add_on(side(), x, y, 1);
  cudaDeviceSynchronize();
}
void h_query(const float* x, float* y) {
  cudaStream_t stream = side();
  add_on(stream, x, y, 1);
  while (cudaStreamQuery(stream) == cudaErrorNotReady) {}
}
void h_free(const float* x, float* y) {
  void* scratch;
  cudaMalloc(&scratch, 64);
  add_on(side(), x, y, 1);
  cudaFree(scratch);
}
void h_event(const float* x, float* y) {
  cudaStream_t stream = side();
  cudaEvent_t event;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  add_on(stream, x, y, 1);
  cudaEventRecord(event, stream);
  cudaStreamWaitEvent(nullptr, event, 0);
  cudaEventDestroy(event);
}
void h_event_query(const float* x, float* y) {
  cudaStream_t stream = side();
  cudaEvent_t event;
  cudaEventCreate(&event);
  add_on(stream, x, y, 1);
  cudaEventRecord(event, stream);
  while (cudaEventQuery(event) != cudaSuccess) {}
}
// Two side streams: the second goes on with what the first has made, and the event is gone before it does.
void h_chain(const float* x, float* y) {
  cudaStream_t one = side(), other = side();
  float* between;
  cudaMallocAsync(&between, 64 * sizeof(float), one);
  cudaEvent_t event;
  cudaEventCreate(&event);
  add_on(one, x, between, 3);
  cudaEventRecord(event, one);
  cudaStreamWaitEvent(other, event, 0);
  add_on(other, between, y, -2);
  cudaFreeAsync(between, other);
  cudaEventDestroy(event);
  cudaStreamDestroy(one);
  cudaStreamSynchronize(other);
}
// An event is about what came before it: what comes after is not waited for.
void h_behind_the_event(const float* x, float* y) {
  cudaStream_t stream = side();
  cudaEvent_t event;
  cudaEventCreate(&event);
  add_on(stream, x, y, 1);
  cudaEventRecord(event, stream);
  add_on(stream, x, y, 2);
  cudaEventSynchronize(event);
}
// A table of the host's own is copied before it goes away; what comes to the host is there on return.
void h_copies(const float* x, float* y) {
  cudaStream_t stream = side();
  float *there, host[64];
  cudaMallocAsync(&there, 2 * sizeof host, stream);
  cudaMemsetAsync(there, 0, 2 * sizeof host, stream);
  {
    float ones[64];
    for (float& one : ones) one = 1;
    cudaMemcpyAsync(there, ones, sizeof ones, cudaMemcpyHostToDevice, stream);
    for (float& one : ones) one = 7;
  }
  cudaMemcpyAsync(there + 64, there, sizeof host, cudaMemcpyDeviceToDevice, stream);
  cudaMemcpyAsync(host, there + 64, sizeof host, cudaMemcpyDeviceToHost, stream);
  for (int i = 0; i < 64; ++i) y[i] = x[i] + host[i];
  cudaFreeAsync(there, stream);
}

// ---- two streams, of which the second reads what the first writes --------------------------------------------------

static cudaStream_t blocking() {
  cudaStream_t stream;
  cudaStreamCreate(&stream);
  return stream;
}
static void in_two(const float* x, float* y, cudaStream_t first, cudaStream_t second, bool joined, bool second_waits) {
  float* between;
  cudaMalloc(&between, 64 * sizeof(float));
  cudaMemset(between, 0, 64 * sizeof(float));
  cudaEvent_t event;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  add_on(first, x, between, 1);
  cudaEventRecord(event, first);
  if (joined) cudaStreamWaitEvent(second, event, 0);
  add_on(second, between, y, 1);
  if (second_waits) {
    cudaStreamSynchronize(first);
    cudaStreamSynchronize(second);
  } else {
    cudaDeviceSynchronize();
  }
  cudaFree(between);
}
void h_two_unjoined(const float* x, float* y) { in_two(x, y, side(), side(), false, true); }
void h_two_unjoined_and_device(const float* x, float* y) { in_two(x, y, side(), side(), false, false); }
void h_two_blocking_unjoined(const float* x, float* y) { in_two(x, y, blocking(), blocking(), false, false); }
void h_two_joined(const float* x, float* y) { in_two(x, y, side(), side(), true, true); }
void h_two_blocking_joined(const float* x, float* y) { in_two(x, y, blocking(), blocking(), true, false); }
void h_default_then_blocking(const float* x, float* y) { in_two(x, y, nullptr, blocking(), false, false); }
void h_blocking_then_default(const float* x, float* y) { in_two(x, y, blocking(), nullptr, false, false); }
void h_default_then_blocking_beside_another(const float* x, float* y) {
  side();
  in_two(x, y, nullptr, blocking(), false, false);
}
void h_blocking_then_default_beside_another(const float* x, float* y) {
  side();
  in_two(x, y, blocking(), nullptr, false, false);
}
// The default stream's work, for which a side stream waits by an event that was recorded before it, or after.
static void handed_over(const float* x, float* y, bool early) {
  cudaStream_t stream = side();
  float* between;
  cudaMalloc(&between, 64 * sizeof(float));
  cudaMemset(between, 0, 64 * sizeof(float));
  cudaEvent_t ready, done;
  cudaEventCreateWithFlags(&ready, cudaEventDisableTiming);
  cudaEventCreateWithFlags(&done, cudaEventDisableTiming);
  if (early) cudaEventRecord(ready, nullptr);
  add_on(nullptr, x, between, 1);
  if (!early) cudaEventRecord(ready, nullptr);
  cudaStreamWaitEvent(stream, ready, 0);
  add_on(stream, between, y, 1);
  cudaEventRecord(done, stream);
  cudaStreamWaitEvent(nullptr, done, 0);
  cudaStreamDestroy(stream);
  cudaStreamSynchronize(nullptr);
  cudaFree(between);
}
void h_event_too_early(const float* x, float* y) { handed_over(x, y, true); }
void h_event_in_time(const float* x, float* y) { handed_over(x, y, false); }
void h_three_in_a_chain(const float* x, float* y) {
  cudaStream_t streams[3] = {side(), blocking(), side()};
  float* places;
  cudaMalloc(&places, 128 * sizeof(float));
  cudaMemset(places, 0, 128 * sizeof(float));
  const float* from = x;
  for (int i = 0; i < 3; ++i) {
    float* to = i == 2 ? y : places + i * 64;
    add_on(streams[i], from, to, i == 2 ? 0 : 1);
    cudaEvent_t event;
    cudaEventCreate(&event);
    cudaEventRecord(event, streams[i]);
    cudaStreamWaitEvent(streams[(i + 1) % 3], event, 0);
    from = to;
  }
  cudaStreamSynchronize(streams[2]);
  cudaFree(places);
}
}

// ---- copies of memory that is pinned, which go on beside the host's code ---------------------------------------------

extern "C" {
static void brought(const float* x, float* y, cudaStream_t stream, bool waits) {
  float *there, *host;
  cudaMalloc(&there, 64 * sizeof(float));
  cudaMallocHost(&host, 64 * sizeof(float));
  memset(host, 0, 64 * sizeof(float));
  add_on(stream, x, there, 1);
  cudaMemcpyAsync(host, there, 64 * sizeof(float), cudaMemcpyDeviceToHost, stream);
  if (waits) cudaStreamSynchronize(stream);
  memcpy(y, host, 64 * sizeof(float));
  cudaDeviceSynchronize();
  cudaFreeHost(host);
  cudaFree(there);
}
static void sent(const float* x, float* y, cudaStream_t stream, bool waits) {
  float *there, *host;
  cudaMalloc(&there, 64 * sizeof(float));
  cudaMallocHost(&host, 64 * sizeof(float));
  memcpy(host, x, 64 * sizeof(float));
  cudaMemcpyAsync(there, host, 64 * sizeof(float), cudaMemcpyHostToDevice, stream);
  if (waits) cudaStreamSynchronize(stream);
  memset(host, 0, 64 * sizeof(float));
  add_on(stream, there, y, 1);
  cudaDeviceSynchronize();
  cudaFreeHost(host);
  cudaFree(there);
}
void h_brought_too_early(const float* x, float* y) { brought(x, y, nullptr, false); }
void h_brought(const float* x, float* y) { brought(x, y, nullptr, true); }
void h_brought_by_a_stream(const float* x, float* y) { brought(x, y, side(), true); }
void h_sent_and_overwritten(const float* x, float* y) { sent(x, y, nullptr, false); }
void h_sent(const float* x, float* y) { sent(x, y, nullptr, true); }
void h_sent_by_a_stream(const float* x, float* y) { sent(x, y, side(), true); }
}
