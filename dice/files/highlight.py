"""Python with CUDA C++ in its strings, as text plus styled runs: small enough for a page to hold hundreds of kernels.

A run is an upper-case letter (its style) and a length in code points, in base 36: `K3P1S2` is three characters of a
keyword, one plain and two of a string. A page's script and `as_html` read the same form.
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterable, Iterator
from html import escape
from itertools import groupby

from pygments.lexers import CudaLexer

PLAIN = "P"
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_RUN = re.compile(r"([A-Z])([0-9a-z]+)")
_QUOTES = re.compile(r"[a-zA-Z]{0,2}(\"{3}|'{3}|\"|')")
_LINES_OF_CUDA = re.compile(r"__global__|#include|__device__")

# The name of a group is a style. Pygments' own patterns take quadratic time on texts that a model may write, such as
# many empty lines; these look at no character again that an earlier match has passed.
_PYTHON = re.compile(
    r"""
      (?P<C>\#[^\n]*)
    | (?P<S>[a-zA-Z]{0,2}(?:\"{3}(?:\\.|[^\\])*?(?:\"{3}|\Z)|'{3}(?:\\.|[^\\])*?(?:'{3}|\Z)
        |"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?))
    | (?P<F>(?<=\bdef[ ])\w+|(?<=\bclass[ ])\w+)
    | (?P<M>^[ \t]*@[\w.]+)
    | (?P<N>\d[\w.]*)
    | (?P<word>[^\W\d]\w*)
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
_CUDA = re.compile(
    r"""
      (?P<C>//(?:\\\r?\n|[^\n])*|/\*.*?(?:\*/|\Z))
    | (?P<M>^[ \t]*\#(?:\\\r?\n|/(?![/*])|[^\n/])*)
    | (?P<S>"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?)
    | (?P<N>\.?\d[\w.]*)
    | (?P<word>[^\W\d]\w*)
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
_Words = dict[str, str]
_PYTHON_WORDS: _Words = dict.fromkeys(dir(builtins), "B") | dict.fromkeys(keyword.kwlist, "K")
_CPP_WORDS = """
alignas alignof auto break case catch class const const_cast constexpr continue decltype default delete do dynamic_cast
else enum explicit export extern false for friend goto if inline mutable namespace new noexcept nullptr operator private
protected public register reinterpret_cast return sizeof static static_assert static_cast struct switch template this
throw true try typedef typeid typename union using virtual volatile while
"""
_CPP_TYPES = """
bool char double float half int long short signed unsigned void wchar_t size_t ssize_t ptrdiff_t int8_t int16_t int32_t
int64_t uint8_t uint16_t uint32_t uint64_t
"""
_CUDA_WORDS: _Words = (
    dict.fromkeys([*CudaLexer.variables, *CudaLexer.functions], "B")
    | dict.fromkeys([*_CPP_TYPES.split(), *CudaLexer.vector_types], "T")
    | dict.fromkeys([*_CPP_WORDS.split(), *CudaLexer.function_qualifiers, *CudaLexer.variable_qualifiers], "K")
)


def runs(source: str) -> str:
    """The styles of a Python file; the CUDA C++ in its strings is styled as such."""
    styled: list[tuple[str, int]] = []
    for style, text in _tokens(source, _PYTHON, _PYTHON_WORDS):
        if style != "S" or not _LINES_OF_CUDA.search(text):
            styled.append((style, len(text)))
            continue
        quotes = _QUOTES.match(text)
        before = quotes[0] if quotes else ""
        after = quotes[1] if quotes and text.endswith(quotes[1], len(before)) else ""
        inside = text[len(before) : len(text) - len(after)]
        cuda = [(style, len(part)) for style, part in _tokens(inside, _CUDA, _CUDA_WORDS)]
        styled += [("S", len(before)), *cuda, ("S", len(after))]
    return _pack((style, length) for style, length in styled if length)


def as_html(text: str, styles: str) -> str:
    """`<i class=K>` around every styled run."""
    parts, start = [], 0
    for style, length in _RUN.findall(styles):
        end = start + int(length, 36)
        part = escape(text[start:end], quote=False)
        parts.append(part if style == PLAIN else f"<i class={style}>{part}</i>")
        start = end
    return "".join([*parts, escape(text[start:], quote=False)])


def _tokens(text: str, pattern: re.Pattern[str], words: _Words) -> Iterator[tuple[str, str]]:
    """(style, text) of all of it."""
    end = 0
    for match in pattern.finditer(text):
        style = match.lastgroup or PLAIN
        yield PLAIN, text[end : match.start()]
        yield words.get(match[0], PLAIN) if style == "word" else style, match[0]
        end = match.end()
    yield PLAIN, text[end:]


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
