"""Exec of a model in training: real kernels, really run; trouble that is not the model's is not counted against it."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dice.errors import UserError
from dice.model.checkpoint import NANO_FOLDER, load_model
from dice.model.tokenizer import Tokenizer
from dice.problem import Problem
from dice.train.config import SFTConfig
from dice.train.exec_eval import ExecCounts, exec_rate
from dice.train.sft import train_sft

PROBLEMS = Path(__file__).parents[1] / "cases" / "problems"


def test_rate_is_over_what_was_judged() -> None:
    counts = ExecCounts(Counter({"correct": 3, "wrong": 1, "no_kernel": 2, "infra_error": 5, "unsupported": 4}))
    assert (counts.correct, counts.judged, counts.rate) == (3, 6, 0.5)
    assert math.isnan(ExecCounts(Counter({"infra_error": 1})).rate)


def test_a_trained_model_solves_a_problem_and_is_left_as_it_was() -> None:
    model, tokenizer = load_model("nano", torch.float32), Tokenizer.from_folder(NANO_FOLDER)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    long = Problem("x = 1\n" * 4000, "long")  # leaves no room for an answer
    problems = [Problem.from_file(PROBLEMS / "relu.py"), long]
    counts = exec_rate(model, tokenizer, problems, backend="emulated", max_new_tokens=640)
    assert counts.outcomes == {"correct": 1, "no_kernel": 1}
    assert counts.rate == 0.5
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
