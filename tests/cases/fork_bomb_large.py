# problem: relu
# expect: runtime_error run
# message: processes
# limits: memory_mb=2048 run_timeout_s=120

# Many small children of a large process, as every process with a CUDA context is: together they hold little more
# than it does. Bounded, so that a failure of the jail does not take the machine down.
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

import os
import time
cuda_source = """
#include <torch/extension.h>
#include <cuda_runtime.h>

__global__ void relu_kernel(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        y[i] = x[i] > 0 ? x[i] : 0.0f;
    }
}

torch::Tensor relu(torch::Tensor x) {
    auto y = torch::empty_like(x);
    int n = x.numel();
    relu_kernel<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
    return y;
}
"""

cpp_source = "torch::Tensor relu(torch::Tensor x);"

ops = load_inline(name="relu_ops", cpp_sources=cpp_source, cuda_sources=cuda_source, functions=["relu"])


class ModelNew(nn.Module):
    def forward(self, x):
        held = bytearray(os.urandom(1)) * (200 << 20)  # shared with every child
        for _ in range(400):
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
        time.sleep(60)
        return ops.relu(x) + len(held) * 0
