# promise: Including /proc/self/fd/0 is a compile error, and takes no memory of the machine.
# alone: compile_error timeout
# tags: slow builds
import torch
from torch.utils.cpp_extension import load_inline
cuda_source = """
#include <torch/extension.h>
__global__ void k(const float* x, float* y, int n) {
}
#include "/proc/self/fd/0"
void h() {
    y[0] = x[0];
}
torch::Tensor f(torch::Tensor x) { auto y = torch::empty_like(x); k<<<1, 1>>>(x.data_ptr<float>(), y.data_ptr<float>(), 1); return y; }
"""
ops = load_inline(name="f", cpp_sources="torch::Tensor f(torch::Tensor x);", cuda_sources=cuda_source, functions=["f"])
class ModelNew(torch.nn.Module):
    def forward(self, x):
        return ops.f(x)
