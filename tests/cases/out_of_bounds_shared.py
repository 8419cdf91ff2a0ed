# problem: row_sum
# expect-emulated: runtime_error run
# message: (?i)out.of.bounds

# A GPU does not notice a write just past a shared array.
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cuda_source = """
#include <torch/extension.h>

__global__ void row_sum_kernel(const float* x, float* y, int cols) {
    __shared__ float part[64];
    int t = threadIdx.x;
    float sum = 0;
    for (int j = t; j < cols; j += blockDim.x) sum += x[blockIdx.x * cols + j];
    part[t] = sum;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s /= 2) {
        if (t < s) part[t] += part[t + s];
        __syncthreads();
    }
    if (t == 0) y[blockIdx.x] = part[0];
}

torch::Tensor row_sum(torch::Tensor x) {
    int rows = x.size(0), cols = x.size(1);
    auto y = torch::empty({rows}, x.options());
    row_sum_kernel<<<rows, 128>>>(x.data_ptr<float>(), y.data_ptr<float>(), cols);
    return y;
}
"""

ops = load_inline(
    name="row_sum",
    cpp_sources="torch::Tensor row_sum(torch::Tensor x);",
    cuda_sources=cuda_source,
    functions=["row_sum"],
)


class ModelNew(nn.Module):
    def forward(self, x):
        return ops.row_sum(x)
