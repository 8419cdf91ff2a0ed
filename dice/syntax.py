"""Python's own parser, for one thread at a time."""

from __future__ import annotations

import ast
import threading

_LOCK = threading.Lock()


def parse(source: str) -> ast.Module:
    """`ast.parse`. CPython 3.11 may raise `SystemError` when two threads are in it at once (python/cpython#106905)."""
    with _LOCK:
        return ast.parse(source)
