"""Fixtures of the training tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import rl_helpers
from training_helpers import write_toy_pairs

from dice.data.train_tokenizer import train_tokenizer
from dice.recipes import tiny_rl, tiny_sft
from dice.train.config import SFTConfig
from dice.train.rl.config import RLConfig


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> SFTConfig:
    """The tiny recipe on a toy task; `out` is for each test to set."""
    folder = tmp_path_factory.mktemp("toy")
    data, held_out = write_toy_pairs(folder / "toy.jsonl", 48), write_toy_pairs(folder / "held_out.jsonl", 8, seed=1)
    tokenizer = train_tokenizer([data], folder / "tokenizer", 400)
    return replace(tiny_sft(), data=data, eval_data=held_out, tokenizer=tokenizer, device="cpu")


@pytest.fixture(scope="session")
def rl_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Problems for both stages, and pairs to begin with: see `rl_helpers.write_data`."""
    folder = tmp_path_factory.mktemp("rl")
    rl_helpers.write_data(folder)
    return folder


@pytest.fixture(scope="session")
def rl_base(rl_data: Path) -> RLConfig:
    """The tiny recipe on a model that is right two times in five; `out` is for each test to set."""
    return replace(
        tiny_rl(), model=str(rl_helpers.train_model(rl_data)), device="cpu", problems=3, responses=8,
        infill_data=rl_data / "kernel_infilling.json", generate_data=rl_data / "kernel_generation.json",
        infill_steps=2, generate_steps=4, max_new_tokens=240, temperature=0.7, run_timeout_s=20.0, eval_every=100,
    )  # fmt: skip
