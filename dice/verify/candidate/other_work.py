"""A GPU that has other work to do, which goes first: what a forward leaves on a stream that nothing waits for is late
for certain then, where on an idle GPU it is mostly done before anybody looks.

The kernels are PyTorch's own, many short blocks of them, on two streams in turn, so that one has blocks to give while
the last of the other end. The output's copy needs no multiprocessor, and so is not held up by them.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.special import gammainc  # before the file's code runs, which may put something else in its place

ELEMENTS = 1 << 22  # some waves of blocks on a large GPU
SHAPE, POINT = 1e6, 995400.0  # where the series of the incomplete gamma function has two thousand terms
LEAST_S, MOST_S = 0.01, 0.05
PRECEDENCE = -5  # of its streams: the highest that there is


class OtherWork:
    """Raises `RuntimeError` where there is no memory for it."""

    def __init__(self) -> None:
        cuda: Any = torch.cuda
        self._streams = [cuda.Stream(priority=PRECEDENCE) for _ in range(2)]
        self._outputs = [torch.empty(ELEMENTS, device="cuda") for _ in self._streams]
        self._arguments = [torch.full((), value, device="cuda").expand(ELEMENTS) for value in (SHAPE, POINT)]
        gammainc(self._arguments[0][:1], self._arguments[1][:1])  # its code is loaded
        torch.cuda.synchronize()
        begun, ended = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        begun.record(self._streams[0])
        self._enqueue(0)
        ended.record(self._streams[0])
        torch.cuda.synchronize()
        self._kernel_s = max(1e-4, begun.elapsed_time(ended) / 1e3)

    def enqueue(self, seconds: float) -> None:
        """Enqueue work for so long, within limits, once the GPU has done all that it had to."""
        torch.cuda.synchronize()
        for number in range(math.ceil(min(MOST_S, max(LEAST_S, seconds)) / self._kernel_s)):
            self._enqueue(number % 2)

    def _enqueue(self, place: int) -> None:
        with torch.no_grad(), torch.cuda.stream(self._streams[place]):
            gammainc(*self._arguments, out=self._outputs[place])
