"""The clocks that a file's Python reads, which can be moved on: what it does once some time is over, it does then."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

LATER_S = 86_400
_CLOCKS = ("time", "monotonic", "perf_counter")
_ahead_s = [0]


def install() -> None:
    """Before the file's code runs."""
    for name in _CLOCKS:
        setattr(time, name, _moved(getattr(time, name), 1))
        setattr(time, f"{name}_ns", _moved(getattr(time, f"{name}_ns"), 10**9))


@contextlib.contextmanager
def moved_on() -> Iterator[None]:
    """In the block it is a day later."""
    _ahead_s[0] = LATER_S
    try:
        yield
    finally:
        _ahead_s[0] = 0


def _moved(clock: Callable[[], Any], units: int) -> Callable[[], Any]:
    @functools.wraps(clock)
    def read() -> Any:
        return clock() + _ahead_s[0] * units

    return read
