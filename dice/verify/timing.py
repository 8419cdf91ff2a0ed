"""How long one call takes on the GPU: CUDA events, cold L2 cache, warm everything else, median over repeats."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

from dice.verdict import Timing

MIN_REPEATS, MAX_REPEATS = 20, 100
WARM_UP_CALLS, WARM_UP_S = 3, 0.2
BUDGET_S = 3.0  # no new repeats after this, once MIN_REPEATS are done
FLUSH_BYTES = 256 << 20  # several times any L2 cache


def measure(call: Callable[[], object]) -> list[float]:
    """Milliseconds of single calls. All streams of the device are idle before each, and waited for after it."""
    import torch  # here, so that the supervisor can summarise without it

    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    _warm_up(call)
    times: list[float] = []
    started = time.perf_counter()
    while len(times) < MIN_REPEATS or (len(times) < MAX_REPEATS and time.perf_counter() - started < BUDGET_S):
        flush.zero_()
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return times


def summarise(kernel_ms: Sequence[float], reference_ms: Sequence[float]) -> Timing:
    """Medians and interquartile ranges of both sides, and their quotient."""
    kernel, reference = statistics.median(kernel_ms), statistics.median(reference_ms)
    return Timing(
        kernel_ms=kernel,
        reference_ms=reference,
        speedup=reference / kernel,
        repeats=min(len(kernel_ms), len(reference_ms)),
        kernel_spread_ms=_spread(kernel_ms),
        reference_spread_ms=_spread(reference_ms),
    )


def _warm_up(call: Callable[[], object]) -> None:
    import torch

    started = time.perf_counter()
    calls = 0
    while calls < WARM_UP_CALLS or (time.perf_counter() - started < WARM_UP_S and calls < MAX_REPEATS):
        call()
        torch.cuda.synchronize()
        calls += 1


def _spread(times: Sequence[float]) -> float:
    low, _, high = statistics.quantiles(times, n=4)
    return high - low
