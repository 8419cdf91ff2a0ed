"""A small ViT with random weights."""

import torch
import torch.nn as nn
from transformers import ViTConfig, ViTModel


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = ViTModel(
            ViTConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=6, intermediate_size=1536)
        ).eval()

    def forward(self, given):
        return self.net(pixel_values=given).last_hidden_state


def get_inputs():
    return [torch.randn(16, 3, 224, 224)]


def get_init_inputs():
    return []
