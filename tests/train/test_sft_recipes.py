"""Recipes build and say what the paper says; schedules have their shapes."""

from __future__ import annotations

import os
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

import dice.train.sft
from dice.cli import main
from dice.model.checkpoint import save_model
from dice.model.sdar import SDAR, SDARConfig
from dice.model.tokenizer import Tokenizer
from dice.recipes import EMPTY_THOUGHT, SFT_RECIPES, SHAPES, mini_sft, nano_sft
from dice.train.attention import fits_tiles
from dice.train.config import SFTConfig
from dice.train.initial_model import new_model_config
from dice.train.optimizer import lr_scale
from dice.train.sft import SFTResult

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", SFT_RECIPES)
def test_recipe_needs_only_its_files(name: str) -> None:
    recipe = SFT_RECIPES[name]()
    filled = replace(recipe, data=Path("d"), out=Path("o"), tokenizer=Path("t"))
    assert filled.check() is filled
    assert filled.to_json()["data"] == "d"
    assert fits_tiles(recipe.row_tokens, recipe.block_size or 4)


@pytest.mark.parametrize("name", SFT_RECIPES)
def test_recipe_trains_a_step(name: str, toy: SFTConfig, tmp_path: Path) -> None:
    """All of the recipe but its sizes, from the command line on: the flags make it small, not the code."""
    assert toy.tokenizer is not None and toy.data is not None
    recipe = SFT_RECIPES[name]()
    files = ["--data", str(toy.data), "--eval-data", str(toy.eval_data), "--out", str(tmp_path / "out")]
    sizes = ["--row-tokens", "256", "--batch-rows", "4", "--micro-rows", "2", "--device", "cpu"]
    length = ["--epochs", "None", "--max-steps", "1"]
    if recipe.shape is None:
        tokenizer = Tokenizer.from_folder(toy.tokenizer)
        assert toy.shape is not None
        config = new_model_config(toy.shape, tokenizer, 4)
        save_model(SDAR(config), config, tmp_path / "model", toy.tokenizer)
        model = ["--model", str(tmp_path / "model")]
    else:
        model = ["--tokenizer", str(toy.tokenizer)]
        for field in ("hidden-size", "intermediate-size"):
            model += [f"--shape.{field}", "64"]
        model += ["--shape.num-hidden-layers", "1"]
    assert main(["train", "sft", "--recipe", name, *files, *sizes, *length, *model]) == 0
    assert (tmp_path / "out" / "model" / "model.safetensors").is_file()


def parameters(config: SFTConfig, vocabulary: int, tokenizer: Path) -> int:
    assert config.shape is not None
    sizes = replace(new_model_config(config.shape, Tokenizer.from_folder(tokenizer), 4), vocab_size=vocabulary)
    with torch.device("meta"):
        return sum(weight.numel() for weight in SDAR(sizes).parameters())


def test_nano_and_mini_have_their_sizes(toy: SFTConfig) -> None:
    assert toy.tokenizer is not None
    assert 8e6 < parameters(nano_sft(), 2048, toy.tokenizer) < 10e6
    assert 95e6 < parameters(mini_sft(), 8192, toy.tokenizer) < 105e6


def test_shapes_of_sdar_are_those_of_its_published_configuration() -> None:
    """Tensors and bytes of the published index: 8,822,848,512 in bfloat16 for the 4B."""
    with torch.device("meta"):
        sizes = {}
        for name in ("1.7b", "4b", "8b"):
            shape, vocabulary = SHAPES[name]
            sizes[name] = 2 * sum(
                w.numel() for w in SDAR(SDARConfig(vocab_size=vocabulary, **asdict(shape))).parameters()
            )
    assert (sizes["4b"], sizes["8b"]) == (8_822_848_512, 16_381_470_720)
    assert 4.0e9 < sizes["1.7b"] < 4.1e9


STUB = """#!/bin/bash
printf '%s\\x1f' "$@" >> "$LOG"; echo >> "$LOG"
while [[ $# -gt 0 ]]; do
    if [[ $1 == --out ]]; then mkdir -p "$2/train"; touch "$2/train/part.parquet"; fi
    shift
done
echo "$ENDS"
"""


def commands(script: str, arguments: list[str], folder: Path, gpus: int, ends: str = "finished") -> list[list[str]]:
    """Run a script with a stand-in for Python that notes each command line, and says how each ended."""
    stub, log = folder / "python", folder / "log"
    stub.write_text(STUB)
    stub.chmod(0o755)
    environment = os.environ | {"PYTHON": str(stub), "LOG": str(log), "GPUS": str(gpus), "ENDS": f"step 1, {ends}"}
    subprocess.run(["bash", str(ROOT / "runs" / script), *arguments], env=environment, check=True, cwd=folder)
    return [line.split("\x1f")[:-1] for line in log.read_text().splitlines()]


@pytest.mark.parametrize(
    ("script", "arguments", "recipe"),
    [
        ("nano.sh", ["{out}"], "nano_sft"),
        ("mini.sh", ["{out}", "60"], "mini_sft"),
        ("dice-8b.sh", ["{out}/data", "{out}"], "paper_8b_sft"),
    ],
)
def test_scripts_train_their_recipe(
    script: str, arguments: list[str], recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line of the script's first SFT is parsed for real."""
    lines = commands(script, [text.format(out=tmp_path / "out") for text in arguments], tmp_path, gpus=8)
    line, *later = [line for line in lines if "sft" in line]
    assert len(later) == (2 if script == "nano.sh" else 0)
    assert "torch.distributed.run" in line and line[line.index("--nproc-per-node") + 1] == "8"
    found: list[SFTConfig] = []

    def note(config: SFTConfig) -> SFTResult:
        found.append(config.check())
        return SFTResult(1, True, "finished", tmp_path)

    monkeypatch.setattr(dice.train.sft, "train_sft", note)
    assert main(line[line.index("train") :]) == 0
    assert found[0].shape == SFT_RECIPES[recipe]().shape and found[0].lr == SFT_RECIPES[recipe]().lr
    if script == "dice-8b.sh":
        (reinforced,) = [line for line in lines if "rl" in line]
        assert reinforced[reinforced.index("--recipe") + 1] == "paper_8b_rl"
        assert reinforced[reinforced.index("--model") + 1] == f"{found[0].out}/model"
        assert reinforced[reinforced.index("--nproc-per-node") + 1] == "8"


@pytest.mark.parametrize("ends", ["finished", "interrupted"])
def test_nano_is_trained_on_one_corpus_after_the_other(ends: str, tmp_path: Path) -> None:
    """Each time from the model before it; a training that was stopped is gone on with before the next begins."""
    out = tmp_path / "a folder"
    lines = commands("nano.sh", [str(out), "60"], tmp_path, gpus=1, ends=ends)
    trained = [line for line in lines if "sft" in line]
    if ends == "interrupted":
        assert len(trained) == 1
        return
    made = [line[line.index("--out") + 1] for line in trained]
    assert made == [str(out / name) for name in ("run-1", "run-2", "run")]
    begun = [line[line.index("--model") + 1] for line in trained[1:]]
    assert begun == [str(out / "run-1" / "model"), str(out / "run-2" / "model")] and "--tokenizer" in trained[0]
    drawn = [line[line.index("--out") + 1] for line in lines if "--prose-free" in line]
    read = [line[line.index("--data") + 1] for line in trained]
    assert read == [f"{folder}/train" for folder in drawn] and len(set(drawn)) == 3


@pytest.mark.parametrize(("size", "batch"), [("1_7b", 16), ("4b", 8), ("8b", 8)])
def test_paper_recipe(size: str, batch: int) -> None:
    recipe = SFT_RECIPES[f"paper_{size}_sft"]()
    assert (recipe.lr, recipe.epochs, recipe.row_tokens, recipe.warmup) == (1e-5, 3.0, 6144, 0.03)
    assert (recipe.schedule, recipe.noise, recipe.t_min) == ("constant_with_warmup", "block", 1e-3)
    assert (recipe.batch_rows, recipe.response_prefix, recipe.stratified) == (batch, EMPTY_THOUGHT, False)
    assert SFT_RECIPES[f"dice_{size}_sft"]() == replace(recipe, noise="count", stratified=True)


def test_schedules() -> None:
    for schedule in ("constant_with_warmup", "cosine"):
        assert lr_scale(0.05, schedule, warmup=0.1) == pytest.approx(0.5)
        assert lr_scale(0.1, schedule, warmup=0.1) == pytest.approx(1.0)
    assert lr_scale(1.0, "constant_with_warmup", warmup=0.1) == 1.0
    assert lr_scale(0.55, "cosine", warmup=0.1, floor=0.1) == pytest.approx(0.55)
    assert lr_scale(1.0, "cosine", warmup=0.1, floor=0.1) == pytest.approx(0.1)
