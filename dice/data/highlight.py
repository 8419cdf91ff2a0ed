"""Python with CUDA C++ in its strings, as text plus styled runs: small enough for a page to hold hundreds of kernels.

A run is an upper-case letter (its style) and a length in code points, in base 36: `K3P1S2` is three characters of a
keyword, one plain and two of a string. A page's script and `as_html` read the same form.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from html import escape
from itertools import groupby
from typing import Any

from pygments.lexers import CudaLexer, PythonLexer
from pygments.token import Comment, Keyword, Name, Number, String, Token, _TokenType

PLAIN = "P"
# The first that a token belongs to.
_STYLES = (
    (Comment.Preproc, "M"),
    (Comment, "C"),
    (Keyword.Type, "T"),
    (Keyword, "K"),
    (Name.Builtin, "B"),
    (Name.Function, "F"),
    (Name.Class, "F"),
    (Name.Decorator, "M"),
    (Number, "N"),
    (String, "S"),
)
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_RUN = re.compile(r"([A-Z])([0-9a-z]+)")
_QUOTES = re.compile(r"[a-zA-Z]{0,2}(\"{3}|'{3}|\"|')")
_LINES_OF_CUDA = re.compile(r"__global__|#include|__device__")


def runs(source: str) -> str:
    """The styles of a Python file; the CUDA C++ in its strings is styled as such."""
    styled: list[tuple[str, int]] = []
    for is_string, group in groupby(_tokens(source, PythonLexer()), lambda token: token[0] in String):
        parts = list(group)
        text = "".join(value for _, value in parts)
        if is_string and _LINES_OF_CUDA.search(text):
            quotes = _QUOTES.match(text)
            before = quotes[0] if quotes else ""
            after = quotes[1] if quotes and text.endswith(quotes[1]) else ""
            inside = text[len(before) : len(text) - len(after)]
            parts = [(String, before), *_tokens(inside, CudaLexer()), (String, after)]
        styled += [(_style(kind), len(value)) for kind, value in parts if value]
    return _pack(styled)


def as_html(text: str, styles: str) -> str:
    """`<i class=K>` around every styled run."""
    parts, start = [], 0
    for style, length in _RUN.findall(styles):
        end = start + int(length, 36)
        part = escape(text[start:end], quote=False)
        parts.append(part if style == PLAIN else f"<i class={style}>{part}</i>")
        start = end
    return "".join([*parts, escape(text[start:], quote=False)])


def _tokens(text: str, lexer: Any) -> Iterator[tuple[_TokenType, str]]:
    for _, kind, value in lexer.get_tokens_unprocessed(text):
        yield kind, value


def _style(kind: _TokenType) -> str:
    if kind is Token.Text:
        return PLAIN
    return next((style for of, style in _STYLES if kind in of), PLAIN)


def _pack(styled: Iterable[tuple[str, int]]) -> str:
    packed = []
    for style, group in groupby(styled, lambda one: one[0]):
        packed.append(style + _base36(sum(length for _, length in group)))
    return "".join(packed)


def _base36(number: int) -> str:
    digits = ""
    while number or not digits:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits
