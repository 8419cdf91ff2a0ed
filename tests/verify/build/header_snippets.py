# ruff: noqa: E501  - C++ lines
"""Host-side C++ in the manner of KernelBench answers: what wrappers around kernels do with PyTorch's C++ interface.

Each is the body of `torch::Tensor f(torch::Tensor x)`, x being 6 x 4 floats, with what it returns in PyTorch's words.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

INCLUDES = """
#include <torch/extension.h>
#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/cuda/Atomic.cuh>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/Exceptions.h>
#include <ATen/cuda/detail/KernelUtils.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Optional.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/irange.h>
#include <c10/util/accumulate.h>
#include <cuda.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <algorithm>
#include <map>
#include <numeric>
#include <sstream>
#include <vector>

#define CHECK_CUDA(x) TORCH_CHECK(x.device().is_cuda(), #x " must be a CUDA tensor")
#define CHECK_CONTIGUOUS(x) TORCH_CHECK(x.is_contiguous(), #x " must be contiguous")
#define CHECK_INPUT(x) CHECK_CUDA(x); CHECK_CONTIGUOUS(x)

template <typename scalar_t>
__global__ void twice_kernel(const scalar_t* __restrict__ x, scalar_t* __restrict__ y, int64_t n) {
  for (int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) y[i] = x[i] + x[i];
}
template <typename scalar_t>
__global__ void accessed_kernel(torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits> x, torch::PackedTensorAccessor64<scalar_t, 2> y) {
  const int i = threadIdx.y, j = threadIdx.x;
  if (i < x.size(0) && j < x.size(1)) y[i][j] = x[i][j] + x[i][j];
}
template <typename scalar_t>
__global__ void gathered_kernel(const scalar_t* x, scalar_t* y, int rows, int columns) {  // sum, plain sum, product, most, least
  for (int i = threadIdx.x; i < rows * columns; i += blockDim.x) {
    const int c = i % columns;
    gpuAtomicAdd(&y[c], x[i]);
    gpuAtomicAddNoReturn(&y[columns + c], x[i]);
    gpuAtomicMul(&y[2 * columns + c], x[i]);
    gpuAtomicMax(&y[3 * columns + c], x[i]);
    gpuAtomicMin(&y[4 * columns + c], x[i]);
    atomicAdd(&y[5 * columns + c], x[i]);
  }
}
__global__ void looped_kernel(const float* x, float* y, int n) { CUDA_KERNEL_LOOP(i, n) { y[i] = x[i] * 2; } }
"""

Expect = Callable[[torch.Tensor], torch.Tensor]

_LAUNCH = "twice_kernel<scalar_t><<<at::ceil_div((int)x.numel(), 64), 64, 0, stream>>>(x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), x.numel());"
_STREAM = "auto y = torch::empty_like(x); auto stream = at::cuda::getCurrentCUDAStream(); "


def _gathered(types: tuple[str, ...]) -> tuple[str, Expect]:
    """Small whole numbers, exact in every type: in float32, and after it in the given ones."""
    body = "auto n = (x * 4).round().clamp(-3, 3); auto sum = torch::zeros({6, 4}, x.options()); "
    for name in types:
        body += f"""{{ auto t = n.to({name}); auto y = torch::zeros({{6, 4}}, t.options()); y.slice(0, 2, 5).fill_(1);
        AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, t.scalar_type(), "gathered", [&] {{ gathered_kernel<scalar_t><<<1, 32>>>(t.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), 6, 4); }});
        sum += y.to(torch::kFloat); }} """
    return body + "return sum;", lambda x: len(types) * _gathered_rows((x * 4).round().clamp(-3, 3))


def _gathered_rows(n: torch.Tensor) -> torch.Tensor:
    total, one = n.sum(0), torch.ones(1, 4)
    most, least = torch.cat([n, one]).amax(0), torch.cat([n, one]).amin(0)
    return torch.stack([total, total, n.prod(0), most, least, total])


def _dispatch(macro: str, *extra: str, type_text: str = "x.scalar_type()") -> tuple[str, Expect]:
    arguments = ", ".join([*extra, type_text, '"twice"'])
    return f"{_STREAM}{macro}({arguments}, ([&] {{ {_LAUNCH} }})); return y;", lambda x: x * 2


SNIPPETS: dict[str, tuple[str, Expect]] = {
    # ---- torch::cuda
    "torch_cuda": (
        "torch::cuda::synchronize(); torch::cuda::synchronize(0); return x * torch::cuda::is_available() + torch::cuda::device_count();",
        lambda x: x + 1,
    ),
    # ---- dispatch
    "dispatch_plain": _dispatch("AT_DISPATCH_FLOATING_TYPES"),
    "dispatch_type_method": _dispatch("AT_DISPATCH_FLOATING_TYPES", type_text="x.type().scalarType()"),
    "dispatch_half": _dispatch("AT_DISPATCH_FLOATING_TYPES_AND_HALF"),
    "dispatch_and": _dispatch("AT_DISPATCH_FLOATING_TYPES_AND", "at::ScalarType::Half"),
    "dispatch_and2": _dispatch("AT_DISPATCH_FLOATING_TYPES_AND2", "at::kHalf", "at::kBFloat16"),
    "dispatch_all": _dispatch("AT_DISPATCH_ALL_TYPES"),
    "dispatch_all_and2": _dispatch("AT_DISPATCH_ALL_TYPES_AND2", "torch::kHalf", "torch::kBFloat16"),
    "dispatch_switch": (
        f'{_STREAM}AT_DISPATCH_SWITCH(x.scalar_type(), "twice", AT_DISPATCH_CASE(at::kFloat, [&] {{ {_LAUNCH} }}) AT_DISPATCH_CASE(at::kDouble, [&] {{ {_LAUNCH} }})); return y;',
        lambda x: x * 2,
    ),
    "dispatch_v2": (
        f'{_STREAM}AT_DISPATCH_ALL_TYPES_AND3(at::kBool, at::kHalf, at::kBFloat16, x.scalar_type(), "n", [&] {{ y.fill_((int64_t)sizeof(scalar_t)); }}); return y;',
        lambda x: torch.full_like(x, 4),
    ),
    "opmath": (
        "using opmath_t = at::opmath_type<at::Half>; using acc_t = at::acc_type<float, true>; return x * (double)(sizeof(opmath_t) + sizeof(acc_t));",
        lambda x: x * 8,
    ),
    # ---- accessors
    "packed_accessors": (
        "auto y = torch::zeros({x.size(0), x.size(1)}, x.options()); accessed_kernel<float><<<1, dim3(8, 8)>>>(x.packed_accessor32<float, 2, torch::RestrictPtrTraits>(), y.packed_accessor64<float, 2>()); return y;",
        lambda x: x * 2,
    ),
    "accessor": (
        "auto y = x.clone(); auto a = y.accessor<float, 2>(); for (int64_t i = 0; i < a.size(0); i++) a[i][1] = 7; return y;",
        lambda x: torch.cat([x[:, :1], torch.full_like(x[:, 1:2], 7), x[:, 2:]], 1),
    ),
    "kernel_loop": (
        "auto y = at::empty_like(x); looped_kernel<<<at::cuda::detail::GET_BLOCKS(x.numel()), at::cuda::detail::CUDA_NUM_THREADS>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel()); return y;",
        lambda x: x * 2,
    ),
    "atomics": _gathered(("torch::kFloat", "torch::kDouble", "torch::kHalf", "torch::kBFloat16")),
    "atomics_of_integers": _gathered(("torch::kInt", "torch::kLong", "torch::kShort")),
    # ---- checks
    "checks": (
        'CHECK_INPUT(x); TORCH_CHECK_EQ(x.dim(), 2); TORCH_CHECK_GT(x.numel(), 0); TORCH_INTERNAL_ASSERT(x.defined()); TORCH_CHECK(x.dtype() == torch::kFloat32, "type ", x.dtype(), " sizes ", x.sizes()); TORCH_CHECK_LE(1, 2); return x;',
        lambda x: x,
    ),
    "checks_debug": (
        'TORCH_INTERNAL_ASSERT_DEBUG_ONLY(x.defined()); AT_ASSERT(x.dim() == 2); AT_ASSERTM(x.dim() == 2, "two"); TORCH_WARN_ONCE("once"); return x;',
        lambda x: x,
    ),
    "check_types": (
        'at::TensorArg arg{x, "x", 1}; at::CheckedFrom c = "f"; at::checkDim(c, arg, 2); at::checkContiguous(c, arg); at::checkScalarType(c, arg, at::kFloat); return x;',
        lambda x: x,
    ),
    "cuda_checks": (
        "AT_CUDA_CHECK(cudaGetLastError()); C10_CUDA_CHECK(cudaSuccess); C10_CUDA_KERNEL_LAUNCH_CHECK(); return x;",
        lambda x: x,
    ),
    "throws_and_catches": (
        'try { TORCH_CHECK(false, "no"); } catch (const c10::Error& error) { TORCH_CHECK(std::string(error.what_without_backtrace()).size() > 0); } catch (const std::exception&) {} return x;',
        lambda x: x,
    ),
    # ---- streams, guards, devices
    "guards": (
        "const at::cuda::OptionalCUDAGuard guard(device_of(x)); at::cuda::CUDAGuard other(x.device()); c10::cuda::CUDAGuard third(x.get_device()); c10::DeviceGuard fourth(x.device()); return x;",
        lambda x: x,
    ),
    "stream_guard": (
        "auto s = c10::cuda::getStreamFromPool(); { c10::cuda::CUDAStreamGuard guard(s); } s.synchronize(); at::cuda::getDefaultCUDAStream().synchronize(); return x;",
        lambda x: x,
    ),
    "stream_of_device": (
        "cudaStream_t s = c10::cuda::getCurrentCUDAStream(x.device().index()).stream(); cudaStreamSynchronize(s); return x;",
        lambda x: x,
    ),
    "device_properties": (
        "auto* p = at::cuda::getCurrentDeviceProperties(); int sms = p->multiProcessorCount; return x * (double)(sms > 0) + (double)(p->warpSize - 32);",
        lambda x: x,
    ),
    "device_questions": (
        "TORCH_CHECK(torch::cuda::is_available()); TORCH_CHECK(at::cuda::is_available()); auto d = torch::Device(torch::kCUDA, 0); return x.to(d) * (double)(c10::cuda::current_device() + 1) * (double)(torch::cuda::device_count() > 0);",
        lambda x: x,
    ),
    "no_grad": (
        "torch::NoGradGuard guard; at::NoGradGuard other; c10::InferenceMode mode; at::AutoDispatchBelowADInplaceOrView third; return x;",
        lambda x: x,
    ),
    # ---- factories and options
    "options_chain": (
        "auto o = torch::TensorOptions().dtype(torch::kFloat32).device(x.device()).requires_grad(false).layout(torch::kStrided); return torch::full({6, 4}, 2.5, o);",
        lambda x: torch.full_like(x, 2.5),
    ),
    "options_words": (
        "return torch::ones({6, 4}, torch::dtype(torch::kFloat).device(torch::kCUDA)) + at::zeros(x.sizes(), x.options()) + torch::full_like(x, 3);",
        lambda x: torch.full_like(x, 4),
    ),
    "brace_options": (
        "auto y = torch::empty({x.size(0), x.size(1)}, {x.options()}); y.zero_(); return y;",
        lambda x: torch.zeros_like(x),
    ),
    "empty_strided": ("auto y = at::empty_strided({6, 4}, {4, 1}, x.options()); return y.copy_(x);", lambda x: x),
    "sequence": (
        "return torch::arange(24, x.options()).view({6, 4}) + torch::linspace(0, 1, 4, x.options()) + torch::eye(4, x.options()).sum();",
        lambda x: torch.arange(24.0).view(6, 4) + torch.linspace(0, 1, 4) + 4,
    ),
    "literal_tensor": (
        "return x + torch::tensor({1.0f, 2.0f, 3.0f, 4.0f}, x.options()) + torch::tensor(5.0, x.options()) + torch::scalar_tensor(1, x.options());",
        lambda x: x + torch.tensor([1.0, 2, 3, 4]) + 6,
    ),
    "from_blob": (
        "std::vector<float> v(24, 3.f); return torch::from_blob(v.data(), {6, 4}, torch::kFloat32).clone().to(x.device());",
        lambda x: torch.full_like(x, 3),
    ),
    "new_tensors": (
        "return x.new_zeros({6, 4}) + x.new_ones({6, 4}) + x.new_empty({0}).numel() + x.new_full({6, 4}, 2);",
        lambda x: torch.full_like(x, 3),
    ),
    "random_shape_only": (
        "return torch::rand({6, 4}, x.options()).mul(0) + torch::randn_like(x).mul(0) + torch::randint(0, 3, {6, 4}, x.options()).mul(0);",
        lambda x: torch.zeros_like(x),
    ),
    "memory_format": (
        "auto y = x.view({1, 6, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast); TORCH_CHECK(y.is_contiguous(torch::MemoryFormat::ChannelsLast)); TORCH_CHECK(y.suggest_memory_format() == at::MemoryFormat::ChannelsLast); return y.contiguous().view({6, 4});",
        lambda x: x,
    ),
    # ---- operators
    "operators": (
        "return torch::relu(x) + at::sigmoid(x) * torch::tanh(x) - torch::exp(-x.abs()) / (1 + x * x) + 2 * x + (x > 0).to(x.dtype());",
        lambda x: (
            torch.relu(x)
            + torch.sigmoid(x) * torch.tanh(x)
            - torch.exp(-x.abs()) / (1 + x * x)
            + 2 * x
            + (x > 0).float()
        ),
    ),
    "matrix": (
        "return torch::matmul(x, torch::mm(x.t(), x)) + torch::addmm(x, x, torch::eye(4, x.options())) + at::linear(x, at::eye(4, x.options()));",
        lambda x: x @ (x.t() @ x) + 3 * x,
    ),
    "reductions": (
        "return x.sum(-1, true) + x.mean({0}, false) + std::get<0>(x.max(1, true)) + torch::amax(x) + x.norm() + x.argmax(-1, true) + torch::logsumexp(x, 1, true) + x.var(0, false) + x.std();",
        lambda x: (
            x.sum(-1, True)
            + x.mean(0)
            + x.max(1, True)[0]
            + x.amax()
            + x.norm()
            + x.argmax(-1, True)
            + torch.logsumexp(x, 1, True)
            + x.var(0, unbiased=False)
            + x.std()
        ),
    ),
    "functional": (
        'namespace F = torch::nn::functional; return F::relu(x) + torch::softmax(x, -1) + at::gelu(x, "tanh") + torch::layer_norm(x, {4}) + torch::leaky_relu(x, 0.1) + torch::silu(x);',
        lambda x: (
            F.relu(x)
            + x.softmax(-1)
            + F.gelu(x, approximate="tanh")
            + F.layer_norm(x, (4,))
            + F.leaky_relu(x, 0.1)
            + F.silu(x)
        ),
    ),
    "convolution": (
        "return torch::conv2d(x.view({1, 1, 6, 4}), torch::ones({1, 1, 3, 3}, x.options()), {}, 1, 1).view({6, 4}) + at::max_pool2d(x.view({1, 1, 6, 4}), {3, 3}, {1, 1}, {1, 1}).view({6, 4});",
        lambda x: (
            F.conv2d(x.view(1, 1, 6, 4), torch.ones(1, 1, 3, 3), padding=1) + F.max_pool2d(x.view(1, 1, 6, 4), 3, 1, 1)
        ).view(6, 4),
    ),
    "indexing": (
        "using namespace torch::indexing; auto y = x.clone(); y.index_put_({0, Slice()}, 5.0); y.index_put_({Slice(1, None), 2}, x.index({Slice(1, None), 0})); return y.slice(0, 0, 6).narrow(1, 0, 4);",
        lambda x: _indexed(x),
    ),
    "where_and_masks": (
        "return torch::where(x > 0, x, torch::zeros_like(x)) + x.masked_fill(x < 0, 1) + torch::clamp(x, -0.5, 0.5) + x.clamp_min(0);",
        lambda x: torch.where(x > 0, x, 0) + x.masked_fill(x < 0, 1) + x.clamp(-0.5, 0.5) + x.clamp_min(0),
    ),
    "joining": (
        "auto parts = x.chunk(2, 1); auto c = torch::cat({parts[1], parts[0]}, 1); auto s = torch::stack({c, x}, 0); std::vector<at::Tensor> all = {s[0], s.select(0, 1)}; return at::cat(all, 0).view({2, 6, 4}).sum(0);",
        lambda x: torch.cat([x[:, 2:], x[:, :2]], 1) + x,
    ),
    "shape_work": (
        "return x.view({-1}).unsqueeze(0).expand({2, 24}).reshape({2, 6, 4}).permute({1, 2, 0}).transpose(0, 2).contiguous().flatten(1).squeeze().select(0, 0).view_as(x);",
        lambda x: x.t().contiguous().flatten().view(6, 4),
    ),
    "in_place": (
        "auto y = x.clone(); y.add_(1).mul_(2).sub_(x, 0.5).div_(3).relu_().clamp_(0, 2).copy_(y); y += x; y *= 2.0; return y.neg_().fill_(1).zero_().add_(x);",
        lambda x: x,
    ),
    "out_forms": (
        "auto y = torch::empty_like(x); torch::add_out(y, x, x); at::mul_out(y, y, x); auto z = at::empty({6, 6}, x.options()); at::mm_out(z, x, x.t()); return y + z.sum();",
        lambda x: 2 * x * x + (x @ x.t()).sum(),
    ),
    "sorting": (
        "auto [values, indices] = x.sort(1, true); auto top = torch::topk(x, 2, 1); return values + indices + std::get<0>(top).sum() + x.gather(1, indices);",
        lambda x: 2 * x.sort(1, True)[0] + x.sort(1, True)[1] + x.topk(2, 1)[0].sum(),
    ),
    "types": (
        "return x.to(torch::kHalf).to(at::kFloat) * 0 + x.toType(torch::kDouble).to(x.scalar_type()) + x.to(torch::kInt32).to(torch::kFloat32) * 0 + x.type_as(x) + (double)c10::elementSize(x.scalar_type());",
        lambda x: 2 * x + 4,
    ),
    "scalars": (
        "at::Scalar s = 2; torch::Scalar t(0.5); auto v = x.sum().item<float>(); double w = x[0][0].item().toDouble(); return x * s + t.to<double>() + v * 0 + w * 0 + s.toInt();",
        lambda x: 2 * x + 2.5,
    ),
    "linear_algebra": (
        'return torch::einsum("ij,kj->ik", {x, x}).matmul(x) + at::bmm(x.unsqueeze(0), at::eye(4, x.options()).unsqueeze(0)).squeeze(0) + torch::linalg_vector_norm(x, 2);',
        lambda x: x @ x.t() @ x + x + x.norm(),
    ),
    # ---- C++ with PyTorch's types
    "optional_arguments": (
        "auto f = [](torch::Tensor a, c10::optional<torch::Tensor> b, std::optional<double> c = std::nullopt) { return b.has_value() ? a + *b : a * c.value_or(3.0); }; return f(x, c10::nullopt) + f(x, x) + f(x, torch::nullopt, 2.0);",
        lambda x: 7 * x,
    ),
    "array_refs": (
        "at::IntArrayRef s = x.sizes(); std::vector<int64_t> v = s.vec(); v.push_back(1); int64_t n = std::accumulate(v.begin(), v.end(), (int64_t)1, std::multiplies<int64_t>()); for (const auto i : c10::irange(x.dim())) n += i; return x.reshape(v).squeeze(-1) + (double)n + (double)c10::multiply_integers(s);",
        lambda x: x + 49,
    ),
    "maps_and_streams": (
        'std::map<std::string, torch::Tensor> m{{"x", x}}; std::ostringstream o; o << x.sizes() << x.dtype() << x.device() << x.scalar_type(); TORCH_CHECK(o.str().size() > 3); return m.at("x");',
        lambda x: x,
    ),
    "pointers": (
        "const float* a = x.const_data_ptr<float>(); auto y = at::empty_like(x); float* b = y.mutable_data_ptr<float>(); auto* raw = static_cast<float*>(x.data_ptr()); auto* p = reinterpret_cast<float4*>(y.data_ptr<float>()); (void)p; for (int i = 0; i < x.numel(); ++i) b[i] = a[i] + raw[i]; return y;",
        lambda x: 2 * x,
    ),
    "half_pointers": (
        "auto h = x.to(torch::kHalf); auto* p = reinterpret_cast<__half*>(h.data_ptr<at::Half>()); auto* q = (const c10::Half*)p; (void)q; return h.to(torch::kFloat);",
        lambda x: x.half().float(),
    ),
    "questions": (
        "TORCH_CHECK(x.is_floating_point() && !x.is_complex() && x.ndimension() == 2 && x.nbytes() == 96 && x.stride(0) == 4 && x.strides()[1] == 1 && x.storage_offset() == 0 && x.is_same(x) && !x.is_sparse() && !x.requires_grad() && x.size(-1) == 4 && x.sym_size(0) == 6); return x;",
        lambda x: x,
    ),
    "parallel": ("at::parallel_for(0, 10, 1, [&](int64_t a, int64_t b) {}); return x;", lambda x: x),
    "ceil_div": (
        "int64_t b = at::ceil_div(x.numel(), (int64_t)7) + at::cuda::ATenCeilDiv(10, 3) + c10::cuda::device_count() * 0; return x + (double)b;",
        lambda x: x + 8,
    ),
    "borrowed": (
        "const auto y = x.expect_contiguous(); c10::MaybeOwned<at::Tensor> z = x.expect_contiguous(); return *y + *z;",
        lambda x: 2 * x,
    ),
    "autograd_words": (
        "auto y = x.detach(); y.set_requires_grad(false); TORCH_CHECK(!y.requires_grad()); return y.alias();",
        lambda x: x,
    ),
    "upsample": (
        "return at::upsample_nearest2d(x.view({1, 1, 6, 4}), {12, 8}).view({12, 8}).slice(0, 0, 12, 2).slice(1, 0, 8, 2);",
        lambda x: x,
    ),
    "dynamic_operator": (
        "auto y = std::get<0>(at::native_batch_norm(x, {}, {}, {}, {}, true, 0.1, 1e-5)); return y.index_select(0, torch::arange(6, torch::kLong).to(x.device()));",
        lambda x: F.batch_norm(x, None, None, training=True),
    ),
}


def _indexed(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[0] = 5
    y[1:, 2] = x[1:, 0]
    return y


def source(names: list[str]) -> str:
    """One extension that binds the named snippets."""
    functions = "".join(f"torch::Tensor f_{name}(torch::Tensor x) {{\n{SNIPPETS[name][0]}\n}}\n" for name in names)
    bound = "".join(f'  m.def("{name}", &f_{name});\n' for name in names)
    return f"{INCLUDES}\n{functions}\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{\n{bound}}}\n"
