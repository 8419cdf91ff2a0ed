"""What `forward` reads back to the host, a few numbers at a time: by such it may decide what to do next.

A file can have PyTorch compute only after a kernel of its own has set a sign, so that nothing is right without the
kernel although it computes nothing. So in the muted forward (`evidence.py`) a read that was answered alike in every
trial, for other inputs and other parameters, is answered so once more: the file goes the way it always goes, and what
is right at its end was made without its kernels. Reads that vary are data, and stay what they are.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import torch

MAX_NUMBERS = 16  # of a read that may be a sign; tables are data
MAX_BYTES = 8 * MAX_NUMBERS
_VARIES = object()


class Reads:
    """The reads of a candidate's forwards, in order."""

    def __init__(self) -> None:
        self._usual: list[Any] | None = None  # what each one gave in all trials so far, or `_VARIES`
        self._trials = 0
        self._now: list[Any] = []
        self._replaying = False

    @contextlib.contextmanager
    def trial(self) -> Iterator[None]:
        """A forward whose reads count."""
        with self._forward(replaying=False):
            yield
        pairs = itertools.zip_longest(self._now if self._usual is None else self._usual, self._now, fillvalue=_VARIES)
        self._usual = [one if repr(one) == repr(other) else _VARIES for one, other in pairs]  # NaN is like NaN
        self._trials += 1

    @contextlib.contextmanager
    def replayed(self) -> Iterator[None]:
        """A forward whose reads are answered as they were in every trial, where they were answered alike."""
        with self._forward(replaying=self._trials > 1):
            yield

    @contextlib.contextmanager
    def _forward(self, replaying: bool) -> Iterator[None]:
        self._now, self._replaying = [], replaying
        _Current.reads = self
        try:
            yield
        finally:
            _Current.reads = None

    def answer(self, value: Any) -> Any:
        plain = _plain(value)
        number = len(self._now)
        self._now.append(plain)
        usual = self._usual or []
        if not self._replaying or number >= len(usual) or usual[number] is _VARIES:
            return value
        return _like(value, usual[number]) if _shape(usual[number]) == _shape(plain) else value


class _Current:
    """The forward that is under way, in whatever thread."""

    reads: Reads | None = None


def answer(value: Any) -> Any:
    """What a read gives: a number, a tensor, an array, a list, or bytes that came to the host."""
    return value if _Current.reads is None else _Current.reads.answer(value)


def _plain(value: Any) -> Any:
    """As Python's numbers and lists; `_VARIES` where it is more than a few."""
    if isinstance(value, torch.Tensor):
        return value.tolist() if value.numel() <= MAX_NUMBERS and not value.is_sparse else _VARIES
    if hasattr(value, "tolist"):
        return value.tolist() if value.size <= MAX_NUMBERS else _VARIES
    if isinstance(value, list):
        return value if len(value) <= MAX_NUMBERS and not any(isinstance(item, list) for item in value) else _VARIES
    if isinstance(value, bytes):
        return value if len(value) <= MAX_BYTES else _VARIES
    return value


def _shape(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_shape(item) for item in plain]
    return len(plain) if isinstance(plain, bytes) else type(plain)


def _like(value: Any, plain: Any) -> Any:
    """The plain value as what was read: in the same kind of memory, which nobody else holds."""
    if isinstance(value, torch.Tensor):
        return torch.tensor(plain, dtype=value.dtype).reshape(value.shape)
    if hasattr(value, "tolist"):
        made = value.copy()
        made[...] = plain
        return made
    return list(plain) if isinstance(plain, list) else plain
