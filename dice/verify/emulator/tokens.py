"""A tokenizer for CUDA C++ that keeps every character: good enough to find brackets, names and launches."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

_TOKEN = re.compile(
    r"""
      (?P<space>(?:\s|\\\r?\n)+)
    | (?P<comment>//(?:\\\r?\n|[^\n])*|/\*.*?(?:\*/|\Z))
    | (?P<raw>(?:u8|[uUL])?R"(?P<tag>[^\s()\\]{0,16})\(.*?\)(?P=tag)")
    | (?P<string>(?:u8|[uUL])?"(?:\\.|[^"\\\n])*"?)
    | (?P<char>(?:u8|[uUL])?'(?:\\.|[^'\\\n])*'?)
    | (?P<word>[A-Za-z_]\w*)
    | (?P<number>\.?\d(?:[eEpP][+-]|'(?=\w)|[\w.])*)
    | (?P<punct><<<|>>>|::|->|<<|>>|<=|>=|==|!=|&&|\|\||\+\+|--|\#\#|[^\w\s])
    """,
    re.VERBOSE | re.DOTALL,
)

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
        stack: list[int] = []
        before_branch: list[list[int]] = []
        for index, token in enumerate(self.list):
            if self.text(index - 1) == "#" and index in self.directive_end:
                if token.text in ("if", "ifdef", "ifndef"):
                    before_branch.append(list(stack))
                elif token.text in ("else", "elif") and before_branch:
                    stack = list(before_branch[-1])
                elif token.text == "endif" and before_branch:
                    before_branch.pop()
            if token.kind != "punct":
                continue
            if token.text in OPENING:
                stack.append(index)
            elif token.text in CLOSING and stack and self.list[stack[-1]].text == CLOSING[token.text]:
                opening = stack.pop()
                pairs[opening], pairs[index] = index, opening
        return pairs

    @cached_property
    def directive_end(self) -> dict[int, int]:
        """For tokens inside a preprocessor directive: index just past the directive's last token."""
        ends: dict[int, int] = {}
        index = 0
        while index < len(self.list):
            if self.list[index].text != "#" or not self._first_on_line(self.list[index].start):
                index += 1
                continue
            newline = re.compile(r"(?<!\\)(?<!\\\r)\n").search(self.source, self.list[index].start)
            limit = newline.start() if newline else len(self.source)
            last = index
            while last < len(self.list) and self.list[last].start < limit:
                last += 1
            ends.update(dict.fromkeys(range(index, last), last))
            index = last
        return ends

    def _first_on_line(self, position: int) -> bool:
        return self.source[self.source.rfind("\n", 0, position) + 1 : position].strip() == ""

    def template_start(self, closing: int) -> int | None:
        """Index of the `<` that the `>`, `>>` or `>>>` at `closing` closes, or None when it closes no template list."""
        needed = 0
        index = closing
        while index >= 0:
            text = self.list[index].text
            if text in (">", ">>", ">>>"):
                needed += len(text)
            elif text in ("<", "<<"):
                needed -= len(text)
                if needed <= 0:
                    return index
            elif text in CLOSING and index in self.partner:
                index = self.partner[index]
            elif text in (";", "{", "}", "(", "["):
                return None
            index -= 1
        return None


class Edits:
    """Replacements of character ranges, applied at once; insertions at one place keep their order."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._edits: list[tuple[int, int, int, str]] = []

    def replace(self, start: int, end: int, text: str) -> None:
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
