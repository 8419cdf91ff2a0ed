"""The text of C++ without its comments and strings, in one pass over it, whatever the text is."""

from __future__ import annotations

import re
from collections.abc import Callable

_BEGIN = re.compile(r'//[^\n]*|/\*|"')
_STRING = re.compile(r'"(?:\\.|[^"\\\n])*', re.DOTALL)


def blank(text: str, replace: Callable[[str], str] = lambda found: " ") -> str:
    """`text` with each comment and each string literal replaced by what `replace` makes of it.

    A comment that never ends takes all the rest. A quote that no other follows on its line, as in '"', is kept.
    """
    parts: list[str] = []
    kept = position = 0  # up to here the text is in `parts`; from here on it is looked at
    barren = 0  # up to here no string ends, so none begins
    while found := _BEGIN.search(text, position):
        start, position = found.span()
        if found[0] == '"':
            if start < barren:
                continue
            string = _STRING.match(text, start)
            assert string is not None
            if text[string.end() : string.end() + 1] != '"':
                barren = string.end()
                continue
            position = string.end() + 1
        elif found[0] == "/*":
            end = text.find("*/", position)
            position = len(text) if end < 0 else end + 2
        parts += [text[kept:start], replace(text[start:position])]
        kept = position
    return "".join([*parts, text[kept:]])
