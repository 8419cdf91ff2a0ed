// The CUDA runtime API's state: the last error, device memory, and the description of a device that is not there.
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "host.h"
#include "../include/dice_emu/host_api.h"
#include "runtime.h"
#include "streams.h"

extern "C" void* dice_heap_allocate(size_t bytes);
extern "C" bool dice_heap_free(void* data);
extern "C" void dice_heap_to_device(const void* data, bool shared);
extern "C" unsigned long long dice_host_bytes(int reset);
extern "C" void dice_set_reader(void (*reader)(void*, size_t));
extern "C" __attribute__((weak)) int PyGILState_Check();

namespace dice_emu {

static thread_local int last_error = cudaSuccess;

void set_last_error(int error) { last_error = error; }
bool without_data = false;

// Bytes that copies carried from the GPU to the host, and of memory that both sides may touch and the host did.
static std::atomic<unsigned long long> host_bytes{0};
void free_now(void* pointer) {
  if (pointer != nullptr) dice_heap_free(pointer);
}
void note_host_bytes(size_t bytes) { host_bytes.fetch_add(bytes, std::memory_order_relaxed); }

}  // namespace dice_emu

static cudaError_t fail(cudaError_t error) {
  dice_emu::set_last_error(error);
  return error;
}

// Where a copy goes is decided by its pointers, as a GPU with unified addresses does. Of a tensor on the host these do not
// tell, as its memory is of the same heap here, so one that is named a copy to the host is one: to name any other so is
// undefined.
static bool note_read(const void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  using dice_emu::is_device_memory;
  const bool read = kind == cudaMemcpyDeviceToHost || (!is_device_memory(to) && is_device_memory(from));
  if (read) dice_emu::note_host_bytes(bytes);
  return read;
}

// A copy while tensors have no memory: theirs is an offset at most, which no address is as small as. What should come
// to the host is counted: it would be a value of a tensor's.
static cudaError_t copied_nothing(const void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const auto on_host = [](const void* pointer) {
    return reinterpret_cast<uintptr_t>(pointer) >> 40 != 0 && !dice_emu::is_device_memory(pointer);
  };
  const bool named = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDefault;
  if (named || (on_host(to) && !on_host(from))) dice_emu::note_host_bytes(bytes);
  return cudaSuccess;
}

// Shown what little came to the host, and may put something else in its place (dice/verify/execution/host_reads.py). It is Python's, so
// a thread without Python's lock, which somebody who waits for it may hold, does not ask.
static void (*reader)(void*, size_t) = nullptr;
static void ask_reader(void* to, size_t bytes) {
  const bool little = reader != nullptr && bytes <= 128;
  if (little && PyGILState_Check != nullptr && PyGILState_Check() != 0) reader(to, bytes);
}
void dice_set_reader(void (*function)(void*, size_t)) { reader = function; }

unsigned long long dice_host_bytes(int reset) {
  return reset != 0 ? dice_emu::host_bytes.exchange(0) : dice_emu::host_bytes.load();
}

static double now_seconds() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

struct ErrorName {
  cudaError_t error;
  const char *name, *text;
};
static const ErrorName kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInvalidSymbol, "cudaErrorInvalidSymbol", "invalid device symbol"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorCooperativeLaunchTooLarge, "cudaErrorCooperativeLaunchTooLarge", "too many blocks in cooperative launch"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
};

constexpr int kMultiprocessors = 132;
constexpr size_t kMemory = size_t{81107} << 20;  // what an H100 of 80 GB says

long long clock64() { return static_cast<long long>(now_seconds() * 1e9); }
long long wall_clock64() { return clock64(); }

extern "C" {

cudaError_t cudaGetLastError() {
  const auto error = static_cast<cudaError_t>(dice_emu::last_error);
  dice_emu::last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError() { return static_cast<cudaError_t>(dice_emu::last_error); }

const char* cudaGetErrorString(cudaError_t error) {
  for (const ErrorName& entry : kErrors)
    if (entry.error == error) return entry.text;
  return "unrecognized error code";
}

const char* cudaGetErrorName(cudaError_t error) {
  for (const ErrorName& entry : kErrors)
    if (entry.error == error) return entry.name;
  return "unrecognized error code";
}

cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : fail(cudaErrorInvalidDevice); }
cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaDeviceSetLimit(cudaLimit limit, size_t value) {
  if (limit == cudaLimitMallocHeapSize) dice_emu::set_device_heap_size(value);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetLimit(size_t* value, cudaLimit limit) {
  *value = limit == cudaLimitMallocHeapSize ? dice_emu::device_heap_size() : 1024;
  return cudaSuccess;
}
cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) { return cudaSuccess; }
cudaError_t cudaDeviceSetSharedMemConfig(cudaSharedMemConfig) { return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) { return *least = 0, *greatest = 0, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }

// The name and the numbers of an H100, so that code which asks for them takes the path it would take there. Verdicts say
// elsewhere that they come from emulation.
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  if (device != 0) return fail(cudaErrorInvalidDevice);
  memset(p, 0, sizeof *p);
  strcpy(p->name, "NVIDIA H100 80GB HBM3");
  p->totalGlobalMem = kMemory;
  p->sharedMemPerBlock = dice_emu::kStaticSharedLimit;
  p->sharedMemPerBlockOptin = dice_emu::kDynamicSharedLimit;
  p->sharedMemPerMultiprocessor = 228 * 1024;
  p->reservedSharedMemPerBlock = 1024;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->warpSize = 32;
  p->memPitch = 2147483647;
  p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->totalConstMem = 65536;
  p->major = 9;
  p->textureAlignment = 512;
  p->multiProcessorCount = kMultiprocessors;
  p->cooperativeLaunch = 1;
  p->maxThreadsPerMultiProcessor = 2048;
  p->maxBlocksPerMultiProcessor = 32;
  p->canMapHostMemory = p->concurrentKernels = p->unifiedAddressing = p->managedMemory = 1;
  p->globalL1CacheSupported = p->localL1CacheSupported = p->streamPrioritiesSupported = 1;
  p->asyncEngineCount = 3;
  p->memoryBusWidth = 5120;
  p->l2CacheSize = 50 << 20;
  p->persistingL2CacheMaxSize = 32768000;
  p->ECCEnabled = 1;
  p->pciBusID = 0x1b;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp p;
  const cudaError_t error = cudaGetDeviceProperties(&p, device);
  if (error != cudaSuccess) return error;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
    case cudaDevAttrMaxBlockDimX: *value = p.maxThreadsDim[0]; break;
    case cudaDevAttrMaxBlockDimY: *value = p.maxThreadsDim[1]; break;
    case cudaDevAttrMaxBlockDimZ: *value = p.maxThreadsDim[2]; break;
    case cudaDevAttrMaxGridDimX: *value = p.maxGridSize[0]; break;
    case cudaDevAttrMaxGridDimY: *value = p.maxGridSize[1]; break;
    case cudaDevAttrMaxGridDimZ: *value = p.maxGridSize[2]; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = static_cast<int>(p.sharedMemPerBlock); break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = static_cast<int>(p.sharedMemPerBlockOptin); break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = static_cast<int>(p.sharedMemPerMultiprocessor); break;
    case cudaDevAttrTotalConstantMemory: *value = static_cast<int>(p.totalConstMem); break;
    case cudaDevAttrWarpSize: *value = p.warpSize; break;
    case cudaDevAttrMaxRegistersPerBlock: *value = p.regsPerBlock; break;
    case cudaDevAttrMaxRegistersPerMultiprocessor: *value = p.regsPerMultiprocessor; break;
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *value = p.maxBlocksPerMultiProcessor; break;
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
    case cudaDevAttrClockRate: *value = 1980000; break;
    case cudaDevAttrMemoryClockRate: *value = 2619000; break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = p.memoryBusWidth; break;
    case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; break;
    case cudaDevAttrCooperativeLaunch: *value = p.cooperativeLaunch; break;
    default: return fail(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

static cudaError_t allocate(void** pointer, size_t bytes, bool shared) {
  if (pointer == nullptr) return fail(cudaErrorInvalidValue);
  *pointer = bytes == 0 ? nullptr : dice_heap_allocate(bytes);
  if (*pointer == nullptr && bytes != 0) return fail(cudaErrorMemoryAllocation);
  if (bytes != 0) dice_heap_to_device(*pointer, shared);
  return cudaSuccess;
}

// Memory that is not taken in a stream's order is taken and given back when all of the GPU's work is done.
cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  dice_emu::finish_all();
  return allocate(pointer, bytes, false);
}
cudaError_t dice_stream_memory(void** pointer, size_t bytes) { return allocate(pointer, bytes, false); }
cudaError_t dice_shared_memory(void** pointer, size_t bytes) { return allocate(pointer, bytes, true); }

cudaError_t cudaFree(void* pointer) {
  if (pointer != nullptr) dice_emu::finish_all();
  return pointer == nullptr || dice_heap_free(pointer) ? cudaSuccess : fail(cudaErrorInvalidValue);
}

cudaError_t cudaMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height) {
  *pitch = (width + 511) / 512 * 512;
  return cudaMalloc(pointer, *pitch * height);
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return fail(cudaErrorInvalidMemcpyDirection);
  if (dice_emu::without_data) return copied_nothing(to, from, bytes, kind);
  if (bytes != 0 && (to == nullptr || from == nullptr)) return fail(cudaErrorInvalidValue);
  dice_emu::turn_to_default_stream();
  {
    const dice_emu::OnDevice scope;
    memmove(to, from, bytes);
  }
  if (note_read(to, from, bytes, kind)) ask_reader(to, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                         cudaMemcpyKind kind) {
  if (width > to_pitch || width > from_pitch) return fail(cudaErrorInvalidValue);
  if (dice_emu::without_data) return copied_nothing(to, from, width * height, kind);
  dice_emu::turn_to_default_stream();
  const dice_emu::OnDevice scope;
  note_read(to, from, width * height, kind);
  for (size_t row = 0; row < height; ++row)
    memmove(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
  return cudaSuccess;
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  if (dice_emu::without_data) return cudaSuccess;
  if (bytes != 0 && to == nullptr) return fail(cudaErrorInvalidValue);
  dice_emu::turn_to_default_stream();
  const dice_emu::OnDevice scope;
  memset(to, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  *total_bytes = kMemory;
  *free_bytes = kMemory - (size_t{1} << 29);
  return cudaSuccess;
}

cudaError_t dice_grant_shared(const void* function, int bytes) {
  if (bytes < 0 || static_cast<size_t>(bytes) > dice_emu::kDynamicSharedLimit) return fail(cudaErrorInvalidValue);
  dice_emu::Kernel* kernel = dice_emu::kernel_of(function);
  if (kernel == nullptr) return fail(cudaErrorInvalidDeviceFunction);
  kernel->max_dynamic_shared = static_cast<unsigned>(bytes);
  return cudaSuccess;
}

cudaError_t dice_function_attributes(cudaFuncAttributes* attributes, const void* function) {
  dice_emu::Kernel* kernel = dice_emu::kernel_of(function);
  if (kernel == nullptr) return fail(cudaErrorInvalidDeviceFunction);
  *attributes = {};
  attributes->maxThreadsPerBlock = kernel->most_threads != 0 ? static_cast<int>(kernel->most_threads) : 1024;
  attributes->numRegs = 32;
  attributes->ptxVersion = attributes->binaryVersion = 90;
  attributes->maxDynamicSharedSizeBytes =
      static_cast<int>(kernel->max_dynamic_shared != 0 ? kernel->max_dynamic_shared : dice_emu::kStaticSharedLimit);
  return cudaSuccess;
}

cudaError_t dice_occupancy(int* blocks, int block_size, size_t shared_bytes) {
  if (block_size <= 0) return fail(cudaErrorInvalidValue);
  int count = block_size > 1024 ? 0 : 2048 / ((block_size + 31) / 32 * 32);
  if (count > 32) count = 32;
  while (count > 0 && static_cast<size_t>(count) * (shared_bytes + 1024) > 228 * 1024) --count;
  *blocks = count;
  return cudaSuccess;
}
}

uint64_t dice_emu::resident_blocks(unsigned threads, size_t shared_bytes) {
  int blocks = 0;
  dice_occupancy(&blocks, static_cast<int>(threads), shared_bytes);
  return static_cast<uint64_t>(blocks) * kMultiprocessors;
}
