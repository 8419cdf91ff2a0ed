"""Python's own parser, for texts that anybody may have written: one thread at a time, bounded in size and depth."""

from __future__ import annotations

import ast
import threading
import warnings

MAX_SOURCE = 256 << 10  # characters: some hundred times what a kernel file takes, and a second of parsing
MAX_DEPTH = 1000  # levels of a tree: sums of hundreds of terms pass; Python's own parser gives up at 3,000
_LOCK = threading.Lock()


def _hide_remarks() -> None:
    """What the parser remarks on in somebody else's text, such as "\\d", is not for whoever has it parsed."""
    warnings.filterwarnings("ignore", module="<unknown>")


_hide_remarks()
_HIDES_REMARKS = warnings.filters[0]


def parse(source: str) -> ast.Module:
    """`ast.parse`, of a text of at most `MAX_SOURCE` characters into a tree of at most `MAX_DEPTH` levels.

    Raises `SyntaxError` also for what is larger, and for what is nested too deeply for us or for the parser itself;
    `ValueError` for NULs and lone surrogates. A tree may still be too deep for whoever walks it by recursion.

    CPython 3.11 may raise `SystemError` when two threads are in it at once (python/cpython#106905).
    """
    if len(source) > MAX_SOURCE:
        raise SyntaxError(f"it is larger than {MAX_SOURCE >> 10} KiB")
    with _LOCK:
        if warnings.filters[:1] != [_HIDES_REMARKS]:  # others, such as test runners, have asked for all warnings
            _hide_remarks()
        try:
            tree = ast.parse(source)
        except (RecursionError, MemoryError, OverflowError):  # all are said of the parser's own stack and counters
            raise SyntaxError("it is nested too deeply") from None
    if _is_deeper(tree, MAX_DEPTH):
        raise SyntaxError("it is nested too deeply")
    return tree


def _is_deeper(tree: ast.AST, most: int) -> bool:
    """Whether the tree has more than `most` levels, found level by level: recursion would end where it matters."""
    level = [tree]
    for _ in range(most):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return False
    return True
