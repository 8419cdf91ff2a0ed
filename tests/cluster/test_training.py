"""BiC-RL whose kernels are verified, and whose responses are written, on the nodes of a cluster: the same run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from ray_nodes import RayNodes

from dice.train.rl.episode import Episode, read_episodes
from tests.conftest import PATIENCE_S, ROOT

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.slow]  # a model is trained first
STEPS = 2


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory, training_tests: None) -> list[str]:
    """A tiny run of a model that is right two times in five."""
    import rl_helpers

    folder = tmp_path_factory.mktemp("rl")
    rl_helpers.write_data(folder)
    settings = {
        "model": rl_helpers.train_model(folder),
        "infill-data": folder / "kernel_infilling.json",
        "generate-data": folder / "kernel_generation.json",
        "infill-steps": 1,
        "generate-steps": STEPS - 1,
        "problems": 2,
        "responses": 6,
        "max-new-tokens": 240,
        "temperature": 0.7,
        "max-active": 1,
        "eval-every": 100,
        "device": "cpu",
    }
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


def train(
    flags: list[str], out: Path, *more: str, meanwhile: Callable[[subprocess.Popen[str]], None] = lambda run: None
) -> list[list[Episode]]:
    """The episodes of each step. `meanwhile` is told of the process."""
    command = [sys.executable, "-m", "dice", "train", "rl", "--recipe", "tiny_rl", *flags, "--out", str(out), *more]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        try:
            meanwhile(run)
            output, errors = run.communicate(timeout=PATIENCE_S)
        except BaseException:
            run.kill()
            raise
    assert run.returncode == 0, output + errors
    episodes = list(read_episodes(out / "episodes"))
    return [[one for one in episodes if one.step == step] for step in sorted({one.step for one in episodes})]


def end_one(cluster: RayNodes, run: subprocess.Popen[str]) -> None:
    """Kill a process that decodes, as soon as it does."""
    deadline = time.monotonic() + PATIENCE_S
    while not (writing := cluster.titled("ray::Engine.write")):
        assert run.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(writing[0], signal.SIGKILL)


def test_the_run_is_that_of_one_machine(cluster: RayNodes, flags: list[str], tmp_path: Path) -> None:
    alone = train(flags, tmp_path / "alone")
    spread = train(flags, tmp_path / "spread", "--cluster", cluster.address, "--engines", "2")
    for here, there in zip(alone, spread, strict=True):
        assert [one.trace for one in here] == [one.trace for one in there]
        assert [one.reward for one in here] == [one.reward for one in there]
        assert {one.verdict.host for one in there} - {""}
    rewards = [one.reward for step in alone for one in step]
    assert len(set(rewards)) > 1  # so that weights have changed between the steps
    assert {one.trace.weights for one in spread[1]} == {1}


def test_two_hosts_that_train_come_to_what_one_process_does(
    cluster: RayNodes, flags: list[str], tmp_path: Path
) -> None:
    alone = train(flags, tmp_path / "alone")
    spread = train(flags, tmp_path / "spread", "--cluster", cluster.address, "--hosts", "2")
    for here, there in zip(alone, spread, strict=True):
        assert [one.trace.token_ids for one in here] == [one.trace.token_ids for one in there]
        assert [one.reward for one in here] == [one.reward for one in there]


def test_responses_one_update_old_are_the_same_and_corrected_for(
    cluster: RayNodes, flags: list[str], tmp_path: Path
) -> None:
    """A step is decoded while verdicts on the one before are awaited; also where a process that decodes is lost."""
    stale = ("--staleness", "1", "--policy.mismatch-cap", "2", "--generate-steps", "3")
    alone = train(flags, tmp_path / "alone", *stale)
    out, there = tmp_path / "spread", ("--cluster", cluster.address, "--engines", "2")
    spread = train(flags, out, *stale, *there, meanwhile=partial(end_one, cluster))
    for one, other in zip(alone, spread, strict=True):
        assert [episode.trace for episode in one] == [episode.trace for episode in other]
        assert [episode.reward for episode in one] == [episode.reward for episode in other]
    assert [{one.trace.weights for one in step} for step in spread] == [{0}, {0}, {1}, {2}]
    metrics = list(map(json.loads, (out / "metrics.jsonl").read_text().splitlines()))
    mismatches = [one["mismatch_mean"] for one in metrics if "mismatch_mean" in one]
    assert max(mismatches) > 10 * min(mismatches), "the first step's responses are from its own weights"
