"""Two layers of a Mamba with random weights, in PyTorch's own operators."""

import torch
import torch.nn as nn
from transformers import MambaConfig, MambaModel


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = MambaModel(MambaConfig(vocab_size=1000, hidden_size=256, num_hidden_layers=2)).eval()

    def forward(self, given):
        return self.net(input_ids=given, use_cache=False).last_hidden_state


def get_inputs():
    return [torch.randint(0, 1000, (2, 32))]


def get_init_inputs():
    return []
