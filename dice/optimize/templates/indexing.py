"""Operators that choose elements by the values of other tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dice.optimize.graph import Node
from dice.optimize.templates.emitter import CannotWrite, Emitter, Place, index_type
from dice.optimize.templates.pointwise import apply, rule
from dice.optimize.templates.values import Keywords, Moved, Positional, Value

Shape = tuple[int, ...]


@rule("embedding")
def _embedding(node: Node, given: list[Any], options: Keywords) -> Value:
    table, indices = given[:2]
    return looked_up(node.spec.shape, table, 0, indices, len(indices.shape))


def looked_up(shape: Shape, table: Value, dim: int, indices: Value, rank: int) -> Value:
    """The table's entries along `dim` that the indices name; their dimensions stand in its place."""

    def move(e: Emitter, place: Place) -> Place:
        dims = e.dims(place)
        index = indices.load(e, e.at(indices.shape, dims[dim : dim + rank]))
        return Place(table.shape, (*dims[:dim], _index(e, index, table.shape[dim]), *dims[dim + rank :]))

    return Chosen(shape, table.dtype, table, move, (indices,))


def _index(e: Emitter, text: str, extent: int) -> str:
    """An index from a tensor as the others are; a negative one counts from the end."""
    name = e.index(f"static_cast<{index_type(extent)}>({text})", extent)
    return "0" if extent == 1 else e.index(f"{name} < 0 ? {name} + {extent} : {name}", extent)


class Chosen(Moved):
    """Elements of one value at indices that are others' elements."""

    def __init__(self, shape: Shape, dtype: str, source: Value, move: Any, indices: tuple[Value, ...]):
        super().__init__(shape, dtype, source, move)
        self._indices = indices

    @property
    def sources(self) -> Sequence[Value]:
        return [self.source, *self._indices]


@rule("index_select")
def _index_select(node: Node, given: list[Any], options: Keywords) -> Value:
    value, dim, indices = given[:3]
    return looked_up(node.spec.shape, value, dim % len(value.shape), indices, 1)


@rule("gather")
def _gather(node: Node, given: list[Any], options: Keywords) -> Value:
    value, dim, indices = given[:3]
    dim %= len(value.shape)

    def move(e: Emitter, place: Place) -> Place:
        dims = list(e.dims(place))
        dims[dim] = _index(e, indices.load(e, place), value.shape[dim])
        return e.at(value.shape, dims)

    return Chosen(node.spec.shape, value.dtype, value, move, (indices,))


@rule("index")
def _advanced_index(node: Node, given: list[Any], options: Keywords) -> Value:
    value, indices = given[:2]
    places = [index for index, one in enumerate(indices) if one is not None]
    kept = [indices[index] for index in places]
    if any(one.dtype == "bool" for one in kept) or places != list(range(places[0], places[0] + len(places))):
        raise CannotWrite("an index by a mask, or by tensors apart, has no rule")
    shape = _broadcast_shape([one.shape for one in kept])
    first, rank = places[0], len(shape)

    def move(e: Emitter, place: Place) -> Place:
        dims = e.dims(place)
        inner = e.at(shape, dims[first : first + rank])
        chosen = [
            _index(e, one.load(e, e.broadcast(inner, one.shape)), value.shape[at])
            for at, one in zip(places, kept, strict=True)
        ]
        return e.at(value.shape, (*dims[:first], *chosen, *dims[first + rank :]))

    return Chosen(node.spec.shape, value.dtype, value, move, tuple(kept))


def _broadcast_shape(shapes: Sequence[Shape]) -> Shape:
    rank = max(map(len, shapes))
    padded_shapes = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(max(extents) for extents in zip(*padded_shapes, strict=True))


@rule("one_hot")
def _one_hot(node: Node, given: list[Any], options: Keywords) -> Value:
    value = given[0]

    def move(e: Emitter, place: Place) -> Place:
        return e.at(value.shape, e.dims(place)[:-1])

    spread = Moved(node.spec.shape, value.dtype, value, move)
    position = Positional(node.spec.shape, "int64", lambda e, dims: f"static_cast<int64_t>({dims[-1]})")
    return apply(node, "x == y ? 1 : 0", spread, position)
