"""The model that SFT begins with: a checkpoint, one that is adapted from another kind, or one with random weights."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from dice.errors import MachineError, UserError
from dice.model.adapt import SOURCE_KEY, adapt
from dice.model.checkpoint import load_model
from dice.model.family import FAMILIES, NO_MASK
from dice.model.sdar import SDAR, SDARConfig
from dice.model.tokenizer import Tokenizer
from dice.train.config import ModelShape, SFTConfig

# What an allocator says of a tensor that it cannot hold, on a CPU or a GPU.
_NO_ROOM = re.compile(r"memory|size calculation overflowed")


def initial_model(config: SFTConfig, tokenizer: Tokenizer, device: torch.device) -> SDAR:
    """In float32. Random weights depend on `config.seed`.

    Raises `MachineError` for a shape that does not fit in memory, and what `load_model` raises.
    """
    torch.manual_seed(config.seed)
    if config.model is not None:
        model = load_model(config.model, dtype=torch.float32, device=device)
        model.config.to_json()  # raises now, before hours of training, where such a model could not be saved
        return model
    assert config.shape is not None
    try:
        return SDAR(new_model_config(config.shape, tokenizer, config.block_size or 4)).to(device)
    except RuntimeError as error:
        if not _NO_ROOM.search(str(error)):
            raise
        raise MachineError("A model of this shape does not fit in memory: make `shape` smaller.") from None


def write_adapted(config: SFTConfig) -> Path:
    """The folder of the block-diffusion model that `config.model` is adapted to, in the run's folder; written once.

    Raises what `adapt` raises, and `UserError` where an earlier call began with another model.
    """
    if config.model is None or config.out is None:
        raise UserError("Give the autoregressive model to adapt as `model`: a folder, a hub id or a .gguf file.")
    folder = Path(config.out) / "initial"
    if not (folder / "config.json").is_file():
        dtype = getattr(torch, config.export_dtype)
        return adapt(config.model, folder, block_size=config.block_size or 4, tokenizer=config.tokenizer, dtype=dtype)
    before = SDARConfig.from_file(folder).extra.get(SOURCE_KEY)
    if before != Path(config.model).name:
        raise UserError(f"{config.out} adapts {before}, not {config.model}; give another `out` folder.")
    return folder


def new_model_config(shape: ModelShape, tokenizer: Tokenizer, block_size: int) -> SDARConfig:
    """The configuration of a fresh model for `tokenizer`; the vocabulary is rounded up for the matrix units."""
    causal = FAMILIES[shape.family].kind == "autoregressive"
    return SDARConfig(
        vocab_size=-(-tokenizer.vocab_size // 64) * 64,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_hidden_layers,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_key_value_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.max_position_embeddings,
        rope_theta=shape.rope_theta,
        family=shape.family,
        block_size=1 if causal else block_size,
        mask_token_id=NO_MASK if causal else tokenizer.mask_id,
        eos_token_id=tuple(sorted(tokenizer.stop_ids, reverse=True)),
        pad_token_id=tokenizer.pad_id,
    )
