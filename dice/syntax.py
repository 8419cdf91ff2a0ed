"""Python's own parser, for one thread at a time."""

from __future__ import annotations

import ast
import threading
import warnings

_LOCK = threading.Lock()
# What the parser remarks on in a text that somebody else wrote, such as "\d", is not for whoever has it parsed.
warnings.filterwarnings("ignore", module="<unknown>")


def parse(source: str) -> ast.Module:
    """`ast.parse`. CPython 3.11 may raise `SystemError` when two threads are in it at once (python/cpython#106905)."""
    with _LOCK:
        return ast.parse(source)
