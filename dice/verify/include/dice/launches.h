// Counts the launches of this library's own `__global__` functions, and leaves them out while muted; and the bytes that it
// carries to the host itself. The linker's --wrap sends its calls here; each is counted and goes on to CUDA. Nothing is
// synchronised, but for small copies to the host while a reader is set.
#pragma once
#include <cuda_runtime.h>

#include <atomic>
#include <string>

namespace dice_launches {

struct Entry {
  const void* host;       // the host stub that stands for the kernel
  const void* handle;     // the same kernel's cudaKernel_t, once known
  const char* name;       // mangled
  std::atomic<unsigned long long> count;
};
constexpr int most = 1024;
inline Entry entries[most];
inline std::atomic<int> used{0};

inline Entry* find(const void* key) {
  const int count = used.load(std::memory_order_acquire);
  for (int i = 0; i < count; ++i) {
    if (entries[i].host == key || entries[i].handle == key) return &entries[i];
  }
  return nullptr;
}
inline std::atomic<bool> muted{false};
inline std::atomic<bool> without_data{false};  // tensors have no memory: nothing is launched, and nothing is copied
template <class Launch> cudaError_t counted(const void* key, Launch launch) {
  const cudaError_t status = muted ? cudaSuccess : launch();
  Entry* entry = status == cudaSuccess ? find(key) : nullptr;
  if (entry != nullptr) entry->count.fetch_add(1, std::memory_order_relaxed);
  return status;
}

}  // namespace dice_launches

#define DICE_EXPORT extern "C" __attribute__((visibility("default")))

DICE_EXPORT void __real___cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*, dim3*, int*);
DICE_EXPORT void __wrap___cudaRegisterFunction(void** module, const char* host, char* device, const char* name, int limit,
                                               uint3* thread, uint3* block, dim3* block_dim, dim3* grid_dim, int* warp) {
  const int index = dice_launches::used.load();
  if (index < dice_launches::most) {
    dice_launches::entries[index].host = host;
    dice_launches::entries[index].name = name;
    dice_launches::used.store(index + 1, std::memory_order_release);
  }
  __real___cudaRegisterFunction(module, host, device, name, limit, thread, block, block_dim, grid_dim, warp);
}

DICE_EXPORT cudaError_t __real_cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t);
DICE_EXPORT cudaError_t __wrap_cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** args, size_t shared, cudaStream_t stream) {
  return dice_launches::counted(kernel, [&] { return __real_cudaLaunchKernel(kernel, grid, block, args, shared, stream); });
}
DICE_EXPORT cudaError_t __real_cudaLaunchCooperativeKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t);
DICE_EXPORT cudaError_t __wrap_cudaLaunchCooperativeKernel(const void* kernel, dim3 grid, dim3 block, void** args, size_t shared, cudaStream_t stream) {
  return dice_launches::counted(kernel, [&] { return __real_cudaLaunchCooperativeKernel(kernel, grid, block, args, shared, stream); });
}
#if CUDART_VERSION >= 11080
DICE_EXPORT cudaError_t __real_cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void*, void**);
DICE_EXPORT cudaError_t __wrap_cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** args) {
  return dice_launches::counted(kernel, [&] { return __real_cudaLaunchKernelExC(config, kernel, args); });
}
#endif
#if CUDART_VERSION >= 12080
// From here on, <<<...>>> resolves its stub to a cudaKernel_t once and launches that.
DICE_EXPORT cudaError_t __real___cudaGetKernel(cudaKernel_t*, const void*);
DICE_EXPORT cudaError_t __wrap___cudaGetKernel(cudaKernel_t* kernel, const void* host) {
  const cudaError_t status = __real___cudaGetKernel(kernel, host);
  dice_launches::Entry* entry = status == cudaSuccess ? dice_launches::find(host) : nullptr;
  if (entry != nullptr) entry->handle = *kernel;
  return status;
}
DICE_EXPORT cudaError_t __real___cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t);
DICE_EXPORT cudaError_t __wrap___cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** args, size_t shared, cudaStream_t stream) {
  return dice_launches::counted(kernel, [&] { return __real___cudaLaunchKernel(kernel, grid, block, args, shared, stream); });
}
#endif

extern "C" __attribute__((weak)) int PyGILState_Check();

// ---- what is copied to the host ---------------------------------------------------------------------------------------
namespace dice_launches {

inline std::atomic<unsigned long long> host_bytes{0};
inline bool on_device(const void* pointer) {
  cudaPointerAttributes about{};
  const bool known = cudaPointerGetAttributes(&about, pointer) == cudaSuccess;
  if (!known) cudaGetLastError();  // which is the candidate's to see otherwise
  return known && about.type == cudaMemoryTypeDevice;
}
// Where a copy goes is decided by its pointers, as the driver does with unified addresses, whatever its kind says.
inline bool note_read(const void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const bool read = !on_device(to) && (kind == cudaMemcpyDeviceToHost || on_device(from));
  if (read) host_bytes += bytes;
  return read;
}
inline bool note_symbol(const void* to, size_t bytes) {
  const bool read = !on_device(to);
  if (read) host_bytes += bytes;
  return read;
}
// A copy while tensors have no memory: theirs is an offset at most, which no address is as small as. What should come
// to the host is counted: it would be a value of a tensor's.
inline cudaError_t copied_nothing(const void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const auto looks_real = [](const void* pointer) { return reinterpret_cast<unsigned long long>(pointer) >> 40 != 0; };
  const bool named = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDefault;
  // The driver is asked last: it makes a context for the answer.
  if (named || (looks_real(to) && (!looks_real(from) || on_device(from)) && !on_device(to))) host_bytes += bytes;
  return cudaSuccess;
}

// Shown what little came to the host, and may put something else in its place (dice/verify/execution/host_reads.py). It is Python's, so
// a thread without Python's lock, which somebody who waits for it may hold, does not ask.
inline void (*reader)(void*, size_t) = nullptr;
inline bool asks(cudaError_t status, bool read, size_t bytes) {
  const bool little = read && status == cudaSuccess && bytes <= 128;
  return little && reader != nullptr && PyGILState_Check != nullptr && PyGILState_Check() != 0;
}
struct Ended {};  // in place of a stream: the copy has ended
inline cudaError_t answered(cudaError_t status, bool read, void* to, size_t bytes, Ended) {
  if (asks(status, read, bytes)) reader(to, bytes);
  return status;
}
inline cudaError_t answered(cudaError_t status, bool read, void* to, size_t bytes, cudaStream_t stream) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  if (!asks(status, read, bytes) || cudaStreamIsCapturing(stream, &capture) != cudaSuccess) return status;
  if (capture == cudaStreamCaptureStatusNone && cudaStreamSynchronize(stream) == cudaSuccess) reader(to, bytes);
  return status;
}

}  // namespace dice_launches

#define DICE_ANSWERED(name, parameters, arguments, tell, stream)                            \
  DICE_EXPORT cudaError_t __real_##name parameters;                                         \
  DICE_EXPORT cudaError_t __wrap_##name parameters {                                        \
    if (dice_launches::without_data) return dice_launches::copied_nothing(to, from, bytes, kind); \
    const bool read = dice_launches::tell;                                                  \
    return dice_launches::answered(__real_##name arguments, read, to, bytes, stream);       \
  }
#define DICE_TOLD(name, parameters, arguments, tell)                                              \
  DICE_EXPORT cudaError_t __real_##name parameters;                                               \
  DICE_EXPORT cudaError_t __wrap_##name parameters {                                              \
    if (dice_launches::without_data) return dice_launches::copied_nothing(to, from, width * height, kind); \
    dice_launches::tell;                              \
    return __real_##name arguments;                   \
  }
DICE_ANSWERED(cudaMemcpy, (void* to, const void* from, size_t bytes, cudaMemcpyKind kind), (to, from, bytes, kind), note_read(to, from, bytes, kind),
              dice_launches::Ended{})
DICE_ANSWERED(cudaMemcpyAsync, (void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream), (to, from, bytes, kind, stream),
              note_read(to, from, bytes, kind), stream)
DICE_TOLD(cudaMemcpy2D, (void* to, size_t to_pitch, const void* from, size_t pitch, size_t width, size_t height, cudaMemcpyKind kind),
          (to, to_pitch, from, pitch, width, height, kind), note_read(to, from, width * height, kind))
DICE_TOLD(cudaMemcpy2DAsync, (void* to, size_t to_pitch, const void* from, size_t pitch, size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t stream),
          (to, to_pitch, from, pitch, width, height, kind, stream), note_read(to, from, width * height, kind))
DICE_ANSWERED(cudaMemcpyFromSymbol, (void* to, const void* from, size_t bytes, size_t offset, cudaMemcpyKind kind), (to, from, bytes, offset, kind),
              note_symbol(to, bytes), dice_launches::Ended{})
DICE_ANSWERED(cudaMemcpyFromSymbolAsync, (void* to, const void* from, size_t bytes, size_t offset, cudaMemcpyKind kind, cudaStream_t stream),
              (to, from, bytes, offset, kind, stream), note_symbol(to, bytes), stream)
#undef DICE_TOLD
#undef DICE_ANSWERED
#define DICE_SET(name, parameters, arguments)                        \
  DICE_EXPORT cudaError_t __real_##name parameters;                  \
  DICE_EXPORT cudaError_t __wrap_##name parameters {                 \
    if (dice_launches::without_data) return cudaSuccess;             \
    return __real_##name arguments;                                  \
  }
DICE_SET(cudaMemset, (void* to, int value, size_t bytes), (to, value, bytes))
DICE_SET(cudaMemsetAsync, (void* to, int value, size_t bytes, cudaStream_t stream), (to, value, bytes, stream))
DICE_SET(cudaMemset2D, (void* to, size_t pitch, int value, size_t width, size_t height), (to, pitch, value, width, height))
DICE_SET(cudaMemset2DAsync, (void* to, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream),
         (to, pitch, value, width, height, stream))
#undef DICE_SET

// While tensors have no memory, what host code asks of the device is answered here, so that no context is made for it:
// that takes a tenth of a second, in which no other process can make one. Host code runs once more where there is data.
namespace dice_launches {

// CUB chooses its kernels by the version that one of its own was compiled for: here always the device's. To ask for an
// attribute of the device makes no context.
inline cudaFuncAttributes attributes_of_any() {
  cudaFuncAttributes found{};
  int major = 0, minor = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
  found.ptxVersion = found.binaryVersion = 10 * major + minor;
  found.maxThreadsPerBlock = 1024;
  found.numRegs = 32;
  return found;
}

}  // namespace dice_launches

#define DICE_QUIET(name, parameters, arguments, answer)              \
  DICE_EXPORT cudaError_t __real_##name parameters;                  \
  DICE_EXPORT cudaError_t __wrap_##name parameters {                 \
    if (!dice_launches::without_data) return __real_##name arguments; \
    answer;                                                          \
    return cudaSuccess;                                              \
  }
DICE_QUIET(cudaGetLastError, (), (), )
DICE_QUIET(cudaPeekAtLastError, (), (), )
DICE_QUIET(cudaDeviceSynchronize, (), (), )
DICE_QUIET(cudaStreamSynchronize, (cudaStream_t stream), (stream), )
DICE_QUIET(cudaGetDevice, (int* device), (device), *device = 0)
DICE_QUIET(cudaSetDevice, (int device), (device), )
DICE_QUIET(cudaFuncSetAttribute, (const void* kernel, cudaFuncAttribute attribute, int value), (kernel, attribute, value), )
DICE_QUIET(cudaFuncSetCacheConfig, (const void* kernel, cudaFuncCache config), (kernel, config), )
DICE_QUIET(cudaFuncGetAttributes, (cudaFuncAttributes* attributes, const void* kernel), (attributes, kernel),
           *attributes = dice_launches::attributes_of_any())
DICE_QUIET(cudaOccupancyMaxActiveBlocksPerMultiprocessor, (int* blocks, const void* kernel, int threads, size_t shared),
           (blocks, kernel, threads, shared), *blocks = 1)
DICE_QUIET(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
           (int* blocks, const void* kernel, int threads, size_t shared, unsigned flags),
           (blocks, kernel, threads, shared, flags), *blocks = 1)
#undef DICE_QUIET
DICE_EXPORT void dice_set_reader(void (*reader)(void*, size_t)) { dice_launches::reader = reader; }
DICE_EXPORT unsigned long long dice_host_bytes(int reset) {
  return reset != 0 ? dice_launches::host_bytes.exchange(0) : dice_launches::host_bytes.load();
}

DICE_EXPORT const char* dice_launches_json() {
  static std::string text;
  text = "{";
  for (int i = 0; i < dice_launches::used.load(); ++i) {
    const unsigned long long count = dice_launches::entries[i].count.load();
    if (count == 0) continue;
    if (text.size() > 1) text += ",";
    text += std::string("\"") + dice_launches::entries[i].name + "\":" + std::to_string(count);
  }
  text += "}";
  return text.c_str();
}
// 1: launches are counted and do nothing; 2: nor do copies.
DICE_EXPORT bool dice_without_data() { return dice_launches::without_data; }
DICE_EXPORT void dice_set_muted(int how) {
  dice_launches::muted = how != 0;
  dice_launches::without_data = how == 2;
}
DICE_EXPORT void dice_launches_reset() {
  for (int i = 0; i < dice_launches::used.load(); ++i) dice_launches::entries[i].count.store(0);
}
