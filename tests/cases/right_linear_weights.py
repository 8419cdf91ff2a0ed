# problem: linear
# expect: correct done

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cuda_source = """
#include <torch/extension.h>

__global__ void linear_kernel(const float* x, const float* w, const float* b, float* y, int rows, int in, int out) {
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y;
    if (col < out) {
        float sum = b[col];
        for (int k = 0; k < in; ++k) sum += x[row * in + k] * w[col * in + k];
        y[row * out + col] = sum;
    }
}

torch::Tensor linear(torch::Tensor x, torch::Tensor w, torch::Tensor b) {
    int rows = x.size(0), in = x.size(1), out = w.size(0);
    auto y = torch::empty({rows, out}, x.options());
    dim3 grid((out + 31) / 32, rows);
    linear_kernel<<<grid, 32>>>(x.data_ptr<float>(), w.data_ptr<float>(), b.data_ptr<float>(), y.data_ptr<float>(),
                                rows, in, out);
    return y;
}
"""

ops = load_inline(
    name="linear_ops",
    cpp_sources="torch::Tensor linear(torch::Tensor x, torch::Tensor w, torch::Tensor b);",
    cuda_sources=cuda_source,
    functions=["linear"],
)


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x):
        return ops.linear(x, self.linear.weight, self.linear.bias)
