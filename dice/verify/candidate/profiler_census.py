"""What PyTorch computes in a block, by its own profiler: a second witness, which sees where a dispatch mode does not.

A mode sees the operators that one thread calls, while it is active. The profiler sees every thread's, those within
operators that a file registers itself (`torch.library`), and those that run while modes are switched off. Who stops it
meanwhile loses what it began with, and that is missed. And which kernels the GPU spends a forward's time in, as CUPTI
counts it through the same profiler.
"""

from __future__ import annotations

import contextlib
import math
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig, _RecordFunctionFast
from torch.autograd.profiler import profile

from dice.verify.candidate import binding
from dice.verify.ipc.operator_counts import OperatorCounts, family


@contextlib.contextmanager
def recording(work: OperatorCounts, disturbed: Callable[[], None]) -> Iterator[None]:
    """Afterwards `work` holds at least what was computed in the block. A thread that is waited for is part of it.

    `disturbed` is called at the end where the record is not whole.
    """
    config = _ExperimentalConfig(profile_all_threads=True)
    recorder: Any = profile(record_shapes=True, experimental_config=config)
    marks = secrets.token_hex(8), secrets.token_hex(8)
    recorder.__enter__()
    try:
        _note(marks[0])
        try:
            yield
        finally:
            _note(marks[1])
    finally:
        with contextlib.suppress(RuntimeError):  # it was stopped already: on a GPU, that is an error
            recorder.__exit__(None, None, None)
    events = recorder.kineto_results.events() if recorder.kineto_results else []
    if not {event.name() for event in events}.issuperset(marks):
        disturbed()
    work.elements |= _computed(events)


def works() -> bool:
    """Whether the profiler runs here. To be asked before code of others could be what hinders it."""
    failed: list[str] = []
    try:
        with recording(OperatorCounts(), lambda: failed.append("not whole")):
            pass
    except RuntimeError:
        return False
    return not failed


def _note(mark: str) -> None:
    with _RecordFunctionFast(mark):
        pass


@dataclass
class _Call:
    """An operator, and what those that it called computed."""

    end: int
    kind: str
    elements: int
    inner: Counter[str] = field(default_factory=Counter)

    def work(self) -> Counter[str]:
        """An operator and its parts, `softmax` and `_softmax`, are the same work."""
        own: Counter[str] = Counter({self.kind: self.elements} if self.kind else {})
        return self.inner | own


def _computed(events: Iterable[Any]) -> Counter[str]:
    """Elements per family, as in `OperatorCounts`, but of inputs alone, and of lists of tensors (`cat`) none."""
    threads: dict[int, list[_Call]] = {}
    order = sorted(events, key=lambda event: (event.start_ns(), -event.duration_ns()))
    for event in order:
        open_calls = threads.setdefault(event.start_thread_id(), [_Call(1 << 63, "", 0)])
        while open_calls[-1].end <= event.start_ns():
            _close(open_calls)
        elements = sum(math.prod(shape) for shape in event.shapes() if shape)
        kind = "" if _is_view(event.name()) else family(event.name())
        open_calls.append(_Call(event.start_ns() + event.duration_ns(), kind, elements))
    total: Counter[str] = Counter()
    for open_calls in threads.values():
        while len(open_calls) > 1:
            _close(open_calls)
        total += open_calls[0].inner
    return total


def _close(open_calls: list[_Call]) -> None:
    call = open_calls.pop()
    open_calls[-1].inner += call.work()


@cache
def _is_view(name: str) -> bool:
    packet = getattr(torch.ops.aten, name.removeprefix("aten::"), None) if name.startswith("aten::") else None
    return packet is not None and any(getattr(packet, overload).is_view for overload in packet.overloads())


def gpu_times(run: Callable[[], object]) -> list[tuple[str, int, float]]:
    """(name, calls, microseconds) of what the GPU did in `run`; empty where the machine does not let us count."""
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            run()
            torch.cuda.synchronize()
        events = profiler.key_averages()
    except RuntimeError:
        return []
    found = [(str(event.key), int(event.count), float(event.self_device_time_total)) for event in events]
    return [(_name(key), count, time) for key, count, time in found if time > 0]


def _name(key: str) -> str:
    return key if key.startswith(("Memcpy", "Memset")) else binding.function_name(key)
