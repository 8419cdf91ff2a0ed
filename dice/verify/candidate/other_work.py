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


def enqueue(seconds: float) -> list[torch.Tensor]:
    """Enqueue work for so long, within limits, beside the current stream, once the GPU has done all that it had to. The
    memory that it writes to, to be held until it has ended: none where there is none for it."""
    cuda: Any = torch.cuda
    try:
        outputs = [torch.empty(ELEMENTS, device="cuda") for _ in range(2)]
        arguments = [torch.full((), value, device="cuda").expand(ELEMENTS) for value in (SHAPE, POINT)]
    except RuntimeError:
        return []
    streams = [cuda.Stream(priority=PRECEDENCE) for _ in outputs]

    def compute(place: int) -> None:
        with torch.no_grad(), cuda.stream(streams[place]):
            gammainc(*arguments, out=outputs[place])

    gammainc(*(one[:1] for one in arguments))  # its code is loaded
    begun, ended = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    cuda.synchronize()
    begun.record(streams[0])
    compute(0)
    ended.record(streams[0])
    cuda.synchronize()
    one_s = max(1e-4, begun.elapsed_time(ended) / 1e3)
    for number in range(max(2, math.ceil(min(MOST_S, max(LEAST_S, seconds)) / one_s))):
        compute(number % 2)
    return outputs
