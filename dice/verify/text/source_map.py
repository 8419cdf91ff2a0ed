"""Where the lines that a compiler or a sanitizer names stand in the kernel file."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from dice import syntax
from dice.verify.build.sources import Sources

CUDA_SOURCE, CPP_SOURCE = "cuda_source", "cpp_source"  # what the texts of a build are called in messages
_PLACE = re.compile(rf"(?:(?<![\w./-])[\w./-]*/)?\b({CUDA_SOURCE}|{CPP_SOURCE})(?::(\d+)|\((\d+)\))(?::\d+(?=:))?")

LOOKED_THROUGH = 16 << 20  # characters in all; an honest file's literals need a hundredth


@dataclass(frozen=True, slots=True)
class Literal:
    """A string of a kernel file that could be source code, and the lines of the file that it takes, from 1."""

    value: str
    first: int
    last: int


class SourceMap:
    """Lines of one `load_inline` call's sources as lines of the file whose string literals they come from.

    A line that no literal holds as it stands (put together at run time, or spelled with escapes) has no place. Nor have
    those of the shortest literals where there are so many that looking for all would take long.

    `literals`: those of the file, where they are known already.
    """

    def __init__(self, kernel: str, sources: Sources, literals: Iterable[Literal] | None = None):
        self.kernel = kernel
        self.sources = sources
        self._literals = literals
        self._left = LOOKED_THROUGH

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
        known = literals(self.kernel) if self._literals is None else self._literals
        for literal in sorted(known, key=lambda literal: -len(literal.value)):
            for file, text in texts.items():
                start = self._find(literal.value, text)
                if start >= 0:
                    first = text.count("\n", 0, start) + 1
                    for offset, line in self._places(literal, file_lines):
                        found.setdefault((file, first + offset), line)
        return found

    def _find(self, part: str, text: str) -> int:
        """`text.find(part)`, as long as not too much was looked through."""
        self._left -= len(text) + 32
        return text.find(part) if self._left > 0 else -1

    def _places(self, literal: Literal, file_lines: list[str]) -> list[tuple[int, int]]:
        """(line of the value from 0, line of the file from 1), where the file's line shows the same text."""
        places = []
        next_line, last = literal.first, min(literal.last, len(file_lines))
        for offset, text in enumerate(literal.value.split("\n")):
            shown = text.strip()
            here = literal.first + offset
            if not shown:
                continue
            if here > last or self._find(shown, file_lines[here - 1]) < 0:
                later = (line for line in range(next_line, last + 1) if self._find(shown, file_lines[line - 1]) >= 0)
                here = next(later, 0)
            if here:
                places.append((offset, here))
                next_line = here
            if self._left <= 0:
                break
        return places


def literals(kernel: str) -> list[Literal]:
    """The strings of the file that could be source code."""
    try:
        tree = syntax.parse(kernel)
    except (SyntaxError, ValueError):
        return []
    return [
        Literal(node.value, node.lineno, node.end_lineno or node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value.strip()) > 8
    ]
