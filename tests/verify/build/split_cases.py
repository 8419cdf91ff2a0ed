# ruff: noqa: E501  - C++ lines
"""CUDA sources that try what the split build does itself: names, launches, attributes, symbols, errors.

Each defines `torch::Tensor run(torch::Tensor x)`; x has 1000 floats. Expected: what it returns, in PyTorch's words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class SplitCase:
    name: str
    cuda: str
    expect: Callable[[torch.Tensor], torch.Tensor]
    kernels: tuple[str, ...]
    headers: str = "split"


_HEAD = "#include <torch/extension.h>\n#include <cuda_runtime.h>\n"
_LOOP = "for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)"
_RUN = """
torch::Tensor run(torch::Tensor x) {
  auto y = torch::empty_like(x);
  int n = x.numel();
  %s
  return y;
}
"""
_XY = "x.data_ptr<float>(), y.data_ptr<float>(), n"


def case(
    name: str,
    device: str,
    launch: str,
    expect: Callable[[torch.Tensor], torch.Tensor],
    kernels: str = "k",
    headers: str = "split",
    includes: str = "",
) -> SplitCase:
    text = _HEAD + includes + device.replace("LOOP", _LOOP) + _RUN % launch.replace("XY", _XY)
    return SplitCase(name, text, expect, tuple(kernels.split()), headers)


_DOUBLE = "void k(const float* x, float* y, int n) { LOOP y[i] = 2 * x[i]; }"

CASES = [
    case("static_kernel", f"static __global__ {_DOUBLE}", "k<<<4, 64>>>(XY);", lambda x: 2 * x),
    case(
        "library_handle",
        f"__global__ {_DOUBLE}",
        "cublasContext* blas = at::cuda::getCurrentCUDABlasHandle();"
        " TORCH_CUDABLAS_CHECK(blas == nullptr); k<<<4, 64>>>(XY);",
        lambda x: 2 * x,
        includes="#include <ATen/cuda/CUDAContext.h>\n",
    ),
    case("kernel_after_static", f"__global__ static {_DOUBLE}", "k<<<4, 64>>>(XY);", lambda x: 2 * x),
    case("unnamed_namespace", f"namespace {{ __global__ {_DOUBLE} }}", "k<<<4, 64>>>(XY);", lambda x: 2 * x),
    case("named_namespace", f"namespace a::b {{ __global__ {_DOUBLE} }}", "a::b::k<<<4, 64>>>(XY);", lambda x: 2 * x),
    case("c_linkage", f'extern "C" __global__ {_DOUBLE}', "k<<<4, 64>>>(XY);", lambda x: 2 * x),
    case(
        "forward_declared",
        f"__global__ void k(const float*, float*, int);\n__global__ {_DOUBLE}",
        "k<<<4, 64>>>(XY);",
        lambda x: 2 * x,
    ),
    case(
        "bounded_and_restricted",
        "__global__ void __launch_bounds__(64, 2) k(const float* __restrict__ x, float* __restrict__ y, const int n) { LOOP y[i] = -x[i]; }",
        "k<<<4, 64>>>(XY);",
        lambda x: -x,
    ),
    case(
        "kernel_macro",
        f"#define KERNEL __global__ void\nKERNEL {_DOUBLE.removeprefix('void ')}",
        "k<<<4, 64>>>(XY);",
        lambda x: 2 * x,
    ),
    case(
        "overloaded_kernels",
        f"__global__ {_DOUBLE}\n__global__ void k(float* y, int n) {{ LOOP y[i] += 1; }}",
        "k<<<4, 64>>>(XY); k<<<4, 64>>>(y.data_ptr<float>(), n);",
        lambda x: 2 * x + 1,
    ),
    case(
        "template_values_and_types",
        "template <typename T, int f, bool neg> __global__ void k(const T* x, T* y, int n) { LOOP y[i] = (neg ? -1 : 1) * f * x[i]; }",
        "if (n > 5) k<float, 3, true><<<4, 64>>>(XY); else k<float, 2, false><<<4, 64>>>(XY);",
        lambda x: -3 * x,
    ),
    case(
        "template_struct_argument",
        "struct Square { __device__ float operator()(float v) const { return v * v; } };\ntemplate <class F> __global__ void k(const float* x, float* y, int n, F f) { LOOP y[i] = f(x[i]); }",
        "k<<<4, 64>>>(XY, Square{});",
        lambda x: x * x,
    ),
    case(
        "host_wrapper_template",
        "template <int f> __global__ void k(const float* x, float* y, int n) { LOOP y[i] = f * x[i]; }\n"
        "template <int f> void go(torch::Tensor x, torch::Tensor y, int n) { k<f><<<4, 64>>>(XY); }".replace("XY", _XY),
        "go<7>(x, y, n);",
        lambda x: 7 * x,
    ),
    case(
        "pointer_to_kernel", f"__global__ {_DOUBLE}", "auto f = &k; (*f)<<<dim3(4), dim3(64)>>>(XY);", lambda x: 2 * x
    ),
    case(
        "launch_by_function",
        f"__global__ {_DOUBLE}",
        "const float* a = x.data_ptr<float>(); float* b = y.data_ptr<float>(); void* args[] = {&a, &b, &n}; cudaLaunchKernel((void*)k, dim3(4), dim3(64), args, 0, 0);",
        lambda x: 2 * x,
    ),
    case(
        "constant_symbol",
        "__constant__ float table[3];\n__global__ void k(const float* x, float* y, int n) { LOOP y[i] = table[0] * x[i] + table[2]; }",
        "float values[3] = {4, 5, 6}; cudaMemcpyToSymbol(table, values, sizeof values); k<<<4, 64>>>(XY);",
        lambda x: 4 * x + 6,
    ),
    case(
        "static_constant_symbol",
        "static __constant__ float factor;\n__global__ void k(const float* x, float* y, int n) { LOOP y[i] = factor * x[i]; }",
        "float value = 9; cudaMemcpyToSymbol(factor, &value, sizeof value); k<<<4, 64>>>(XY);",
        lambda x: 9 * x,
    ),
    case(
        "device_counter",
        "__device__ int counter = 5;\n__global__ void k(const float* x, float* y, int n) { LOOP { y[i] = x[i]; atomicAdd(&counter, 1); } }",
        "k<<<4, 64>>>(XY); int value = 0; cudaMemcpyFromSymbol(&value, counter, sizeof value); y.fill_(value);",
        lambda x: torch.full_like(x, x.numel() + 5),
    ),
    case(
        "large_dynamic_shared",
        "__global__ void k(const float* x, float* y, int n) { extern __shared__ float s[]; s[threadIdx.x + 20000] = 3; __syncthreads(); LOOP y[i] = x[i] * s[threadIdx.x + 20000]; }",
        "cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, 96 << 10); k<<<4, 64, 96 << 10>>>(XY);",
        lambda x: 3 * x,
    ),
    case(
        "occupancy_and_attributes",
        f"__global__ {_DOUBLE}",
        "int blocks = 0; cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, k, 64, 0); cudaFuncAttributes attributes; cudaFuncGetAttributes(&attributes, k);\n"
        "int least = 0, size = 0; cudaOccupancyMaxPotentialBlockSize(&least, &size, k, 0, 0);\n"
        "y.fill_((blocks > 0) + 10 * (attributes.maxThreadsPerBlock == 1024) + 100 * (size == 1024)); if (blocks == 0) k<<<4, 64>>>(XY);",
        lambda x: torch.full_like(x, 111),
        kernels="",
    ),
    case(
        "cooperative_launch",
        "__global__ void k(const float* x, float* y, int n) { auto grid = cooperative_groups::this_grid(); LOOP y[i] = x[i]; grid.sync(); LOOP y[i] += x[n - 1 - i]; }",
        "const float* a = x.data_ptr<float>(); float* b = y.data_ptr<float>(); void* args[] = {&a, &b, &n}; cudaLaunchCooperativeKernel((void*)k, dim3(4), dim3(64), args, 0, 0);",
        lambda x: x + x.flip(0),
        includes="#include <cooperative_groups.h>\n",
    ),
    case(
        "groups_in_a_block",
        "namespace cg = cooperative_groups;\n__global__ void k(const float* x, float* y, int n) { auto block = cg::this_thread_block(); __shared__ float s; if (threadIdx.x == 0) s = 2; block.sync(); LOOP y[i] = x[i] * s; }",
        "k<<<4, 64>>>(XY);",
        lambda x: 2 * x,
        includes="#include <cooperative_groups.h>\n",
    ),
    case(
        "refused_launch_is_seen",
        f"__global__ {_DOUBLE}",
        "k<<<4, 2048>>>(XY); int error = cudaGetLastError(); k<<<4, 64>>>(XY); y.fill_((error != 0) + 1000 * (int)cudaGetLastError());",
        lambda x: torch.full_like(x, 1),
    ),
    case(
        "current_stream",
        f"__global__ {_DOUBLE}",
        "k<<<4, 64, 0, at::cuda::getCurrentCUDAStream()>>>(XY); C10_CUDA_KERNEL_LAUNCH_CHECK();",
        lambda x: 2 * x,
        includes="#include <ATen/cuda/CUDAContext.h>\n#include <c10/cuda/CUDAException.h>\n",
    ),
    case(
        "own_stream",
        f"__global__ {_DOUBLE}",
        "cudaStream_t s; cudaStreamCreate(&s); cudaDeviceSynchronize(); k<<<4, 64, 0, s>>>(XY); cudaStreamSynchronize(s); cudaStreamDestroy(s);",
        lambda x: 2 * x,
    ),
    case(
        "host_and_device_function",
        "__host__ __device__ inline float half_of(float v) { return 0.5f * v; }\nconstexpr int three() { return 3; }\n__global__ void k(const float* x, float* y, int n, float f) { LOOP y[i] = half_of(x[i]) * f * three(); }",
        "k<<<4, 64>>>(XY, half_of(8));",
        lambda x: 6 * x,
    ),
    case(
        "struct_parameter",
        "struct Shape { int n; float f[3]; };\n__global__ void k(const float* x, float* y, Shape s) { for (int i = threadIdx.x; i < s.n; i += blockDim.x) y[i] = x[i] * s.f[2]; }",
        "Shape s{n, {1, 2, 3}}; k<<<1, 64>>>(x.data_ptr<float>(), y.data_ptr<float>(), s);",
        lambda x: 3 * x,
    ),
    case(
        "inline_assembly",
        'template <typename T> __device__ __forceinline__ T lane() { T r; asm volatile("mov.u32 %0, %%laneid;" : "=r"(r)); return r; }\n__global__ void k(const float* x, float* y, int n) { LOOP y[i] = x[i] * 0 + lane<unsigned>(); }',
        "k<<<4, 64>>>(XY);",
        lambda x: (torch.arange(x.numel(), device=x.device) % 32).float(),
    ),
    case(
        "half_precision",
        "__global__ void k(const float* x, float* y, int n) { LOOP y[i] = __half2float(__hmul(__float2half(x[i]), __float2half(2.f))); }",
        "k<<<4, 64>>>(XY);",
        lambda x: (x.half() * 2).float(),
        includes="#include <cuda_fp16.h>\n",
    ),
    case(
        "dispatched_types",
        "template <typename T> __global__ void k(const T* x, T* y, int n) { LOOP y[i] = x[i] + T(1); }",
        'AT_DISPATCH_FLOATING_TYPES_AND_HALF(x.scalar_type(), "k", [&] { k<scalar_t><<<4, 64>>>(x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), n); });',
        lambda x: x + 1,
    ),
    # What needs nvcc as a whole must still come out right.
    case(
        "compiler_test",
        f"#ifdef __CUDACC__\n#define TWO 2\n#endif\n__global__ {_DOUBLE.replace('2 *', 'TWO *')}",
        "k<<<4, 64>>>(XY);",
        lambda x: 2 * x,
        headers="slim",
    ),
    case(
        "device_lambda",
        "template <class F> __global__ void k(const float* x, float* y, int n, F f) { LOOP y[i] = f(x[i]); }",
        "float a = 3; k<<<4, 64>>>(XY, [=] __device__ (float v) { return a * v; });",
        lambda x: 3 * x,
        headers="slim",
    ),
    case(
        "unnamed_parameter",
        "__global__ void k(const float* x, float* y, int n, int) { LOOP y[i] = x[i]; }",
        "k<<<4, 64>>>(XY, 1);",
        lambda x: x,
        headers="slim",
    ),
]
