"""How long one call takes on the GPU: the supervisor's side. What the children do is in `stopwatch.py`.

The reference (in the reference's process) and the candidate measure in turns, a few calls each, so that a drift of the
clocks meets both. The candidate's times are its own claim. Two things that it has no hand in say what they cannot be:
the supervisor's clock around a block of calls, and the bandwidth of the device (`roofline.py`).
"""

from __future__ import annotations

import importlib.metadata
import math
import secrets
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from dice.verdict import Timing
from dice.verify import roofline
from dice.verify.ipc import messages as m
from dice.verify.ipc import timing_plan
from dice.verify.options import probe_cuda

ROUND_MS = 200.0
LEAST_CALLS = 2  # of a side in a round, however long they take: an interval needs samples;
HOPELESS = 10.0  # but not of a candidate that is so many times slower than the reference
LONG_MS = 100.0  # of a call: what flushes of the caches can hide beside it is less than a hundredth
MIN_ROUNDS, MAX_ROUNDS = 3, 40
WIDTH = 0.02  # of the speed-up's interval, relative to its point value: rounds go on until it is this narrow,
BUDGET_S = 3.0  # or until so much time is spent
CONFIDENCE = 0.95
HIDDEN_MS = 0.02  # work on other streams shorter than this passes for launch latency
BLOCK_MS, MAX_BLOCK_CALLS = 40.0, 64
BLOCKS = 5
LATENCY_MS = 0.2  # in a round, launches may hide behind a flush of the caches; and behind each further one
OVERHEAD_SLACK = 2.0  # the two processes need not be equally fast at what is not the call
MESSAGE_MS = 2.0  # the two messages around a block
EXCESS = 1.5
BUSY = 0.5  # of the usual bandwidth

INPUTS, OUTPUT = "timing", "output"  # the trial that is timed, and what the candidate shows of it

M = TypeVar("M")


class Ask(Protocol):
    """Sends one side a command, and returns its answer as that message."""

    def __call__(self, command: Any, answer: type[M]) -> M: ...


class Implausible(Exception):
    """The candidate's claimed times cannot be true. `kind` is the deception's."""

    def __init__(self, message: str, kind: str = "timer"):
        super().__init__(message)
        self.kind = kind


class Busy(Exception):
    """Something else was at work on the device, so the reference's times mean nothing."""


class Stalled(Busy):
    """Memory was so short that the reference had to wait for it."""


class Malformed(Exception):
    """The candidate's report of its times is no such report."""


@dataclass
class Side:
    """The rounds of one side, in milliseconds."""

    ms: list[float] = field(default_factory=list)
    host_ms: list[float] = field(default_factory=list)
    idle_ms: list[float] = field(default_factory=list)

    def add(self, answer: m.RoundTimed) -> None:
        self.ms += answer.ms
        self.host_ms += answer.host_ms
        self.idle_ms += answer.idle_ms

    @property
    def hidden_ms(self) -> float:
        """Work that ran beside the flush of the caches, on another stream, before the first event: it shows when the
        device is idle at the start. 0 when that is within what launching costs, or calls are so long that it would be
        nothing to them."""
        if not self.idle_ms:
            return 0.0
        shown = statistics.median(self.ms)
        alone = statistics.median(self.idle_ms) - statistics.median(self.host_ms)
        return alone - shown if alone > 1.2 * shown + HIDDEN_MS else 0.0

    def interval(self, confidence: float) -> tuple[float, float]:
        low, high = median_interval(self.ms, confidence)
        return low + self.hidden_ms, high + self.hidden_ms

    @property
    def median(self) -> float:
        return statistics.median(self.ms) + self.hidden_ms


@dataclass
class Contest:
    """Both sides, measured in turns."""

    kernel: Side = field(default_factory=Side)
    reference: Side = field(default_factory=Side)
    rounds: int = 0
    bandwidths: list[float] = field(default_factory=list)  # reached beside the reference's rounds

    @property
    def speedup(self) -> float:
        return self.reference.median / self.kernel.median

    def speedup_interval(self) -> tuple[float, float]:
        """Holds the quotient of the true medians with probability `CONFIDENCE` or more, whatever the distribution:
        each side's interval errs half as often."""
        each = 1 - (1 - CONFIDENCE) / 2
        kernel, reference = self.kernel.interval(each), self.reference.interval(each)
        return reference[0] / kernel[1], reference[1] / kernel[0]

    def settled(self, spent_s: float) -> bool:
        if self.rounds < MIN_ROUNDS:
            return False
        low, high = self.speedup_interval()
        return high - low <= WIDTH * self.speedup or spent_s >= BUDGET_S or self.rounds >= MAX_ROUNDS

    def timing(self, **facts: Any) -> Timing:
        low, high = self.speedup_interval()
        return Timing(
            kernel_ms=self.kernel.median,
            reference_ms=self.reference.median,
            speedup=self.speedup,
            repeats=min(len(self.kernel.ms), len(self.reference.ms)),
            kernel_spread_ms=_spread(self.kernel.ms),
            reference_spread_ms=_spread(self.reference.ms),
            speedup_low=low,
            speedup_high=high,
            rounds=self.rounds,
            host_ms=statistics.median(self.kernel.host_ms),
            reference_host_ms=statistics.median(self.reference.host_ms),
            **facts,
        )


def median_interval(samples: Sequence[float], confidence: float) -> tuple[float, float]:
    """Two order statistics that enclose the median with at least this probability (both extremes if there are too few
    samples for that): the number of samples below the median is binomial."""
    ordered, count = sorted(samples), len(samples)
    outside, rank = 0.0, 0
    for below in range(count // 2):
        outside += math.comb(count, below) / 2**count
        if 2 * outside > 1 - confidence:
            break
        rank = below
    return ordered[rank], ordered[count - 1 - rank]


def run(ask_reference: Ask, ask_candidate: Ask, check: Callable[[m.JudgeTimed], None], spend: float) -> Contest:
    """Let both sides measure in turns until the interval is narrow or `spend` seconds are over.

    `check` has one output of a round, named by chance after the round, compared with the reference's. Raises
    `Implausible` or `Malformed` about the candidate.
    """
    contest = Contest()
    start = m.StartTiming(INPUTS, min(timing_plan.WARM_UP_S, spend / 4))
    ready = ask_reference(start, m.TimingStarted)
    begun = ask_candidate(replace(start, salted=ready.salted, flushes=ready.flushes), m.TimingStarted)
    call_ms = begun.call_ms
    checked_round = secrets.randbelow(MIN_ROUNDS)
    started = time.monotonic()
    while not contest.settled(time.monotonic() - started + BUDGET_S - spend):
        own = _round(ready.call_ms, ready)
        # Fewer calls of a slower candidate, if it is: that is its own claim, and costs it nothing but samples.
        command = replace(_round(max(ready.call_ms, call_ms), ready), seed=own.seed)
        if contest.rounds % 2 == 0:
            reference = ask_reference(own, m.RoundTimed)
            candidate = ask_candidate(command, m.RoundTimed)
        else:
            candidate = ask_candidate(command, m.RoundTimed)
            reference = ask_reference(own, m.RoundTimed)
        check_report(candidate, command)
        if reference.stalled:
            raise Stalled("the GPU had too little memory left to run the reference without waiting for it")
        contest.reference.add(reference)
        contest.kernel.add(candidate)
        call_ms = statistics.median(candidate.ms)
        contest.bandwidths.append(reference.bandwidth)
        if contest.rounds == checked_round:
            _challenge(command, candidate.checksums, ask_candidate, check)
        contest.rounds += 1
    _cross_check(contest, ready, ask_reference, ask_candidate, check)
    return contest


def facts(contest: Contest, ask_reference: Ask, cache_dir: Path, problem: str, compiled: bool) -> dict[str, Any]:
    """What `Timing` says besides the times: the reference's work, its roofline, its time under `torch.compile`.

    Raises `Implausible` when the kernel claims less time than the device needs to move its data, and `Busy` when the
    reference was slowed: a candidate may leave work running to look faster beside it.
    """
    work = ask_reference(m.DescribeWork(), m.WorkDescribed).work
    device = roofline.device_key(probe_cuda()["device"])
    ceilings = roofline.stored_ceilings(
        cache_dir, device, lambda: asdict(ask_reference(m.MeasureCeilings(), m.CeilingsMeasured).ceilings)
    )
    reached = statistics.median(contest.bandwidths)
    if reached < BUSY * ceilings.bandwidth:
        raise Busy(f"the GPU was busy with other work beside the reference ({reached / 1e9:.0f} GB/s were left of it)")
    claimed = contest.kernel.median
    if roofline.is_impossible(
        claimed, ceilings, work, lambda: ask_reference(m.CountNeededBytes(), m.NeededBytes).count
    ):
        least = ceilings.least_ms(work.bytes_moved)
        raise Implausible(
            f"it claims {claimed:.4g} ms, and to move {work.bytes_moved / 1e6:.0f} MB takes this GPU {least:.4g} ms.",
            "faster_than_physics",
        )
    found: dict[str, float | None] = {
        "bytes_moved": work.bytes_moved,
        "flops": work.flops,
        "ceiling_ms": ceilings.ceiling_ms(work),
    }
    if compiled:
        name = f"{problem}, {device}, torch {importlib.metadata.version('torch')}"
        found["compile_ms"] = _compiled_ms(cache_dir / "baselines.json", name, ask_reference)
    return found


def _compiled_ms(path: Path, name: str, ask_reference: Ask) -> float | None:
    """Median time of the reference under torch.compile, None where that cannot take it. Compiling takes many seconds,
    so a time is kept for the machine, and that it has no compiler; what failed for another reason, such as memory that
    others had just then, is tried again."""

    def measure() -> dict[str, Any]:
        said = ask_reference(m.TimeCompiled(), m.CompiledTimed)
        if not said.ms and not said.no_compiler:
            raise _NoBaseline
        return {"ms": statistics.median(said.ms) if said.ms else None}

    try:
        ms = roofline.stored(path, name, measure)["ms"]
    except _NoBaseline:
        return None
    return None if ms is None else float(ms)


class _NoBaseline(Exception):
    """There is none this time."""


def check_report(answer: m.RoundTimed, asked: m.TimeRound) -> None:
    """Raises `Malformed` unless a round's report is one: what was no number in it has been left out on arrival."""
    if (len(answer.ms), len(answer.host_ms), len(answer.idle_ms)) != (asked.calls, asked.calls, asked.idle):
        raise Malformed("the timed run reported no times.")
    if not all(0 <= item < 1e9 for item in (*answer.ms, *answer.host_ms, *answer.idle_ms)):
        raise Malformed("the timed run reported no times.")
    if not all(item > 0 for item in answer.ms):
        raise Implausible("the timed run claims calls that took no time at all.")
    _check_checksums(answer.checksums, asked.calls)


def excess_ms(wall_ms: float, calls: int, overhead_ms: float, claimed_ms: float, hidden_ms: float = 0.0) -> float:
    """By how much one call of a block took longer, on the supervisor's clock, than the claim allows; 0 when it did not.

    `overhead_ms` is what a block costs per call beside the call, in a process that has no reason to lie; `hidden_ms`,
    how long launches may hide beyond one flush. The caches are warm in a block and launches overlap, so an honest call
    takes no longer there than behind a flush.
    """
    taken = (wall_ms - MESSAGE_MS) / calls
    allowed = EXCESS * claimed_ms + OVERHEAD_SLACK * overhead_ms + LATENCY_MS + hidden_ms
    return max(0.0, taken - allowed)


def _cross_check(
    contest: Contest,
    ready: m.TimingStarted,
    ask_reference: Ask,
    ask_candidate: Ask,
    check: Callable[[m.JudgeTimed], None],
) -> None:
    """Raises `Implausible` when each of several blocks takes far longer than the claim. One does not suffice: on a
    machine with other work, a process may be held up."""
    claimed = contest.kernel.median
    calls = max(1, min(MAX_BLOCK_CALLS, int(BLOCK_MS / claimed), _fitting(ready.output_bytes)))
    hidden = (ready.flushes - 1) * 1e3 * timing_plan.FLUSH_BYTES / statistics.median(contest.bandwidths)
    if claimed < LONG_MS:  # or else what it takes to allocate buffers is within the slack
        ask_candidate(m.TimeBlock(secrets.randbits(60), min(calls, 2)), m.BlockTimed)
    overhead, least_wall_ms = 0.0, math.inf
    for attempt in range(BLOCKS):
        command = m.TimeBlock(secrets.randbits(60), calls)
        empty = ask_reference(replace(command, empty=True), m.BlockTimed)
        overhead = max(overhead, empty.block_ms / calls)
        started = time.perf_counter()
        answer = ask_candidate(command, m.BlockTimed)
        least_wall_ms = min(least_wall_ms, 1e3 * (time.perf_counter() - started))
        _check_checksums(answer.checksums, calls)
        if attempt == 0:
            _challenge(command, answer.checksums, ask_candidate, check)
        if excess_ms(least_wall_ms, calls, overhead, claimed, hidden) == 0:
            return
    took = (least_wall_ms - MESSAGE_MS) / calls
    raise Implausible(
        f"it claims {claimed:.4g} ms a call, but {calls} calls in a row took {took:.4g} ms each on our own clock."
    )


def _challenge(
    command: m.TimeRound | m.TimeBlock,
    checksums: Sequence[int],
    ask_candidate: Ask,
    check: Callable[[m.JudgeTimed], None],
) -> None:
    """Have one output of the round just ended shown and compared; which one, is drawn only now."""
    call = secrets.randbelow(command.calls)
    ask_candidate(m.ShowOutput(INPUTS, OUTPUT, call), m.OutputShown)
    check(m.JudgeTimed(INPUTS, OUTPUT, command.seed, call, checksums[call]))


def _check_checksums(checksums: Sequence[int], calls: int) -> None:
    if len(checksums) != calls:
        raise Malformed("the timed run reported no checksums of its outputs.")


def _round(call_ms: float, ready: m.TimingStarted) -> m.TimeRound:
    """A round of a side whose calls take so long."""
    fitting = _fitting(ready.output_bytes)
    least = 1 if call_ms > max(ROUND_MS, HOPELESS * ready.call_ms) else LEAST_CALLS
    calls = max(min(least, fitting), min(timing_plan.ROUND_CALLS, int(ROUND_MS / max(call_ms, 1e-3)), fitting))
    return m.TimeRound(secrets.randbits(60), calls, 0 if call_ms > LONG_MS else timing_plan.IDLE_CALLS)


def _fitting(output_bytes: int) -> int:
    return max(1, timing_plan.KEEP_BYTES // max(output_bytes, 1))


def _spread(times: Sequence[float]) -> float:
    low, _, high = statistics.quantiles(times, n=4)
    return high - low
