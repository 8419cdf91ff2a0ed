"""Exec of a model in training: real kernels, really run; trouble that is not the model's is not counted against it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dice.errors import UserError
from dice.model.checkpoint import NANO_FOLDER, load_model
from dice.model.tokenizer import Tokenizer
from dice.problem import Problem
from dice.train.config import SFTConfig
from dice.train.exec_eval import exec_verdicts
from dice.train.sft import train_sft

pytestmark = pytest.mark.usefixtures("lasting_zygote")  # where verifiers are started

PROBLEMS = Path(__file__).parents[1] / "cases" / "problems"


def test_a_trained_model_solves_a_problem_and_is_left_as_it_was() -> None:
    model, tokenizer = load_model("nano", torch.float32), Tokenizer.from_folder(NANO_FOLDER)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    long = Problem("x = 1\n" * 4000, "long")  # leaves no room for an answer
    problems = [long, Problem.from_file(PROBLEMS / "relu.py")]
    verdicts = exec_verdicts(model, tokenizer, problems, backend="emulated", max_new_tokens=640)
    assert [verdict.outcome for verdict in verdicts] == ["no_kernel", "correct"]
    assert model.fused_head is None
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def test_training_reports_exec_and_is_not_changed_by_it(toy: SFTConfig, tmp_path: Path) -> None:
    """A model that has learned nothing writes no kernel, which is its failure."""
    config = replace(
        toy, max_steps=4, ema=0.9, log_every=1, exec_data=PROBLEMS / "relu.py", exec_every=3,
        exec_backend="emulated", exec_max_new_tokens=64,
    )  # fmt: skip
    train_sft(replace(config, out=tmp_path / "with"))
    train_sft(replace(config, out=tmp_path / "without", exec_data=None))
    lines, plain = ([json.loads(x) for x in (tmp_path / f / "metrics.jsonl").open()] for f in ("with", "without"))
    found = [(line["step"], line["val_exec"], line["exec_judged"]) for line in lines if "val_exec" in line]
    assert found == [(3, 0.0, 1), (4, 0.0, 1)]
    losses = [[line["loss"] for line in part if "loss" in line] for part in (lines, plain)]
    assert losses[0] == losses[1]


def test_unusable_trials_are_refused_before_training(toy: SFTConfig, tmp_path: Path) -> None:
    config = replace(toy, out=tmp_path, exec_data=PROBLEMS, exec_backend="emulated")
    with pytest.raises(UserError, match="exec_max_new_tokens 2048 leaves no prompt of 1024 positions"):
        train_sft(config)
    with pytest.raises(UserError, match="absent"):
        train_sft(replace(config, exec_max_new_tokens=512, exec_data=tmp_path / "absent"))
