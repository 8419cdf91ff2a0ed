"""Recording what the device is given to do, so that it can be replayed by one call."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


def record(work: Callable[[], None], device: torch.device, pool: Any = None) -> torch.cuda.CUDAGraph:
    """What `work` launches on `device`, which other threads may go on using. `pool`: whose memory it uses, if not its
    own."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with _no_collection(), torch.cuda.stream(stream):
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            work()
        finally:
            graph.capture_end()
    torch.cuda.current_stream(device).wait_stream(stream)
    return graph


@contextmanager
def _no_collection() -> Iterator[None]:
    """Python's collector may free memory of the GPU at any time, which must not happen while a graph is recorded."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
