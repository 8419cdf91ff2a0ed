"""BiC-RL on a GPU: bf16 sampler and update, kernels compiled by nvcc and timed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dice.train.rl.config import RLConfig
from dice.train.rl.loop import train_rl

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("rl")]


def test_steps_on_a_gpu(rl_base: RLConfig, tmp_path: Path) -> None:
    config = replace(
        rl_base, out=tmp_path, device="cuda", backend="cuda", infill_steps=1, generate_steps=2, speed_reward=0.5,
        eval_data=rl_base.generate_data, eval_every=1,
    )  # fmt: skip
    result = train_rl(config)
    assert result.finished
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "reward" in line]
    assert [line["step"] for line in steps] == [1, 2, 3]
    assert all(line["unjudged"] == 0 for line in steps)
    assert max(line["exec"] for line in steps) > 0
    assert all(line["mismatch_mean"] < 0.1 for line in steps if "mismatch_mean" in line)
    assert "fast1" in steps[0] and "eval_exec" in lines[0]
