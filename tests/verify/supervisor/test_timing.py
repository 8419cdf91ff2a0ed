"""Timing without a GPU: the supervisor's rounds against scripted sides, and what a child does on a scripted clock."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from dice.verify import roofline
from dice.verify.ipc import messages as m
from dice.verify.ipc import timing_plan
from dice.verify.ipc.encoding import claim
from dice.verify.supervisor import timing

T = TypeVar("T")


class Scripted:
    """A side whose calls take `ms` with noise, and that can lie or hide."""

    def __init__(self, ms: float, *, noise: float = 0.002, claims: float | None = None, hidden: float = 0.0):
        self.ms, self.noise, self.claims, self.hidden = ms, noise, claims, hidden
        self.flushes = 1
        self.random = random.Random(1)
        self.commands: list[Any] = []

    def __call__(self, command: Any, answer: type[T]) -> T:
        self.commands.append(command)
        said = self.answer(command)
        assert isinstance(said, answer)
        return said

    def answer(self, command: Any) -> Any:
        if isinstance(command, m.StartTiming):
            return m.TimingStarted(self.ms, 4096, (0,), self.flushes)
        if isinstance(command, m.ShowOutput):
            return m.OutputShown()
        checksums = tuple(1000 + index for index in range(command.calls))
        if isinstance(command, m.TimeRound):
            shown = self.claims or self.ms
            times = tuple(shown * self.random.gauss(1, self.noise) for _ in checksums)
            idle = (shown + self.hidden + 0.012,) * command.idle
            return m.RoundTimed(times, (0.01,) * len(times), idle, checksums, bandwidth=3e12)
        if command.empty:
            return m.BlockTimed(0.0, checksums)
        time.sleep(command.calls * (self.ms + self.hidden) / 1e3)
        return m.BlockTimed(command.calls * self.ms, checksums)


def contest(reference: timing.Ask, kernel: timing.Ask, checks: list[m.JudgeTimed] | None = None) -> timing.Contest:
    return timing.run(reference, kernel, (checks if checks is not None else []).append, timing.BUDGET_S)


def test_the_interval_of_an_honest_kernel_is_narrow_and_holds_the_truth() -> None:
    found = contest(Scripted(4.0), Scripted(2.0)).timing()
    assert found.speedup_low <= 2.0 <= found.speedup_high
    assert found.speedup_high - found.speedup_low <= timing.WIDTH * 2
    assert found.speedup_low <= found.speedup <= found.speedup_high
    assert found.repeats >= timing.MIN_ROUNDS * 2


def test_a_slower_kernel_makes_fewer_calls_a_round_and_the_reference_as_many_as_ever() -> None:
    reference, kernel = Scripted(4.0), Scripted(40.0, noise=0)
    contest(reference, kernel)
    assert {one.calls for one in reference.commands if isinstance(one, m.TimeRound)} == {timing_plan.ROUND_CALLS}
    assert {one.calls for one in kernel.commands if isinstance(one, m.TimeRound)} == {int(timing.ROUND_MS / 40.0)}


def test_a_kernel_far_slower_than_the_reference_is_called_as_rarely_as_a_time_can_be_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    kernel = Scripted(300.0)
    found = contest(Scripted(4.0), kernel)
    rounds = [(one.calls, one.idle) for one in kernel.commands if isinstance(one, m.TimeRound)]
    assert rounds == [(1, 0)] * timing.MIN_ROUNDS
    assert found.timing().speedup == pytest.approx(4 / 300, rel=0.05)
    assert [one.calls for one in kernel.commands if isinstance(one, m.TimeBlock)] == [1]


def test_a_kernel_that_only_warms_up_slowly_cannot_hide_its_work() -> None:
    class Slow(Scripted):
        def answer(self, command: Any) -> Any:
            said = super().answer(command)
            return replace(said, call_ms=500.0) if isinstance(said, m.TimingStarted) else said

    found = contest(Scripted(1.0), Slow(0.01, hidden=0.9)).timing()
    assert found.kernel_ms == pytest.approx(0.9, rel=0.05)


@pytest.mark.parametrize("claimed", [math.nan, math.inf, -1.0])
def test_what_a_kernel_says_of_its_warm_up_cannot_spoil_the_rounds(claimed: float) -> None:
    class Odd(Scripted):
        def answer(self, command: Any) -> Any:
            said = super().answer(command)
            return replace(said, call_ms=claimed) if isinstance(said, m.TimingStarted) else said

    found = contest(Scripted(4.0), Odd(2.0)).timing()
    assert found.speedup_low <= 2.0 <= found.speedup_high


def test_noisier_sides_are_measured_longer() -> None:
    calm = contest(Scripted(1.0, noise=0.0001), Scripted(1.0, noise=0.0001))
    noisy = contest(Scripted(1.0, noise=0.05), Scripted(1.0, noise=0.05))
    assert calm.rounds == timing.MIN_ROUNDS
    assert noisy.rounds > calm.rounds


class Watched(Scripted):
    """A side whose answers something else follows from."""

    def __init__(self, ms: float, saw: Callable[[Any, Any], Any]):
        super().__init__(ms)
        self.saw = saw

    def answer(self, command: Any) -> Any:
        return self.saw(command, super().answer(command))


def test_sides_take_turns_and_swap_who_is_first() -> None:
    order: list[str] = []

    def listening(name: str) -> Watched:
        def saw(command: Any, answer: Any) -> Any:
            if isinstance(command, m.TimeRound):
                order.append(name)
            return answer

        return Watched(1.0, saw)

    contest(listening("r"), listening("k"))
    assert "".join(order[:6]) == "rkkrrk"


def test_a_claim_far_below_the_supervisors_clock_is_a_lie() -> None:
    with pytest.raises(timing.Implausible, match="our own clock") as lie:
        contest(Scripted(8.0), Scripted(8.0, claims=0.5))
    assert lie.value.kind == "timer"


def test_one_block_that_was_held_up_is_no_lie() -> None:
    held_up: list[int] = []

    def hold_up(command: Any, answer: Any) -> Any:
        if isinstance(command, m.TimeBlock) and command.calls > 2 and not held_up:
            held_up.append(command.calls)
            time.sleep(0.2)
        return answer

    assert contest(Scripted(2.0), Watched(2.0, hold_up)).speedup == pytest.approx(1.0, rel=0.05)
    assert held_up


def test_no_time_at_all_is_a_lie_and_rubbish_is_malformed() -> None:
    good = {"ms": [1.0, 1.0], "host_ms": [0.1, 0.1], "idle_ms": [1.0], "checksums": [1, 2]}

    def check(said: dict[str, Any]) -> None:
        timing.check_report(claim(said, m.RoundTimed), m.TimeRound(0, 2, 1))

    check(good)
    with pytest.raises(timing.Implausible):
        check(good | {"ms": [0.0, 1.0]})
    rubbish: list[Any] = [None, [], ["1", "2"], [1.0], [math.nan, 1.0], [1e300, 1.0], [True, 1.0]]
    for value in rubbish:
        with pytest.raises(timing.Malformed):
            check(good | {"ms": value})
    with pytest.raises(timing.Malformed):
        check(good | {"checksums": [1]})


def test_work_hidden_on_another_stream_is_charged() -> None:
    found = contest(Scripted(1.0), Scripted(0.01, hidden=0.9)).timing()
    assert found.kernel_ms == pytest.approx(0.9, rel=0.05)


def test_an_output_of_a_round_and_one_of_the_block_are_checked_with_their_checksums() -> None:
    checks: list[m.JudgeTimed] = []
    kernel = Scripted(1.0)
    contest(Scripted(1.0), kernel, checks)
    kinds = {command.seed: type(command) for command in kernel.commands if hasattr(command, "seed")}
    assert [kinds[check.seed] for check in checks] == [m.TimeRound, m.TimeBlock]
    assert all(check.checksum == 1000 + check.call for check in checks)
    shown = [command.call for command in kernel.commands if isinstance(command, m.ShowOutput)]
    assert shown == [check.call for check in checks]


def test_seeds_of_rounds_never_repeat() -> None:
    kernel = Scripted(1.0)
    contest(Scripted(1.0), kernel)
    seeds = [command.seed for command in kernel.commands if hasattr(command, "seed")]
    assert len(set(seeds)) == len(seeds)


class Reference(Scripted):
    """A reference of 3 GB moved and few operations, on a device of 3 TB/s."""

    needed = 3 * 10**9

    def answer(self, command: Any) -> Any:
        answers: dict[type[Any], Any] = {
            m.DescribeWork: m.WorkDescribed(roofline.Work(2 * 10**9, 0, 10**9, 10**9)),
            m.CountNeededBytes: m.NeededBytes(self.needed),
            m.MeasureCeilings: m.CeilingsMeasured(roofline.Ceilings(3e12, 5e13, 4e14, 8e14, 50 << 20)),
            m.TimeCompiled: m.CompiledTimed((3.0, 1.0, 2.0)),
        }
        return answers[type(command)] if type(command) in answers else super().answer(command)


def claims(milliseconds: float) -> timing.Contest:
    side = timing.Side([milliseconds] * 9, [0.01] * 9, [milliseconds] * 2)
    return timing.Contest(side, timing.Side([4.0] * 9, [0.01] * 9, [4.0] * 2), 3, [2.9e12, 2.8e12, 0.1e12])


def test_faster_than_the_device_can_move_the_data_is_a_lie(tmp_path: Path) -> None:
    found = timing.facts(claims(1.1), Reference(4.0), tmp_path, "p", False)
    assert found == {"bytes_moved": 3 * 10**9, "flops": 10**9, "ceiling_ms": pytest.approx(1.0)}
    assert claims(1.1).timing(**found).ceiling_ms == pytest.approx(1.0)
    with pytest.raises(timing.Implausible) as lie:
        timing.facts(claims(0.5), Reference(4.0), tmp_path, "p", False)
    assert lie.value.kind == "faster_than_physics"
    sparse = Reference(4.0)
    sparse.needed = 10**9
    assert timing.facts(claims(0.5), sparse, tmp_path, "p", False)


def test_a_reference_slowed_by_other_work_is_not_timed(tmp_path: Path) -> None:
    slowed = claims(1.1)
    slowed.bandwidths = [1.0e12, 2.9e12, 0.9e12]
    with pytest.raises(timing.Busy, match="busy"):
        timing.facts(slowed, Reference(4.0), tmp_path, "p", False)


def test_the_compiled_baseline_is_measured_once_per_problem(tmp_path: Path) -> None:
    for problem in ("a", "a", "b"):
        reference = Reference(4.0)
        assert timing.facts(claims(2.0), reference, tmp_path, problem, True)["compile_ms"] == 2.0
        asked = sum(isinstance(command, m.TimeCompiled) for command in reference.commands)
        assert asked == (0 if problem == "a" and (tmp_path / "seen").exists() else 1)
        (tmp_path / "seen").touch()


@pytest.mark.parametrize("no_compiler", [True, False])
def test_a_baseline_that_failed_is_tried_again_where_there_is_a_compiler(tmp_path: Path, no_compiler: bool) -> None:
    class NotCompiled(Reference):
        def answer(self, command: Any) -> Any:
            said = m.CompiledTimed((), no_compiler)
            return said if isinstance(command, m.TimeCompiled) else super().answer(command)

    assert timing.facts(claims(2.0), NotCompiled(4.0), tmp_path, "p", True)["compile_ms"] is None
    later = timing.facts(claims(2.0), Reference(4.0), tmp_path, "p", True)["compile_ms"]
    assert later == (None if no_compiler else 2.0)


def test_the_median_interval_covers_as_often_as_it_says() -> None:
    draw = random.Random(7)
    hits = 0
    for _ in range(400):
        low, high = timing.median_interval([draw.expovariate(1) for _ in range(25)], 0.95)
        hits += low <= math.log(2) <= high
    assert hits >= 0.93 * 400
    assert timing.median_interval([3.0, 1.0, 2.0], 0.95) == (1.0, 3.0)


def test_few_calls_a_round_where_a_call_is_long_or_its_output_large() -> None:
    def calls(call_ms: float, output_bytes: int = 4096, reference_ms: float = 0.1) -> int:
        return timing._round(call_ms, m.TimingStarted(reference_ms, output_bytes)).calls

    assert calls(0.1) == timing_plan.ROUND_CALLS
    assert calls(90.0) == calls(900.0, reference_ms=100.0) == timing.LEAST_CALLS == 2
    assert calls(0.1, timing_plan.KEEP_BYTES // 3) == 3


def test_the_candidate_is_told_the_references_flushes_and_may_hide_as_long() -> None:
    reference, kernel = Scripted(0.1), Scripted(0.1)
    reference.flushes = 4
    contest(reference, kernel)
    assert kernel.commands[0] == m.StartTiming(timing.INPUTS, 0.2, salted=(0,), flushes=4)
    launches_ms = 0.5
    assert timing.excess_ms(10 * (0.1 + launches_ms) + timing.MESSAGE_MS, 10, 0.0, 0.1) > 0
    hidden_ms = 3 * 1e3 * timing_plan.FLUSH_BYTES / 1e12
    assert timing.excess_ms(10 * (0.1 + launches_ms) + timing.MESSAGE_MS, 10, 0.0, 0.1, hidden_ms) == 0


def test_a_reference_that_waits_for_memory_is_not_timed() -> None:
    def stalled(command: Any, answer: Any) -> Any:
        return replace(answer, stalled=True) if isinstance(answer, m.RoundTimed) else answer

    with pytest.raises(timing.Stalled, match="memory"):
        contest(Watched(1.0, stalled), Scripted(0.5))
