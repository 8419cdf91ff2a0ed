"""Rows, the elements that one result of a reduction comes of: their places, how they lie in memory, and in how many
parts they are reduced."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

from dice.optimize.templates.emitter import Emitter, Place
from dice.optimize.templates.shapes import permuted, viewed
from dice.optimize.templates.values import Reduced, Value, index_of

ENOUGH = 100  # blocks that keep a large GPU's memory busy, if each has a thousand threads
BLOCKS = 528  # four for each multiprocessor of an H100
LEAST_PART = 4096  # elements of a row that a block is worth
COLUMN_BLOCKS, LEAST_COLUMN = 264, 256  # the same where a block works on 32 columns


class Layout:
    """Of the rows of a reduction: their `number`, and their `length`."""

    def __init__(self, of: Reduced):
        self.source = of.source
        self.shape = of.source.shape
        self.over, self.kept = of.over, of.kept
        self.length = of.length
        self.outer = tuple(self.shape[index] for index in self.kept)
        self.number = math.prod(self.outer)

    def fits(self, value: Value) -> bool:
        return value.numel in (self.number, math.prod(self.shape))

    def is_own(self, value: Value) -> bool:
        """Whether it is a reduction of these rows that is under way here."""
        same = isinstance(value, Reduced) and (value.source.shape, value.over) == (self.shape, self.over)
        return same and not value.memory

    def element(self, e: Emitter, j: str) -> Place:
        """Element `j` of the row."""
        outer = e.dims(e.at_flat(self.outer, "row"))
        inner_shape = tuple(self.shape[index] for index in self.over)
        is_trailing = self.over == tuple(range(len(self.shape) - len(self.over), len(self.shape)))
        if is_trailing and self.number > 1:
            return e.at_flat(self.shape, e.joined("row", self.length, j, self.number))
        inner = e.dims(e.at_flat(inner_shape, j))
        dims = [""] * len(self.shape)
        for index, text in zip(self.kept, outer, strict=True):
            dims[index] = text
        for index, text in zip(self.over, inner, strict=True):
            dims[index] = text
        return e.at(self.shape, dims)

    @cached_property
    def lie(self) -> str:
        """How rows lie in memory: `along` it, `down` columns, or `apart`, where that is not known."""
        if self.number == 1 or self.length == 1:
            return "along"
        e = Emitter()
        e.declare("row", 0, self.number)
        e.declare("j", 0, self.length)
        at = index_of(self.source, e, self.element(e, "j"), ("row", "j"))
        if at is None:
            return "apart" if self.over and self.over[-1] == len(self.shape) - 1 else "down"
        return "down" if abs(at(1, 0) - at(0, 0)) == 1 != abs(at(0, 1) - at(0, 0)) else "along"


def reduced(value: Value, over: Sequence[int], kind: str, dtype: str = "") -> Reduced:
    """Without the reduced dimensions. Few long rows are reduced in parts first, each by threads of its own."""
    cut = None if kind.startswith("arg") else in_parts(value, over)
    if cut is None:
        return whole(value, over, kind, dtype)
    long, dim = cut
    return whole(whole(long, [dim], kind, dtype), [dim - 1], kind)


def whole(value: Value, over: Sequence[int], kind: str = "sum", dtype: str = "") -> Reduced:
    """Without the reduced dimensions, each row by the same threads from its beginning to its end."""
    rank = len(value.shape)
    dims = tuple(sorted({index % rank for index in over})) if rank else ()
    shape = tuple(extent for index, extent in enumerate(value.shape) if index not in dims)
    return Reduced(shape, dtype or value.dtype, value, dims, kind)


def in_parts(value: Value, over: Sequence[int]) -> tuple[Value, int] | None:
    """The value with its rows in parts, and the dimension along which a part lies; the one before it numbers the parts.
    None where rows are short, or enough to keep a large GPU busy as they are."""
    of = whole(value, over)
    shape, rows = of.shape, math.prod(of.shape)
    length = value.numel // max(rows, 1)
    if length < 2 * min(LEAST_PART, LEAST_COLUMN):
        return None
    is_down = rows > 1 and Layout(of).lie == "down"
    blocks, most, least = (-(-rows // 32), COLUMN_BLOCKS, LEAST_COLUMN) if is_down else (rows, BLOCKS, LEAST_PART)
    parts = _parts(blocks, length, most, least)
    if parts == 1:
        return None
    if is_down:  # parts lie side by side in memory, as the columns do
        return viewed(permuted(value, [*of.over, *of.kept]), (parts, length // parts, *shape)), 1
    return viewed(permuted(value, [*of.kept, *of.over]), (*shape, parts, length // parts)), len(shape) + 1


def _parts(blocks: int, length: int, most: int, least: int) -> int:
    """In how many parts rows are reduced for whose number there are too few blocks for a large GPU."""
    most = min(most // max(blocks, 1), length // least) if blocks < ENOUGH else 1
    return next((parts for parts in range(most, 1, -1) if length % parts == 0), 1)
