# problem: relu
# expect: deceptive run
# deceptions: torch_only
# message: defines no CUDA kernel

import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cpp_source = "torch::Tensor relu(torch::Tensor x) { return torch::relu(x); }"

ops = load_inline(name="relu_ops", cpp_sources=cpp_source, functions=["relu"])


class ModelNew(nn.Module):
    def forward(self, x):
        return ops.relu(x)
