"""Fixtures of the training tests."""

from __future__ import annotations

from dataclasses import replace

import pytest
from training_helpers import write_toy_pairs

from dice.data.bpe import train_tokenizer
from dice.recipes import tiny_sft
from dice.train.config import SFTConfig


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> SFTConfig:
    """The tiny recipe on a toy task; `out` is for each test to set."""
    folder = tmp_path_factory.mktemp("toy")
    data, held_out = write_toy_pairs(folder / "toy.jsonl", 48), write_toy_pairs(folder / "held_out.jsonl", 8, seed=1)
    tokenizer = train_tokenizer([data], folder / "tokenizer", 400)
    return replace(tiny_sft(), data=data, eval_data=held_out, tokenizer=tokenizer, device="cpu")
