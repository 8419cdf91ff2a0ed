"""A small model with lively weights: freshly initialised ones are so flat that many mistakes would not show."""

from __future__ import annotations

import torch

from dice.model.sdar import SDAR, SDARConfig

TINY = SDARConfig(
    vocab_size=97,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=256,
    rope_theta=10000.0,
    mask_token_id=96,
    block_size=4,
    eos_token_id=1,
)


def lively(config: SDARConfig, seed: int = 0) -> SDAR:
    torch.manual_seed(seed)
    model = SDAR(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight"):
                weight.uniform_(0.5, 1.5)
            else:
                weight.normal_(0, 0.25)
    return model
