# problem: relu
# expect-emulated: wrong compare

# Sends what no JSON reader likes: no UTF-8, deep, giant, NaN, integers of thousands of digits; then claims of such kind.
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

import json
import os
import stat

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


def channels():
    for descriptor in range(3, 256):
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                yield descriptor
        except OSError:
            pass


HUGE = 10**4000
GARBAGE = [
    b"\xff\xfe\x00",
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'{"event": NaN, "launches": Infinity}',
    b'{"event": "\\ud800", "notice": {"a": [1]}}',
    b"[" + b"1," * 1_000_000 + b"1]",
    b"9" * 100_000,
    json.dumps({"event": "ran", "launches": {"relu_kernel": HUGE, "\x1b[2J": -HUGE}, "work": {"elements": {"relu": -HUGE}, "host": HUGE}, "changed": [HUGE], "aliased": [[]], "written": [{}], "damaged": 3}).encode(),
]


class ModelNew(nn.Module):
    def forward(self, x):
        (channel, *_) = channels()
        for line in GARBAGE:
            data = line + b"\n"
            while data:
                data = data[os.write(channel, data) :]
        return torch.zeros_like(x)
