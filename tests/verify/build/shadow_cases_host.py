# ruff: noqa: E501  - C++ lines
"""KernelBench-style extensions whose host side is the point: bindings, argument types, PyTorch's C++ functions."""

from __future__ import annotations

import torch
from shadow_cases import Case, call


def _mix(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.matmul(x, w.t()) * 2.0 + 1
    y = torch.relu(y - y.mean()).view(-1, w.size(0))
    y = y + 0.5
    s = y.sum(0, keepdim=True) / x.size(0)
    z = torch.cat([y, s.expand(2, w.size(0))], 0).transpose(0, 1).contiguous()
    z = torch.softmax(z, -1) + torch.sigmoid(z) - torch.tanh(-z)
    m = z.max(1).values
    first = z.split(2, 1)[0]
    z = z.clamp(-1.0, 0.9).permute(1, 0).flatten() + m.sum().item() + first.abs().max()
    return torch.where(z > 1, z, torch.zeros_like(z)).double()[1:]


HOST_CASES = [
    Case(
        "pybind_lambda_and_scalars",
        """
#include <torch/extension.h>
__global__ void fill(float* y, float v, int n) { int i = threadIdx.x; if (i < n) y[i] = v; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("filled", [](int64_t n, float value, bool negate, const std::string& kind) {
    auto y = torch::empty({n}, torch::dtype(torch::kFloat32).device(torch::kCUDA));
    fill<<<1, 64>>>(y.data_ptr<float>(), (kind == "double" ? 2.0f : 1.0f) * (negate ? -value : value), n);
    return y;
  }, py::arg("n"), py::arg("value") = 1.5, py::arg("negate") = false, py::arg("kind") = "plain");
  m.def("shape", [](torch::Tensor x) { return x.sizes().vec(); });
  m.def("total", [](std::vector<torch::Tensor> xs) { double t = 0; for (auto& x : xs) t += x.sum().item<double>(); return t; });
  m.def("nothing", []() {});
  m.attr("answer") = 42;
}
""",
        lambda m: (
            m.filled(5),
            m.filled(3, negate=True),
            m.filled(2, 4, kind="double"),
            m.shape(torch.zeros(2, 0, 3)),
            m.total([torch.ones(3), torch.ones(2)]),
            m.nothing(),
            m.answer,
        ),
        lambda: (torch.full((5,), 1.5), torch.full((3,), -1.5), torch.full((2,), 8.0), [2, 0, 3], 5.0, None, 42),
        tuple,
        kernels=("fill",),
    ),
    Case(
        "operators_of_torch",
        """
torch::Tensor mix(torch::Tensor x, torch::Tensor w) {
  auto y = torch::matmul(x, w.t()) * 2.0 + 1;
  y = torch::relu(y - y.mean()).view({-1, w.size(0)});
  y.add_(torch::ones_like(y), 0.5);
  auto s = y.sum({0}, /*keepdim=*/true) / x.size(0);
  auto z = torch::cat({y, s.expand({2, w.size(0)})}, 0).transpose(0, 1).contiguous();
  z = torch::softmax(z, -1) + torch::sigmoid(z).unsqueeze(0).squeeze(0) - torch::tanh(-z);
  auto m = std::get<0>(z.max(1)).reshape({-1, 1});
  auto parts = z.split(2, 1);
  z = z.clamp(-1.0, 0.9).permute({1, 0}).flatten() + m.sum().item<float>() + parts[0].abs().max();
  z = torch::where(z > 1, z, torch::zeros_like(z)).to(torch::kFloat64);
  return z.index({torch::indexing::Slice(1, torch::indexing::None)}).clone();
}
""",
        call("mix"),
        _mix,
        lambda: (torch.randn(4, 6), torch.randn(5, 6)),
        cpp="torch::Tensor mix(torch::Tensor x, torch::Tensor w);",
        functions=("mix",),
    ),
    Case(
        "wrapper_in_the_cpp_source",
        """
#include <torch/types.h>
__global__ void square_kernel(const float* x, float* y, int n) { int i = blockIdx.x * 64 + threadIdx.x; if (i < n) y[i] = x[i] * x[i]; }
void square_launcher(const float* x, float* y, int n) { square_kernel<<<(n + 63) / 64, 64>>>(x, y, n); }
""",
        call("square"),
        torch.square,
        lambda: (torch.randn(100),),
        cpp="""
#include <torch/extension.h>
void square_launcher(const float* x, float* y, int n);
#define CHECK(x) TORCH_CHECK(x.is_contiguous(), #x " must be contiguous")
torch::Tensor square(torch::Tensor x) {
  CHECK(x);
  torch::Tensor y = torch::empty_like(x);
  square_launcher(x.data_ptr<float>(), y.data_ptr<float>(), (int)x.numel());
  return y;
}
""",
        functions=("square",),
        kernels=("square_kernel",),
    ),
    Case(
        "same_helper_in_both_sources",
        """
static int ceil_div(int a, int b) { return (a + b - 1) / b; }
#define N_THREADS 32
__global__ void negate(const float* x, float* y, int n) { int i = blockIdx.x * N_THREADS + threadIdx.x; if (i < n) y[i] = -x[i]; }
torch::Tensor neg_cuda(torch::Tensor x) {
  auto y = torch::empty_like(x);
  negate<<<ceil_div(x.numel(), N_THREADS), N_THREADS>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
  return y;
}
""",
        call("neg"),
        torch.neg,
        lambda: (torch.randn(70),),
        cpp="""
torch::Tensor neg_cuda(torch::Tensor x);
static int ceil_div(int a, int b) { return (a + b - 1) / b; }
torch::Tensor neg(torch::Tensor x) { return ceil_div(3, 2) == 2 ? neg_cuda(x) : x; }
""",
        functions=("neg",),
        kernels=("negate",),
    ),
    Case(
        "parameter_named_like_a_macro",
        """
#define N 64
__global__ void twice(float* x) { if (threadIdx.x < N) x[threadIdx.x] *= 2; }
torch::Tensor twice_cuda(torch::Tensor x, int64_t count) { twice<<<1, N>>>(x.data_ptr<float>()); return x; }
""",
        lambda m, x: m.twice_cuda(x, 64),
        lambda x: x * 2,
        lambda: (torch.randn(64),),
        cpp="torch::Tensor twice_cuda(torch::Tensor x, int64_t N);",
        functions=("twice_cuda",),
        kernels=("twice",),
    ),
    Case(
        "std_and_iostream",
        """
#include <iostream>
#include <unordered_map>
#include <algorithm>
__global__ void copy_kernel(const float* x, float* y, int n) { int i = threadIdx.x; if (i < n) y[i] = x[i]; }
torch::Tensor copy_cuda(torch::Tensor x) {
  std::unordered_map<std::string, int> sizes{{"n", (int)x.numel()}};
  std::ostringstream text; text << x.sizes() << " " << x.dtype() << " " << x.device() << std::endl;
  auto y = torch::empty(x.sizes(), x.options());
  copy_kernel<<<1, std::min(sizes["n"], 1024)>>>(x.data_ptr<float>(), y.data_ptr<float>(), sizes["n"]);
  return y;
}
""",
        call("copy_cuda"),
        lambda x: x,
        lambda: (torch.randn(10, 10),),
        cpp="torch::Tensor copy_cuda(torch::Tensor x);",
        functions=("copy_cuda",),
        kernels=("copy_kernel",),
    ),
    Case(
        "list_and_dtype_arguments",
        """
__global__ void to_int(const float* x, int* y, int n) { int i = threadIdx.x; if (i < n) y[i] = (int)x[i]; }
std::vector<at::Tensor> convert(std::vector<torch::Tensor> xs, at::IntArrayRef shape, at::ScalarType type, std::optional<int64_t> offset) {
  std::vector<at::Tensor> out;
  for (const auto& x : xs) {
    auto y = at::empty(shape, x.options().dtype(type));
    to_int<<<1, 32>>>(x.data_ptr<float>(), y.data_ptr<int>(), x.numel());
    if (offset) y += *offset;
    out.push_back(y);
  }
  return out;
}
""",
        lambda m, a, b: (m.convert([a, b], [2, 3], torch.int32, None), m.convert((a,), (3, 2), torch.int32, 2)),
        lambda a, b: ([a.int().view(2, 3), b.int().view(2, 3)], [a.int().view(3, 2) + 2]),
        lambda: (torch.randn(6) * 5, torch.randn(6) * 5),
        cpp="std::vector<at::Tensor> convert(std::vector<torch::Tensor> xs, at::IntArrayRef shape, at::ScalarType type, std::optional<int64_t> offset);",
        functions=("convert",),
        kernels=("to_int",),
    ),
    Case(
        "void_with_output_argument",
        """
__global__ void add_bias(float* y, const float* b, int rows, int cols) {
  int r = blockIdx.x, c = threadIdx.x;
  if (r < rows && c < cols) y[r * cols + c] += b[c];
}
void add_bias_(torch::Tensor& y, const torch::Tensor& b) {
  add_bias<<<y.size(0), 64>>>(y.data_ptr<float>(), b.data_ptr<float>(), y.size(0), y.size(1));
}
""",
        lambda m, y, b: (m.add_bias_(y, b), y)[1],
        lambda y, b: y + b,
        lambda: (torch.randn(5, 40), torch.randn(40)),
        cpp="void add_bias_(torch::Tensor& y, const torch::Tensor& b);",
        functions=("add_bias_",),
        kernels=("add_bias",),
    ),
    Case(
        "lstm_cell_arrays",
        """
__device__ __forceinline__ float sigm(float x) { return 1.f / (1.f + __expf(-x)); }
__global__ void cell(const float* gates, const float* c, float* h1, float* c1, int hidden) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, b = blockIdx.y;
  if (i >= hidden) return;
  const float* g = gates + b * 4 * hidden;
  float in = sigm(g[i]), forget = sigm(g[hidden + i]), update = tanhf(g[2 * hidden + i]), out = sigm(g[3 * hidden + i]);
  float next = forget * c[b * hidden + i] + in * update;
  c1[b * hidden + i] = next; h1[b * hidden + i] = out * tanhf(next);
}
std::array<torch::Tensor, 2> lstm_cell(torch::Tensor x, torch::Tensor h, torch::Tensor c, torch::Tensor wi, torch::Tensor wh, torch::Tensor b) {
  auto gates = torch::addmm(b, x, wi.t()).add_(torch::mm(h, wh.t())).contiguous();
  auto h1 = torch::empty_like(h), c1 = torch::empty_like(c);
  const int hidden = h.size(1);
  cell<<<dim3((hidden + 31) / 32, h.size(0)), 32>>>(gates.data_ptr<float>(), c.data_ptr<float>(), h1.data_ptr<float>(), c1.data_ptr<float>(), hidden);
  return {h1, c1};
}
""",
        call("lstm_cell"),
        lambda x, h, c, wi, wh, b: list(torch._VF.lstm_cell(x, (h, c), wi, wh, b, torch.zeros_like(b))),
        lambda: (
            torch.randn(3, 10),
            torch.randn(3, 40),
            torch.randn(3, 40),
            torch.randn(160, 10),
            torch.randn(160, 40),
            torch.randn(160),
        ),
        cpp="std::array<torch::Tensor, 2> lstm_cell(torch::Tensor x, torch::Tensor h, torch::Tensor c, torch::Tensor wi, torch::Tensor wh, torch::Tensor b);",
        functions=("lstm_cell",),
        kernels=("cell",),
    ),
]
