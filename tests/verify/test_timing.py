"""Timing without a GPU: the supervisor's rounds against scripted sides, and what a child does on a scripted clock."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dice.verify import stopwatch, timing


class HostStopwatch:
    """Times on the host; `flushes` counts."""

    def __init__(self) -> None:
        self.flushes = 0

    def flush(self) -> None:
        self.flushes += 1

    def time(self, call: Callable[[], Any]) -> tuple[Any, float, float]:
        started = time.perf_counter()
        result = call()
        spent = 1e3 * (time.perf_counter() - started)
        return result, spent, spent / 2

    def synchronize(self) -> None:
        pass

    def allocations(self) -> int:
        return 0


class Scripted:
    """A side whose calls take `ms` with noise, and that can lie or hide."""

    def __init__(self, ms: float, *, noise: float = 0.002, claims: float | None = None, hidden: float = 0.0):
        self.ms, self.noise, self.claims, self.hidden = ms, noise, claims, hidden
        self.flushes = 1
        self.random = random.Random(1)
        self.steps: list[timing.Message] = []

    def __call__(self, step: timing.Message) -> timing.Message:
        self.steps.append(step)
        calls = step.get("calls", 0)
        sums = {"checksums": [1000 + index for index in range(calls)]}
        if step["step"] == "start":
            return {"call_ms": self.ms, "output_bytes": 4096, "salted": [0], "flushes": self.flushes}
        if step["step"] == "round":
            shown = self.claims or self.ms
            times = [shown * self.random.gauss(1, self.noise) for _ in range(calls)]
            return sums | {
                "bandwidth": 3e12,
                "ms": times,
                "host_ms": [0.01] * calls,
                "idle_ms": [shown + self.hidden + 0.012] * 2,
            }
        if step["step"] == "block":
            time.sleep(calls * (self.ms + self.hidden) / 1e3)
            return sums | {"block_ms": calls * self.ms}
        if step["step"] == "empty_block":
            return sums | {"block_ms": 0.0}
        return {}


def contest(reference: Scripted, kernel: Scripted, checks: list[timing.Message] | None = None) -> timing.Contest:
    return timing.run(reference, kernel, (checks if checks is not None else []).append)


def test_the_interval_of_an_honest_kernel_is_narrow_and_holds_the_truth() -> None:
    found = contest(Scripted(4.0), Scripted(2.0)).timing()
    assert found.speedup_low <= 2.0 <= found.speedup_high
    assert found.speedup_high - found.speedup_low <= timing.WIDTH * 2
    assert found.speedup_low <= found.speedup <= found.speedup_high
    assert found.repeats >= timing.MIN_ROUNDS * 2


def test_noisier_sides_are_measured_longer() -> None:
    calm = contest(Scripted(1.0, noise=0.0001), Scripted(1.0, noise=0.0001))
    noisy = contest(Scripted(1.0, noise=0.05), Scripted(1.0, noise=0.05))
    assert calm.rounds == timing.MIN_ROUNDS
    assert noisy.rounds > calm.rounds


def test_sides_take_turns_and_swap_who_is_first() -> None:
    order: list[str] = []

    def listening(name: str, side: Scripted) -> Callable[[timing.Message], timing.Message]:
        def ask(step: timing.Message) -> timing.Message:
            if step["step"] == "round":
                order.append(name)
            return side(step)

        return ask

    timing.run(listening("r", Scripted(1.0)), listening("k", Scripted(1.0)), lambda step: None)
    assert "".join(order[:6]) == "rkkrrk"


def test_a_claim_far_below_the_supervisors_clock_is_a_lie() -> None:
    with pytest.raises(timing.Implausible, match="our own clock") as lie:
        contest(Scripted(8.0), Scripted(8.0, claims=0.5))
    assert lie.value.kind == "timer"


def test_one_block_that_was_held_up_is_no_lie() -> None:
    kernel = Scripted(2.0)
    held_up: list[int] = []

    def ask(step: timing.Message) -> timing.Message:
        if step["step"] == "block" and step["calls"] > 2 and not held_up:
            held_up.append(step["calls"])
            time.sleep(0.2)
        return kernel(step)

    assert timing.run(Scripted(2.0), ask, lambda step: None).speedup == pytest.approx(1.0, rel=0.05)
    assert held_up


def test_no_time_at_all_is_a_lie_and_rubbish_is_malformed() -> None:
    good = {"ms": [1.0, 1.0], "host_ms": [0.1, 0.1], "idle_ms": [1.0], "checksums": [1, 2]}
    timing.check_report(good, 2)
    with pytest.raises(timing.Implausible):
        timing.check_report(good | {"ms": [0.0, 1.0]}, 2)
    rubbish: list[Any] = [None, [], ["1", "2"], [1.0], [math.nan, 1.0], [1e300, 1.0], [True, 1.0]]
    for value in rubbish:
        with pytest.raises(timing.Malformed):
            timing.check_report(good | {"ms": value}, 2)
    with pytest.raises(timing.Malformed):
        timing.check_report(good | {"checksums": [1]}, 2)


def test_work_hidden_on_another_stream_is_charged() -> None:
    found = contest(Scripted(1.0), Scripted(0.01, hidden=0.9)).timing()
    assert found.kernel_ms == pytest.approx(0.9, rel=0.05)


def test_an_output_of_a_round_and_one_of_the_block_are_checked_with_their_checksums() -> None:
    checks: list[timing.Message] = []
    kernel = Scripted(1.0)
    contest(Scripted(1.0), kernel, checks)
    seeds = {step["seed"]: step["step"] for step in kernel.steps if "seed" in step}
    assert [seeds[check["seed"]] for check in checks] == ["round", "block"]
    assert all(check["checksum"] == 1000 + check["call"] for check in checks)
    shown = [step["call"] for step in kernel.steps if step["step"] == "show"]
    assert shown == [check["call"] for check in checks]


def test_seeds_of_rounds_never_repeat() -> None:
    kernel = Scripted(1.0)
    contest(Scripted(1.0), kernel)
    seeds = [step["seed"] for step in kernel.steps if "seed" in step]
    assert len(set(seeds)) == len(seeds)


class Oracle(Scripted):
    """A reference of 3 GB moved and few operations, on a device of 3 TB/s."""

    needed = 3 * 10**9

    def __call__(self, step: timing.Message) -> timing.Message:
        if step["step"] == "work":
            sizes = {"input_bytes": 2 * 10**9, "parameter_bytes": 0, "output_bytes": 10**9}
            return {"event": "timed"} | sizes | {"flops": 10**9}
        if step["step"] == "needed":
            return {"event": "timed", "bytes": self.needed}
        if step["step"] == "ceilings":
            self.steps.append(step)
            return {"event": "timed", "bandwidth": 3e12, "fp32": 5e13, "tf32": 4e14, "bf16": 8e14, "l2_bytes": 50 << 20}
        if step["step"] == "compiled":
            self.steps.append(step)
            return {"event": "timed", "ms": [3.0, 1.0, 2.0]}
        return super().__call__(step)


def claims(milliseconds: float) -> timing.Contest:
    side = timing.Side([milliseconds] * 9, [0.01] * 9, [milliseconds] * 2)
    return timing.Contest(side, timing.Side([4.0] * 9, [0.01] * 9, [4.0] * 2), 3, [2.9e12, 2.8e12, 0.1e12])


def test_faster_than_the_device_can_move_the_data_is_a_lie(tmp_path: Path) -> None:
    found = timing.facts(claims(1.1), Oracle(4.0), tmp_path, "p", False)
    assert found == {"bytes_moved": 3 * 10**9, "flops": 10**9, "ceiling_ms": pytest.approx(1.0)}
    assert claims(1.1).timing(**found).ceiling_ms == pytest.approx(1.0)
    with pytest.raises(timing.Implausible) as lie:
        timing.facts(claims(0.5), Oracle(4.0), tmp_path, "p", False)
    assert lie.value.kind == "faster_than_physics"
    sparse = Oracle(4.0)
    sparse.needed = 10**9
    assert timing.facts(claims(0.5), sparse, tmp_path, "p", False)


def test_a_reference_slowed_by_other_work_is_not_timed(tmp_path: Path) -> None:
    slowed = claims(1.1)
    slowed.bandwidths = [1.0e12, 2.9e12, 0.9e12]
    with pytest.raises(timing.Busy, match="busy"):
        timing.facts(slowed, Oracle(4.0), tmp_path, "p", False)


def test_the_compiled_baseline_is_measured_once_per_problem(tmp_path: Path) -> None:
    for problem in ("a", "a", "b"):
        oracle = Oracle(4.0)
        assert timing.facts(claims(2.0), oracle, tmp_path, problem, True)["compile_ms"] == 2.0
        asked = [step["step"] for step in oracle.steps].count("compiled")
        assert asked == (0 if problem == "a" and (tmp_path / "seen").exists() else 1)
        (tmp_path / "seen").touch()


def test_the_median_interval_covers_as_often_as_it_says() -> None:
    draw = random.Random(7)
    hits = 0
    for _ in range(400):
        low, high = timing.median_interval([draw.expovariate(1) for _ in range(25)], 0.95)
        hits += low <= math.log(2) <= high
    assert hits >= 0.93 * 400
    assert timing.median_interval([3.0, 1.0, 2.0], 0.95) == (1.0, 3.0)


def test_few_calls_a_round_where_a_call_is_long_or_its_output_large() -> None:
    assert timing._calls(0.1, 4096) == timing.ROUND_CALLS
    assert timing._calls(90.0, 4096) == 2
    assert timing._calls(0.1, timing.KEEP_BYTES // 3) == 3


# ---- the child's side


def bench_of(model: Callable[..., Any], *inputs: torch.Tensor) -> stopwatch.Bench:
    placed = list(inputs)
    return stopwatch.Bench(model, placed, stopwatch.continuous(placed), HostStopwatch())


def test_every_call_gets_new_values_in_rotated_buffers_and_a_cold_cache() -> None:
    seen: list[tuple[int, float]] = []
    values = torch.rand(50) - 0.5

    def model(tensor: torch.Tensor) -> torch.Tensor:
        seen.append((tensor.data_ptr(), float(tensor[0])))
        return tensor * 2

    bench = bench_of(model, values)
    answer = bench.round(5, 6)
    assert len(answer["ms"]) == len(answer["checksums"]) == len(bench.kept) == 6
    assert len({value for _, value in seen}) == len(seen) == 6 + stopwatch.IDLE_CALLS
    assert len({pointer for pointer, _ in seen}) == stopwatch.MAX_COPIES
    assert bench.stopwatch.flushes == len(seen) + stopwatch.LEAD + 1  # type: ignore[attr-defined]
    assert answer["bandwidth"] > 0
    assert values.tolist() == bench._pristine[0].tolist()


def test_the_oracle_makes_the_same_values_for_a_call_as_the_candidate() -> None:
    values = torch.rand(40)
    ours, theirs = bench_of(torch.sin, values.clone()), bench_of(torch.sin, values.clone())
    answer = theirs.round(99, 4)
    expected = torch.sin(ours.fill(99, 2)[0])
    assert torch.equal(expected, theirs.kept[2])
    assert int(stopwatch.checksum(expected)) == answer["checksums"][2]


def test_labels_masks_and_indices_are_not_scaled() -> None:
    values, labels, mask = torch.rand(9), torch.randint(0, 5, (9,)), torch.tensor([0.0, 1.0, 1.0])
    assert stopwatch.continuous([values, labels, mask]) == [0]
    bench = bench_of(lambda *all_of: all_of[0], values, labels, mask)
    filled = bench.fill(1, 1)
    assert torch.equal(filled[1], labels) and torch.equal(filled[2], mask)
    ratio = filled[0] / values
    assert stopwatch.LEAST_FACTOR <= float(ratio[0]) < 1 and torch.allclose(ratio, ratio[0])


def test_inputs_changed_in_place_are_whole_again_in_the_next_call() -> None:
    firsts: list[float] = []

    def model(tensor: torch.Tensor) -> torch.Tensor:
        firsts.append(float(tensor.min()))
        return tensor.zero_()

    bench_of(model, torch.rand(8) + 1).round(1, 5)
    assert min(firsts) >= stopwatch.LEAST_FACTOR


def test_a_tensor_that_computes_when_looked_at_is_refused() -> None:
    class Lazy(torch.Tensor):
        pass

    with pytest.raises(stopwatch.LazyOutput, match="Lazy"):
        bench_of(lambda tensor: [tensor.as_subclass(Lazy)], torch.rand(3)).round(0, 2)


def test_checksums_tell_values_apart_in_every_dtype() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.complex64):
        ones, zeros = torch.ones(3, dtype=dtype), torch.zeros(3, dtype=dtype)
        assert int(stopwatch.checksum({"a": [ones]})) != int(stopwatch.checksum({"a": [zeros]})), dtype
    assert int(stopwatch.checksum(torch.rand(0))) == 0


def test_a_block_keeps_its_outputs_and_an_empty_one_calls_the_model_once() -> None:
    calls = 0

    def model(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return tensor.clone()

    bench = bench_of(model, torch.rand(5))
    assert len(bench.block(3, 4)["checksums"]) == 4 == calls
    bench.empty_block(3, 4)
    assert calls == 5
    assert bench.model is model


class SlowLaunches(HostStopwatch):
    """A flush lasts 1 ms; the host takes `host_ms` to launch a call."""

    def __init__(self, host_ms: float):
        super().__init__()
        self.host_ms = host_ms

    def time(self, call: Callable[[], Any]) -> tuple[Any, float, float]:
        return call(), 1.0, self.host_ms


@pytest.mark.parametrize("host_ms, flushes", [(0.1, 1), (0.9, 2), (1.9, 3), (50.0, stopwatch.MAX_FLUSHES)])
def test_flushes_outlast_the_launch_of_a_call(host_ms: float, flushes: int) -> None:
    watch = SlowLaunches(host_ms)
    bench = stopwatch.Bench(torch.nn.Identity(), [torch.rand(4)], [0], watch)
    assert bench.hide_launches(1.0) == flushes
    watch.flushes = -stopwatch.LEAD - 1  # those for the bandwidth
    bench.round(1, 5)
    assert watch.flushes == flushes * (5 + stopwatch.IDLE_CALLS)


class ColdFlush(SlowLaunches):
    """A flush of an idle device takes 3 ms, of which the host takes two."""

    def __init__(self, host_ms: float):
        super().__init__(host_ms)
        self.behind = False

    def flush(self) -> None:
        super().flush()
        self.behind = True

    def time(self, call: Callable[[], Any]) -> tuple[Any, float, float]:
        behind, self.behind = self.behind, False
        return call(), 1.0 if behind else 3.0, self.host_ms


def test_a_flush_is_measured_without_its_own_launch() -> None:
    assert stopwatch.Bench(torch.nn.Identity(), [torch.rand(4)], [0], ColdFlush(1.9)).hide_launches(1.0) == 3


class UnevenLaunches(SlowLaunches):
    """Every fifth launch takes ten times as long as the others."""

    def time(self, call: Callable[[], Any]) -> tuple[Any, float, float]:
        return call(), 1.0, self.host_ms * (10 if self.flushes % 5 == 0 else 1)


class LaunchesAfterWork(SlowLaunches):
    """A launch takes ten times as long where the host did something else since the last one, as in a round."""

    def __init__(self, host_ms: float):
        super().__init__(host_ms)
        self.worked = False

    def allocations(self) -> int:
        self.worked = True
        return 0

    def time(self, call: Callable[[], Any]) -> tuple[Any, float, float]:
        slow, self.worked = self.worked, False
        return call(), 1.0, self.host_ms * (10 if slow else 1)


@pytest.mark.parametrize("watch", [UnevenLaunches(0.2), LaunchesAfterWork(0.2)])
def test_flushes_outlast_the_slow_launches_too(watch: SlowLaunches) -> None:
    bench = stopwatch.Bench(torch.nn.Identity(), [torch.rand(4)], [0], watch)
    assert bench.hide_launches(bench.warm_up(0.01)["call_ms"]) == 4


def test_a_long_call_is_not_made_to_find_out_how_its_launch_is_hidden() -> None:
    bench = bench_of(torch.sin, torch.rand(4))
    assert bench.hide_launches(stopwatch.PROBE_MS + 1) == 1
    assert bench.stopwatch.flushes == 0  # type: ignore[attr-defined]


class Noting(HostStopwatch):
    """Notes what is asked of it, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def flush(self) -> None:
        self.asked.append("flush")

    def time(self, call: Callable[[], Any]) -> tuple[Any, float, float]:
        self.asked.append("time")
        return super().time(call)

    def allocations(self) -> int:
        self.asked.append("allocations")
        return 0


def test_the_host_does_nothing_between_a_flush_and_the_call_whose_launch_it_hides() -> None:
    watch = Noting()
    stopwatch.Bench(torch.nn.Identity(), [torch.rand(4)], [0], watch).round(1, 5)
    calls = [number for number, asked in enumerate(watch.asked) if asked == "time"]
    assert len(calls) == 1 + 5 + stopwatch.IDLE_CALLS
    assert all(watch.asked[number - 1] == "flush" for number in calls)


def test_the_candidate_is_told_the_references_flushes_and_may_hide_as_long() -> None:
    reference, kernel = Scripted(0.1), Scripted(0.1)
    reference.flushes = 4
    contest(reference, kernel)
    assert kernel.steps[0] == {"step": "start", "warm_up_s": 0.2, "salted": [0], "flushes": 4}
    launches_ms = 0.5
    assert timing.excess_ms(10 * (0.1 + launches_ms) + timing.MESSAGE_MS, 10, 0.0, 0.1) > 0
    hidden_ms = 3 * 1e3 * timing.FLUSH_BYTES / 1e12
    assert timing.excess_ms(10 * (0.1 + launches_ms) + timing.MESSAGE_MS, 10, 0.0, 0.1, hidden_ms) == 0


class Allocating(HostStopwatch):
    """Its calls ask the driver for memory, `times` times in all, and then take a second."""

    def __init__(self, times: int):
        super().__init__()
        self.times, self.asked = times, 0

    def allocations(self) -> int:
        return self.asked

    def time(self, call: Callable[[], Any]) -> tuple[Any, float, float]:
        waits = self.flushes > 2 and self.asked < self.times
        self.asked += waits
        return call(), 1000.0 if waits else 1.0, 0.1


@pytest.mark.parametrize("times, stalled", [(0, False), (1, False), (2, False), (1000, True)])
def test_a_call_that_waits_for_memory_is_timed_once_more(times: int, stalled: bool) -> None:
    bench = stopwatch.Bench(torch.sin, [torch.rand(8) - 0.5], [0], Allocating(times), frugal=True)
    answer = bench.round(3, 4)
    assert answer["stalled"] == stalled
    assert stalled or set(answer["ms"] + answer["idle_ms"]) == {1.0}
    assert len(answer["ms"]) == len(answer["checksums"]) == 4


def test_no_call_of_a_candidate_is_made_twice() -> None:
    seen: list[float] = []

    def model(x: torch.Tensor) -> torch.Tensor:
        seen.append(float(x[0]))
        return x * 2

    answer = stopwatch.Bench(model, [torch.rand(8) - 0.5], [0], Allocating(1000)).round(3, 4)
    assert len(set(seen)) == len(seen) == 4 + stopwatch.IDLE_CALLS
    assert set(answer["ms"]) == {1000.0} and not answer["stalled"]


def test_a_reference_that_waits_for_memory_is_not_timed() -> None:
    reference = Scripted(1.0)

    def stalled(step: timing.Message) -> timing.Message:
        return reference(step) | {"stalled": True}

    with pytest.raises(timing.Stalled, match="memory"):
        timing.run(stalled, Scripted(0.5), lambda _: None)


def test_outputs_of_a_round_are_kept_in_the_same_memory_as_those_of_the_last() -> None:
    bench = bench_of(torch.sin, torch.rand(50) - 0.5)
    bench.round(1, 3)
    first, pointers = bench.kept[1].clone(), [tensor.data_ptr() for tensor in bench.kept]
    bench.round(2, 3)
    assert [tensor.data_ptr() for tensor in bench.kept] == pointers
    assert not torch.equal(bench.kept[1], first)
    bench.model = lambda x: {"sine": torch.sin(x), "times": 1}  # no form that memory is kept for
    bench.round(2, 4)
    assert len(bench.kept) == 4 and bench.kept[3]["times"] == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.bool, torch.uint8])
def test_a_checksum_is_of_every_byte(dtype: torch.dtype) -> None:
    values = torch.arange(37).to(dtype)
    for start in (0, 1):  # also where its memory begins within a word
        tensor = values[start:]
        known = int(stopwatch.checksum(tensor))
        for index in (0, 17, tensor.numel() - 1):
            other = tensor.clone()
            other[index] = not other[index] if dtype == torch.bool else other[index] + 3
            assert int(stopwatch.checksum(other)) != known
        assert int(stopwatch.checksum([tensor.clone()])) == known
