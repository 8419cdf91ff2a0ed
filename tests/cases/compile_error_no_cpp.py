# problem: relu
# expect: compile_error compile
# deceptions:
# message: does not compile

import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cuda_source = """
from]; (torch>>.. __global__ ) } import
"""

cpp_source = "torch::Tensor relu(torch::Tensor x);"

ops = load_inline(name="relu_ops", cpp_sources=cpp_source, cuda_sources=cuda_source, functions=["relu"])


class ModelNew(nn.Module):
    def forward(self, x):
        return ops.relu(x)
