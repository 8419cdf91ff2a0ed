# ruff: noqa: E501  - C++ lines
"""KernelBench-style extensions, each with what PyTorch itself answers: what kernels and their launches really use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class Case:
    """`run` calls the bound functions on fresh tensors; `expect` says the same in PyTorch, for the same arguments."""

    name: str
    cuda: str
    run: Callable[..., Any]
    expect: Callable[..., Any]
    arguments: Callable[[], tuple[Any, ...]]
    cpp: str = ""
    functions: tuple[str, ...] = ()
    cuda_cflags: tuple[str, ...] = ()
    tolerance: float = 1e-4
    kernels: tuple[str, ...] = field(default=())


def call(name: str) -> Callable[[ModuleType], Any]:
    return lambda module, *arguments: getattr(module, name)(*arguments)


KERNEL_CASES = [
    Case(
        "elementwise_add",
        """
#include <torch/extension.h>
#include <cuda_runtime.h>
__global__ void elementwise_add_kernel(const float* a, const float* b, float* out, int size) {
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx < size) { out[idx] = a[idx] + b[idx]; }
}
torch::Tensor elementwise_add_cuda(torch::Tensor a, torch::Tensor b) {
    auto size = a.numel();
    auto out = torch::zeros_like(a);
    const int block_size = 256;
    const int num_blocks = (size + block_size - 1) / block_size;
    elementwise_add_kernel<<<num_blocks, block_size>>>(a.data_ptr<float>(), b.data_ptr<float>(), out.data_ptr<float>(), size);
    return out;
}
""",
        call("elementwise_add_cuda"),
        lambda a, b: a + b,
        lambda: (torch.randn(3, 129), torch.randn(3, 129)),
        cpp="torch::Tensor elementwise_add_cuda(torch::Tensor a, torch::Tensor b);",
        functions=("elementwise_add_cuda",),
        kernels=("elementwise_add_kernel",),
    ),
    Case(
        "row_max_cub",
        """
#include <torch/extension.h>
#include <cub/cub.cuh>
template <int THREADS> __global__ void row_max(const float* x, float* y, int cols) {
  using BlockReduce = cub::BlockReduce<float, THREADS>;
  __shared__ typename BlockReduce::TempStorage storage; float best = x[blockIdx.x * cols];
  for (int c = threadIdx.x; c < cols; c += THREADS) best = fmaxf(best, x[blockIdx.x * cols + c]);
  best = BlockReduce(storage).Reduce(best, [](float a, float b) { return fmaxf(a, b); });
  if (threadIdx.x == 0) y[blockIdx.x] = best;
}
torch::Tensor largest(torch::Tensor x) {
  auto y = x.new_empty({x.size(0)});
  row_max<128><<<x.size(0), 128>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.size(1));
  return y;
}""",
        call("largest"),
        lambda x: x.amax(1),
        lambda: (torch.randn(5, 1000),),
        cpp="torch::Tensor largest(torch::Tensor x);",
        functions=("largest",),
        kernels=("row_max",),
    ),
    Case(
        "row_softmax_shared",
        """
#include <torch/extension.h>
#include <cuda.h>
#include <cfloat>
#define THREADS 128
__global__ void softmax_rows(const float* __restrict__ x, float* __restrict__ y, int cols) {
  __shared__ float buffer[THREADS];
  const float* row = x + (size_t)blockIdx.x * cols;
  float* out = y + (size_t)blockIdx.x * cols;
  float best = -FLT_MAX;
  for (int c = threadIdx.x; c < cols; c += blockDim.x) best = fmaxf(best, row[c]);
  buffer[threadIdx.x] = best; __syncthreads();
  for (int s = THREADS / 2; s > 0; s >>= 1) {
    if (threadIdx.x < s) buffer[threadIdx.x] = fmaxf(buffer[threadIdx.x], buffer[threadIdx.x + s]);
    __syncthreads();
  }
  best = buffer[0]; __syncthreads();
  float total = 0.f;
  for (int c = threadIdx.x; c < cols; c += blockDim.x) { float e = expf(row[c] - best); out[c] = e; total += e; }
  buffer[threadIdx.x] = total; __syncthreads();
  for (int s = THREADS / 2; s > 0; s >>= 1) {
    if (threadIdx.x < s) buffer[threadIdx.x] += buffer[threadIdx.x + s];
    __syncthreads();
  }
  for (int c = threadIdx.x; c < cols; c += blockDim.x) out[c] /= buffer[0];
}
torch::Tensor softmax_cuda(const torch::Tensor& input) {
  TORCH_CHECK(input.dim() == 2, "input must be 2D, got ", input.dim(), "D with sizes ", input.sizes());
  auto x = input.contiguous();
  auto y = torch::empty_like(x);
  softmax_rows<<<dim3(x.size(0)), dim3(THREADS)>>>(x.data_ptr<float>(), y.data_ptr<float>(), static_cast<int>(x.size(-1)));
  return y;
}
""",
        call("softmax_cuda"),
        lambda x: torch.softmax(x, dim=1),
        lambda: (torch.randn(300, 7).t(),),
        cpp="#include <torch/extension.h>\n\n// forward\ntorch::Tensor softmax_cuda(const torch::Tensor& input);\n",
        functions=("softmax_cuda",),
        kernels=("softmax_rows",),
    ),
    Case(
        "warp_layernorm",
        """
__inline__ __device__ float warp_sum(float v) {
  for (int offset = 16; offset > 0; offset /= 2) v += __shfl_down_sync(0xffffffff, v, offset);
  return v;
}
__global__ void layernorm_kernel(const float* x, const float* gamma, const float* beta, float* y, int n, float eps) {
  const float* row = x + blockIdx.x * n;
  float sum = 0, sq = 0;
  for (int i = threadIdx.x; i < n; i += 32) { sum += row[i]; sq += row[i] * row[i]; }
  sum = __shfl_sync(0xffffffff, warp_sum(sum), 0);
  sq = __shfl_sync(0xffffffff, warp_sum(sq), 0);
  float mean = sum / n, inv = rsqrtf(sq / n - mean * mean + eps);
  for (int i = threadIdx.x; i < n; i += 32) y[blockIdx.x * n + i] = (row[i] - mean) * inv * gamma[i] + beta[i];
}
torch::Tensor layer_norm_forward(torch::Tensor x, torch::Tensor gamma, torch::Tensor beta, double eps) {
  TORCH_CHECK_EQ(gamma.numel(), x.size(-1));
  auto y = torch::empty(x.sizes(), x.options());
  layernorm_kernel<<<x.numel() / x.size(-1), 32>>>(x.data_ptr<float>(), gamma.data_ptr<float>(), beta.data_ptr<float>(),
                                                  y.data_ptr<float>(), x.size(-1), (float)eps);
  return y;
}
""",
        lambda m, x, g, b: m.layer_norm_forward(x, g, b, 1e-5),
        lambda x, g, b: F.layer_norm(x, (100,), g, b),
        lambda: (torch.randn(2, 5, 100), torch.nn.Parameter(torch.randn(100)), torch.randn(100)),
        cpp="torch::Tensor layer_norm_forward(torch::Tensor x, torch::Tensor gamma, torch::Tensor beta, double eps);",
        functions=("layer_norm_forward",),
        kernels=("layernorm_kernel",),
    ),
    Case(
        "tiled_matmul_template",
        """
template <int TILE>
__global__ void matmul_tiled(const float* A, const float* B, float* C, int M, int N, int K) {
  __shared__ float As[TILE][TILE];
  __shared__ float Bs[TILE][TILE];
  int row = blockIdx.y * TILE + threadIdx.y, col = blockIdx.x * TILE + threadIdx.x;
  float acc = 0.0f;
  for (int t = 0; t < (K + TILE - 1) / TILE; ++t) {
    As[threadIdx.y][threadIdx.x] = (row < M && t * TILE + threadIdx.x < K) ? A[row * K + t * TILE + threadIdx.x] : 0.0f;
    Bs[threadIdx.y][threadIdx.x] = (col < N && t * TILE + threadIdx.y < K) ? B[(t * TILE + threadIdx.y) * N + col] : 0.0f;
    __syncthreads();
    #pragma unroll
    for (int k = 0; k < TILE; ++k) acc += As[threadIdx.y][k] * Bs[k][threadIdx.x];
    __syncthreads();
  }
  if (row < M && col < N) C[row * N + col] = acc;
}
torch::Tensor matmul_cuda(torch::Tensor A, torch::Tensor B) {
  int M = A.size(0), K = A.size(1), N = B.size(1);
  auto options = torch::TensorOptions().dtype(A.dtype()).device(A.device());
  auto C = torch::zeros({M, N}, options);
  dim3 block(16, 16), grid((N + 15) / 16, (M + 15) / 16);
  matmul_tiled<16><<<grid, block>>>(A.data_ptr<float>(), B.data_ptr<float>(), C.data_ptr<float>(), M, N, K);
  return C;
}
""",
        call("matmul_cuda"),
        torch.matmul,
        lambda: (torch.randn(33, 20), torch.randn(20, 45)),
        cpp="torch::Tensor matmul_cuda(torch::Tensor A, torch::Tensor B);",
        functions=("matmul_cuda",),
        kernels=("matmul_tiled",),
    ),
    Case(
        "conv2d_optional_bias_pybind",
        """
#include <torch/extension.h>
__global__ void conv2d_kernel(const float* x, const float* w, const float* b, float* y, int N, int C, int H, int W, int O, int K, int P) {
  int OH = H + 2 * P - K + 1, OW = W + 2 * P - K + 1;
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= N * O * OH * OW) return;
  int ow = i % OW, oh = i / OW % OH, o = i / (OW * OH) % O, n = i / (OW * OH * O);
  float acc = b != nullptr ? b[o] : 0.f;
  for (int c = 0; c < C; ++c) for (int p = 0; p < K; ++p) for (int q = 0; q < K; ++q) {
    int h = oh - P + p, v = ow - P + q;
    if (h >= 0 && h < H && v >= 0 && v < W) acc += x[((n * C + c) * H + h) * W + v] * w[((o * C + c) * K + p) * K + q];
  }
  y[i] = acc;
}
torch::Tensor conv2d(torch::Tensor x, torch::Tensor w, c10::optional<torch::Tensor> bias, int64_t padding) {
  const float* b = bias.has_value() ? bias.value().data_ptr<float>() : nullptr;
  const auto N = x.size(0), C = x.size(1), H = x.size(2), W = x.size(3), O = w.size(0), K = w.size(2);
  auto y = torch::empty({N, O, H + 2 * padding - K + 1, W + 2 * padding - K + 1}, x.options());
  int total = y.numel();
  conv2d_kernel<<<(total + 127) / 128, 128>>>(x.data_ptr<float>(), w.data_ptr<float>(), b, y.data_ptr<float>(), N, C, H, W, O, K, padding);
  return y;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "convolution";
  m.def("conv2d", &conv2d, "2D convolution", py::arg("x"), py::arg("weight"), py::arg("bias") = py::none(), py::arg("padding") = 0);
}
""",
        lambda m, x, w, b: (m.conv2d(x, w, bias=b, padding=1), m.conv2d(x, w)),
        lambda x, w, b: (F.conv2d(x, w, b, padding=1), F.conv2d(x, w)),
        lambda: (torch.randn(2, 3, 6, 7), torch.randn(4, 3, 3, 3), torch.randn(4)),
        kernels=("conv2d_kernel",),
    ),
    Case(
        "dispatch_floating_types",
        """
#include <torch/extension.h>
template <typename scalar_t>
__global__ void gelu_kernel(const scalar_t* __restrict__ in, scalar_t* __restrict__ out, size_t n) {
  size_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    float v = static_cast<float>(in[i]);
    out[i] = static_cast<scalar_t>(0.5f * v * (1.0f + erff(v * 0.70710678f)));
  }
}
at::Tensor gelu(at::Tensor x) {
  at::Tensor y = at::empty_like(x);
  const int threads = 256;
  const dim3 blocks((x.numel() + threads - 1) / threads);
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(x.scalar_type(), "gelu", ([&] {
    gelu_kernel<scalar_t><<<blocks, threads>>>(x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), x.numel());
  }));
  return y;
}
""",
        lambda m, x: [m.gelu(x), m.gelu(x.double()), m.gelu(x.half())],
        lambda x: [F.gelu(x), F.gelu(x.double()), F.gelu(x.half())],
        lambda: (torch.randn(1000),),
        cpp="at::Tensor gelu(at::Tensor x);",
        functions=("gelu",),
        tolerance=2e-3,
        kernels=("gelu_kernel",),
    ),
    Case(
        "packed_accessors",
        """
template <typename scalar_t>
__global__ void outer_kernel(torch::PackedTensorAccessor32<scalar_t, 1, torch::RestrictPtrTraits> a,
                             torch::PackedTensorAccessor32<scalar_t, 1, torch::RestrictPtrTraits> b,
                             torch::PackedTensorAccessor64<scalar_t, 2> out) {
  const int i = blockIdx.y * blockDim.y + threadIdx.y, j = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < a.size(0) && j < b.size(0)) out[i][j] = a[i] * b[j];
}
torch::Tensor outer(torch::Tensor a, torch::Tensor b) {
  auto out = torch::empty({a.size(0), b.size(0)}, a.options());
  dim3 threads(8, 8);
  dim3 blocks((b.size(0) + 7) / 8, (a.size(0) + 7) / 8);
  AT_DISPATCH_ALL_TYPES(a.scalar_type(), "outer", [&] {
    outer_kernel<scalar_t><<<blocks, threads>>>(a.packed_accessor32<scalar_t, 1, torch::RestrictPtrTraits>(),
        b.packed_accessor32<scalar_t, 1, torch::RestrictPtrTraits>(), out.packed_accessor64<scalar_t, 2>());
  });
  return out;
}
""",
        lambda m, a, b: (m.outer(a, b), m.outer(a.long(), b.long())),
        lambda a, b: (torch.outer(a, b), torch.outer(a.long(), b.long())),
        lambda: (torch.randn(60)[::3], torch.randn(13)),
        cpp="torch::Tensor outer(torch::Tensor a, torch::Tensor b);",
        functions=("outer",),
        kernels=("outer_kernel",),
    ),
    Case(
        "half_intrinsics",
        """
#include <cuda_fp16.h>
__global__ void half_axpy(const __half* x, const __half* y, __half* out, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = __hadd(__float2half(a * __half2float(x[i])), y[i]);
}
torch::Tensor axpy(torch::Tensor x, torch::Tensor y, float a) {
  TORCH_CHECK(x.scalar_type() == torch::kHalf && y.dtype() == at::kHalf, "expected half, got ", x.dtype());
  auto out = torch::empty_like(x);
  int n = x.numel();
  half_axpy<<<(n + 63) / 64, 64>>>(reinterpret_cast<const __half*>(x.data_ptr<at::Half>()),
      reinterpret_cast<const __half*>(y.data_ptr()), reinterpret_cast<__half*>(out.data_ptr<at::Half>()), a, n);
  return out;
}
""",
        lambda m, x, y: m.axpy(x, y, 2.5),
        lambda x, y: x * 2.5 + y,
        lambda: (torch.randn(500).half(), torch.randn(500).half()),
        cpp="torch::Tensor axpy(torch::Tensor x, torch::Tensor y, float a);",
        functions=("axpy",),
        tolerance=1e-2,
        kernels=("half_axpy",),
    ),
    Case(
        "bfloat16_opmath",
        """
#include <ATen/OpMathType.h>
#include <ATen/AccumulateType.h>
template <typename T>
__global__ void silu_kernel(const T* x, T* y, int n) {
  using compute_t = at::opmath_type<T>;
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) { compute_t v = static_cast<compute_t>(x[i]); y[i] = static_cast<T>(v / (compute_t(1) + exp(-v))); }
}
template <typename T>
__global__ void mean_kernel(const T* x, T* y, int n) {
  at::acc_type<T, true> total = 0;
  for (int i = 0; i < n; ++i) total += x[i];
  *y = total / n;
}
std::vector<torch::Tensor> silu_and_mean(torch::Tensor x) {
  auto y = torch::empty_like(x);
  auto mean = torch::empty({}, x.options());
  int n = x.numel();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::ScalarType::Half, at::ScalarType::BFloat16, x.scalar_type(), "silu", [&] {
    silu_kernel<scalar_t><<<(n + 255) / 256, 256>>>(x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), n);
    mean_kernel<<<1, 1>>>(x.data_ptr<scalar_t>(), mean.data_ptr<scalar_t>(), n);
  });
  return {y, mean};
}
""",
        call("silu_and_mean"),
        lambda x: [F.silu(x), x.float().mean().bfloat16()],
        lambda: (torch.rand(300).bfloat16(),),
        cpp="std::vector<torch::Tensor> silu_and_mean(torch::Tensor x);",
        functions=("silu_and_mean",),
        tolerance=2e-2,
        kernels=("silu_kernel", "mean_kernel"),
    ),
    Case(
        "tuple_result_argmax",
        """
__global__ void row_max(const float* x, float* values, int64_t* indices, int n) {
  int best = 0;
  for (int i = 1; i < n; ++i) if (x[blockIdx.x * n + i] > x[blockIdx.x * n + best]) best = i;
  values[blockIdx.x] = x[blockIdx.x * n + best];
  indices[blockIdx.x] = best;
}
std::tuple<torch::Tensor, torch::Tensor> row_max_cuda(torch::Tensor x) {
  auto values = torch::empty({x.size(0)}, x.options());
  auto indices = torch::empty({x.size(0)}, x.options().dtype(torch::kInt64));
  row_max<<<x.size(0), 1>>>(x.data_ptr<float>(), values.data_ptr<float>(), indices.data_ptr<int64_t>(), x.size(1));
  return std::make_tuple(values, indices);
}
""",
        call("row_max_cuda"),
        lambda x: tuple(torch.max(x, dim=1)),
        lambda: (torch.randn(9, 17),),
        cpp="std::tuple<torch::Tensor, torch::Tensor> row_max_cuda(torch::Tensor x);",
        functions=("row_max_cuda",),
        kernels=("row_max",),
    ),
    Case(
        "streams_and_guards",
        """
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAException.h>
#define CHECK_CUDA(x) TORCH_CHECK(x.device().is_cuda(), #x " must be a CUDA tensor")
#define CHECK_CONTIGUOUS(x) AT_ASSERTM(x.is_contiguous(), #x " must be contiguous")
#define CHECK_INPUT(x) CHECK_CUDA(x); CHECK_CONTIGUOUS(x)
__global__ void relu_kernel(float* x, int64_t n) {
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) x[i] = fmaxf(x[i], 0.f);
}
torch::Tensor relu_(torch::Tensor x) {
  CHECK_INPUT(x);
  const at::cuda::OptionalCUDAGuard guard(device_of(x));
  cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  relu_kernel<<<4, 64, 0, stream>>>(x.data_ptr<float>(), x.numel());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  AT_CUDA_CHECK(cudaGetLastError());
  c10::cuda::CUDAGuard second(x.device());
  C10_CUDA_CHECK(cudaStreamSynchronize(c10::cuda::getCurrentCUDAStream(x.get_device()).stream()));
  return x;
}
""",
        lambda m, x: (m.relu_(x), x)[1],
        torch.relu,
        lambda: (torch.randn(1000),),
        cpp="torch::Tensor relu_(torch::Tensor x);",
        functions=("relu_",),
        kernels=("relu_kernel",),
    ),
    Case(
        "dynamic_shared_scan",
        """
extern __shared__ float scratch[];
__global__ void cumsum_kernel(const float* x, float* y, int n) {
  scratch[threadIdx.x] = threadIdx.x < n ? x[blockIdx.x * n + threadIdx.x] : 0.f;
  __syncthreads();
  for (int d = 1; d < blockDim.x; d <<= 1) {
    float v = threadIdx.x >= d ? scratch[threadIdx.x - d] : 0.f;
    __syncthreads();
    scratch[threadIdx.x] += v;
    __syncthreads();
  }
  if (threadIdx.x < n) y[blockIdx.x * n + threadIdx.x] = scratch[threadIdx.x];
}
torch::Tensor cumsum(torch::Tensor x) {
  auto y = torch::empty_like(x);
  int threads = 128;
  cumsum_kernel<<<x.size(0), threads, threads * sizeof(float)>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.size(1));
  return y;
}
""",
        call("cumsum"),
        lambda x: x.cumsum(1),
        lambda: (torch.randn(3, 100),),
        cpp="torch::Tensor cumsum(torch::Tensor x);",
        functions=("cumsum",),
        kernels=("cumsum_kernel",),
    ),
    Case(
        "grid_stride_atomics",
        """
__global__ void histogram(const int* x, int* bins, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&bins[x[i]], 1);
}
torch::Tensor bincount(torch::Tensor x, int bins) {
  auto out = torch::zeros({bins}, torch::TensorOptions().dtype(torch::kInt32).device(x.device()));
  histogram<<<2, 32>>>(x.data_ptr<int>(), out.data_ptr<int>(), x.numel());
  return out;
}
""",
        lambda m, x: m.bincount(x, 10),
        lambda x: torch.bincount(x, minlength=10).int(),
        lambda: (torch.randint(0, 10, (500,), dtype=torch.int32),),
        cpp="torch::Tensor bincount(torch::Tensor x, int bins);",
        functions=("bincount",),
        kernels=("histogram",),
    ),
    Case(
        "vectorised_float4",
        """
__global__ void scale4(const float4* x, float4* y, float s, int n4) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n4) { float4 v = x[i]; v.x *= s; v.y *= s; v.z *= s; v.w *= s; y[i] = v; }
}
torch::Tensor scale(at::Tensor x, at::Scalar s) {
  auto y = at::empty_like(x);
  int n4 = x.numel() / 4;
  scale4<<<(n4 + 31) / 32, 32>>>(reinterpret_cast<const float4*>(x.const_data_ptr<float>()),
                                 reinterpret_cast<float4*>(y.mutable_data_ptr<float>()), s.to<float>(), n4);
  return y;
}
""",
        lambda m, x: (m.scale(x, 3), m.scale(x, 0.5)),
        lambda x: (x * 3, x * 0.5),
        lambda: (torch.randn(256),),
        cpp="torch::Tensor scale(at::Tensor x, at::Scalar s);",
        functions=("scale",),
        cuda_cflags=("-O3", "--use_fast_math"),
        kernels=("scale4",),
    ),
    Case(
        "device_helpers_and_constants",
        """
#include <math_constants.h>
__constant__ float coefficients[3];
__device__ __forceinline__ float poly(float x) { return coefficients[0] + x * (coefficients[1] + x * coefficients[2]); }
__global__ void __launch_bounds__(128) eval_poly(const float* __restrict__ x, float* __restrict__ y, const int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = fminf(__ldg(x + i) < 0 ? poly(x[i]) : poly(-x[i]), CUDART_INF_F);
}
namespace detail_ns { struct Launch { int blocks, threads; }; }
torch::Tensor polynomial(const torch::Tensor x, std::vector<float> c) {
  TORCH_CHECK(c.size() == 3, "need 3 coefficients");
  cudaMemcpyToSymbol(coefficients, c.data(), 3 * sizeof(float));
  torch::Tensor y = torch::empty({x.size(0)}, at::device(at::kCUDA).dtype(at::kFloat));
  const detail_ns::Launch launch{static_cast<int>((x.numel() + 127) / 128), 128};
  eval_poly<<<launch.blocks, launch.threads>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
  return y;
}
""",
        lambda m, x: m.polynomial(x, [1.0, 2.0, 3.0]),
        lambda x: 1 - 2 * x.abs() + 3 * x * x,
        lambda: (torch.randn(200),),
        cpp="torch::Tensor polynomial(const torch::Tensor x, std::vector<float> c);",
        functions=("polynomial",),
        kernels=("eval_poly",),
    ),
]
