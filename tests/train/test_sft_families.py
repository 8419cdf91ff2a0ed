"""Other families run here, but only block diffusion is trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dice.errors import UserError
from dice.train.config import SFTConfig
from dice.train.sft import train_sft


def test_a_model_without_block_diffusion_is_refused_before_training(toy: SFTConfig, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.Qwen3Config(
        vocab_size=512, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16,
    )  # fmt: skip
    transformers.Qwen3ForCausalLM(config).save_pretrained(tmp_path / "qwen")
    with pytest.raises(UserError, match=r"is no SDAR model \(its family is qwen3\)"):
        train_sft(replace(toy, shape=None, model=str(tmp_path / "qwen"), out=tmp_path / "run"))
