"""Trouble with the verifier: tried again, waited for, and never held against a kernel."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from rl_helpers import WRONG, deceptive, kernel, problem

from dice.kernel import Kernel
from dice.problem import Problem
from dice.prompts import EXAMPLE_KERNEL
from dice.recipes import tiny_rl
from dice.train.rl import verification
from dice.train.rl.evaluation import shares
from dice.train.rl.reward import reward
from dice.train.rl.verification import Interrupted, VerifierDown, VerifierPool
from dice.train.session import StopSignal
from dice.train.world import World
from dice.verdict import Verdict
from dice.verify.sandbox.process import MachineryError
from tests.conftest import PATIENCE_S

pytestmark = pytest.mark.usefixtures("lasting_zygote")  # where verifiers are started


@dataclass
class Flaky:
    """Stands in for a verifier whose machinery fails: `fails(kernel, call)` says when. It keeps count of its calls."""

    fails: Callable[[Kernel, int], bool]
    calls: int = 0
    judged: list[str] = field(default_factory=list)

    def verify_many(self, pairs: Iterable[tuple[Problem, Kernel]], workers: int) -> Iterator[tuple[int, Verdict]]:
        self.calls += 1
        for index, (_, one) in enumerate(pairs):
            self.judged.append(one.source)
            broken = self.fails(one, self.calls)
            yield index, Verdict("infra_error", "infra", "The GPU is gone.") if broken else Verdict("correct", "done")


def make_pool(verifier: Any, patience_s: float = 60.0, at_once: bool = True) -> tuple[VerifierPool, list[str]]:
    said: list[str] = []
    return VerifierPool(verifier, 2, at_once, patience_s, StopSignal(), said.append), said


def judged(pool: VerifierPool, kernels: list[Kernel]) -> dict[int, Verdict]:
    pending = pool.begin()
    for index, one in enumerate(kernels):
        pending.put(index, problem("add"), one)
    pending.close()
    return pool.finish(pending)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "PAUSE_S", 0.01)


KERNELS = [Kernel(f"# {number}") for number in range(20)]


@pytest.mark.parametrize("at_once", [True, False])
def test_every_kernel_gets_its_verdict(at_once: bool) -> None:
    pool, said = make_pool(Flaky(lambda one, call: False), at_once=at_once)
    assert {key: verdict.outcome for key, verdict in judged(pool, KERNELS).items()} == dict.fromkeys(
        range(20), "correct"
    )
    assert (said, pool.faults) == ([], 0)


def test_a_passing_fault_is_tried_again() -> None:
    verifier = Flaky(lambda one, call: call == 1 and one in KERNELS[3:5])
    pool, said = make_pool(verifier)
    assert all(verdict.correct for verdict in judged(pool, KERNELS).values())
    assert (verifier.calls, pool.faults, said) == (2, 2, [])
    assert verifier.judged[20:] == ["# 3", "# 4", EXAMPLE_KERNEL]


def test_a_broken_verifier_is_waited_for() -> None:
    pool, said = make_pool(Flaky(lambda one, call: call < 4))
    assert all(verdict.correct for verdict in judged(pool, KERNELS).values())
    assert len(said) == 2
    assert said[0].startswith("Paused: 20 verdicts are lacking, the verifier is broken (The GPU is gone)")


def test_a_kernel_that_always_breaks_its_processes_stops_nothing_and_has_no_reward() -> None:
    pool, said = make_pool(Flaky(lambda one, call: one == KERNELS[7]))
    verdicts = judged(pool, KERNELS)
    assert [key for key, verdict in verdicts.items() if not verdict.correct] == [7]
    assert reward(verdicts[7], tiny_rl()) is None
    assert said == ["No verdict and no reward for 1 of 20 kernels, tried 3 times (The GPU is gone)."]


def test_patience_ends() -> None:
    pool, _ = make_pool(Flaky(lambda one, call: True), patience_s=0.0)
    with pytest.raises(VerifierDown, match=r"stays broken \(The GPU is gone\); the same command goes on"):
        judged(pool, KERNELS)


def test_an_end_of_the_stream_is_a_fault_of_ours() -> None:
    class Ends(Flaky):
        def verify_many(self, pairs: Iterable[tuple[Problem, Kernel]], workers: int) -> Iterator[tuple[int, Verdict]]:
            for index, verdict in super().verify_many(pairs, workers):
                if self.calls == 1 and index == 5:
                    raise MachineryError("the zygote is gone")
                yield index, verdict

    pool, _ = make_pool(Ends(lambda one, call: False))
    assert all(verdict.correct for verdict in judged(pool, KERNELS).values())
    assert pool.faults == 15


def test_a_signal_ends_the_wait() -> None:
    class Slow(Flaky):
        def verify_many(self, pairs: Iterable[tuple[Problem, Kernel]], workers: int) -> Iterator[tuple[int, Verdict]]:
            iterator = iter(pairs)
            next(iterator)
            threading.Timer(0.2, pool.stopped.set).start()
            yield from ((1, Verdict("correct", "done")) for _ in iterator)

    pool, _ = make_pool(Slow(lambda one, call: False))
    pending = pool.begin()
    pending.put(0, problem("add"), KERNELS[0])  # and no end
    with pytest.raises(Interrupted):
        pending.wait(pool.stopped)
    assert not pending._thread.is_alive()


def test_verdicts_of_some_kernels_are_there_before_those_of_others() -> None:
    """Faults among them are tried again meanwhile."""
    first, going_on = threading.Event(), threading.Event()

    class Slow(Flaky):
        def verify_many(self, pairs: Iterable[tuple[Problem, Kernel]], workers: int) -> Iterator[tuple[int, Verdict]]:
            for index, verdict in super().verify_many(pairs, workers):
                if len(self.judged) == 12:
                    first.set()
                    going_on.wait(PATIENCE_S)
                yield index, verdict

    pool, _ = make_pool(Slow(lambda one, call: call == 1 and one == KERNELS[3]))
    pending = pool.begin()
    for index, one in enumerate(KERNELS):
        pending.put(index, problem("add"), one)
    pending.close()
    assert first.wait(PATIENCE_S)
    found = pool.finish(pending, range(10))
    assert sorted(found) == list(range(10)) and all(verdict.correct for verdict in found.values())
    assert pending.under_way and pool.faults == 1
    going_on.set()
    assert len(pool.finish(pending)) == 20


def test_verification_keeps_off_the_cores_of_a_process_that_decodes() -> None:
    gpus = World(torch.device("cuda", 1), rank=1, size=2, local_rank=1, local_size=2)
    assert verification._cores(set(range(100, 132)), gpus) == set(range(104, 132))
    assert verification._cores(set(range(15)), gpus) == set(range(15)), "there are too few"
    assert verification._cores(set(range(64)), World(torch.device("cpu"))) == set(range(64))
    before, seen = os.sched_getaffinity(0), list[set[int]]()
    pool, _ = make_pool(Flaky(lambda one, call: bool(seen.append(os.sched_getaffinity(0)))))
    pool.cores = {min(before)}
    assert len(judged(pool, KERNELS[:2])) == 2
    assert seen == [{min(before)}] * 2 and os.sched_getaffinity(0) == before


def test_real_kernels_get_the_rewards_they_deserve(tmp_path: Any) -> None:
    config = replace(tiny_rl(), out=tmp_path, trials=1)
    cut_off = kernel().source[:300]
    candidates = [kernel(), kernel(WRONG), deceptive(), Kernel(cut_off), kernel("x[i] + "), kernel()]
    with VerifierPool.open(config, World(torch.device("cpu")), StopSignal(), print) as pool:
        verdicts = judged(pool, candidates)
    assert [verdicts[index].outcome for index in range(3)] == ["correct", "wrong", "deceptive"]
    assert verdicts[4].outcome == "compile_error"
    assert [reward(verdicts[index], config) for index in range(6)] == [1.0, 0.0, 0.0, 0.0, 0.0, 1.0]


def test_the_papers_reward_is_execution_alone(tmp_path: Any) -> None:
    """A kernel that is never called earns what a right one earns; that it deceives is noted all the same."""
    config = replace(tiny_rl(), out=tmp_path, trials=1, protocol="kernelbench-v0", provenance="any")
    with VerifierPool.open(config, World(torch.device("cpu")), StopSignal(), print) as pool:
        verdicts = judged(pool, [kernel(), kernel(WRONG), deceptive()])
    assert [reward(verdicts[index], config) for index in range(3)] == [1.0, 0.0, 1.0]
    assert {verdicts[index].protocol for index in range(3)} == {"kernelbench-v0"}
    found = shares([verdicts[index] for index in range(3)])
    assert found["deceptive"] == 0 and found["shown_deceptive"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("world", "changes", "devices", "at_once"),
    [
        (World(torch.device("cuda")), {}, "01234567", True),
        (World(torch.device("cuda", 2)), {"speed_reward": 0.5}, "0134567", True),
        (World(torch.device("cuda")), {"speed_reward": 0.5, "verify_devices": ("0",)}, "0", False),
        (World(torch.device("cuda", 3), 3, 8, 3, 8), {}, "3", True),
        (World(torch.device("cuda", 3), 3, 8, 3, 8), {"speed_reward": 0.5}, "3", False),
        (World(torch.device("cuda", 1), 1, 2, 1, 2), {"speed_reward": 0.5}, "357", True),
        (World(torch.device("cuda", 1), 1, 2, 1, 2), {"verify_devices": ("6", "7")}, "7", True),
        (World(torch.device("cuda", 1), 1, 2, 1, 2), {"verify_devices": ("6",)}, "1", True),
        (World(torch.device("cpu"), 9, 16, 9, 16), {}, "0", True),
    ],
)
def test_kernels_run_on_gpus_of_their_process(
    world: World, changes: dict[str, Any], devices: str, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of eight: timed only where no policy computes, or not while it does."""
    monkeypatch.setattr(verification, "visible_gpus", lambda: tuple("01234567"))
    assert verification._devices(replace(tiny_rl(), **changes), world) == (tuple(devices), at_once)
