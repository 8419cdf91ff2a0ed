"""The transformer against Qwen3, against itself with a cache, and against the block-diffusion training layout."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from pathlib import Path

import pytest
import torch
import torch.distributed.tensor
from tiny_model import TINY, lively
from torch import Tensor

from dice.model.config import SDARConfig
from dice.model.mask import BlockLayout, block_causal_mask
from dice.model.sdar import SDAR


def ids(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(0, TINY.vocab_size - 1, (rows, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def test_causal_logits_equal_qwen3(tiny: SDAR) -> None:
    transformers = pytest.importorskip("transformers")
    settings = {key: getattr(TINY, key) for key in (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "rope_theta",
    )}  # fmt: skip
    qwen = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**settings, tie_word_embeddings=False)).eval()
    assert qwen.config.rope_parameters["rope_theta"] == TINY.rope_theta
    qwen.load_state_dict(tiny.state_dict(), strict=True)
    tokens = ids(2, 50)
    causal = torch.ones(50, 50, dtype=torch.bool).tril()[None, None]
    torch.testing.assert_close(tiny(tokens, attention_mask=causal), qwen(tokens).logits, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_default_mask_is_block_causal_with_the_models_block_size(tiny: SDAR) -> None:
    tokens = ids(1, 22)
    explicit = tiny(tokens, torch.arange(22)[None], block_causal_mask(torch.arange(22)[None], 4))
    assert torch.equal(tiny(tokens), explicit)
    changed = tokens.clone()
    changed[0, 7] = (changed[0, 7] + 1) % 90  # last of block 1: seen by 4..7 and everything later, not before
    moved = (tiny(changed) - explicit).abs().amax(-1)[0]
    assert (moved[:4] == 0).all() and (moved[4:] > 1e-4).all()


@torch.no_grad()
@pytest.mark.parametrize("block_size", [1, 4, 8, 16, 32])
@pytest.mark.parametrize("fused", [False, True])
def test_cached_steps_equal_one_full_pass(tiny: SDAR, block_size: int, fused: bool) -> None:
    if fused:
        tiny.fuse()
    tokens = ids(3, 96)
    full = tiny(tokens, None, block_causal_mask(torch.arange(96)[None], block_size))
    cache = tiny.new_cache(3, 96)
    tiny.prefill(tokens[:, :32], cache, block_size)
    for start in range(32, 96, block_size):
        window = tokens[:, start : start + block_size]
        hidden = tiny.step(window, [start] * 3, cache, block_size)
        torch.testing.assert_close(tiny.logits(hidden), full[:, start : start + block_size], atol=1e-4, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("blocks", [1, 2])
def test_ragged_steps_equal_full_passes(tiny: SDAR, blocks: int) -> None:
    """Rows at different positions, also with the two-block window that commits a block and starts the next."""
    tiny.fuse()
    tokens, width, starts = ids(3, 64), 4 * blocks, [4, 40, 20]
    full = tiny(tokens)
    cache = tiny.new_cache(3, 64)
    tiny.prefill(tokens[:, :40], cache, 4)
    for row, start in enumerate(starts):  # whatever lies beyond a row's position must not matter
        cache.storage[:, :, row, start:] = 1e3
    window = torch.stack([tokens[row, start : start + width] for row, start in enumerate(starts)])
    logits = tiny.logits(tiny.step(window, starts, cache, 4))
    for row, start in enumerate(starts):
        torch.testing.assert_close(logits[row], full[row, start : start + width], atol=1e-4, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("block_size", [1, 4, 8])
def test_training_forward_equals_cached_decoding(tiny: SDAR, block_size: int) -> None:
    """The key invariance: noisy half of [noisy ; clean] = decoding each block over the cache of clean ones before."""
    clean = ids(1, 29)
    noisy = torch.where(torch.rand(1, 29, generator=torch.Generator().manual_seed(1)) < 0.5, TINY.mask_token_id, clean)
    positions = torch.arange(29)[None]
    layout = BlockLayout.noisy_clean(positions, block_size)
    both = tiny(torch.cat((noisy, clean), 1), layout.position_ids, layout.dense())
    whole = 29 // block_size * block_size
    cache = tiny.new_cache(1, 32)
    for start in range(0, whole, block_size):
        block = slice(start, start + block_size)
        decoded = tiny.logits(tiny.step(noisy[:, block], [start], cache, block_size))
        torch.testing.assert_close(decoded, both[:, block], atol=1e-4, rtol=1e-4)
        tiny.step(clean[:, block], [start], cache, block_size)  # commit


@torch.no_grad()
def test_packed_documents_do_not_see_each_other(tiny: SDAR) -> None:
    first, second = ids(1, 13, 1), ids(1, 18, 2)
    positions = torch.cat((torch.arange(13), torch.arange(18)))[None]
    documents = torch.cat((torch.zeros(13), torch.ones(18)))[None].long()
    layout = BlockLayout.noisy_clean(positions, 4, documents)
    row = torch.cat((first, second), 1)
    packed = tiny(torch.cat((row, row), 1), layout.position_ids, layout.dense())
    for text, start in ((first, 0), (second, 13)):
        length = text.shape[1]
        alone = BlockLayout.noisy_clean(torch.arange(length)[None], 4)
        expected = tiny(torch.cat((text, text), 1), alone.position_ids, alone.dense())
        noisy = packed[:, start : start + length]
        torch.testing.assert_close(noisy, expected[:, :length], atol=1e-4, rtol=1e-4)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_block_mask_gives_the_same_logits(tiny: SDAR) -> None:
    layout = BlockLayout.noisy_clean(torch.arange(70)[None].repeat(2, 1), 4)
    tokens = ids(2, 140)
    dense = tiny(tokens, layout.position_ids, layout.dense())
    flex = tiny(tokens, layout.position_ids, layout.block_mask())
    torch.testing.assert_close(flex, dense, atol=1e-4, rtol=1e-4)


def test_gradients_reach_every_weight_also_after_fusing(tiny: SDAR) -> None:
    tokens = ids(1, 16)
    tiny(tokens).square().mean().backward()
    plain = {name: weight.grad.clone() for name, weight in tiny.named_parameters()}
    assert all(grad.abs().sum() > 0 for grad in plain.values())
    tiny.zero_grad()
    tiny.fuse()
    tiny(tokens).square().mean().backward()
    for name, weight in tiny.named_parameters():
        torch.testing.assert_close(weight.grad, plain[name])


def step_logits(model: SDAR, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        return model.logits(model.fuse().step(tokens, [0], model.new_cache(1, 4), 4))


def test_fuse_follows_in_place_and_replaced_weights(tiny: SDAR) -> None:
    """RL alternates decoding and updates; a decoder on yesterday's weights would be off-policy without a sign."""
    tokens = ids(1, 4)
    before = step_logits(tiny, tokens)
    optimizer = torch.optim.AdamW(tiny.parameters(), lr=0.05)
    tiny(tokens).square().mean().backward()
    optimizer.step()
    updated = step_logits(tiny, tokens)
    assert (updated - before).abs().max() > 1e-2
    torch.testing.assert_close(updated, tiny(tokens), atol=1e-4, rtol=1e-4)
    other = lively(TINY, seed=9)
    tiny.load_state_dict(other.state_dict(), assign=True)
    torch.testing.assert_close(step_logits(tiny, tokens), other(tokens), atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_copies_of_a_fused_model_are_independent(tiny: SDAR) -> None:
    tokens = ids(1, 4)
    before = step_logits(tiny, tokens)
    copied = copy.deepcopy(tiny)
    for weight in tiny.parameters():
        weight.zero_()
    unfused = copied.logits(copied.step(tokens, [0], copied.new_cache(1, 4), 4))
    torch.testing.assert_close(unfused, before, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(step_logits(copied, tokens), before, atol=1e-4, rtol=1e-4)


def test_a_sharded_model_refuses_to_decode(tiny: SDAR) -> None:
    distributed = torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = distributed.device_mesh.init_device_mesh("cpu", (1,))
        distributed.tensor.distribute_module(tiny, mesh)
        with pytest.raises(TypeError, match="sharded model cannot decode"):
            tiny.fuse()
    finally:
        distributed.destroy_process_group()


@torch.no_grad()
def test_casting_keeps_rotary_tables_exact(tiny: SDAR) -> None:
    angles = tiny.rope_cos.clone()
    tiny.fuse().to(torch.bfloat16)
    assert tiny.rope_cos.dtype == torch.float32 and torch.equal(tiny.rope_cos, angles)
    tokens = ids(1, 8)
    exact = lively(TINY)(tokens)
    assert (tiny(tokens).float() - exact).abs().mean() < 0.1 * exact.abs().mean()
    assert step_logits(tiny, tokens[:, :4]).dtype == torch.bfloat16


def test_initialisation_from_scratch() -> None:
    torch.manual_seed(0)
    config = SDARConfig.from_json({**TINY.to_json(), "hidden_size": 256, "vocab_size": 1000})
    state = SDAR(config).state_dict()
    assert abs(state["lm_head.weight"].std().item() - 0.02) < 0.001
    scaled = 0.02 / (2 * config.num_hidden_layers) ** 0.5
    assert abs(state["model.layers.0.self_attn.o_proj.weight"].std().item() - scaled) < 0.001
    assert (state["model.norm.weight"] == 1).all()


def test_names_and_shapes_are_those_of_published_checkpoints(sdar_files: Path) -> None:
    config = SDARConfig.from_file(sdar_files)
    with torch.device("meta"):
        state = SDAR(config).state_dict()
    index = json.loads((sdar_files / "model.safetensors.index.json").read_text())
    assert state.keys() == index["weight_map"].keys()
    assert sum(tensor.numel() for tensor in state.values()) * 2 == index["metadata"]["total_size"]


@torch.no_grad()
def test_published_config_runs_at_reduced_depth_and_width(sdar_files: Path) -> None:
    """The real head layout and vocabulary; fewer layers and narrower ones so that it fits a test."""
    config = SDARConfig.from_file(sdar_files / "4b")
    small = dataclasses.replace(config, num_hidden_layers=2, hidden_size=64, intermediate_size=96)
    model = SDAR(small)
    assert len({re.sub(r"\.\d+\.", ".N.", name) for name in model.state_dict()}) == 11 + 3
    assert model.state_dict()["model.layers.1.self_attn.k_proj.weight"].shape == (8 * 128, 64)
    logits = model(torch.tensor([[151644, 872, 198, 151669]]))
    assert logits.shape == (1, 4, 151936) and logits.isfinite().all()
