"""Which column of a table is what: by name where the name is known, by content where it is not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dice.data.sources.catalogue import NAMES, TEXTS, Source
from dice.files.bounded import parse_json
from dice.prompts import extract_problem

SAMPLED = 64  # rows looked at to tell what a column holds
Layout = Mapping[str, str]  # role -> dotted path of its column

_MODEL = re.compile(r"^class\s+Model\b", re.MULTILINE)
_MODEL_NEW = re.compile(r"^class\s+ModelNew\b", re.MULTILINE)
_MODULE = re.compile(r"^class\s+\w+\s*\(.*Module\s*\)", re.MULTILINE)
_FENCE = re.compile(r"^[ \t]*```", re.MULTILINE)
_CODE = re.compile(r"\s*(?:#|import\s|from\s+\w|class\s|def\s|@|\"\"\"|''')")


def lookup(row: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path, through nested columns and through JSON kept as text; None where there is none."""
    if path in row:
        return row[path]
    value: Any = row
    for step in path.split("."):
        value = _opened(value)
        if not isinstance(value, Mapping) or step not in value:
            return None
        value = value[step]
    return value


def leaves(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a row that is no group of columns itself, by dotted path."""
    for name, value in row.items():
        inner = _opened(value)
        if isinstance(inner, Mapping):
            yield from leaves(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def as_messages(value: Any) -> list[dict[str, str]]:
    """Chat messages, in either common spelling, also as JSON text; empty for what is none."""
    value = _opened(value)
    if not isinstance(value, Sequence) or isinstance(value, str):
        return []
    found = []
    for message in value:
        if not isinstance(message, Mapping):
            return []
        role, content = message.get("role", message.get("from")), message.get("content", message.get("value"))
        if not isinstance(role, str) or not isinstance(content, str):
            return []
        found.append({"role": role, "content": content})
    return found


def as_text(value: Any) -> str:
    """Text as it is; of chat messages the contents, one below the other; "" for anything else."""
    messages = as_messages(value)
    if messages:
        return "\n\n".join(message["content"] for message in messages)
    return value if isinstance(value, str) else ""


def is_problem(text: str) -> bool:
    """Whether the text is a module with inputs; its class need not be called `Model`."""
    return "get_inputs" in text and not _FENCE.search(text) and bool(_MODEL.search(text) or _MODULE.search(text))


def is_kernel(text: str) -> bool:
    return bool(_MODEL_NEW.search(text) and _CODE.match(text)) and not _FENCE.search(text)


def holds_kernel(text: str) -> bool:
    return "ModelNew" in text and bool(_MODEL_NEW.search(text) or _FENCE.search(text))


def _is_prose(text: str) -> bool:
    return len(text) > 40 and not _CODE.match(text) and text.count(" ") > len(text) / 12


def _answers(value: Any) -> bool:
    return any(message["role"] in ("assistant", "gpt") for message in as_messages(value))


_FITS: dict[str, Callable[[Any], bool]] = {  # what a value must be, whatever its column is called
    "problem": lambda value: is_problem(as_text(value)),
    "kernel": lambda value: is_kernel(as_text(value)),
    "response": lambda value: holds_kernel(as_text(value)),
    "messages": _answers,
    "prompt": lambda value: bool(as_text(value)) and not _answers(value),
    "reasoning": lambda value: _is_prose(as_text(value)),
}

# What a text must be in a column whose name says nothing. A one-shot prompt shows a kernel, too, but unlike an answer
# it poses a problem.
_CONTENT: dict[str, Callable[[str], bool]] = {
    "prompt": lambda text: extract_problem(text) is not None,
    "response": lambda text: holds_kernel(text) and extract_problem(text) is None,
}


@dataclass(frozen=True, slots=True)
class Detected:
    layout: Layout
    seen: tuple[str, ...]  # every column, dotted
    usable: bool

    def missing(self) -> str:
        """What was looked for and what was there, for a set of which nothing can be used."""
        wanted = ", ".join(dict.fromkeys(name for role in TEXTS for name in NAMES[role][:2]))
        return (
            f"no column holds a problem (`class Model` with get_inputs), a kernel (`class ModelNew`) or an answer with "
            f"one, under names such as {wanted} or any other; its columns are: {', '.join(self.seen) or 'none'}"
        )


def detect(rows: Sequence[Mapping[str, Any]], source: Source) -> Detected:
    """Tell the columns of a table from its first rows.

    A name proposes a column for a role, its content decides: of the names that the source and everybody use for it, the
    first whose texts fit. A role that stays open goes to the column, of those still free, whose texts fit most often.
    What fits nothing still counts where its name is known: a column that is empty in these rows may not be further on,
    and the problems of a column may all be broken.
    """
    table: dict[str, list[Any]] = {}
    for row in rows:
        for path, value in leaves(row):
            table.setdefault(path, []).append(value)
    seen = tuple(table)
    layout: dict[str, str] = {}
    for role in NAMES:
        fits = _FITS.get(role, lambda value: value is not None)
        for path in source.names(role):
            if path not in layout.values() and any(map(fits, table.get(path, ()))):
                layout[role] = path
                break
    for role in TEXTS:
        if role not in layout and _worth(role, layout):
            found = _by_content(role, {path: table[path] for path in seen if path not in layout.values()})
            layout |= {role: found} if found else {}
    for role in TEXTS:  # a column that is empty so far may be filled further on
        empty = (path for path in source.names(role) if path in table and not any(table[path]))
        path = next((path for path in empty if path not in layout.values()), "")
        layout |= {role: path} if path and role not in layout else {}
    named = next((path for path in source.names("problem") if any(map(as_text, table.get(path, ())))), "")
    if "problem" not in layout and named and named not in layout.values():
        layout["problem"] = named
    posed = any(map(_CONTENT["prompt"], map(as_text, table.get(layout.get("prompt", ""), ()))))
    return Detected(layout, seen, posed or any(one in layout for one in ("problem", "kernel", "response", "messages")))


def _worth(role: str, layout: Layout) -> bool:
    """Whether a column may be taken for that role by its content: not for a prompt beside problems, nor for reasoning
    where nothing is answered."""
    answered = "kernel" in layout or "response" in layout
    return answered or (role != "reasoning" and not (role == "prompt" and "problem" in layout))


def _by_content(role: str, table: Mapping[str, Sequence[Any]]) -> str:
    texts = {path: [text for text in map(as_text, values) if text] for path, values in table.items()}
    fits = _CONTENT[role] if role in _CONTENT else _FITS[role]
    values = table if role == "messages" else texts
    shares = {path: sum(map(fits, values[path])) / len(texts[path]) for path in texts if texts[path]}
    good = [path for path, share in shares.items() if share >= 0.5]
    lengths = {path: sum(map(len, texts[path])) / len(texts[path]) for path in good}
    return max(good, key=(lengths if role == "reasoning" else shares).__getitem__, default="")  # the longest prose


def _opened(value: Any) -> Any:
    """What JSON text holds, if it is an object or a list; anything else unchanged."""
    if isinstance(value, str) and value[:1] in ("{", "[") and value.rstrip()[-1:] in ("}", "]"):
        try:
            return parse_json(value)
        except ValueError:
            return value
    return value
