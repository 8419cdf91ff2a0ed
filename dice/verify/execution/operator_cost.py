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


def estimated(
    func: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    result: Any,
    tensors: Sequence[torch.Tensor],
    elements: int,
) -> int:
    """The roofline of a call, in bytes that could be moved in its time. `tensors`: all that it takes and gives.
    `elements`: of its inputs or outputs; where PyTorch has no formula for its operations, it takes one for each."""
    flops = elements
    formula = flop_registry.get(getattr(func, "_overloadpacket", None))
    if formula is not None:
        with contextlib.suppress(Exception):  # a formula that is for other arguments
            flops = int(formula(*args, **kwargs, out_val=result))
    return max(sum(tensor.nbytes for tensor in tensors), flops // FLOPS_PER_BYTE, 1)


class OperatorTimes:
    """Events around each operator of a forward on the GPU, by family, in the order of their calls."""

    def __init__(self) -> None:
        self._marks: dict[str, list[tuple[Any, Any]]] = {}

    def call(self, run: Callable[[], Any], kind_of: Callable[[Any], str]) -> Any:
        """What `run` gives, of which `kind_of` tells the family; "" for one that computes nothing."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        result = run()
        end.record()
        kind = kind_of(result)
        if kind:
            self._marks.setdefault(kind, []).append((begin, end))
        return result

    def ms(self) -> dict[str, list[float]]:
        torch.cuda.synchronize()
        return {kind: [begin.elapsed_time(end) for begin, end in marks] for kind, marks in self._marks.items()}


def measured(forward: Callable[[OperatorTimes], None]) -> dict[str, list[float]]:
    """The milliseconds of each operator of `forward`, by family, in the order of their calls: medians of several runs.
    The GPU is kept busy until all is launched, so that none of them waits for the host."""
    started = time.perf_counter()
    forward(OperatorTimes())
    torch.cuda.synchronize()
    busy_s = min(LONGEST_S, 1.5 * (time.perf_counter() - started))
    runs = []
    for _ in range(REPEATS):
        times = OperatorTimes()
        torch.cuda._sleep(int(busy_s * CYCLES_PER_S))  # type: ignore[no-untyped-call]
        forward(times)
        runs.append(times.ms())
    if any({kind: len(ms) for kind, ms in run.items()} != {k: len(v) for k, v in runs[0].items()} for run in runs):
        return {}  # it does not always call the same ones
    return {
        kind: [statistics.median(values) for values in zip(*(run[kind] for run in runs), strict=True)]
        for kind in runs[0]
    }
