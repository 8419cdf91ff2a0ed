// What every library of the split build contains: registers its device code with the CUDA runtime just as nvcc's
// generated code does, and launches kernels for their stubs. Compiled once for each toolchain.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include <cuda_runtime.h>
#include <dice/launches.h>

namespace dice_split {

struct Kernel {
  const void* stub;
  const char* name;
};
struct Variable {
  void* host;
  const char* name;
  size_t size;
  size_t is_constant;
};

}  // namespace dice_split

// Written for each library by dice/verify/build/object_files.py; both tables end with a null entry.
extern "C" {
extern const unsigned char dice_fatbin[];
extern dice_split::Kernel dice_kernels[];
extern dice_split::Variable dice_variables[];

unsigned __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*);
void** __cudaRegisterFatBinary(void*);
void __cudaRegisterFatBinaryEnd(void**);
void __cudaUnregisterFatBinary(void**);
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*, dim3*, int*);
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int);
}

namespace dice_split {
namespace {

struct Wrapper {
  int magic = 0x466243b1, version = 1;
  const void* data = dice_fatbin;
  void* unused = nullptr;
} wrapper;
void** module = nullptr;
size_t count = 0;

__attribute__((constructor)) void register_all() {
  module = __cudaRegisterFatBinary(&wrapper);
  while (dice_kernels[count].stub != nullptr) ++count;
  std::sort(dice_kernels, dice_kernels + count, [](const Kernel& a, const Kernel& b) { return a.stub < b.stub; });
  for (size_t i = 0; i < count; ++i) {
    const Kernel& kernel = dice_kernels[i];
    __cudaRegisterFunction(module, static_cast<const char*>(kernel.stub), const_cast<char*>(kernel.name), kernel.name, -1,
                           nullptr, nullptr, nullptr, nullptr, nullptr);
  }
  for (Variable* variable = dice_variables; variable->host != nullptr; ++variable) {
    __cudaRegisterVar(module, static_cast<char*>(variable->host), const_cast<char*>(variable->name), variable->name, 0,
                      variable->size, static_cast<int>(variable->is_constant), 0);
  }
  __cudaRegisterFatBinaryEnd(module);
}

// The stub that contains the address: the last one that begins before it.
const void* stub_of(const void* inside) {
  const Kernel* after = std::upper_bound(dice_kernels, dice_kernels + count, inside,
                                         [](const void* address, const Kernel& kernel) { return address < kernel.stub; });
  return after == dice_kernels ? nullptr : (after - 1)->stub;
}

}  // namespace

__attribute__((noinline)) void launch(const void*& kernel, void** arguments) {
  if (kernel == nullptr) kernel = stub_of(__builtin_return_address(0));
  dim3 grid, block;
  size_t shared = 0;
  cudaStream_t stream = nullptr;
  if (__cudaPopCallConfiguration(&grid, &block, &shared, &stream) != cudaSuccess) {
    std::fprintf(stderr, "a __global__ function was called like an ordinary function\n");
    std::abort();
  }
  cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}

}  // namespace dice_split
