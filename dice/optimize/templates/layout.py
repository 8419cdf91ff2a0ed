"""Rows, the elements that one result of a reduction comes of: their places, and how they lie in memory."""

from __future__ import annotations

import math
from functools import cached_property

from dice.optimize.templates.emitter import Emitter, Place
from dice.optimize.templates.values import Reduced, Value, index_of


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
            return e.at_flat(self.shape, e.joined("row", self.length, j))
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
        for name in ("row", "j"):
            e.declare(name, 0)
        at = index_of(self.source, e, self.element(e, "j"), ("row", "j"))
        if at is None:
            return "apart" if self.over and self.over[-1] == len(self.shape) - 1 else "down"
        return "down" if abs(at(1, 0) - at(0, 0)) == 1 != abs(at(0, 1) - at(0, 0)) else "along"
