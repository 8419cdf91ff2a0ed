"""How a problem is put to a model: `dice.prompts` in the variants that benchmarks use."""

from __future__ import annotations

import textwrap

from dice.evaluate.hardware import Gpu
from dice.kernel import Kernel
from dice.problem import Problem
from dice.prompts import compact, one_shot, reply

VARIANTS = ("one-shot", "zero-shot", "few-shot", "compact")

# Further pairs for the few-shot prompt: a product with an epilogue, and a reduction. Neither is a benchmark's.
_PAIRS = (
    (
        """
        import torch
        import torch.nn as nn


        class Model(nn.Module):
            def __init__(self, slope):
                super().__init__()
                self.slope = slope

            def forward(self, x, y):
                return torch.maximum(x, self.slope * x) * y


        def get_inputs():
            return [torch.randn(64, 512), torch.randn(64, 512)]


        def get_init_inputs():
            return [0.1]
        """,
        '''
        import torch
        import torch.nn as nn
        from torch.utils.cpp_extension import load_inline

        cuda_source = """
        #include <torch/extension.h>
        #include <cuda_runtime.h>

        __global__ void gate_kernel(const float* x, const float* y, float* out, float slope, int n) {
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            if (i < n) {
                float v = x[i];
                out[i] = fmaxf(v, slope * v) * y[i];
            }
        }

        torch::Tensor gate_cuda(torch::Tensor x, torch::Tensor y, double slope) {
            auto out = torch::empty_like(x);
            int n = x.numel();
            gate_kernel<<<(n + 255) / 256, 256>>>(
                x.data_ptr<float>(), y.data_ptr<float>(), out.data_ptr<float>(), (float)slope, n);
            return out;
        }
        """

        cpp_source = "torch::Tensor gate_cuda(torch::Tensor x, torch::Tensor y, double slope);"

        gate = load_inline(name="gate", cpp_sources=cpp_source, cuda_sources=cuda_source, functions=["gate_cuda"])


        class ModelNew(nn.Module):
            def __init__(self, slope):
                super().__init__()
                self.slope = slope

            def forward(self, x, y):
                return gate.gate_cuda(x.contiguous(), y.contiguous(), self.slope)
        ''',
    ),
    (
        """
        import torch
        import torch.nn as nn


        class Model(nn.Module):
            def forward(self, x):
                return (x * x).sum(dim=-1)


        def get_inputs():
            return [torch.randn(128, 1000)]


        def get_init_inputs():
            return []
        """,
        '''
        import torch
        import torch.nn as nn
        from torch.utils.cpp_extension import load_inline

        cuda_source = """
        #include <torch/extension.h>
        #include <cuda_runtime.h>

        __global__ void energy_kernel(const float* x, float* out, int width) {
            __shared__ float partial[256];
            const float* row = x + (long long)blockIdx.x * width;
            float sum = 0.0f;
            for (int i = threadIdx.x; i < width; i += 256) {
                sum += row[i] * row[i];
            }
            partial[threadIdx.x] = sum;
            __syncthreads();
            for (int half = 128; half > 0; half /= 2) {
                if (threadIdx.x < half) {
                    partial[threadIdx.x] += partial[threadIdx.x + half];
                }
                __syncthreads();
            }
            if (threadIdx.x == 0) {
                out[blockIdx.x] = partial[0];
            }
        }

        torch::Tensor energy_cuda(torch::Tensor x) {
            auto out = torch::empty({x.size(0)}, x.options());
            energy_kernel<<<x.size(0), 256>>>(x.data_ptr<float>(), out.data_ptr<float>(), x.size(1));
            return out;
        }
        """

        cpp_source = "torch::Tensor energy_cuda(torch::Tensor x);"

        energy = load_inline(
            name="energy", cpp_sources=cpp_source, cuda_sources=cuda_source, functions=["energy_cuda"]
        )


        class ModelNew(nn.Module):
            def forward(self, x):
                return energy.energy_cuda(x.contiguous())
        ''',
    ),
)


def examples() -> list[tuple[Problem, Kernel]]:
    """The further pairs of the few-shot prompt."""
    return [(Problem(_text(problem)), Kernel(_text(kernel))) for problem, kernel in _PAIRS]


def prompt(problem: Problem, variant: str = "one-shot", gpu: Gpu | None = None) -> str:
    """`one-shot` and `few-shot`: KernelBench's, with one example or three. `zero-shot`: the same without any.
    `compact`: what DICE's small models are trained on. `gpu`: its facts come before the last instruction."""
    if variant == "compact":
        text = compact(problem)
        return text if gpu is None else f"{gpu.facts}\n\n{text}"
    text = one_shot(problem)
    statement, example, rest = _parts(text)
    if variant == "zero-shot":
        example = ""
    elif variant == "few-shot":
        example += "".join(_shown(one, kernel) for one, kernel in examples())
    elif variant != "one-shot":
        raise ValueError(f"there is no prompt {variant!r}; there are {', '.join(VARIANTS)}")
    facts = "" if gpu is None else f"{gpu.facts}\n\n"
    return f"{statement}{example}{facts}{rest}"


def _parts(text: str) -> tuple[str, str, str]:
    """Statement, example, and the rest from the architecture on."""
    first, last = text.index("Here is the form"), text.index("You are given this architecture")
    return text[:first], text[first:last], text[last:]


def _shown(problem: Problem, kernel: Kernel) -> str:
    return f"Another architecture:\n```python\n{problem.source}```\n\nand with a CUDA kernel:\n{reply(kernel)}\n\n"


def _text(source: str) -> str:
    return textwrap.dedent(source).lstrip("\n")
