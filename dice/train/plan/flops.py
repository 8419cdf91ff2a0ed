"""The work of a training step, counted from shapes."""

from __future__ import annotations

from dice.model.sdar import SDARConfig
from dice.train.blocks import Recompute


def attention_weights(config: SDARConfig) -> int:
    """Numbers in the four projections of a block."""
    return config.hidden_size * config.head_dim * 2 * (config.num_attention_heads + config.num_key_value_heads)


def feed_forward_weights(config: SDARConfig) -> int:
    return 3 * config.hidden_size * config.intermediate_size


def training_flops(config: SDARConfig, *, tokens: float, pairs: float, predicted: float) -> float:
    """Forward and backward: every matrix of the blocks for each of `tokens` read, attention for each of `pairs` of
    tokens that the mask allows, and the head for each of `predicted`. Recomputed blocks, masked pairs and logits that
    nobody asked for are not counted."""
    layers, heads = config.num_hidden_layers, config.num_attention_heads * config.head_dim
    linear = 6 * layers * (attention_weights(config) + feed_forward_weights(config)) * tokens
    return linear + 12 * layers * heads * pairs + 6 * config.hidden_size * config.vocab_size * predicted


def recomputed_flops(config: SDARConfig, recompute: Recompute, *, tokens: float, pairs: float) -> float:
    """What is computed a second time."""
    layers = config.num_hidden_layers if recompute.layers is None else min(recompute.layers, config.num_hidden_layers)
    if recompute.part == "none":
        return 0.0
    once = 2 * feed_forward_weights(config) * tokens
    if recompute.part == "block":
        heads = config.num_attention_heads * config.head_dim
        once += 2 * attention_weights(config) * tokens + 4 * heads * pairs
    return layers * once
