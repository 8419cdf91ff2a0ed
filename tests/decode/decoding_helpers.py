"""A small model with lively weights, and a plain decoder-free way to score what a decoder did."""

from __future__ import annotations

import torch
from torch import Tensor

from dice.decode.trace import Trace
from dice.model.mask import block_causal_mask
from dice.model.sdar import SDAR, SDARConfig

MASK = 60
STOP = 1
CONFIG = SDARConfig(
    vocab_size=61,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=256,
    rope_theta=10000.0,
    mask_token_id=MASK,
    block_size=4,
    eos_token_id=STOP,
)


def lively_model(seed: int = 0) -> SDAR:
    torch.manual_seed(seed)
    model = SDAR(CONFIG)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if not name.endswith("norm.weight"):
                weight.normal_(0, 0.3)
    return model


def prompt_of(length: int, seed: int = 0) -> list[int]:
    """Random tokens without stop ids and masks."""
    return torch.randint(2, MASK, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.no_grad()
def uncached_logits(model: SDAR, ids: list[int], block_size: int) -> Tensor:
    """Logits [L, V] of one block-causal pass over the whole text, mask token ruled out."""
    positions = torch.arange(len(ids))[None]
    logits = model(torch.tensor([ids]), positions, block_causal_mask(positions, block_size))[0]
    logits[:, MASK] = float("-inf")
    return logits


def frames_with_prompt(trace: Trace) -> list[list[int]]:
    return [[*trace.prompt_ids, *frame] for frame in trace.frames()]
