# problem: relu
# expect: correct done

# Leaves a daemon in a session of its own behind; the test looks for it afterwards.
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

import ctypes
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


def leave_daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(15, b"dice-daemon")  # PR_SET_NAME
            time.sleep(300)
        os._exit(0)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        leave_daemon()

    def forward(self, x):
        return ops.relu(x)
