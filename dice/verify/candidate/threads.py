"""Threads that a candidate starts run as its main one does: what is switched on for a thread is switched on for them.

Dispatch and function modes hold for one thread. Without this, PyTorch's work in another would pass unseen by the
census, and under emulation a thread would find no GPU.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import threading
from collections.abc import Callable
from typing import Any

from dice.verify.execution.dispatch import OperatorMode
from dice.verify.execution.evidence import Census

# Of `_thread`, by Python's version.
_STARTERS = ("start_new_thread", "start_new", "start_joinable_thread")


class _Following(OperatorMode):
    """Shows a thread's operators to the census of the moment, if there is one."""

    def __init__(self, current: Callable[[], Census | None]):
        super().__init__()
        self.current = current

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        census = self.current()
        if census is None:
            return func(*args, **(kwargs or {}))
        return census.__torch_dispatch__(func, types, args, kwargs)


def install(
    active: Callable[[], contextlib.AbstractContextManager[None]], current: Callable[[], Census | None]
) -> None:
    """From here on new threads run within `active()`, and the census that is `current()` sees their operators."""

    def watched(start: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(start)
        def begin(function: Callable[..., Any], *rest: Any, **options: Any) -> Any:
            @functools.wraps(function)
            def run(*args: Any, **kwargs: Any) -> Any:
                with active(), _Following(current):
                    return function(*args, **kwargs)

            return start(run, *rest, **options)

        return begin

    for name in _STARTERS:
        for module, known_as in ((_thread, name), (threading, f"_{name}")):
            if hasattr(module, known_as):
                setattr(module, known_as, watched(getattr(module, known_as)))
