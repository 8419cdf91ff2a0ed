"""BiC-RL by two processes that torchrun starts: what one process does, and either goes on with what the other left."""

from __future__ import annotations

import json
import os
import shutil
import signal
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import finish, kill, process_ids, torchrun, wait_for
from rl_helpers import problem
from rl_policies import SMALL, layouts
from training_helpers import checkpoint, tiny_model

from dice.decode.generate import DecodeConfig, generate
from dice.errors import MachineError
from dice.model.checkpoint import load_model
from dice.train.blocks import gathered
from dice.train.rl.config import RLConfig
from dice.train.rl.episode import Episode, read_episodes
from dice.train.rl.loop import train_rl
from dice.train.rl.policy import Policy
from dice.train.rl.requests import KernelRequest
from dice.train.rl.rollout import share
from dice.train.rl.verification import VerifierDown
from dice.train.world import World, joined

pytestmark = pytest.mark.xdist_group("rl")

UPDATES: list[dict[str, Any]] = [
    {"minibatch": 7, "micro_rows": 3, "activation_checkpointing": "block"},
    {"minibatch": 1},  # one row each: one of the processes has padding alone
    {"mismatch_cap": 1.5, "activation_checkpointing": "block"},
    {"reference": True, "kl_coef": 0.5},
]
SHORT = replace(SMALL, row_tokens=96)  # a row holds one response or two


def numbers(pairs: list[tuple[str, Any]]) -> dict[str, float]:
    return {name: value for name, value in pairs if value is not None}


def update_policies(
    folder: Path, updates: list[dict[str, Any]] = UPDATES, device: str = "cpu", dtype: torch.dtype = torch.float64
) -> str:
    """Two calls for each of `updates`; the leader keeps what they said and left, and what it writes after each."""
    with joined(device) as world:
        for number, changes in enumerate(updates):
            config = dict(changes)
            reference = tiny_model(seed=1) if config.pop("reference", False) else None
            policy = Policy(
                tiny_model(), replace(SHORT, **config), reference=reference, world=world, compute_dtype=dtype, say=print
            )  # fmt: skip
            stats, texts = [], []
            for samples in (layouts()[:5], layouts()):
                stats.append(asdict(policy.update(samples), dict_factory=numbers))
                texts += generate(policy.sampler, [[5] * 9], DecodeConfig(max_new_tokens=24, seed=3))
            state = {name: gathered(tensor) for name, tensor in policy.tensors().items()}
            if world.leads:
                torch.save((stats, state, [text.token_ids for text in texts]), folder / f"{world.size}-{number}")
    return "updated"


def fail_in_the_second() -> str:
    """An error of one process, as all of them see it."""

    def fail() -> None:
        if not world.leads:
            raise VerifierDown("The verifier stays broken.")

    with joined("cpu") as world:
        try:
            world.all_gather(fail)
        except VerifierDown as error:
            return f"heard: {error}"
    return "nothing"


def lose_the_second() -> None:
    """Both end here; only the first can tell."""
    with joined("cpu") as world:
        if world.leads:
            try:
                world.all_gather(lambda: None)
            except MachineError as error:
                os.write(1, f"heard: {error}\n".encode())
        os._exit(0)


def train(config: RLConfig) -> str:
    return train_rl(config).reason


@pytest.mark.parametrize(("groups", "size"), [(8, 8), (64, 8), (3, 2), (5, 4), (1, 3), (0, 2)])
def test_requests_are_shared_evenly_and_by_groups(groups: int, size: int) -> None:
    requests = [
        KernelRequest(problem("add"), (5,), None, group, sample) for group in range(groups) for sample in range(4)
    ]
    shares = [share(requests, World(torch.device("cpu"), rank, size)) for rank in range(size)]
    assert sorted(index for own in shares for index in own) == list(range(4 * groups))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    held = [{requests[index].group for index in own} for own in shares]
    assert sum(map(len, held)) <= groups + size - 1, "at most one group is cut between two processes"
    if groups % size == 0:
        assert all({group % size for group in own} <= {rank} for rank, own in enumerate(held))


@pytest.fixture(scope="session")
def config(rl_base: RLConfig) -> RLConfig:
    """Short; each step but the first is decoded before the update of the one before, which is corrected for."""
    return replace(
        rl_base, problems=3, responses=3, infill_steps=1, generate_steps=2, staleness=1, keep_verdicts=False,
        eval_data=rl_base.generate_data, eval_every=2, policy=replace(rl_base.policy, mismatch_cap=2.0, minibatch=5),
    )  # fmt: skip


@pytest.fixture(scope="session")
def alone(config: RLConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process comes to."""
    out = tmp_path_factory.mktemp("alone")
    train_rl(replace(config, out=out))
    return out


CLOCKS = ("seconds", "stage", "rows")  # and what else is no number, or counts padding


def metrics(folder: Path) -> list[dict[str, Any]]:
    """Without times."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [{k: v for k, v in line.items() if not (k.endswith("_s") or k in CLOCKS)} for line in lines]


def episodes(folder: Path) -> list[Episode]:
    return list(read_episodes(folder / "episodes"))


def told(one: Episode) -> tuple[object, ...]:
    return (
        one.step, one.stage, one.group, one.sample, one.problem, one.kernel, one.verdict.outcome, one.reward,
        one.advantage, one.trace.prompt_ids, one.trace.token_ids, one.trace.steps, one.trace.kept,
    )  # fmt: skip


def assert_follows(folder: Path, alone: Path, step: int = 3) -> None:
    """The same episodes and rewards; weights and numbers to rounding."""
    assert list(map(told, episodes(folder))) == list(map(told, episodes(alone)))
    for ours, theirs in zip(metrics(folder), metrics(alone), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5, nan_ok=True)
    found, expected = checkpoint(folder, step), checkpoint(alone, step)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        error = float((found[name].double() - tensor.double()).norm())
        assert error <= 1e-4 * float(tensor.double().norm()) + 1e-9, name


@dataclass(frozen=True)
class Launched:
    """What two processes left in `folder` and said."""

    folder: Path
    output: str


@pytest.fixture(scope="session")
def two(config: RLConfig, tmp_path_factory: pytest.TempPathFactory) -> Launched:
    """Several jobs, one after the other: a start takes longer than all of them."""
    folder = tmp_path_factory.mktemp("two")
    other = replace(
        config, out=folder / "other", staleness=0, order="adaptive", infill_form="whole", reference="initial",
        generate_steps=1,
    )  # fmt: skip
    jobs = [partial(train, replace(config, out=folder / "run")), partial(train, other)]
    jobs += [partial(update_policies, folder), fail_in_the_second, lose_the_second]
    return Launched(folder, finish(torchrun(folder / "launch", *jobs)))


@pytest.mark.slow
def test_the_update_of_two_processes_is_that_of_one(two: Launched) -> None:
    update_policies(two.folder)
    for number, changes in enumerate(UPDATES):
        (ours, state, texts), (theirs, expected, same) = (torch.load(two.folder / f"{n}-{number}") for n in (2, 1))
        assert state.keys() == expected.keys() and texts == same
        for name, tensor in expected.items():
            torch.testing.assert_close(state[name], tensor, rtol=1e-7, atol=1e-10, msg=f"{changes}: {name}")
        for one, other in zip(ours, theirs, strict=True):
            assert one.pop("rows") >= other.pop("rows"), "two may have a row more, so that each has its own"
            assert one == pytest.approx(other, rel=1e-6), changes


@pytest.mark.slow
def test_two_processes_follow_one(two: Launched, alone: Path) -> None:
    assert two.output.count("finished\n") == 4 and two.output.count("parameters, 2 x cpu") == 2, "one process speaks"
    assert_follows(two.folder / "run", alone)
    exported, expected = (load_model(folder / "model").state_dict() for folder in (two.folder / "run", alone))
    for name, tensor in expected.items():
        torch.testing.assert_close(exported[name], tensor, rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.slow
def test_two_processes_share_other_settings(two: Launched) -> None:
    found = episodes(two.folder / "other")
    assert [(one.step, one.group, one.sample) for one in found] == [
        (step, group, sample) for step in (1, 2) for group in range(3) for sample in range(3)
    ]
    assert all(one.advantage is None or one.reward is not None for one in found)


@pytest.mark.slow
def test_an_error_in_one_process_is_one_in_all(two: Launched) -> None:
    assert two.output.count("heard: The verifier stays broken.\n") == 2
    assert two.output.count("heard: Another process of this run has ended, or cannot be reached.\n") == 1


@pytest.mark.slow
def test_one_and_two_processes_go_on_where_two_were_killed(config: RLConfig, alone: Path, tmp_path: Path) -> None:
    """And the two that do then end by a signal to one of them, in another run."""
    launched = torchrun(tmp_path / "killed", partial(train, replace(config, out=tmp_path / "one")))
    wait_for(tmp_path / "one" / "checkpoints" / "step-00000001", launched)
    kill(tmp_path / "killed", launched)
    names = {path.name for path in (tmp_path / "one" / "checkpoints").glob("step-*")}
    assert names and "step-00000003" not in names
    shutil.copytree(tmp_path / "one", tmp_path / "two")

    endless = replace(config, out=tmp_path / "endless", eval_data=None, generate_steps=10**6)
    jobs = [partial(train, replace(config, out=tmp_path / "two")), partial(train, endless)]
    launched = torchrun(tmp_path / "again", *jobs)
    assert train_rl(replace(config, out=tmp_path / "one")).finished
    assert_follows(tmp_path / "one", alone)

    wait_for(tmp_path / "endless" / "checkpoints" / "step-00000001", launched)
    os.kill(process_ids(tmp_path / "again")[1], signal.SIGTERM)
    output = finish(launched)
    assert output.count("finished\n") == 2 and output.count("Resuming after step") == 1
    assert_follows(tmp_path / "two", alone)
    assert output.count("interrupted\n") == 2
    last = max(line["step"] for line in metrics(tmp_path / "endless"))
    saved = sorted(path.name for path in (tmp_path / "endless" / "checkpoints").iterdir())
    assert saved[-1] == f"step-{last:08d}" and load_model(tmp_path / "endless" / "model")
