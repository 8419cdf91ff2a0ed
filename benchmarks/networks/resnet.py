"""ResNet-50 with random weights."""

import torch
import torch.nn as nn
from transformers import ResNetConfig, ResNetModel


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = ResNetModel(ResNetConfig()).eval()

    def forward(self, given):
        return self.net(pixel_values=given).pooler_output


def get_inputs():
    return [torch.randn(16, 3, 224, 224)]


def get_init_inputs():
    return []
