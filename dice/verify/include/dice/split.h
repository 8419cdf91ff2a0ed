// For host code that the host compiler compiles alone: kernels are stubs (see dice/verify/build/split_source.py), and what
// nvcc would have declared is declared here.
#pragma once
#include <cuda_runtime.h>

#undef __global__
#define __global__ __attribute__((noipa))
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __maxnreg__
#define __maxnreg__(...)
#undef __cluster_dims__
#define __cluster_dims__(...)
#undef __grid_constant__
#define __grid_constant__

extern "C" unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared = 0, cudaStream_t stream = nullptr);

// What the headers for asynchronous copies call in device functions.
unsigned __isGlobal(const void* address);
unsigned __isShared(const void* address);
void __trap();

namespace cooperative_groups {}
namespace nvcuda {
namespace wmma {}
}  // namespace nvcuda

namespace dice_split {
// Called by the stub of a kernel, whose address is then kept in `kernel`: launches it as <<<...>>> was configured.
void launch(const void*& kernel, void** arguments);
}  // namespace dice_split

// The C++ forms of runtime functions that cuda_runtime.h has for nvcc only.
template <class... Params> cudaError_t cudaFuncSetAttribute(void (*kernel)(Params...), cudaFuncAttribute attribute, int value) {
  return ::cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
template <class... Params> cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void (*kernel)(Params...)) {
  return ::cudaFuncGetAttributes(attributes, reinterpret_cast<const void*>(kernel));
}
template <class... Params> cudaError_t cudaFuncSetCacheConfig(void (*kernel)(Params...), cudaFuncCache config) {
  return ::cudaFuncSetCacheConfig(reinterpret_cast<const void*>(kernel), config);
}
template <class Symbol>
cudaError_t cudaMemcpyToSymbol(const Symbol& symbol, const void* source, size_t count, size_t offset = 0, cudaMemcpyKind kind = cudaMemcpyHostToDevice) {
  return ::cudaMemcpyToSymbol(reinterpret_cast<const void*>(&symbol), source, count, offset, kind);
}
template <class Symbol>
cudaError_t cudaMemcpyToSymbolAsync(const Symbol& symbol, const void* source, size_t count, size_t offset = 0, cudaMemcpyKind kind = cudaMemcpyHostToDevice, cudaStream_t stream = nullptr) {
  return ::cudaMemcpyToSymbolAsync(reinterpret_cast<const void*>(&symbol), source, count, offset, kind, stream);
}
template <class Symbol>
cudaError_t cudaMemcpyFromSymbol(void* target, const Symbol& symbol, size_t count, size_t offset = 0, cudaMemcpyKind kind = cudaMemcpyDeviceToHost) {
  return ::cudaMemcpyFromSymbol(target, reinterpret_cast<const void*>(&symbol), count, offset, kind);
}
template <class Symbol>
cudaError_t cudaMemcpyFromSymbolAsync(void* target, const Symbol& symbol, size_t count, size_t offset = 0, cudaMemcpyKind kind = cudaMemcpyDeviceToHost, cudaStream_t stream = nullptr) {
  return ::cudaMemcpyFromSymbolAsync(target, reinterpret_cast<const void*>(&symbol), count, offset, kind, stream);
}
template <class Symbol> cudaError_t cudaGetSymbolAddress(void** pointer, const Symbol& symbol) {
  return ::cudaGetSymbolAddress(pointer, reinterpret_cast<const void*>(&symbol));
}
template <class Symbol> cudaError_t cudaGetSymbolSize(size_t* size, const Symbol& symbol) {
  return ::cudaGetSymbolSize(size, reinterpret_cast<const void*>(&symbol));
}
