import torch
import torch.nn as nn


class Model(nn.Module):
    """Negative inputs give NaN here, so they must not be tried."""

    def forward(self, x):
        return torch.log(x + 0.01)


def get_inputs():
    return [torch.rand(6, 50)]


def get_init_inputs():
    return []
