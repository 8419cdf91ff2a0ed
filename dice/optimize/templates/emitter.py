"""Writing the body of one kernel: names, levels of loops, and the arithmetic of indices.

A *place* says which element of a tensor is meant, as C++ texts: one index per dimension, or one into the tensor laid
out flat. Each is made from the other only where something asks for it. Names that are derived once are derived once: a
place that is reached on two ways has one text, so that equal texts are equal places.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

_WORD = re.compile(r"[A-Za-z_]\w*")
_ATOM = re.compile(r"\w+")
_NUMBER = re.compile(r"\(?-?\d[\w.+-]*\)?|-?INFINITY|NAN|true|false")
STORAGE = {
    "float32": "float", "float64": "double", "float16": "at::Half", "bfloat16": "at::BFloat16", "int64": "int64_t",
    "int32": "int", "int16": "int16_t", "int8": "int8_t", "uint8": "uint8_t", "bool": "bool",
}  # fmt: skip
COMPUTED = {
    "float32": "float", "float64": "double", "float16": "float", "bfloat16": "float", "int64": "int64_t",
    "int32": "int", "int16": "int", "int8": "int", "uint8": "int", "bool": "bool",
}  # fmt: skip
MOST_ELEMENTS = (1 << 31) - (1 << 24)  # of a tensor whose indices, and a loop's step beyond them, fit into 32 bits


class CannotWrite(Exception):
    """The rules do not cover this; the message ends a sentence."""


def storage(dtype: str) -> str:
    if dtype not in STORAGE:
        raise CannotWrite(f"there is no rule for elements of {dtype}")
    return STORAGE[dtype]


def computed(dtype: str) -> str:
    """The C++ type in which values of this dtype are computed."""
    storage(dtype)
    return COMPUTED[dtype]


def is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat"))


def index_type(count: int) -> str:
    """The C++ type of an index that has `count` values."""
    return "int" if count <= MOST_ELEMENTS else "int64_t"


def block_index(count: int) -> str:
    """The number of a block, in a type that holds what is made of it: an index that has `count` values."""
    return "blockIdx.x" if index_type(count) == "int" else "int64_t(blockIdx.x)"


@dataclass
class Frame:
    """Lines at one depth. `pinned`: what is written here may not move out, since a condition guards it."""

    lines: list[str] = field(default_factory=list)
    known: dict[Any, str] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """An element of a tensor of `shape`. One of `dims` and `flat` may be missing."""

    shape: tuple[int, ...]
    dims: tuple[str, ...] | None = None
    flat: str | None = None


class Lines:
    """The lines of one kernel's body, in frames one within the other, and the names that they define."""

    def __init__(self) -> None:
        self.frames = [Frame()]
        self.level: dict[str, int] = {}
        self._wide = {"int64_t"}  # indices of 64 bits, and what makes one of an expression
        self._gone: set[str] = set()  # names of frames that are closed
        self._numbers: dict[str, int] = {}

    def fresh(self, prefix: str) -> str:
        number = self._numbers.get(prefix, 0)
        self._numbers[prefix] = number + 1
        return f"{prefix}{number}" if prefix in ("v", "i") or number else prefix

    def declare(self, name: str, level: int | None = None, count: int = 0) -> str:
        """A name that exists from here on, such as a loop's variable; `count`: how many values an index has."""
        self.level[name] = len(self.frames) - 1 if level is None else level
        if index_type(count) != "int":
            self._wide.add(name)
        return name

    def line(self, text: str) -> None:
        self.frames[-1].lines.append(text)

    def let(self, ctype: str, expression: str, prefix: str = "v") -> str:
        """A name for an expression, written where all that it needs is known."""
        if _ATOM.fullmatch(expression) or _NUMBER.fullmatch(expression):
            return expression
        key = (ctype, expression)
        for frame in self.frames:
            if key in frame.known:
                return frame.known[key]
        at = self._level_of(expression)
        name = self.fresh(prefix)
        self.frames[at].known[key] = name
        self.level[name] = at
        self.frames[at].names.append(name)
        self.frames[at].lines.append(f"{ctype} {name} = {expression};")
        return name

    def index(self, expression: str, count: int = 0) -> str:
        """A name for an index that has `count` values; 0: one that is as wide as what it is made of."""
        ctype = index_type(count) if count else "int64_t" if self._is_wide(expression) else "int"
        name = self.let(ctype, expression, "i")
        if ctype != "int":
            self._wide.add(name)
        return name

    def _is_wide(self, expression: str) -> bool:
        return not self._wide.isdisjoint(_WORD.findall(expression))

    def remembered(self, key: Any, make: Callable[[], str]) -> str:
        """What `make` gave for this key, where it was asked before in a frame that is still open."""
        for frame in self.frames:
            if key in frame.known:
                return frame.known[key]
        text = make()
        at = self._level_of(text)
        self.frames[at].known[key] = text
        return text

    def _level_of(self, expression: str) -> int:
        at = max((self.level.get(word, 0) for word in _WORD.findall(expression)), default=0)
        pinned = max((index for index, frame in enumerate(self.frames) if frame.pinned), default=0)
        return min(max(at, pinned), len(self.frames) - 1)

    @contextmanager
    def block(self, pinned: bool = False) -> Iterator[Frame]:
        """A frame of its own, whose lines the caller places when it is done."""
        frame = Frame(pinned=pinned)
        self.frames.append(frame)
        try:
            yield frame
        finally:
            self._gone.update(self.frames.pop().names)

    @contextmanager
    def before(self) -> Iterator[None]:
        """In the block, lines stand before the loop that is being written, and see none of its names."""
        inner = self.frames[1:]
        names = {name for frame in inner for name in frame.names}
        del self.frames[1:]
        self._gone |= names
        try:
            yield
        finally:
            self._gone -= names
            self.frames += inner

    def guarded(self, ctype: str, condition: str, otherwise: str, make: Callable[[], str]) -> str:
        """`make()` where the condition holds, else another value."""
        if not condition:
            return make()
        name = self.fresh("v")
        with self.block(pinned=True) as frame:
            value = make()
        at = max(self._level_of(condition), max((self._level_of(line) for line in (*frame.lines, value)), default=0))
        at = min(at, len(self.frames) - 1)
        self.level[name] = at
        inner = [f"    {line}" for line in (*frame.lines, f"{name} = {value};")]
        self.frames[at].lines += [f"{ctype} {name} = {otherwise};", f"if ({condition}) {{", *inner, "}"]
        return name


class Emitter(Lines):
    """The body of one kernel. `inputs`: names of the tensors that it reads, with their dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs: dict[str, str] = {}
        self.on_source: Callable[[Any, Place], str | None] = lambda value, place: None
        self.on_value: Callable[[Any, Place], str | None] = lambda value, place: None
        self._flat_of: dict[tuple[tuple[int, ...], tuple[str, ...]], str] = {}
        self._parts: dict[str, tuple[str, int, str]] = {}  # i -> (row, D, j) where i is row * D + j
        self._dims_of: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {}  # what a flat index was made of

    def load(self, name: str, dtype: str, flat: str, numel: int = 0) -> str:
        """An element from memory, of so many, in the type that is computed in."""
        self.inputs.setdefault(name, dtype)
        kept, wanted = storage(dtype), computed(dtype)
        element = f"{name}[{flat}]"
        return self.let(wanted, element if kept == wanted else f"static_cast<{wanted}>({element})")

    def table(self, ctype: str, numbers: str, count: int) -> str:
        """The name of an array of constants."""
        key = ("table", ctype, numbers)
        if key not in self.frames[0].known:
            name = self.fresh("table")
            self.frames[0].known[key] = name
            self.frames[0].lines.append(f"const {ctype} {name}[{count}] = {{{numbers}}};")
        return self.frames[0].known[key]

    # ---- places --------------------------------------------------------------------------------------------------

    def at(self, shape: Sequence[int], dims: Sequence[str]) -> Place:
        return Place(tuple(shape), tuple("0" if extent == 1 else dim for extent, dim in zip(shape, dims, strict=True)))

    def at_flat(self, shape: Sequence[int], flat: str) -> Place:
        return Place(tuple(shape), None, flat)

    def joined(self, high: str, extent: int, low: str, rows: int) -> str:
        """`high * extent + low`, where `low` is less than `extent`, and `high` less than `rows`."""
        if high == "0":
            return low
        if extent == 1:
            return high
        text = times(high, extent, rows * extent)
        name = self.index(text if low == "0" else f"{text} + {low}", rows * extent)
        self._parts.setdefault(name, (high, extent, low))
        return name

    def flat(self, place: Place) -> str:
        """The index into the tensor laid out flat."""
        if place.flat is not None:
            return place.flat
        assert place.dims is not None
        pairs = [(extent, dim) for extent, dim in zip(place.shape, place.dims, strict=True) if extent != 1]
        shape, dims = tuple(one for one, _ in pairs), tuple(one for _, one in pairs)
        if not dims or all(dim == "0" for dim in dims):
            return "0"
        known = self._joined_already(shape, dims)
        if known:
            return known
        terms = []
        start = 0
        while start < len(dims):
            end = next(
                (
                    end
                    for end in range(len(dims), start + 1, -1)
                    if self._joined_already(shape[start:end], dims[start:end])
                ),
                start + 1,
            )
            one = self._joined_already(shape[start:end], dims[start:end]) or dims[start]
            stride = math.prod(shape[end:])
            if one != "0":
                terms.append(times(one, stride, math.prod(shape[start:])))
            start = end
        result = self.index(" + ".join(terms) or "0", math.prod(shape))
        self._flat_of[shape, dims] = result
        if len(dims) > 1:
            self._dims_of.setdefault(result, (shape, dims))
        return result

    def _joined_already(self, shape: tuple[int, ...], dims: tuple[str, ...]) -> str:
        """The name that indices were taken from, or were joined to, while it can be seen."""
        name = self._flat_of.get((shape, dims), "")
        return "" if name in self._gone else name

    def dims(self, place: Place) -> tuple[str, ...]:
        """One index per dimension."""
        if place.dims is not None:
            return place.dims
        assert place.flat is not None
        inner = iter(self._split(tuple(extent for extent in place.shape if extent != 1), place.flat))
        return tuple("0" if extent == 1 else next(inner) for extent in place.shape)

    def _split(self, shape: tuple[int, ...], flat: str) -> tuple[str, ...]:
        if len(shape) <= 1 or flat == "0":
            return (flat,) * len(shape)
        parts = self._parts.get(flat)
        if parts is not None:
            high, extent, low = parts
            for cut in range(1, len(shape)):
                if math.prod(shape[cut:]) == extent:
                    dims = (*self._split(shape[:cut], high), *self._split(shape[cut:], low))
                    self._flat_of[shape, dims] = flat
                    return dims
        known = self._dims_of.get(flat)
        if known is not None and (same := self._regrouped(*known, shape)) is not None:
            self._flat_of[shape, same] = flat
            return same
        names = []
        rest = math.prod(shape)
        base = flat if _ATOM.fullmatch(flat) else self.index(flat, math.prod(shape))
        for index, extent in enumerate(shape):
            rest //= extent
            text = base if rest == 1 else f"{base} / {rest}"
            names.append(self.index(text if index == 0 else f"{text} % {extent}", extent))
        self._flat_of[shape, tuple(names)] = flat
        return tuple(names)

    def _regrouped(
        self, shape: tuple[int, ...], dims: tuple[str, ...], wanted: tuple[int, ...]
    ) -> tuple[str, ...] | None:
        """Indices of a shape from those of another: what both have is taken over, and only the stretches between are
        divided. None where they have no border in common, or not as many elements."""
        if math.prod(shape) != math.prod(wanted):
            return None
        found: list[str] = []
        start = end = first = last = 0
        while last < len(wanted):
            start, first = end, last
            size, other = shape[end], wanted[last]
            end, last = end + 1, last + 1
            while size != other:
                if size < other:
                    size, end = size * shape[end], end + 1
                else:
                    other, last = other * wanted[last], last + 1
            if (start, end) == (0, len(shape)):
                return None
            if end - start == 1 == last - first:
                found.append(dims[start])
            else:
                found += self._split(wanted[first:last], self.flat(self.at(shape[start:end], dims[start:end])))
        return tuple(found)

    def reshaped(self, place: Place, shape: Sequence[int]) -> Place:
        return self.at_flat(shape, self.flat(place))

    def broadcast(self, place: Place, shape: Sequence[int]) -> Place:
        """Where a tensor of `shape` is read for an element of one that it is broadcast to."""
        shape = tuple(shape)
        if shape == place.shape:
            return place
        if math.prod(shape) == 1:
            return Place(shape, None, "0")
        if tuple(e for e in shape if e != 1) == tuple(e for e in place.shape if e != 1):
            return Place(shape, None, self.flat(place)) if place.dims is None else self.at(shape, _placed(shape, place))
        dims = self.dims(place)
        lead = len(dims) - len(shape)
        return self.at(shape, dims[lead:])


def _placed(shape: tuple[int, ...], place: Place) -> list[str]:
    assert place.dims is not None
    inner = iter([dim for extent, dim in zip(place.shape, place.dims, strict=True) if extent != 1])
    return ["0" if extent == 1 else next(inner) for extent in shape]


def _factor(text: str) -> str:
    return text if _ATOM.fullmatch(text) else f"({text})"


def sum_of(*terms: str) -> str:
    """A sum of index texts without zeros."""
    kept = [term for term in terms if term not in ("0", "")]
    return " + ".join(kept) if kept else "0"


def times(text: str, factor: int, extent: int = 0) -> str:
    """`text * factor`, an index into something of `extent`, in a type that holds it."""
    if text == "0" or factor == 0:
        return "0"
    if factor == 1:
        return text
    return f"{_factor(text)} * {factor}" if index_type(extent) == "int" else f"int64_t({text}) * {factor}"
