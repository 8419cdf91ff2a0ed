"""Reading what a candidate's process says: any JSON at all, so every value is checked, cut and cleaned."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

MAX_ITEMS, MAX_LINES = 1000, 40
MAX_KERNELS = 20
LONGEST = 2000  # characters of a sentence
LONGEST_LINE = 1000


def text(value: object, longest: int = LONGEST) -> str:
    """Printable text: no control characters for a terminal to obey, and nothing that no encoding can write."""
    raw = value if isinstance(value, str) else str(value)
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in raw[:longest])


def texts(value: object) -> tuple[str, ...]:
    return tuple(text(item, LONGEST_LINE) for item in value[:MAX_LINES]) if isinstance(value, list) else ()


def integers(value: object) -> list[int]:
    return [item for item in value[:MAX_ITEMS] if type(item) is int] if isinstance(value, list) else []


def floats(value: object) -> list[float]:
    return [item for item in value[:MAX_ITEMS] if type(item) is float] if isinstance(value, list) else []


def counts(value: object) -> dict[str, int]:
    """Positive counts by name."""
    items = list(value.items())[:MAX_ITEMS] if isinstance(value, dict) else ()
    return {text(name, 200): min(count, 1 << 60) for name, count in items if type(count) is int and count > 0}


def texts_by_name(value: object) -> dict[str, str]:
    items = list(value.items())[:MAX_ITEMS] if isinstance(value, dict) else ()
    return {text(name, 200): text(said) for name, said in items}


def gpu_times(said: object) -> dict[str, dict[str, Any]]:
    """`{kernel: {"calls", "ms", "share"}}` of what a candidate's process claims, the longest first."""
    times: dict[str, tuple[int, float]] = {}
    for name, calls, micros in _gpu_rows(said):
        before = times.get(name, (0, 0.0))
        times[name] = before[0] + calls, before[1] + micros
    total = sum(micros for _, micros in times.values())
    longest = sorted(times.items(), key=lambda item: -item[1][1])[:MAX_KERNELS]
    return {
        name: {"calls": calls, "ms": round(micros / 1000, 5), "share": round(micros / total, 4)}
        for name, (calls, micros) in longest
    }


def _gpu_rows(said: object) -> Iterable[tuple[str, int, float]]:
    for row in said[:MAX_ITEMS] if isinstance(said, list) else ():
        if isinstance(row, list) and len(row) == 3 and type(row[1]) is int and type(row[2]) is float:
            name, calls, micros = row
            if calls > 0 and 0 < micros < 1e12:
                yield text(name, 200), calls, micros
