"""Sources that a kernel file has written to disk, as texts that need no other file.

What `load` and `load_inline` are told of folders holds for this process alone: the compiler, in a jail of its own, sees
none of it. So headers that lie beside a source, or in a folder that was named, become part of the text. All files of a
language are compiled as one text; names that several of them define, each for itself, are told apart by macros.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from dice.cpp import blank

MOST_BYTES = 4 << 20  # of a text with its headers
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)[^\n]*$', re.MULTILINE)
_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once[^\n]*$", re.MULTILINE)
_OPEN = re.compile(r'\bnamespace\b[^{};()]*\{|\bextern\s+"?C?"?\s*\{')
_BODY = re.compile(r"\{[^{}]*\}")
_FUNCTION = re.compile(r"\b([A-Za-z_]\w*)\s*\([^(){};]*\)\s*(?:const\s*|noexcept\s*)*\x00")
_NAMED = re.compile(r"\b(?:struct|class|union|enum(?:\s+class)?)\s+([A-Za-z_]\w*)[^;{}()]*\x00")
_CONSTANT = re.compile(
    r"\b(?:static|constexpr|const|__constant__|__device__)\s[^;(){}\x00]*?\b([A-Za-z_]\w*)\s*(?:\[[^\]]*\]\s*)*(?:=|\x00|;)"
)
_NEVER = frozenset(
    {"if", "for", "while", "switch", "catch", "return", "sizeof", "defined", "PYBIND11_MODULE", "TORCH_LIBRARY"}
)


def read(path: Path, folders: Iterable[str | Path]) -> str:
    """The text of a source file, with the headers that lie beside it or in one of the folders.

    Raises `OSError`, `ValueError` for what is no text or grows beyond measure.
    """
    return with_headers(path.read_text(encoding="utf-8"), [path.parent, *map(Path, folders)])


def with_headers(text: str, folders: Sequence[Path]) -> str:
    """The text with each header that lies in one of the folders in place of its `#include`."""
    once: set[Path] = set()
    left = MOST_BYTES

    def inserted(text: str, around: Sequence[Path], depth: int) -> str:
        nonlocal left
        left -= len(text)
        if left < 0 or depth > 32:
            raise ValueError(f"the sources and their headers make more than {MOST_BYTES >> 20} MiB")

        def header(found: re.Match[str]) -> str:
            places = [folder / (found[1] or found[2]) for folder in around]
            path = next((place.resolve() for place in places if place.is_file()), None)
            if path is None:
                return found[0]
            if path in once:
                return ""
            said = path.read_text(encoding="utf-8")
            if _ONCE.search(said):
                once.add(path)
            return inserted(_ONCE.sub("", said), [path.parent, *folders], depth + 1)

        return _INCLUDE.sub(header, text)

    return inserted(text, list(folders), 0)


def apart(texts: Sequence[str]) -> tuple[str, ...]:
    """The same texts, to be compiled as one: a name that two of them define is another one in the second."""
    known: set[str] = set()
    found: list[str] = []
    for number, text in enumerate(texts):
        own = _defined(text)
        again = sorted(own & known)
        known |= own
        before = "".join(f"#define {name} {name}_of_file_{number}\n" for name in again)
        after = "".join(f"\n#undef {name}" for name in again)
        # Headers that others share are read under their own names, before any is changed.
        includes = "".join(f"{one[0].strip()}\n" for one in _INCLUDE.finditer(text)) if again else ""
        found.append(f"{includes}{before}{text}{after}\n" if again else text)
    return tuple(found)


def _defined(text: str) -> set[str]:
    """Names that a text defines outside of all bodies, as far as its form tells."""
    flat = blank(re.sub(r"^[ \t]*#[^\n]*(?:\\\n[^\n]*)*$", "", text, flags=re.MULTILINE))
    flat = _OPEN.sub(";", flat)  # what stands in it is not inside of a body
    for _ in range(64):
        less = _BODY.sub("\x00", flat)
        if less == flat:
            break
        flat = less
    return {name for form in (_FUNCTION, _NAMED, _CONSTANT) for name in form.findall(flat)} - _NEVER
