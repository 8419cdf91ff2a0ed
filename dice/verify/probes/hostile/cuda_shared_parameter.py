# promise: CUDA text with a shared parameter gets its verdict at once: an error of g++, while nvcc lets it pass.
# alone: compile_error wrong
# tags: quick text
import torch
from torch.utils.cpp_extension import load_inline
cuda_source = """
#include <torch/extension.h>
__device__ float g(__shared__ float* s, int t) { return s[t]; }
__global__ void k(const float* x, float* y, int n) {
    float g = 1;
    y[0] = x[0];
}
torch::Tensor f(torch::Tensor x) { auto y = torch::empty_like(x); k<<<1, 1>>>(x.data_ptr<float>(), y.data_ptr<float>(), 1); return y; }
"""
ops = load_inline(name="f", cpp_sources="torch::Tensor f(torch::Tensor x);", cuda_sources=cuda_source, functions=["f"])
class ModelNew(torch.nn.Module):
    def forward(self, x):
        return ops.f(x)
