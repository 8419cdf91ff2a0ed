"""Whole RL runs in real processes: they learn, survive whatever happens to them, and say what it was."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from training_helpers import checkpoint

from dice.errors import MachineError, UserError
from dice.model.checkpoint import load_model
from dice.train import runlog
from dice.train.rl import rollout, verification
from dice.train.rl.config import RLConfig
from dice.train.rl.episode import Episode, read_episodes
from dice.train.rl.loop import train_rl
from dice.train.rl.policy import Policy
from tests.conftest import PATIENCE_S

pytestmark = pytest.mark.xdist_group("rl")  # they share a model that takes a while to train


# What happens to a run, told by name to a process of its own, which arranges for it and then trains.


def _nth(number: int, act: Callable[[], None]) -> Callable[[], None]:
    """Calls `act` the `number`-th time that it is called itself."""
    count = iter(range(1, 10**9))
    return lambda: act() if next(count) == number else None


def _before(target: Any, name: str, event: Callable[[], None]) -> None:
    real = getattr(target, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        event()
        return real(*args, **kwargs)

    setattr(target, name, wrapped)


def _signal(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def _kill_zygote(pending: verification.PendingVerdicts) -> None:
    zygote = pending._verifier._zygote
    assert zygote is not None
    os.kill(zygote.pid, signal.SIGKILL)


def _kill_workers(pending: verification.PendingVerdicts) -> None:
    """Whatever compiles or runs at the moment."""
    zygote = pending._verifier._zygote
    assert zygote is not None
    listing = Path(f"/proc/{zygote.pid}/task/{zygote.pid}/children")
    deadline = time.monotonic() + PATIENCE_S
    while not (children := listing.read_text().split()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(child), signal.SIGKILL)


def _at_put(number: int, act: Callable[[verification.PendingVerdicts], None]) -> None:
    """`act` a moment after the `number`-th kernel was handed to the verifier: it is then being compiled or run."""
    real, count = verification.PendingVerdicts.put, iter(range(1, 10**9))

    def put(self: verification.PendingVerdicts, *pair: Any) -> None:
        real(self, *pair)
        if next(count) == number:
            threading.Timer(0.4, act, (self,)).start()

    verification.PendingVerdicts.put = put  # type: ignore[method-assign]


EVENTS: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "kill -9 at any moment": lambda: threading.Timer(random.uniform(0, 8), _signal(signal.SIGKILL)).start(),
    "kill -9 before metrics": lambda: _before(runlog.RunLog, "metrics", _nth(2, _signal(signal.SIGKILL))),
    "kill -9 in a checkpoint": lambda: _before(Path, "rename", _nth(2, _signal(signal.SIGKILL))),
    "SIGTERM": lambda: _before(rollout.Batch, "verify", _nth(30, _signal(signal.SIGTERM))),
    "full disk": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000)),
    "verifier and workers killed": lambda: (_at_put(2, _kill_zygote), _at_put(30, _kill_workers)),
}


def _train(config: RLConfig, event: str) -> None:
    torch.set_num_threads(1)
    sys.stdout = sys.stderr = (Path(str(config.out)).parent / "said").open("a", buffering=1)
    EVENTS[event]()
    try:
        print(f"[{train_rl(config).reason}]")
    except (MachineError, UserError) as error:
        print(f"[{type(error).__name__}: {error}]")
        sys.exit(3)


def start(config: RLConfig, event: str = "nothing") -> BaseProcess:
    """Train in a process of its own: forked from one that has everything imported, for that takes seconds."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["test_rl_run"])
    process = context.Process(target=_train, args=(config, event))
    process.start()
    return process


def run(config: RLConfig, event: str = "nothing") -> int:
    process = start(config, event)
    process.join(PATIENCE_S)
    assert process.exitcode is not None, f"{event}: still running"
    return process.exitcode


def said(config: RLConfig) -> str:
    return (Path(str(config.out)).parent / "said").read_text()


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def timeless(folder: Path) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in line.items() if not key.endswith("_s") and key not in ("seconds", "faults")}
        for line in metrics(folder)
    ]


def episodes(folder: Path) -> list[dict[str, Any]]:
    """All that was done, but for how long it took."""
    return [_timeless(episode) for episode in read_episodes(folder / "episodes")]


def _timeless(episode: Episode) -> dict[str, Any]:
    return asdict(episode) | {"verdict": (episode.verdict.outcome, episode.verdict.deceptions)}


def assert_same_run(one: Path, other: Path, step: int) -> None:
    ours, theirs = (checkpoint(folder, step) for folder in (one, other))
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []
    assert timeless(one) == timeless(other)
    assert episodes(one) == episodes(other)


@pytest.fixture(scope="session")
def config(rl_base: RLConfig) -> RLConfig:
    return replace(rl_base, staleness=1, keep_verdicts=False, eval_data=rl_base.generate_data, eval_every=4)


@pytest.fixture(scope="session")
def whole(config: RLConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The uninterrupted run that others must equal."""
    out = tmp_path_factory.mktemp("whole") / "run"
    assert run(replace(config, out=out)) == 0, said(replace(config, out=out))
    return out


@pytest.fixture(scope="session")
def brief(config: RLConfig) -> RLConfig:
    """A step of infilling and one of whole kernels."""
    return replace(config, infill_steps=1, generate_steps=1, problems=2, responses=4, eval_every=100)


@pytest.fixture(scope="session")
def short(brief: RLConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("short") / "run"
    assert run(replace(brief, out=out)) == 0, said(replace(brief, out=out))
    return out


@pytest.mark.slow
def test_reward_rises(whole: Path) -> None:
    rewards = [line["reward"] for line in metrics(whole) if "reward" in line]
    assert len(rewards) == 6 and 0.1 < rewards[0] < 0.7
    assert sum(rewards[-2:]) > sum(rewards[:2]) + 0.3
    assert load_model(whole / "model").config.block_size == 4


@pytest.mark.slow  # test_sft_run.py kills runs in checkpoints of the same form
def test_a_killed_run_is_the_same_to_the_last_bit(brief: RLConfig, short: Path, tmp_path: Path) -> None:
    killed = replace(brief, out=tmp_path / "run")
    assert run(killed, "kill -9 in a checkpoint") == -signal.SIGKILL
    assert run(killed) == 0
    assert_same_run(tmp_path / "run", short, 2)


@pytest.mark.slow
def test_run_survives_kills_and_is_the_same_to_the_last_bit(config: RLConfig, whole: Path, tmp_path: Path) -> None:
    config = replace(config, out=tmp_path / "run")
    assert run(config, "SIGTERM") == 0
    assert run(config, "kill -9 in a checkpoint") == -signal.SIGKILL
    assert run(config, "verifier and workers killed") == 0
    assert_same_run(tmp_path / "run", whole, 6)
    text = said(config)
    assert "[interrupted]" in text and "[finished]" in text


@pytest.mark.slow
def test_run_survives_even_more(config: RLConfig, whole: Path, tmp_path: Path) -> None:
    config = replace(config, out=tmp_path / "run")
    assert run(config, "SIGTERM") == 0
    assert run(config, "full disk") == 3
    assert run(config, "kill -9 in a checkpoint") == -signal.SIGKILL
    assert run(config, "kill -9 before metrics") == -signal.SIGKILL
    assert run(config, "kill -9 at any moment") in (-signal.SIGKILL, 0)
    assert run(config, "verifier and workers killed") == 0
    assert_same_run(tmp_path / "run", whole, 6)
    text = said(config)
    assert "[interrupted]" in text
    assert "Cannot write" in text and "File too large" in text
    assert "[finished]" in text


def test_every_episode_can_be_replayed(short: Path) -> None:
    found = list(read_episodes(short / "episodes"))
    assert len(found) == 2 * 2 * 4
    assert {(one.step, one.stage) for one in found} == {(1, "infill"), (2, "generate")}
    for one in found:
        assert one.reward == (1.0 if one.verdict.correct else 0.0)
        assert one.verdict.backend == "emulated" or one.kernel is None
        assert len(one.trace.prompt_ids) + one.trace.kept <= 1024
    by_group: dict[tuple[int, int], list[Episode]] = {}
    for one in found:
        by_group.setdefault((one.step, one.group), []).append(one)
    flat = [len({one.reward for one in group}) == 1 for group in by_group.values()]
    assert all(
        (one.advantage is None) == same for same, group in zip(flat, by_group.values(), strict=True) for one in group
    )
    lines = [line for line in metrics(short) if "flat_groups" in line]
    assert sum(line["flat_groups"] for line in lines) == sum(flat)
    assert sum(line["trained"] for line in lines) == sum(one.advantage is not None for one in found)


def test_the_sampler_is_the_policy(short: Path) -> None:
    """One update old at most (staleness 1), and equal but for rounding where nothing was updated before."""
    first = next(line for line in metrics(short) if "mismatch_mean" in line)
    assert first["mismatch_mean"] < 1e-5


@pytest.mark.slow  # `tests/decode/engine` holds their texts equal, and a run of either kind takes a while
def test_the_engine_writes_what_the_plain_loop_does(brief: RLConfig, tmp_path: Path) -> None:
    """Equal seeds in float32: the same answers, rewards and, rounding aside, the same weights at the end."""
    found = {}
    for engine in ("off", "on"):
        out = tmp_path / engine / "run"
        out.parent.mkdir()
        changed = replace(brief, out=out, engine=engine, staleness=0)  # type: ignore[arg-type]
        changed = replace(changed, policy=replace(changed.policy, minibatch=2, old_logprobs="trace"))
        assert run(changed) == 0, said(changed)
        assert "scored again" not in said(changed)
        found[engine] = out
    rewards = [[line["reward"] for line in metrics(out) if "reward" in line] for out in found.values()]
    assert rewards[0] == rewards[1] and len(rewards[0]) == 2
    answers = [[one.trace.token_ids for one in read_episodes(out / "episodes")] for out in found.values()]
    assert answers[0] == answers[1]
    ours, theirs = (load_model(out / "model").state_dict() for out in found.values())
    for name, weight in ours.items():
        torch.testing.assert_close(weight, theirs[name], rtol=1e-2, atol=1e-4)
    line = next(line for line in metrics(found["on"]) if "update_s" in line)
    assert {"decode_s", "verify_s", "wait_s", "update_s", "update_flops_s"} <= set(line)
    assert line["verify_s"] >= 0 and line["work"] > 0 and "mfu" not in line, "a CPU's peak is not known"


@pytest.mark.slow  # two runs; `test_rl_policy.py` holds what is scored equal
def test_when_verdicts_come_changes_no_weight(brief: RLConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All groups are scored before the last verdict, or none is: the same to the last bit."""
    states, parts = [], []
    for waiting in (True, False):
        monkeypatch.setattr(verification.PendingVerdicts, "under_way", waiting)
        out = tmp_path / str(waiting)
        policy = replace(brief.policy, minibatch=2, old_logprobs="score")
        train_rl(replace(brief, out=out, staleness=0, policy=policy))
        states.append(load_model(out / "model").state_dict())
        parts.append([line for line in metrics(out) if "updates" in line])
    assert any(line["updates"] > 1 for line in parts[0])
    assert all("score_s" in line for line in parts[0])
    for name, weight in states[0].items():
        assert torch.equal(weight, states[1][name]), name


@pytest.mark.slow  # two runs; `test_rl_policy.py` holds an update by what comes one by one equal
def test_an_update_begins_before_the_last_verdict(
    brief: RLConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where traces need no scoring, the last problem's verdicts are not waited for before the first update. The weights
    are those of a run that waits for all of them, to the last bit."""
    policy = replace(brief.policy, minibatch=2, old_logprobs="trace")
    config = replace(brief, generate_steps=0, staleness=0, problems=3, responses=6, policy=policy)
    waits, updates = verification.PendingVerdicts.wait, Policy._update
    made: list[int] = []
    waited: dict[int, int] = {}  # by the first of a problem's answers, how many updates had been made

    def wait(pending: verification.PendingVerdicts, stopped: Any, keys: Any) -> None:
        if keys:
            waited.setdefault(min(keys), len(made))
        waits(pending, stopped, None if waits_for_all else keys)

    def update(policy: Policy, *given: Any, **named: Any) -> Any:
        made.append(1)
        return updates(policy, *given, **named)

    monkeypatch.setattr(verification.PendingVerdicts, "wait", wait)
    monkeypatch.setattr(Policy, "_update", update)
    states = []
    for waits_for_all in (True, False):
        made.clear()
        waited.clear()
        out = tmp_path / str(waits_for_all)
        train_rl(replace(config, out=out))
        assert waited[0] == 0 < waited[12]
        states.append(load_model(out / "model").state_dict())
    for name, weight in states[0].items():
        assert torch.equal(weight, states[1][name]), name


def test_steps_without_any_difference_update_nothing(
    config: RLConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every answer is cut off long before it holds a kernel."""
    result = train_rl(
        replace(config, out=tmp_path, responses=2, max_new_tokens=8, infill_steps=0, generate_steps=2, staleness=0)
    )
    assert result.finished
    for line in [line for line in metrics(tmp_path) if "reward" in line]:
        assert line["flat_groups"] == line["groups"] == 3 and line["trained"] == 0 and "loss" not in line
        assert line["no_kernel"] == line["truncated"] == 1.0 and line["reward"] == 0.0
    assert "step 2: no update, the rewards of every group are all equal" in capsys.readouterr().out
    before, after = load_model(str(config.model)).state_dict(), load_model(result.model).state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.slow  # all of them together, and whole files as infilling; most have tests of their own beside this one
def test_other_settings_train_and_evaluate(config: RLConfig, tmp_path: Path) -> None:
    """Whole files for the core, problems by their success rates, the penalty against the first model."""
    config = replace(
        config, out=tmp_path / "run", infill_steps=1, generate_steps=1, staleness=0, infill_form="whole",
        order="adaptive", problems=2, responses=4, reference="initial", eval_every=1, protocol="kernelbench-v0",
        provenance="any", policy=replace(config.policy, minibatch_unit="rounds", fresh_optimizer=True),
    )  # fmt: skip
    assert run(config) == 0, said(config)
    found = list(read_episodes(tmp_path / "run" / "episodes"))
    assert [(one.step, one.sample) for one in found] == [(step, n) for step in (1, 2) for _ in "ab" for n in range(4)]
    evaluated = [line for line in metrics(tmp_path / "run") if "eval_exec" in line]
    assert [line["step"] for line in evaluated] == [0, 1, 2]
    assert all(math.isfinite(line["eval_exec_1"]) for line in evaluated)
    infilled = [one for one in found if one.stage == "infill"]
    assert any(one.kernel is not None and one.verdict.correct for one in infilled), "whole files are written and judged"
    assert all(one.verdict.protocol == "kernelbench-v0" for one in found if one.kernel is not None)
    with pytest.raises(UserError, match="holds a run with other protocol"):
        train_rl(replace(config, protocol="dice", provenance="construction"))


def test_another_run_in_the_folder_is_refused(brief: RLConfig, short: Path) -> None:
    with pytest.raises(UserError, match="holds a run with other seed"):
        train_rl(replace(brief, out=short, seed=5))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "absent/"}, "no model folder"),
        ({"generate_data": Path("absent.json")}, "absent"),
        ({"max_new_tokens": 1000}, "holds no problem to train on"),
    ],
)
def test_unusable_runs_are_one_sentence(
    config: RLConfig, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        train_rl(replace(config, out=tmp_path, **change))  # type: ignore[arg-type]


def test_an_update_that_is_not_a_number_stops_the_run(config: RLConfig, tmp_path: Path) -> None:
    policy = replace(config.policy, lr=1e30)
    with pytest.raises(UserError, match="not numbers"):
        train_rl(replace(config, out=tmp_path, policy=policy, staleness=0, problems=2, responses=4))
