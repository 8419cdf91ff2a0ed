"""Who may use the GPU when, and how much of its memory: many jobs at once while they check, one alone while timed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

# Contexts that are made at once. The driver makes one at a time, whichever GPU it is for; who waits there for many
# others, seems to hang.
CONTEXTS = threading.BoundedSemaphore(4)
CONTEXTS_A_TURN = 3


class Turns:
    """A readers-writer lock for at most `most` readers. A waiting `alone` goes before new `together`s, so timing is
    never starved. `memory`: bytes that jobs share; what needs more than there are gets them all."""

    def __init__(self, most: int = 1 << 10, memory: int = 1 << 62) -> None:
        self._most, self._memory = most, memory
        self._contexts = threading.BoundedSemaphore(CONTEXTS_A_TURN * most)
        self._gathering = threading.Lock()
        self._taken = 0
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

    def turn(self, whole: bool) -> contextlib.AbstractContextManager[None]:
        """`alone` for a job that needs the whole device, else `together`."""
        return self.alone() if whole else self.together()

    @contextlib.contextmanager
    def context(self, whole: bool) -> Iterator[None]:
        """A context on the device, from before it is made to its end: each takes memory, also of those who wait for
        their turn. `whole`: with no other beside it. Enter it before `room`."""
        with contextlib.ExitStack() as held:
            if whole:
                held.enter_context(self._gathering)
            for _ in range(CONTEXTS_A_TURN * self._most if whole else 1):
                held.enter_context(self._contexts)
            yield

    @contextlib.contextmanager
    def room(self, size: int) -> Iterator[None]:
        """Memory for a large job, from now to its end. Enter it before a turn: whoever waits here has none."""
        size = min(size, self._memory)
        with self._changed:
            self._changed.wait_for(lambda: self._taken + size <= self._memory)
            self._taken += size
        try:
            yield
        finally:
            with self._changed:
                self._taken -= size
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
