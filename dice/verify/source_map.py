"""Where the lines that a compiler or a sanitizer names stand in the kernel file."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cached_property

from dice import syntax
from dice.verify.sources import Sources

CUDA_SOURCE, CPP_SOURCE = "cuda_source", "cpp_source"  # what the texts of a build are called in messages
_PLACE = re.compile(rf"(?:[\w./-]*/)?\b({CUDA_SOURCE}|{CPP_SOURCE})(?::(\d+)|\((\d+)\))(?::\d+(?=:))?")


class SourceMap:
    """Lines of one `load_inline` call's sources as lines of the file whose string literals they come from.

    A line that no literal holds as it stands (put together at run time, or spelled with escapes) has no place.
    """

    def __init__(self, kernel: str, sources: Sources):
        self.kernel = kernel
        self.sources = sources

    def line(self, file: str, number: int) -> int:
        """Line of the kernel file, from 1; 0 when it has none."""
        return self._lines.get((file, number), 0)

    def locate(self, text: str) -> str:
        """`text` with the kernel file's line before every place: `line 27 (cuda_source:12)`."""

        def located(match: re.Match[str]) -> str:
            file, number = match[1], int(match[2] or match[3])
            line = self.line(file, number)
            return f"line {line} ({file}:{number})" if line else f"{file}:{number}"

        return _PLACE.sub(located, text)

    @cached_property
    def _lines(self) -> dict[tuple[str, int], int]:
        found: dict[tuple[str, int], int] = {}
        texts = {CUDA_SOURCE: "\n".join(self.sources.cuda), CPP_SOURCE: "\n".join(self.sources.cpp)}
        file_lines = self.kernel.splitlines()
        for literal in _literals(self.kernel):
            for file, text in texts.items():
                start = text.find(literal.value)
                if start >= 0:
                    first = text.count("\n", 0, start) + 1
                    for offset, line in _places(literal, file_lines):
                        found.setdefault((file, first + offset), line)
        return found


@dataclass(frozen=True, slots=True)
class _Literal:
    value: str
    first: int  # lines of the file
    last: int


def _literals(kernel: str) -> list[_Literal]:
    """The strings of the file that could be source code, longest first."""
    try:
        tree = syntax.parse(kernel)
    except (SyntaxError, ValueError):
        return []
    literals = [
        _Literal(node.value, node.lineno, node.end_lineno or node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value.strip()) > 8
    ]
    return sorted(literals, key=lambda literal: -len(literal.value))


def _places(literal: _Literal, file_lines: list[str]) -> list[tuple[int, int]]:
    """(line of the value from 0, line of the file from 1), where the file's line shows the same text."""
    places = []
    next_line = literal.first
    for offset, text in enumerate(literal.value.split("\n")):
        shown = text.strip()
        here = literal.first + offset
        if not shown:
            continue
        if not _shows(file_lines, here, literal.last, shown):
            later = (line for line in range(next_line, literal.last + 1) if shown in file_lines[line - 1])
            here = next(later, 0)
        if here:
            places.append((offset, here))
            next_line = here
    return places


def _shows(file_lines: list[str], line: int, last: int, text: str) -> bool:
    return line <= min(last, len(file_lines)) and text in file_lines[line - 1]
