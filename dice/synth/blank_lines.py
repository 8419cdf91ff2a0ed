"""The same program with other blank lines: one author leaves two lines after a class, another one, a third none.

A small model that sees a single way takes it for meaning, and writes nonsense for everyone else's files.
"""

from __future__ import annotations

import ast
import io
import random
import tokenize
from dataclasses import dataclass

from dice.synth.syntax import is_same

_BESIDE_STATEMENTS = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


@dataclass(frozen=True, slots=True)
class BlankLines:
    """How many blank lines an author leaves."""

    between_blocks: int  # around classes and functions of a file
    between_parts: int  # imports, constants
    between_methods: int
    after_docstring: int


def draw_blank_lines(rng: random.Random) -> BlankLines:
    between_blocks = rng.choices((1, 2, 3), (5, 6, 1))[0]
    return BlankLines(
        between_blocks=between_blocks,
        between_parts=rng.choice((1, between_blocks)),
        between_methods=rng.choices((0, 1, 2), (1, 8, 1))[0],
        after_docstring=rng.choice((0, 1)),
    )


def relaid(source: str, rng: random.Random) -> str:
    """`source` with other blank lines. Only they change: the syntax trees are compared.

    Raises `ValueError` if the trees differ, `SyntaxError` if `source` is no Python.
    """
    style, lines = draw_blank_lines(rng), source.split("\n")
    starts, inside = _logical_lines(source)
    text: list[str] = []
    blanks = 0
    for row, line in enumerate(lines, 1):
        if not line.strip() and row not in inside:
            blanks += 1
            continue
        if row in starts and text:
            text += [""] * _gap(style, text[-1], line, blanks)
        text.append(line)
        blanks = 0
    changed = "\n".join(text) + "\n"
    if not is_same(ast.parse(changed), ast.parse(source)):
        raise ValueError("another layout changed the program")
    return changed


def _logical_lines(source: str) -> tuple[set[int], set[int]]:
    """Rows that begin a statement or a comment of its own, and rows inside one (multi-line strings, brackets)."""
    starts: set[int] = set()
    inside: set[int] = set()
    fresh, first = True, 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in _BESIDE_STATEMENTS:
            if token.type == tokenize.NEWLINE:
                inside.update(range(first + 1, token.start[0] + 1))
                fresh = True
            continue
        if fresh:
            first = token.start[0]
            starts.add(first)
            fresh = token.type == tokenize.COMMENT
    return starts, inside


def _gap(style: BlankLines, before: str, line: str, blanks: int) -> int:
    """Blank lines before `line`, which begins a statement and had `blanks` of them."""
    depth, opens = _depth(line), line.lstrip().startswith(("def ", "class ", "@"))
    attached = before.lstrip().startswith("@") or (before.lstrip().startswith("#") and not blanks)
    if attached or before.endswith(":"):
        return 0
    if depth == 0:
        if opens or _depth(before) > 0:
            return style.between_blocks
        return style.between_parts if blanks else 0
    if depth == 4:
        if before.rstrip().endswith(('"""', "'''")) and _depth(before) == 4:
            return style.after_docstring if opens or blanks else 0
        if opens:
            return style.between_methods
    return min(blanks, 1)


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())
