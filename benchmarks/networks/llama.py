"""Two layers of a Llama with random weights."""

import torch
import torch.nn as nn
from transformers import LlamaConfig, LlamaModel


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = LlamaModel(
            LlamaConfig(
                vocab_size=32000, hidden_size=2048, num_hidden_layers=2, num_attention_heads=16, num_key_value_heads=8
            )
        ).eval()

    def forward(self, given):
        return self.net(input_ids=given, use_cache=False).last_hidden_state


def get_inputs():
    return [torch.randint(0, 32000, (2, 512))]


def get_init_inputs():
    return []
