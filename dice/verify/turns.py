"""Who may use the GPU when: many jobs at once while they check, one alone while it is timed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class Turns:
    """A readers-writer lock for at most `most` readers. A waiting `alone` goes before new `together`s, so timing is
    never starved."""

    def __init__(self, most: int = 1 << 30) -> None:
        self._most = most
        self._changed = threading.Condition()
        self._together = 0
        self._alone = False
        self._waiting = 0

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._alone and not self._waiting and self._together < self._most)
            self._together += 1
        try:
            yield
        finally:
            with self._changed:
                self._together -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: not self._alone and not self._together)
            finally:
                self._waiting -= 1
            self._alone = True
        try:
            yield
        finally:
            with self._changed:
                self._alone = False
                self._changed.notify_all()
