"""Python with CUDA C++ in its strings, coloured for HTML."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import groupby

from pygments.lexers import CudaLexer, PythonLexer
from pygments.token import Comment, Keyword, Name, Number, String, Token, _TokenType

Tokens = Iterator[tuple[_TokenType, str]]
# Kind of token -> class of the page's style sheet; the first that contains it counts.
_CLASSES = (
    (Comment.Preproc, "p"),
    (Comment, "c"),
    (Keyword.Type, "t"),
    (Keyword, "k"),
    (Name.Function, "f"),
    (Name.Class, "f"),
    (Name.Decorator, "p"),
    (Number, "n"),
    (String, "s"),
)


def to_html(source: str) -> str:
    """Spans without a surrounding element."""
    parts = []
    for name, run in groupby(_tokens(source), key=lambda token: _class(token[0])):
        text = escape("".join(text for _, text in run), quote=False)
        parts.append(f"<i class={name}>{text}</i>" if name else text)
    return "".join(parts)


def _tokens(source: str) -> Tokens:
    python = PythonLexer(stripnl=False, ensurenl=False).get_tokens(source)
    for is_string, run in groupby(python, key=lambda token: token[0] in String):
        tokens = list(run)
        text = "".join(text for _, text in tokens)
        if is_string and ("__global__" in text or "#include" in text):
            yield from CudaLexer(stripnl=False, ensurenl=False).get_tokens(text)
        else:
            yield from tokens


def _class(kind: _TokenType) -> str:
    return next((name for parent, name in _CLASSES if kind in parent), "") if kind is not Token.Text else ""
