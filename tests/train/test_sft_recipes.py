"""Recipes build and say what the paper says; schedules have their shapes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dice.model.sdar import SDAR
from dice.model.tokenizer import Tokenizer
from dice.recipes import SFT_RECIPES, dice_8b_sft, nano_sft
from dice.train.attention import fits_tiles
from dice.train.config import SFTConfig
from dice.train.schedule import lr_scale
from dice.train.sft import new_model_config


@pytest.mark.parametrize("name", SFT_RECIPES)
def test_recipe_needs_only_its_files(name: str) -> None:
    recipe = SFT_RECIPES[name]()
    filled = replace(recipe, data=Path("d"), out=Path("o"), tokenizer=Path("t"))
    assert filled.check() is filled
    assert filled.to_json()["data"] == "d"
    assert fits_tiles(recipe.row_tokens, recipe.block_size or 4)


def test_nano_is_a_nine_million_parameter_model(toy: SFTConfig) -> None:
    assert toy.tokenizer is not None
    shape = nano_sft().shape
    assert shape is not None
    config = replace(new_model_config(shape, Tokenizer.from_folder(toy.tokenizer), 4), vocab_size=2048)
    size = sum(weight.numel() for weight in SDAR(config).parameters())
    assert 8e6 < size < 10e6


def test_paper_recipe() -> None:
    recipe = dice_8b_sft()
    assert (recipe.lr, recipe.epochs, recipe.row_tokens, recipe.warmup) == (1e-5, 3.0, 6144, 0.03)
    assert (recipe.schedule, recipe.noise, recipe.t_min) == ("constant_with_warmup", "block", 1e-3)


def test_schedules() -> None:
    for schedule in ("constant_with_warmup", "cosine", "wsd"):
        assert lr_scale(0.05, schedule, warmup=0.1) == pytest.approx(0.5)
        assert lr_scale(0.1, schedule, warmup=0.1) == pytest.approx(1.0)
    assert lr_scale(1.0, "constant_with_warmup", warmup=0.1) == 1.0
    assert lr_scale(0.55, "cosine", warmup=0.1, floor=0.1) == pytest.approx(0.55)
    assert lr_scale(1.0, "cosine", warmup=0.1, floor=0.1) == pytest.approx(0.1)
    assert lr_scale(0.8, "wsd", warmup=0.1, decay=0.2) == pytest.approx(1.0)
    assert lr_scale(0.9, "wsd", warmup=0.1, decay=0.2) == pytest.approx(0.5)
    assert lr_scale(1.0, "wsd", warmup=0.0, decay=0.2) == pytest.approx(0.0)
