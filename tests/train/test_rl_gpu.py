"""BiC-RL on GPUs: bf16 sampler and update, kernels compiled by nvcc and timed; two GPUs follow one."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import finish, torchrun
from test_rl_world import episodes, train, update_policies

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


def two_gpus() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")


def steps(folder: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if "reward" in line]


def test_the_update_of_two_gpus_is_that_of_one(tmp_path: Path) -> None:
    """Sharded, blocks recomputed, the sparse mask compiled; the second call follows the first one's update."""
    two_gpus()
    updates: list[dict[str, Any]] = [
        {"lr": 1e-4, "minibatch": 7, "row_tokens": 128, "activation_checkpointing": "block"},
        {"lr": 1e-4, "reference": True, "activation_checkpointing": "block"},
    ]
    job = partial(update_policies, tmp_path, updates, "cuda", torch.float32)
    launched = torchrun(tmp_path / "launch", job, device="cuda")
    job()
    finish(launched)
    for number in range(len(updates)):
        (ours, state, _), (theirs, expected, _) = (
            torch.load(tmp_path / f"{size}-{number}", map_location="cpu") for size in (2, 1)
        )
        for one, other in zip(ours, theirs, strict=True):
            for name in ("loss", "grad_norm", "nll", "mismatch_mean"):
                assert one[name] == pytest.approx(other[name], rel=1e-2, abs=1e-3), name
        for name, tensor in expected.items():
            if "exp_avg" not in name:
                torch.testing.assert_close(state[name], tensor, rtol=0, atol=1e-3, msg=name)  # of Adam's steps


def test_two_gpus_take_the_steps_of_one(rl_base: RLConfig, tmp_path: Path) -> None:
    """In float32 a response is the same whoever writes it, but where rounding tips a sample; in bf16 it runs."""
    two_gpus()
    policy = replace(rl_base.policy, activation_checkpointing="block")
    config = replace(
        rl_base, device="cuda", backend="cuda", infill_steps=1, generate_steps=1, policy=policy, precision="fp32"
    )
    half = replace(config, out=tmp_path / "half", precision="bf16", staleness=1)
    jobs = [partial(train, replace(config, out=tmp_path / "two")), partial(train, replace(half, stop_after_seconds=1))]
    output = finish(torchrun(tmp_path / "launch", *jobs, device="cuda"))
    assert output.count("finished\n") == output.count("stop_after_seconds\n") == 2 == output.count("2 x cuda")
    train_rl(replace(config, out=tmp_path / "one"))
    found, expected = (
        [one.trace.token_ids for one in episodes(tmp_path / name) if one.step == 1] for name in ("two", "one")
    )
    assert len(found) == len(expected) == 24
    assert sum(one == other for one, other in zip(found, expected, strict=True)) >= 18
    for name in ("two", "half"):
        assert all(line["unjudged"] == 0 for line in steps(tmp_path / name))
        assert all(line["mismatch_mean"] < 0.1 for line in steps(tmp_path / name) if "mismatch_mean" in line)
    assert train_rl(half).finished and [line["step"] for line in steps(tmp_path / "half")] == [1, 2]
