// Foundations of the shadow headers: the standard library that PyTorch's headers bring along, and the
// functions of PyTorch's stable C interface that we use. No header of PyTorch, pybind11 or Python is read.
#pragma once
#include <dice/few_maths.h>

#if __cplusplus < 201703L
#error "C++17 or later compatible compiler is required to use ATen."
#endif

#if defined(__CUDACC__) || defined(DICE_EMULATED_CUDA)
#define DICE_HAS_CUDA 1
#include <cuda_runtime.h>
#endif
#if defined(DICE_EMULATED)
#include <cstddef>
// In emulation, whether this thread runs host code, which may not touch the GPU's memory; what held before. Null in a
// process without the emulator's runtime.
extern "C" __attribute__((weak)) bool dice_host_code(bool on);
// Wherever a tensor's memory is, it stands for the GPU's.
extern "C" __attribute__((weak)) void dice_note_tensor(const void* data, size_t bytes);
#endif
// nvcc reads a source twice. In its pass for the device, host functions are only checked and never run, so there most
// of these headers is declarations.
#if defined(__CUDA_ARCH__) && !defined(DICE_EMULATED)
#define DICE_DEVICE_PASS 1
#endif
// A body that all extensions share: compiled in support.cpp alone, and only declared elsewhere. As inline functions they
// would cost every build a quarter second: g++ instantiates whatever they use in each file, called or not, and also
// where the header is precompiled. MEMBER: a whole definition, of what its class declares.
#if defined(DICE_SUPPORT)
#define DICE_SHARED(...) __VA_ARGS__
#define DICE_MEMBER(...) __VA_ARGS__
#else
#define DICE_SHARED(...) ;
#define DICE_MEMBER(...)
#endif

#include <cfloat>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cassert>
#include <array>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

// PyTorch's headers also bring these along. They cost nvcc about a second, so the build asks for them only
// when the source names something that needs them.
#if !defined(DICE_FEW_STD_HEADERS)
#include <algorithm>
#include <atomic>
#include <bitset>
#include <chrono>
#include <complex>
#include <deque>
#include <functional>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <list>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <sstream>
#include <thread>
#include <typeindex>
#include <unordered_map>
#include <unordered_set>
#include <variant>
#endif
// So are these, which are rarely named: a source that does is compiled a second time, without this macro.
#if !defined(DICE_QUICK_HEADERS)
#include <condition_variable>
#include <cxxabi.h>
#include <forward_list>
#include <queue>
#include <stack>
#include <valarray>
#if __cplusplus >= 202002L
#include <ranges>
#include <span>
#include <version>
#endif
#endif

#if defined(DICE_HAS_CUDA)
#define C10_HOST_DEVICE __host__ __device__
#define C10_DEVICE __device__
#define C10_HOST __host__
#else
#define C10_HOST_DEVICE
#define C10_DEVICE
#define C10_HOST
#endif
// As PyTorch has them for the newest GPUs: a block has at most 1024 threads, a multiprocessor 2048.
#define C10_MAX_THREADS_PER_BLOCK(threads) (((threads) <= 1024) ? (threads) : 256)
#define C10_MIN_BLOCKS_PER_SM(threads, blocks) ((((threads) * (blocks) <= 2048) ? (blocks) : ((2048 + (threads)-1) / (threads))))
#define C10_LAUNCH_BOUNDS_0 __launch_bounds__(256, 4)
#define C10_LAUNCH_BOUNDS_1(threads) __launch_bounds__(C10_MAX_THREADS_PER_BLOCK(threads))
#define C10_LAUNCH_BOUNDS_2(threads, blocks) __launch_bounds__(C10_MAX_THREADS_PER_BLOCK(threads), C10_MIN_BLOCKS_PER_SM(threads, blocks))
#define C10_ALWAYS_INLINE inline __attribute__((always_inline))
#define C10_UNUSED __attribute__((__unused__))
#define C10_NODISCARD [[nodiscard]]
#define C10_RESTRICT __restrict__
#define C10_LIKELY(expr) (__builtin_expect(static_cast<bool>(expr), 1))
#define C10_UNLIKELY(expr) (__builtin_expect(static_cast<bool>(expr), 0))
#define C10_EXPORT __attribute__((visibility("default")))
#define C10_API
#define TORCH_API
#define AT_RESTRICT C10_RESTRICT

#define C10_CONCATENATE_IMPL(s1, s2) s1##s2
#define C10_CONCATENATE(s1, s2) C10_CONCATENATE_IMPL(s1, s2)
#define C10_STRINGIZE_IMPL(x) #x
#define C10_STRINGIZE(x) C10_STRINGIZE_IMPL(x)

// ---- PyTorch's stable C interface -------------------------------------------------------------------
struct AtenTensorOpaque;
using AtenTensorHandle = AtenTensorOpaque*;

extern "C" {
int32_t aoti_torch_delete_tensor_object(AtenTensorHandle tensor);
int32_t aoti_torch_new_tensor_handle(AtenTensorHandle source, AtenTensorHandle* result);
int32_t aoti_torch_get_data_ptr(AtenTensorHandle tensor, void** result);
int32_t aoti_torch_get_dim(AtenTensorHandle tensor, int64_t* result);
int32_t aoti_torch_get_numel(AtenTensorHandle tensor, int64_t* result);
int32_t aoti_torch_get_sizes(AtenTensorHandle tensor, int64_t** result);
int32_t aoti_torch_get_strides(AtenTensorHandle tensor, int64_t** result);
int32_t aoti_torch_get_dtype(AtenTensorHandle tensor, int32_t* result);
int32_t aoti_torch_get_device_type(AtenTensorHandle tensor, int32_t* result);
int32_t aoti_torch_get_device_index(AtenTensorHandle tensor, int32_t* result);
int32_t aoti_torch_get_layout(AtenTensorHandle tensor, int32_t* result);
int32_t aoti_torch_get_storage_offset(AtenTensorHandle tensor, int64_t* result);
int32_t aoti_torch_is_contiguous(AtenTensorHandle tensor, bool* result);
int32_t aoti_torch_is_defined(AtenTensorHandle tensor, bool* result);
int32_t aoti_torch_empty_strided(int64_t ndim, const int64_t* sizes, const int64_t* strides, int32_t dtype,
                                 int32_t device_type, int32_t device_index, AtenTensorHandle* result);
int32_t aoti_torch_create_tensor_from_blob(void* data, int64_t ndim, const int64_t* sizes, const int64_t* strides,
                                           int64_t storage_offset, int32_t dtype, int32_t device_type,
                                           int32_t device_index, AtenTensorHandle* result);
int32_t aoti_torch_zero_(AtenTensorHandle tensor);
bool aoti_torch_grad_mode_is_enabled();
void aoti_torch_grad_mode_set_enabled(bool enabled);
}
