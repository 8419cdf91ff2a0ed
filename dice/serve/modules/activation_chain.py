import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Activation chain."""

    def __init__(self):
        super().__init__()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.silu(x)
        x = x * 1.5
        return torch.tanh(x)


batch_size = 64
features = 1000


def get_inputs():
    return [torch.randn(batch_size, features)]


def get_init_inputs():
    return []
