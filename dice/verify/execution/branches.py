"""Which way a problem's own Python went, and the numbers that it decides by.

A branch that no trial takes is one that a kernel may leave out: `if temperature == 0`, `if token == self.end`, the
second half of a chain of conditions. Ways are told by the interpreter's own instructions, so that conditions within a
line, loops and comprehensions count as `if` does.
"""

from __future__ import annotations

import ast
import dis
import functools
import sys
from types import CodeType, FrameType
from typing import Any

Way = tuple[CodeType, int, int]  # a conditional jump in a function, and the instruction that came after it
MOST_NUMBERS = 16  # of a source


class Ways:
    """A block in which the ways are noted that functions of a file take (`taken`)."""

    def __init__(self, path: str) -> None:
        self.taken: set[Way] = set()
        self._path = path
        self._before: Any = None

    def __enter__(self) -> Ways:
        self._before = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(self._before)

    def _called(self, frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        if code.co_filename != self._path or not _jumps(code):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        jumps, last = _jumps(code), -1

        def trace(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal last
            if event == "opcode":
                if last in jumps:
                    self.taken.add((code, last, frame.f_lasti))
                last = frame.f_lasti
            return trace

        return trace

    @property
    def left(self) -> set[Way]:
        """Ways that were not taken, of the jumps that were met."""
        met = {(code, place) for code, place, _ in self.taken}
        known = {(code, place, after) for code, place in met for after in _jumps(code)[place]}
        return known - self.taken


@functools.lru_cache(maxsize=256)
def _jumps(code: CodeType) -> dict[int, tuple[int, int]]:
    """The conditional jumps of a function, with the two instructions that may come next."""
    instructions = list(dis.get_instructions(code))
    found = {}
    for one, following in zip(instructions, instructions[1:], strict=False):
        if "JUMP" in one.opname and "IF" in one.opname:
            found[one.offset] = (following.offset, int(one.argval))
    return found


def numbers(source: str) -> tuple[float, ...]:
    """Numbers that code compares something with, or has names for."""
    found: dict[float, None] = {}
    for node in _nodes(source):
        if isinstance(node, ast.Compare):
            for side in (node.left, *node.comparators):
                found.update(dict.fromkeys(_numbers(side)))
        elif isinstance(node, ast.Assign) and not node.col_offset:
            found.update(dict.fromkeys(_numbers(node.value)))
    return tuple(found)[:MOST_NUMBERS]


def periods(source: str) -> tuple[int, ...]:
    """Whole numbers of which code takes a remainder."""
    found = (_numbers(node.right) for node in _nodes(source) if isinstance(node, ast.BinOp) and _is_rest(node))
    return tuple({int(one): None for many in found for one in many if one == int(one) and one > 1})


def _is_rest(node: ast.BinOp) -> bool:
    return isinstance(node.op, ast.Mod)


def _nodes(source: str) -> list[ast.AST]:
    try:
        return list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError):
        return []


def _numbers(node: ast.expr) -> list[float]:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError):
        return []
    values = value if isinstance(value, tuple | list | set) else [value]
    return [float(one) for one in values if isinstance(one, int | float) and not isinstance(one, bool)]
