"""Adaptation: an autoregressive checkpoint becomes a block-diffusion model by continued training under the block mask.

checkpoint or GGUF file -> out/initial, the same weights read in blocks -> the loop of SFT -> out/model
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from dice.errors import UserError
from dice.model.adapt import SOURCE_KEY, adapt
from dice.model.config import SDARConfig
from dice.train.config import SFTConfig
from dice.train.sft import SFTResult, train_sft
from dice.train.world import joined


def train_adapted(config: SFTConfig) -> SFTResult:
    """Adapt `config.model`, or go on adapting it; what `train_sft` says of runs, results and errors holds here too."""
    config.check()
    assert config.out is not None
    if config.model is None:
        raise UserError("Give the autoregressive model to adapt as `model`: a folder, a hub id or a .gguf file.")
    initial = Path(config.out) / "initial"
    with joined(config.device) as world:
        world.broadcast_from_leader(lambda: _write_initial(config, initial))
        return train_sft(replace(config, model=str(initial), tokenizer=None, shape=None))


def _write_initial(config: SFTConfig, initial: Path) -> None:
    """Unless an earlier call has written it."""
    assert config.model is not None
    if not (initial / "config.json").is_file():
        dtype = getattr(torch, config.export_dtype)
        adapt(config.model, initial, block_size=config.block_size or 4, tokenizer=config.tokenizer, dtype=dtype)
        return
    before = SDARConfig.from_file(initial).extra.get(SOURCE_KEY)
    if before != Path(config.model).name:
        raise UserError(f"{config.out} adapts {before}, not {config.model}; give another `out` folder.")
