"""What one operator of PyTorch's costs: estimated from what it moves and computes, or measured on a GPU."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

# A GPU's balance of today: floating-point operations for each byte that it can move meanwhile.
FLOPS_PER_BYTE = 20
REPEATS = 5
CYCLES_PER_S = 2e9  # of a GPU's clock, for how long it is to be kept busy
LONGEST_S = 1.0
_DISTANCES = ("aten::_cdist_forward", "aten::_euclidean_dist")  # of each with each, by a product or one by one


def flops_of(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> int | None:
    """Floating-point operations of a call; None where PyTorch has no formula for them."""
    if func.name() in _DISTANCES:
        return 2 * int(result.numel()) * int(args[0].shape[-1])
    formula = flop_registry.get(getattr(func, "_overloadpacket", None))
    if formula is not None:
        with contextlib.suppress(Exception):  # a formula that is for other arguments
            return int(formula(*args, **kwargs, out_val=result))
    return None


def estimated(flops: int | None, tensors: Sequence[torch.Tensor], elements: int) -> int:
    """The roofline of a call, in bytes that could be moved in its time. `tensors`: all that it takes and gives.
    `elements`: of its inputs or outputs; where its operations are not known, it takes one for each."""
    operations = elements if flops is None else flops
    return max(sum(tensor.nbytes for tensor in tensors), operations // FLOPS_PER_BYTE, 1)


class OperatorTimes:
    """Events around each operator of a forward on the GPU that computes, in order."""

    def __init__(self) -> None:
        self._marks: list[tuple[str, Any, Any]] = []

    def call(self, run: Callable[[], Any], kind_of: Callable[[Any], str]) -> Any:
        """What `run` gives, of which `kind_of` tells the family; "" for one that computes nothing."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        result = run()
        end.record()
        kind = kind_of(result)
        if kind:
            self._marks.append((kind, begin, end))
        return result

    def read(self) -> list[tuple[str, float]]:
        """The family and the milliseconds of each."""
        torch.cuda.synchronize()
        return [(kind, begin.elapsed_time(end)) for kind, begin, end in self._marks]


def measured(forward: Callable[[OperatorTimes], None]) -> list[tuple[str, float]]:
    """The family and the milliseconds of each operator of `forward`, in order: medians of several runs; empty where it
    does not always call the same ones. The GPU is kept busy until all is launched, so that none waits for the host."""
    started = time.perf_counter()
    forward(OperatorTimes())
    torch.cuda.synchronize()
    busy_s = min(LONGEST_S, 1.5 * (time.perf_counter() - started))
    runs = []
    for _ in range(REPEATS):
        times = OperatorTimes()
        torch.cuda._sleep(int(busy_s * CYCLES_PER_S))  # type: ignore[no-untyped-call]
        forward(times)
        runs.append(times.read())
    kinds = [kind for kind, _ in runs[0]]
    if any([kind for kind, _ in run] != kinds for run in runs):
        return []
    return [
        (kind, statistics.median(ms for _, ms in calls))
        for kind, calls in zip(kinds, zip(*runs, strict=True), strict=True)
    ]
