"""The numbers that a kernel's C++ names. Values that it treats otherwise than others are near one of them."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable

from dice import cpp

MOST_NUMBERS = 48
_NUMBER = re.compile(r"(?<![\w.])(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?=[uUlLfF]*(?![\w.]))")
_BITS = 10  # characters of a hexadecimal number that holds those of a float
LARGEST = 2.0**53  # beyond it not every whole number is a float64


def numbers(texts: Iterable[str]) -> tuple[float, ...]:
    """At most MOST_NUMBERS of them without sign and but for 0, in their order; of hexadecimal ones that have 32 bits
    the float32 as well."""
    found: dict[float, None] = {}
    for text in texts:
        for match in _NUMBER.finditer(cpp.blank(text)):
            found.update(dict.fromkeys(_values(match[0])))
    suiting = [one for one in found if 0 < one <= LARGEST]
    return tuple(suiting[:MOST_NUMBERS])


def _values(text: str) -> list[float]:
    if text[:2].lower() != "0x":
        number = float(text)
        return [number] if math.isfinite(number) else []
    bits = int(text, 16)
    if bits > LARGEST:
        return []
    as_float = abs(struct.unpack("<f", struct.pack("<I", bits))[0]) if len(text) == _BITS else math.nan
    return [float(bits), *([as_float] if math.isfinite(as_float) else [])]
