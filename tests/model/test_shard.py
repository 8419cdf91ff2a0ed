"""Parts of weights: together they are the whole, and what ranks compute with them adds up to what the whole does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from dice.model.config import ConfigError, SDARConfig
from dice.model.sdar import SDAR
from dice.model.shard import Shard, check_shards

BASE = SDARConfig(
    vocab_size=61, hidden_size=12, intermediate_size=24, num_hidden_layers=1, num_attention_heads=8,
    num_key_value_heads=2, head_dim=4, max_position_embeddings=32, mask_token_id=60,
)  # fmt: skip


@st.composite
def cuts(draw: st.DrawFn) -> tuple[SDARConfig, int]:
    """A model's sizes, and a number of ranks that it can be cut over."""
    size, keys = draw(st.sampled_from([1, 2, 3, 4])), draw(st.integers(1, 8))
    if keys % size and size % keys:
        keys *= size
    heads = keys * size * draw(st.integers(1, 2))
    return (
        replace(
            BASE, num_attention_heads=heads, num_key_value_heads=keys, head_dim=2 * draw(st.integers(1, 3)),
            intermediate_size=size * draw(st.integers(1, 9)), vocab_size=draw(st.integers(61, 90)),
            tied=draw(st.booleans()),
        ),
        size,
    )  # fmt: skip


@settings(max_examples=10)
@given(cuts())
def test_parts_joined_are_the_whole(cut: tuple[SDARConfig, int]) -> None:
    config, size = cut
    shards = [Shard(rank, size) for rank in range(size)]
    model = SDAR(config)
    built = [shard.new_model(config, torch.float32, torch.device("cpu")) for shard in shards]
    for name, weight in model.named_parameters():
        parts = [shard.part(name, weight, config) for shard in shards]
        layer = name.split(".")[-2]
        if layer in ("k_proj", "v_proj") and size > config.num_key_value_heads:
            alike = size // config.num_key_value_heads
            assert all(torch.equal(part, parts[rank // alike * alike]) for rank, part in enumerate(parts))
            parts = parts[::alike]
        joined = parts[0]
        if layer in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "lm_head"):
            joined = torch.cat(parts)
        elif layer in ("o_proj", "down_proj"):
            joined = torch.cat(parts, 1)
        assert torch.equal(joined, weight), name
        own = [shard.part(name, weight, config).shape for shard in shards]
        assert own == [one.get_parameter(name).shape for one in built], name


@settings(max_examples=10)
@given(cuts())
def test_attention_and_mlp_of_all_ranks_add_up(cut: tuple[SDARConfig, int]) -> None:
    config, size = cut
    torch.manual_seed(0)
    model = SDAR(config)
    x, ids = torch.randn(1, 8, config.hidden_size), torch.arange(8)[None]
    cos, sin = model.rope_cos[ids], model.rope_sin[ids]
    (layer,) = model.model.blocks()
    added, gated, logits = torch.zeros_like(x), torch.zeros_like(x), []
    for rank in range(size):
        shard = Shard(rank, size)
        own = shard.new_model(config, torch.float32, torch.device("cpu"))
        with torch.no_grad():
            for name, weight in model.named_parameters():
                own.get_parameter(name).copy_(shard.part(name, weight, config))
        (part,) = own.model.blocks()
        added += part.self_attn(x, cos, sin, None, None)
        gated += part.mlp(x)
        logits.append(F.linear(x, own.lm_head.weight))
    torch.testing.assert_close(added, layer.self_attn(x, cos, sin, None, None))
    torch.testing.assert_close(gated, layer.mlp(x))
    torch.testing.assert_close(torch.cat(logits, -1), model.lm_head(x))


@pytest.mark.parametrize(
    ("changes", "size", "said"),
    [
        ({}, 3, "num_attention_heads"),
        ({"num_attention_heads": 6}, 3, "num_key_value_heads"),
        ({"intermediate_size": 21}, 2, "intermediate_size"),
        ({"family": "llada"}, 2, "attend to the whole answer"),
    ],
)
def test_what_cannot_be_cut_is_said(changes: dict[str, object], size: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_shards(replace(BASE, **changes), size)  # type: ignore[arg-type]
