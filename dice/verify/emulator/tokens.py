"""A tokenizer for CUDA C++ that keeps every character: good enough to find brackets, names and launches.

Whatever the text is, everything here takes time in proportion to its length. A raw string that never ends takes all the
rest, as a comment does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

_TOKEN = re.compile(
    r"""
      (?P<space>(?:\s|\\\r?\n)+)
    | (?P<comment>//(?:\\\r?\n|[^\n])*|/\*.*?(?:\*/|\Z))
    | (?P<raw>(?:u8|[uUL])?R"(?P<tag>[^\s()\\]{0,16})\(.*?(?:\)(?P=tag)"|\Z))
    | (?P<string>(?:u8|[uUL])?"(?:\\.|[^"\\\n])*"?)
    | (?P<char>(?:u8|[uUL])?'(?:\\.|[^'\\\n])*'?)
    | (?P<word>[A-Za-z_]\w*)
    | (?P<number>\.?\d(?:[eEpP][+-]|'(?=\w)|[\w.])*)
    | (?P<punct><<<|>>>|::|->|<<|>>|<=|>=|==|!=|&&|\|\||\+\+|--|\#\#|[^\w\s])
    """,
    re.VERBOSE | re.DOTALL,
)

_HASH = re.compile(r"^[^\S\n]*\#", re.MULTILINE)  # the first on its line
_LINE_END = re.compile(r"(?<!\\)(?<!\\\r)\n")
OPENING = {"(": ")", "[": "]", "{": "}"}
CLOSING = {")": "(", "]": "[", "}": "{"}


@dataclass(frozen=True, slots=True)
class Token:
    """One code token: `kind` is word, number, string, char or punct; `source[start:end] == text`."""

    kind: str
    text: str
    start: int
    end: int


class Tokens:
    """The code tokens of a source (no comments, no space), with matching brackets."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.list: list[Token] = []
        for match in _TOKEN.finditer(source):
            kind = match.lastgroup or ""
            if kind == "tag":
                kind = "raw"
            if kind not in ("space", "comment"):
                self.list.append(Token("string" if kind == "raw" else kind, match.group(), match.start(), match.end()))

    def __len__(self) -> int:
        return len(self.list)

    def __getitem__(self, index: int) -> Token:
        return self.list[index]

    def text(self, index: int) -> str:
        """Text of a token, or "" outside the list."""
        return self.list[index].text if 0 <= index < len(self.list) else ""

    @cached_property
    def partner(self) -> dict[int, int]:
        """Index of the matching bracket, both ways, for (), [] and {}; unmatched ones are absent.

        The branches of an #if each begin with the brackets that were open before it.
        """
        pairs: dict[int, int] = {}
        stack: _Stack = None
        before_branch: list[_Stack] = []
        for index, token in enumerate(self.list):
            if self.text(index - 1) == "#" and index in self.directive_end:
                if token.text in ("if", "ifdef", "ifndef"):
                    before_branch.append(stack)
                elif token.text in ("else", "elif") and before_branch:
                    stack = before_branch[-1]
                elif token.text == "endif" and before_branch:
                    before_branch.pop()
            if token.kind != "punct":
                continue
            if token.text in OPENING:
                stack = index, stack
            elif token.text in CLOSING and stack and self.list[stack[0]].text == CLOSING[token.text]:
                opening, stack = stack
                pairs[opening], pairs[index] = index, opening
        return pairs

    def is_balanced(self, start: int, end: int) -> bool:
        """Whether each bracket of these tokens has its partner."""
        brackets = (index for index in range(start, end) if self.text(index) in OPENING or self.text(index) in CLOSING)
        return all(index in self.partner for index in brackets)

    @cached_property
    def directive_end(self) -> dict[int, int]:
        """For tokens inside a preprocessor directive: index just past the directive's last token."""
        return {index: end for start, end in self.directives for index in range(start, end)}

    @cached_property
    def directives(self) -> list[tuple[int, int]]:
        """Index of the `#` and index just past the last token of each preprocessor directive, in order."""
        found: list[tuple[int, int]] = []
        first_on_line = {match.end() - 1 for match in _HASH.finditer(self.source)}
        index = 0
        while index < len(self.list):
            if self.list[index].text != "#" or self.list[index].start not in first_on_line:
                index += 1
                continue
            newline = _LINE_END.search(self.source, self.list[index].start)
            limit = newline.start() if newline else len(self.source)
            last = index
            while last < len(self.list) and self.list[last].start < limit:
                last += 1
            found.append((index, last))
            index = last
        return found

    @cached_property
    def macros(self) -> list[tuple[str, range]]:
        """Name and tokens of the text (parameters included) of each `#define`, in order."""
        return [
            (self.text(start + 2), range(start + 3, end))
            for start, end in self.directives
            if end > start + 1 and self.text(start + 1) == "define"
        ]

    def template_start(self, closing: int) -> int | None:
        """Index of the `<` that the `>`, `>>` or `>>>` at `closing` closes, or None when it closes no template list."""
        return self._template_starts.get(closing)

    @cached_property
    def _template_starts(self) -> dict[int, int]:
        """`<` by the `>` that closes it. What stands in brackets, and other statements, are not looked into."""
        starts: dict[int, int] = {}
        stack: _Stack = None
        before: dict[int, _Stack] = {}  # each opening bracket
        for index, token in enumerate(self.list):
            text = token.text
            if text in ("<", "<<"):
                for _ in text:
                    stack = index, stack
            elif text in (">", ">>", ">>>"):
                opened: list[int] = []
                while stack and len(opened) < len(text):
                    opening, stack = stack
                    opened.append(opening)
                if len(opened) == len(text):
                    starts[index] = opened[-1]
            elif text in CLOSING and index in self.partner:
                stack = before.get(self.partner[index])
            elif text in (";", "{", "}", "(", "["):
                before[index], stack = stack, None
        return starts


_Stack = tuple[int, "_Stack"] | None  # the last index, and those before it: kept at a place for nothing


class Overgrown(Exception):
    """The edits would make far more of a text than there is."""


MOST_GROWTH = 16  # times the source's length
ROOM = 64 << 10  # characters that any source may grow by


class Edits:
    """Replacements of character ranges, applied at once; insertions at one place keep their order.

    Raises `Overgrown` when what is inserted is more than `MOST_GROWTH` times the source, and more than `ROOM`.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self._edits: list[tuple[int, int, int, str]] = []
        self._room = ROOM + MOST_GROWTH * len(source)

    def replace(self, start: int, end: int, text: str) -> None:
        self._room -= len(text)
        if self._room < 0:
            raise Overgrown
        self._edits.append((start, end, len(self._edits), text))

    def insert(self, position: int, text: str) -> None:
        self.replace(position, position, text)

    def blank(self, start: int, end: int) -> None:
        """Replace by spaces, keeping newlines (and their backslashes) where they are."""
        kept = re.sub(r"[^\s\\]|\\(?!\r?\n)", " ", self.source[start:end])
        self.replace(start, end, kept)

    def apply(self) -> str:
        parts: list[str] = []
        position = 0
        for start, end, _, text in sorted(self._edits):
            parts += [self.source[position:start], text]
            position = max(position, end)
        parts.append(self.source[position:])
        return "".join(parts)
