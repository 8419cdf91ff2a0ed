"""BiC-RL whose kernels are verified, and whose responses are written, on the nodes of a cluster: the same run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from ray_nodes import RayNodes

from dice.train.rl.episode import Episode, read_episodes
from tests.conftest import ROOT

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


def train(flags: list[str], out: Path, *more: str) -> list[list[Episode]]:
    command = [sys.executable, "-m", "dice", "train", "rl", "--recipe", "tiny_rl", *flags, "--out", str(out), *more]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    episodes = list(read_episodes(out / "episodes"))
    return [[one for one in episodes if one.step == step] for step in range(1, STEPS + 1)]


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
