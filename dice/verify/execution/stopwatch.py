"""What a child does while it is timed: the same in the reference's process and in the candidate's.

Every call gets values that it has never seen, in buffers used in rotation, and a cold L2 cache. Outputs are kept until
the supervisor has named the one it wants to see; a checksum of each is sent with the times, before it is named.
"""

from __future__ import annotations

import math
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from dice.verify.execution import dispatch, running
from dice.verify.execution.inputs import is_free
from dice.verify.ipc.messages import BlockTimed, RoundTimed
from dice.verify.ipc.timing_plan import FLUSH_BYTES, IDLE_CALLS, ROUND_CALLS, WARM_UP_S
from dice.verify.tensors import transport

WARM_UP_CALLS, MAX_WARM_UP_CALLS = 3, 200
LONG_WARM_UP_S = 0.5  # after so long, even one call is enough: the clocks are up
# A launch that comes late costs 20 us more than it is late. So the flushes of the caches before a call last long enough
# for the host to launch it: this many times what nine in ten launches of the reference take.
HIDE = 1.5
RECORD_MS = 0.03  # what the host does beside the launch itself: 23 us on the machine of an H200
MAX_FLUSHES = 6  # before one call
LEAD = 3  # flushes before the one whose time is taken: a single one would take as long as its own launch besides
PROBES = 3  # rounds that measure how long a launch takes
PAUSE_S = 0.005  # before each of these rounds, as before a round that counts
PROBE_MS = 20.0  # the launch of a call that takes longer than this is hidden by the call before it
ROTATE_BYTES, MAX_COPIES = 2 << 30, 4
LARGE_BYTES = 64 << 20  # of an output
LEAST_FACTOR = 0.75
COMPILED_CALLS = 25
LATE_S = 2e-5  # waiting for an idle device takes less
WORD = 8  # bytes, of a checksum
STEADY_TRIES = 3  # for a call without memory from the driver, which takes three milliseconds a gigabyte


class LazyOutput(Exception):
    """`forward` returned something whose values are not computed yet, or may not be."""


class Stopwatch(Protocol):
    """Times calls on a device."""

    def flush(self) -> None:
        """Start to make the caches cold; need not be finished on return."""

    def time(self, call: Callable[[], Any]) -> tuple[Any, float, float]:
        """(result, milliseconds on the device, milliseconds of the host in the call). All streams are idle after."""

    def synchronize(self) -> None:
        """Wait for all streams."""

    def allocations(self) -> int:
        """How often PyTorch has asked the driver for memory so far."""


# Fetched before any candidate's code is loaded: replacing them in `torch.cuda` or `time` changes nothing here.
_CLOCK = time.perf_counter
_SYNCHRONIZE = torch.cuda.synchronize
_MEMORY_STATS = torch.cuda.memory_stats
_EVENT = torch.cuda.Event
_RECORD, _WAIT, _ELAPSED = _EVENT.record, _EVENT.synchronize, _EVENT.elapsed_time


class CudaStopwatch:
    """Events on the default stream, and a look at whether other streams were still at work after it."""

    def __init__(self) -> None:
        torch.cuda.empty_cache()  # where a process's history has put its tensors makes a microsecond's difference
        self._buffer = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
        self._begin, self._end = (_EVENT(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]

    def flush(self) -> None:
        self._buffer.zero_()

    def time(self, call: Callable[[], Any]) -> tuple[Any, float, float]:
        _RECORD(self._begin)
        started = _CLOCK()
        result = call()
        host_s = _CLOCK() - started
        _RECORD(self._end)
        _WAIT(self._end)
        over = _CLOCK()
        _SYNCHRONIZE()
        late_s = _CLOCK() - over
        device_ms: float = _ELAPSED(self._begin, self._end)
        return result, device_ms + (1e3 * late_s if late_s > LATE_S else 0.0), 1e3 * host_s

    def synchronize(self) -> None:
        _SYNCHRONIZE()

    def allocations(self) -> int:
        return int(_MEMORY_STATS().get("segment.all.allocated", 0))


class Bench:
    """One model and one set of inputs, ready to be timed.

    `salted` are the indices of the input tensors that each call gets scaled by a factor of its own; which factors,
    follows from the seed of the round, which nobody knows before it. `frugal`: the reference, of which nobody will ask
    for an output, so large ones are not kept.
    """

    def __init__(
        self,
        model: Any,
        inputs: Any,
        salted: Sequence[int],
        stopwatch: Stopwatch,
        flushes: int = 1,
        frugal: bool = False,
    ):
        self.model, self.stopwatch = model, stopwatch
        self._pristine, self._salted = inputs, frozenset(salted)
        size = sum(tensor.nbytes for tensor in transport.tensors(inputs))
        self._copies = [transport.map_tensors(torch.clone, inputs) for _ in range(copies(size))]
        self.flushes, self._frugal = flushes, frugal
        self.stalled = False  # whether calls go on asking the driver for memory
        self.kept: list[Any] = []
        self._room: list[Any] = []  # of earlier outputs: new memory would be taken from what the model's calls reuse
        self._checksums: list[torch.Tensor] = []

    def warm_up(self, seconds: float = WARM_UP_S) -> tuple[float, int]:
        """Until the clocks are up; returns the milliseconds of one call and the bytes of one output."""
        started, calls, last_ms = _CLOCK(), 0, 0.0
        self._forget()
        while not self._is_warm(calls, _CLOCK() - started, seconds):
            inputs = self.fill(0, calls)
            self.stopwatch.flush()
            output, last_ms, _ = self.stopwatch.time(lambda: self.model(*inputs))  # noqa: B023 - called at once
            output_bytes = sum(tensor.nbytes for tensor in transport.tensors(output))
            del output  # or there would be two at once
            calls += 1
        return last_ms, output_bytes

    @staticmethod
    def _is_warm(calls: int, spent_s: float, seconds: float) -> bool:
        if calls < WARM_UP_CALLS:
            return calls > 0 and spent_s > LONG_WARM_UP_S
        return spent_s >= seconds or calls >= MAX_WARM_UP_CALLS

    def hide_launches(self, call_ms: float) -> int:
        """From now on, as many flushes before a call as hide what it takes to launch one; returns how many these are.

        Measured in rounds: there a launch takes longer than in a warm-up, where nothing but calls happens.
        """
        calls = min(ROUND_CALLS, int(PROBE_MS / max(call_ms, 1e-3)))
        if calls == 0:
            return self.flushes
        host: list[float] = []
        flush_ms = math.inf
        for _ in range(PROBES):
            time.sleep(PAUSE_S)
            probe = self.round(0, calls, idle_calls=0)
            host += probe.host_ms
            flush_ms = min(flush_ms, 1e3 * FLUSH_BYTES / probe.bandwidth)
        slow = statistics.quantiles(host, n=10)[-1]
        self.flushes = max(1, min(MAX_FLUSHES, math.ceil((HIDE * slow + RECORD_MS) / flush_ms)))
        return self.flushes

    def round(self, seed: int, calls: int, idle_calls: int = IDLE_CALLS) -> RoundTimed:
        """Times of single calls behind a flush of the caches (`ms`, and of the host inside them `host_ms`), and of some
        that start on an idle device (`idle_ms`), in milliseconds. `bandwidth` is what a flush reached before them: less
        than usual when something else is at work on the device."""
        self._forget()
        flush_ms = self._flush_ms()
        times: list[tuple[float, float]] = []
        idle: list[float] = []
        self.stalled = False
        for index in range(calls + idle_calls):
            output, device_ms, host_ms = self._time_one(seed, index, idle=index >= calls)
            if index < calls:
                times.append((device_ms, host_ms))
                self._keep(output)
            else:
                idle.append(device_ms)
            del output
        ms, host = zip(*times, strict=True)
        bandwidth = 1e3 * FLUSH_BYTES / flush_ms
        return RoundTimed(ms, host, tuple(idle), self._say_checksums(), bandwidth, self.stalled)

    def _flush_ms(self) -> float:
        for _ in range(LEAD):
            self.stopwatch.flush()
        return max(self.stopwatch.time(self.stopwatch.flush)[1], 1e-6)

    def _time_one(self, seed: int, index: int, idle: bool) -> tuple[Any, float, float]:
        """One call. The reference's is made once more if it had to wait for the driver's memory, which the allocator
        keeps from then on; a candidate could answer the same call from what it kept of the first."""
        for _ in range(STEADY_TRIES):
            inputs = self.fill(seed, index)
            before = self.stopwatch.allocations()  # takes as long as a flush, so not after one: it hides the launch
            for _ in range(self.flushes):
                self.stopwatch.flush()
            if idle:
                self.stopwatch.synchronize()
            timed = self.stopwatch.time(lambda: self.model(*inputs))  # noqa: B023 - called at once
            if not self._frugal or self.stopwatch.allocations() == before:
                return timed
        self.stalled = True
        return timed

    def block(self, seed: int, calls: int) -> BlockTimed:
        """Calls back to back, for a clock that is not in this process; and how long they took by our own."""
        self._forget()
        self.stopwatch.synchronize()
        started = _CLOCK()
        for index in range(calls):
            self._keep(self.model(*self.fill(seed, index)))
        self.stopwatch.synchronize()
        checksums = self._say_checksums()
        return BlockTimed(1e3 * (_CLOCK() - started), checksums)

    def empty_block(self, seed: int, calls: int) -> BlockTimed:
        """A block whose calls do nothing: what a block costs beside its calls."""
        model, output = self.model, self.model(*self.fill(seed, 0))
        self.model = lambda *_: output
        try:
            return self.block(seed, calls)
        finally:
            self.model = model

    def fill(self, seed: int, index: int) -> Any:
        """The inputs of a round's call: the given values, each salted tensor scaled by a factor below 1. Scaling keeps
        zeros, signs, order and structure (triangular, symmetric), so that the values still suit the problem."""
        running.seed_everything(call_seed(seed, index))
        draw = random.Random(f"{seed} {index}")
        slots = self._copies[index % len(self._copies)]
        for number, (kept, slot) in enumerate(
            zip(transport.tensors(self._pristine), transport.tensors(slots), strict=True)
        ):
            factor = draw.uniform(LEAST_FACTOR, 1.0)
            if number in self._salted:
                torch.mul(kept, factor, out=slot)
            else:
                slot.copy_(kept)
        return slots

    def _forget(self) -> None:
        self.kept, self._checksums = [], []

    def _keep(self, output: Any) -> None:
        _refuse_lazy(output)
        if self._frugal and sum(tensor.nbytes for tensor in transport.tensors(output)) > LARGE_BYTES:
            self._checksums.append(checksum(output))
            return
        number = len(self.kept)
        form = _form(output)
        if number < len(self._room) and form is not None and _form(self._room[number]) == form:
            for room, tensor in zip(transport.tensors(self._room[number]), transport.tensors(output), strict=True):
                room.copy_(tensor.detach())
        else:
            self._room[number:] = [transport.map_tensors(lambda tensor: tensor.detach().clone(), output)]
        self.kept.append(self._room[number])
        self._checksums.append(checksum(self.kept[-1]))

    def _say_checksums(self) -> tuple[int, ...]:
        return tuple(int(value) for value in torch.stack(self._checksums).tolist())


def copies(size: int) -> int:
    """Of inputs of so many bytes, that calls use in rotation."""
    return min(MAX_COPIES, max(1, ROTATE_BYTES // max(size, 1)))


def call_seed(seed: int, index: int) -> int:
    """What a round's call is seeded with."""
    return (seed + index) % (1 << 31)


def checksum(value: Any) -> torch.Tensor:
    """A sum over the bytes of all tensors of a value, on their device."""
    total = torch.zeros((), dtype=torch.int64)
    for tensor in transport.tensors(value):
        flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        if flat.storage_offset() % WORD:
            flat = flat.clone()
        whole = flat.numel() // WORD * WORD  # summed as they are: of other words, the sum would take a copy
        total = total.to(flat.device) + flat[:whole].view(torch.int64).sum() + flat[whole:].sum(dtype=torch.int64)
    return total


def _form(value: Any) -> Any:
    """What two outputs have in common whose tensors can be copied from one to the other; None where more is in them."""
    items = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(item, torch.Tensor) for item in items):
        return None
    return type(value), [(tensor.shape, tensor.dtype, tensor.stride(), tensor.device) for tensor in items]


def continuous(value: Any) -> list[int]:
    """Indices of the tensors that may be scaled: measurements, not labels, masks or distributions."""
    return [index for index, tensor in enumerate(transport.tensors(value)) if tensor.numel() and is_free(tensor)]


def _refuse_lazy(value: Any) -> None:
    for item in transport.parts(value) or ():
        _refuse_lazy(item)
    if isinstance(value, torch.Tensor) and type(value) not in (torch.Tensor, torch.nn.Parameter):
        raise LazyOutput(f"forward returned a {type(value).__name__}, not a plain tensor")


def time_compiled(model: Any, bench: Bench, folder: Path) -> RoundTimed:
    """Times of the model under `torch.compile` with inductor's defaults, measured as in a round of `bench`."""
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        os.environ[name] = str(folder / name.lower())  # this process may write nowhere else
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    dispatch.restore_compiler()
    plain, bench.model = bench.model, torch.compile(model)
    try:
        bench.warm_up()
        return bench.round(0, COMPILED_CALLS)
    finally:
        bench.model = plain
