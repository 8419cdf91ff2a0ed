"""Tensor parallelism: which part of a model's weights one of several ranks has.

Queries, keys and values, gate and up are cut by output; o and down, which follow them, by input, so that the ranks'
results add up to the whole one (Shoeybi et al., Megatron-LM, arXiv 1909.08053). Heads stay whole; where there are fewer
key/value heads than ranks, several ranks have the same one. The head is cut over the vocabulary. Norms and the
embedding are whole on every rank: looking a token up costs nothing, and one all-reduce less is waited for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from dice.model.config import ConfigError, SDARConfig
from dice.model.sdar import SDAR

BY_OUTPUT = ("q_proj", "gate_proj", "up_proj")
BY_KEY_HEAD = ("k_proj", "v_proj")
BY_INPUT = ("o_proj", "down_proj")


@dataclass(frozen=True)
class Shard:
    """The part of `rank`, one of 0 .. `size` - 1, of a model that is cut into `size`."""

    rank: int
    size: int

    def vocabulary(self, tokens: int) -> range:
        """The tokens, of a vocabulary of so many, whose logits this rank computes."""
        return range(self.rank * tokens // self.size, (self.rank + 1) * tokens // self.size)

    def key_heads(self, heads: int) -> range:
        """The key/value heads, of so many, that this rank has."""
        first = self.rank * heads // self.size
        return range(first, max(first + 1, (self.rank + 1) * heads // self.size))

    def config(self, config: SDARConfig) -> SDARConfig:
        """The sizes of this rank's transformer. Raises `ConfigError` where the model cannot be cut so."""
        check_shards(config, self.size)
        return replace(
            config,
            num_attention_heads=config.num_attention_heads // self.size,
            num_key_value_heads=len(self.key_heads(config.num_key_value_heads)),
            intermediate_size=config.intermediate_size // self.size,
            tied=False,
        )

    def part(self, name: str, weight: Tensor, config: SDARConfig) -> Tensor:
        """This rank's part, a view, of the parameter `name` of a model of `config`."""
        layer = name.split(".")[-2]
        if layer == "lm_head":
            tokens = self.vocabulary(config.vocab_size)
            return weight[tokens.start : tokens.stop]
        if layer in BY_KEY_HEAD:
            heads = self.key_heads(config.num_key_value_heads)
            return weight[heads.start * config.head_dim : heads.stop * config.head_dim]
        if layer in BY_OUTPUT:
            return weight.chunk(self.size)[self.rank]
        if layer in BY_INPUT:
            return weight.chunk(self.size, 1)[self.rank]
        return weight

    def new_model(self, config: SDARConfig, dtype: torch.dtype, device: torch.device) -> SDAR:
        """An SDAR of this rank's sizes, its weights not filled in yet; the head has this rank's tokens alone."""
        tokens = self.vocabulary(config.vocab_size)
        with torch.device("meta"):
            model = SDAR(self.config(config))
            model.lm_head = nn.Linear(config.hidden_size, len(tokens), bias=False)
        model = model.to(dtype).to_empty(device=device)
        if config.tied:  # the embedding is whole here, and holds the head's part
            model.lm_head.weight = nn.Parameter(model.model.embed_tokens.weight.detach()[tokens.start : tokens.stop])
        model.init_rope(device)
        return model.requires_grad_(False)


def check_shards(config: SDARConfig, size: int) -> None:
    """Raises `ConfigError` where a model of `config` cannot be cut into `size` parts."""
    if config.traits.kind == "diffusion":
        raise ConfigError(
            f"Models of the family {config.family} attend to the whole answer, which tensor parallelism does not run; "
            "leave --tensor-parallel out."
        )
    keys = config.num_key_value_heads
    for name in ("num_attention_heads", "intermediate_size"):
        if getattr(config, name) % size:
            raise ConfigError(f"The model's {name} ({getattr(config, name)}) cannot be cut into {size} equal parts.")
    if keys % size and size % keys:
        raise ConfigError(f"The model's num_key_value_heads ({keys}) and {size} ranks do not divide each other.")
    if config.vocab_size < size:
        raise ConfigError(f"The model's vocabulary of {config.vocab_size} cannot be cut into {size} parts.")
