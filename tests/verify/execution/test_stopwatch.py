"""What a child does while it is timed, on a scripted clock: without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from host_stopwatch import HostStopwatch

from dice.verify.execution import stopwatch
from dice.verify.ipc import timing_plan


def bench_of(model: Callable[..., Any], *inputs: torch.Tensor) -> stopwatch.Bench:
    placed = list(inputs)
    return stopwatch.Bench(model, placed, stopwatch.continuous(placed), HostStopwatch())


def test_every_call_gets_new_values_in_rotated_buffers_and_a_cold_cache() -> None:
    torch.manual_seed(0)  # one draw in thousands sums to 1, as a distribution does, which is not scaled
    seen: list[tuple[int, float]] = []
    values = torch.rand(50) - 0.5

    def model(tensor: torch.Tensor) -> torch.Tensor:
        seen.append((tensor.data_ptr(), float(tensor[0])))
        return tensor * 2

    bench = bench_of(model, values)
    answer = bench.round(5, 6)
    assert len(answer.ms) == len(answer.checksums) == len(bench.kept) == 6
    assert len({value for _, value in seen}) == len(seen) == 6 + timing_plan.IDLE_CALLS
    assert len({pointer for pointer, _ in seen}) == stopwatch.MAX_COPIES
    assert bench.stopwatch.flushes == len(seen) + stopwatch.LEAD + 1  # type: ignore[attr-defined]
    assert answer.bandwidth > 0
    assert values.tolist() == bench._pristine[0].tolist()


def test_the_oracle_makes_the_same_values_for_a_call_as_the_candidate() -> None:
    values = torch.rand(40)
    ours, theirs = bench_of(torch.sin, values.clone()), bench_of(torch.sin, values.clone())
    answer = theirs.round(99, 4)
    expected = torch.sin(ours.fill(99, 2)[0])
    assert torch.equal(expected, theirs.kept[2])
    assert int(stopwatch.checksum(expected)) == answer.checksums[2]


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
    assert len(bench.block(3, 4).checksums) == 4 == calls
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
    assert watch.flushes == flushes * (5 + timing_plan.IDLE_CALLS)


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
    assert bench.hide_launches(bench.warm_up(0.01)[0]) == 4


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
    assert len(calls) == 1 + 5 + timing_plan.IDLE_CALLS
    assert all(watch.asked[number - 1] == "flush" for number in calls)


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
    assert answer.stalled == stalled
    assert stalled or set(answer.ms + answer.idle_ms) == {1.0}
    assert len(answer.ms) == len(answer.checksums) == 4


def test_no_call_of_a_candidate_is_made_twice() -> None:
    seen: list[float] = []

    def model(x: torch.Tensor) -> torch.Tensor:
        seen.append(float(x[0]))
        return x * 2

    answer = stopwatch.Bench(model, [torch.rand(8) - 0.5], [0], Allocating(1000)).round(3, 4)
    assert len(set(seen)) == len(seen) == 4 + timing_plan.IDLE_CALLS
    assert set(answer.ms) == {1000.0} and not answer.stalled


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
