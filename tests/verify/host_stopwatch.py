"""A stopwatch for timings without a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


class HostStopwatch:
    """Times on the host; `flushes` counts."""

    def __init__(self) -> None:
        self.flushes = 0

    def flush(self) -> None:
        self.flushes += 1

    def time(self, call: Callable[[], Any]) -> tuple[Any, float, float]:
        started = time.perf_counter()
        result = call()
        spent = 1e3 * (time.perf_counter() - started)
        return result, spent, spent / 2

    def synchronize(self) -> None:
        pass

    def allocations(self) -> int:
        return 0
