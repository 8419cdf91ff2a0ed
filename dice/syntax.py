"""Python's own parser, for one thread at a time."""

from __future__ import annotations

import ast
import threading
import warnings

_LOCK = threading.Lock()
# What the parser remarks on in a text that somebody else wrote, such as "\d", is not for whoever has it parsed.
warnings.filterwarnings("ignore", module="<unknown>")


def parse(source: str) -> ast.Module:
    """`ast.parse`. Raises `SyntaxError` also for what is nested too deeply for the parser.

    CPython 3.11 may raise `SystemError` when two threads are in it at once (python/cpython#106905).
    """
    with _LOCK:
        try:
            return ast.parse(source)
        except (RecursionError, MemoryError):  # both are said of the parser's own stack
            raise SyntaxError("it is nested too deeply") from None
