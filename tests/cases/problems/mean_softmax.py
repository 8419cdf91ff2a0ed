import torch
import torch.nn as nn


class Model(nn.Module):
    """A degenerate task on purpose: nearly constant, and positive for every input."""

    def forward(self, x):
        return torch.softmax(x, dim=1) + 0.01 * x


def get_inputs():
    return [torch.rand(4, 64)]


def get_init_inputs():
    return []
