"""Who may use the GPU when, and how much of its memory: many jobs at once while they check, one alone while timed."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

# Contexts that are made at once: the driver makes one at a time, and who waits there for many others, seems to hang.
CONTEXTS = threading.BoundedSemaphore(4)
CONTEXT_BYTES = 1 << 30  # of a candidate: what the driver takes, and buffers of PyTorch's libraries
PASSES = 16  # how often others may go first that need less
# Before a timing begins, all checks end, and the GPU idles meanwhile. So timings gather, until so many wait or the
# first has waited so long, and then take their turns one after the other.
GATHERED, GATHER_S = 4, 2.0
LONG_S = 1.0  # of a turn, while another job waits to be alone; each turn that is given back may be waited for as long
PATIENCE_S = 10.0  # of who waits to be alone, with slow steps that begin while others have not ended: they end together


class GpuLock:
    """A readers-writer lock for at most `most` readers. Who waits for `exclusive` goes before new `shared`s once
    `gathered` of them wait or the first has for `GATHER_S`, so timing is never starved. `memory`: bytes that jobs
    share; what needs more than there are gets them all."""

    def __init__(
        self,
        most: int = 1 << 10,
        memory: int = 1 << 62,
        patience_s: float = PATIENCE_S,
        gathered: int = GATHERED,
    ) -> None:
        self._most, self.memory, self._patience_s, self._gathered = most, memory, patience_s, gathered
        self._taken = 0
        self._queue: list[_Waiting] = []
        self._changed = threading.Condition()
        self._shared = self._slow = 0
        self._exclusive = False
        self._waiting = 0
        self._is_closed = False  # to new checks, until nobody waits to be alone any more
        self._since = 0.0  # when the first of those who wait to be alone began to

    @contextlib.contextmanager
    def shared(self, slow: bool = False) -> Iterator[None]:
        """`slow`: what takes seconds of the processor. Who waits to be alone must wait for its end, and others may use
        the GPU until then; for a while even slow ones, or each of them would be waited for by itself."""
        with self._changed:
            self._changed.wait_for(lambda: not self._exclusive and self._shared < self._most and self._may_join(slow))
            self._shared += 1
            self._slow += slow
        try:
            yield
        finally:
            with self._changed:
                self._shared -= 1
                self._slow -= slow
                self._changed.notify_all()

    @property
    def is_asked_for(self) -> bool:
        """Whether somebody waits to be alone who is to go before new `shared`s."""
        with self._changed:
            return self._closes()

    def _may_join(self, slow: bool) -> bool:
        waited_s = time.monotonic() - self._since
        return not self._closes() or (self._slow > 0 and not (slow and waited_s > self._patience_s))

    def _closes(self) -> bool:
        gathered = self._waiting >= self._gathered or time.monotonic() - self._since > GATHER_S
        self._is_closed = self._waiting > 0 and (self._is_closed or gathered)
        return self._is_closed

    def hold(self, whole: bool, slow: bool = False) -> contextlib.AbstractContextManager[None]:
        """`exclusive` for a job that needs the whole device, else `shared`."""
        return self.exclusive() if whole else self.shared(slow)

    @contextlib.contextmanager
    def reserve_memory(
        self, size: int, aside: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    ) -> Iterator[None]:
        """So much memory, to the end of the block. Enter it before a turn: whoever waits here has none. First come,
        first served, but where that one does not fit yet, others that do may pass it a few times. `aside` is entered
        for as long as it waits, if it has to."""
        own = _Waiting(min(size, self.memory))
        with self._changed:
            self._queue.append(own)
            try:
                if not self._may_enter(own):
                    with aside():
                        self._changed.wait_for(lambda: self._may_enter(own))
                for other in self._queue[: self._queue.index(own)]:
                    other.passed += 1
                self._taken += own.size
            finally:
                self._queue.remove(own)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._taken -= own.size
                self._changed.notify_all()

    def _may_enter(self, own: _Waiting) -> bool:
        ahead = self._queue[: self._queue.index(own)]
        may_pass = all(other.passed < PASSES and not self._fits(other) for other in ahead)
        return self._fits(own) and may_pass

    def _fits(self, one: _Waiting) -> bool:
        return self._taken + one.size <= self.memory

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        with self._changed:
            self._since = self._since if self._waiting else time.monotonic()
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: not self._exclusive and not self._shared)
            finally:
                self._waiting -= 1
                self._is_closed = self._is_closed and self._waiting > 0
            self._exclusive = True
        try:
            yield
        finally:
            with self._changed:
                self._exclusive = False
                self._changed.notify_all()


class _Waiting:
    """A job that waits for room."""

    def __init__(self, size: int):
        self.size, self.passed = size, 0


class Turn:
    """A job's turn on the GPU, which goes on from step to step. To be entered; each step begins with `step`, and `end`
    gives the turn back until the next one. `waiting`: entered while the job waits."""

    def __init__(self, gpu: GpuLock, whole: bool, waiting: Callable[[], contextlib.AbstractContextManager[None]]):
        self._gpu, self._whole, self._waiting = gpu, whole, waiting
        self._held = contextlib.ExitStack()
        self._since: float | None = None

    def __enter__(self) -> Turn:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def step(self) -> None:
        """Wait for a turn, unless this job has one that is not asked for."""
        if self._since is not None and time.monotonic() - self._since > LONG_S and self._gpu.is_asked_for:
            self.end()
        if self._since is None:
            with self._waiting():
                self._held.enter_context(self._gpu.hold(self._whole))
            self._since = time.monotonic()

    def end(self) -> None:
        self._since = None
        self._held.close()
