"""A small BERT with random weights."""

import torch
import torch.nn as nn
from transformers import BertConfig, BertModel


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = BertModel(
            BertConfig(hidden_size=512, num_hidden_layers=4, num_attention_heads=8, intermediate_size=2048)
        ).eval()

    def forward(self, given):
        return self.net(input_ids=given).last_hidden_state


def get_inputs():
    return [torch.randint(0, 30522, (8, 128))]


def get_init_inputs():
    return []
