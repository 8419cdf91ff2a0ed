"""Operators that arrange elements anew, choose some by index, or make them of their index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dice.optimize.graph import Node
from dice.optimize.templates.emitter import CannotWrite, Emitter, Place, computed, sum_of, times
from dice.optimize.templates.pointwise import apply, rule
from dice.optimize.templates.values import Guarded, Keywords, Moved, Pointwise, Positional, Value, literal

Shape = tuple[int, ...]


def viewed(value: Value, shape: Sequence[int]) -> Value:
    """The same elements in the same order under another shape."""
    shape = tuple(shape)
    return (
        value
        if shape == value.shape
        else Moved(shape, value.dtype, value, lambda e, place: e.reshaped(place, value.shape))
    )


def rearranged(value: Value, shape: Sequence[int], dims: Callable[[tuple[str, ...]], Sequence[str]]) -> Value:
    """`dims` makes the indices there of the indices here."""
    return Moved(tuple(shape), value.dtype, value, lambda e, place: e.at(value.shape, dims(e.dims(place))))


def permuted(value: Value, order: Sequence[int]) -> Value:
    if list(order) == list(range(len(value.shape))):
        return value
    shape = [value.shape[index] for index in order]
    back = [list(order).index(index) for index in range(len(order))]
    return rearranged(value, shape, lambda dims: [dims[index] for index in back])


def expanded(value: Value, shape: Sequence[int]) -> Value:
    shape = tuple(shape)
    if shape == value.shape:
        return value
    return Moved(shape, value.dtype, value, lambda e, place: e.broadcast(place, value.shape))


def sliced(value: Value, dim: int, start: int, length: int, step: int = 1) -> Value:
    shape = list(value.shape)
    shape[dim] = length
    if tuple(shape) == value.shape and start == 0 and step == 1:
        return value

    def dims(here: tuple[str, ...]) -> list[str]:
        there = list(here)
        there[dim] = sum_of(times(here[dim], step, value.shape[dim]), str(start))
        return there

    return rearranged(value, shape, dims)


@rule(
    "view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "_unsafe_view", "view_as", "reshape_as", "ravel"
)
def _view(node: Node, given: list[Any], options: Keywords) -> Value:
    if node.operator == "aten.view.dtype":
        raise CannotWrite("bits are read as another type")
    return viewed(given[0], node.spec.shape)


@rule("permute", "transpose", "t", "movedim", "swapaxes", "numpy_T", "mT", "adjoint")
def _permute(node: Node, given: list[Any], options: Keywords) -> Value:
    value, rank = given[0], len(given[0].shape)
    order = list(range(rank))
    if node.base == "permute":
        order = [index % rank for index in given[1]]
    elif node.base == "movedim":
        raise CannotWrite("movedim has no rule")
    elif node.base in ("transpose", "swapaxes"):
        one, other = given[1] % rank, given[2] % rank
        order[one], order[other] = order[other], order[one]
    elif node.base in ("t", "numpy_T"):
        order.reverse()
    elif rank > 1:
        order[-1], order[-2] = order[-2], order[-1]
    return permuted(value, order)


@rule("expand", "expand_as", "broadcast_to")
def _expand(node: Node, given: list[Any], options: Keywords) -> Value:
    return expanded(given[0], node.spec.shape)


@rule("broadcast_tensors")
def _broadcast_tensors(node: Node, given: list[Any], options: Keywords) -> Any:
    assert isinstance(node.output, tuple)
    return tuple(expanded(value, spec.shape) for value, spec in zip(given[0], node.output, strict=True) if spec)


@rule("select")
def _select(node: Node, given: list[Any], options: Keywords) -> Value:
    value, dim, index = given[:3]
    dim %= len(value.shape)
    index %= value.shape[dim]
    return viewed(sliced(value, dim, index, 1), node.spec.shape)


@rule("slice", "narrow")
def _slice(node: Node, given: list[Any], options: Keywords) -> Value:
    value, dim = given[0], (given[1] if len(given) > 1 else 0) % len(given[0].shape)
    start = given[2] if len(given) > 2 and given[2] is not None else 0
    step = given[4] if node.base == "slice" and len(given) > 4 else 1
    start = max(0, start + value.shape[dim]) if start < 0 else min(start, value.shape[dim])
    return sliced(value, dim, start, node.spec.shape[dim], step)


@rule("split", "split_with_sizes", "chunk", "unbind", "tensor_split")
def _split(node: Node, given: list[Any], options: Keywords) -> Any:
    value = given[0]
    specs = node.output
    assert isinstance(specs, tuple)
    at = 1 if node.base == "unbind" else 2
    dim = given[at] if len(given) > at else options.get("dim", 0)
    dim %= len(value.shape)
    parts, start = [], 0
    for spec in specs:
        assert spec is not None
        length = 1 if node.base == "unbind" else spec.shape[dim]
        parts.append(viewed(sliced(value, dim, start, length), spec.shape))
        start += length
    return tuple(parts)


@rule("repeat", "tile")
def _repeat(node: Node, given: list[Any], options: Keywords) -> Value:
    value = given[0]
    lead = len(node.spec.shape) - len(value.shape)

    def dims(here: tuple[str, ...]) -> list[str]:
        kept = zip(here[lead:], value.shape, node.spec.shape[lead:], strict=True)
        return [text if extent == whole else f"{text} % {extent}" for text, extent, whole in kept]

    return rearranged(value, node.spec.shape, dims)


@rule("repeat_interleave")
def _repeat_interleave(node: Node, given: list[Any], options: Keywords) -> Value:
    value = given[0]
    times_ = given[1]
    dim = given[2] if len(given) > 2 else options.get("dim")
    if not isinstance(times_, int) or dim is None:
        raise CannotWrite("how often elements are repeated depends on values")
    dim %= len(value.shape)
    return rearranged(
        value,
        node.spec.shape,
        lambda here: [f"{one} / {times_}" if index == dim else one for index, one in enumerate(here)],
    )


@rule("flip")
def _flip(node: Node, given: list[Any], options: Keywords) -> Value:
    value = given[0]
    over = {index % len(value.shape) for index in given[1]}
    return rearranged(
        value,
        value.shape,
        lambda here: [f"{value.shape[i] - 1} - {one}" if i in over else one for i, one in enumerate(here)],
    )


@rule("roll")
def _roll(node: Node, given: list[Any], options: Keywords) -> Value:
    value = given[0]
    dims = given[2] if len(given) > 2 else []
    if not dims:
        raise CannotWrite("roll over the flat tensor has no rule")
    by = {dim % len(value.shape): shift for dim, shift in zip(dims, given[1], strict=True)}

    def move(here: tuple[str, ...]) -> list[str]:
        moved = []
        for index, one in enumerate(here):
            extent = value.shape[index]
            shift = (-by.get(index, 0)) % extent
            moved.append(f"({sum_of(one, str(shift))}) % {extent}" if shift else one)
        return moved

    return rearranged(value, value.shape, move)


@rule("pixel_shuffle")
def _pixel_shuffle(node: Node, given: list[Any], options: Keywords) -> Value:
    value, factor = given[:2]
    *lead, channels, height, width = value.shape
    parts = viewed(value, (*lead, channels // factor**2, factor, factor, height, width))
    rank = len(lead)
    moved = permuted(parts, [*range(rank), rank, rank + 3, rank + 1, rank + 4, rank + 2])
    return viewed(moved, node.spec.shape)


@rule("unfold")
def _unfold(node: Node, given: list[Any], options: Keywords) -> Value:
    value, dim, _, step = given[:4]
    dim %= len(value.shape)

    def dims(here: tuple[str, ...]) -> list[str]:
        there = list(here[:-1])
        there[dim] = sum_of(times(here[dim], step, value.shape[dim]), here[-1])
        return there

    return rearranged(value, node.spec.shape, dims)


@rule("diagonal")
def _diagonal(node: Node, given: list[Any], options: Keywords) -> Value:
    value = given[0]
    offset = given[1] if len(given) > 1 else 0
    one, other = (given[2] if len(given) > 2 else 0), (given[3] if len(given) > 3 else 1)
    rank = len(value.shape)
    one, other = one % rank, other % rank

    def dims(here: tuple[str, ...]) -> list[str]:
        rest = iter(here[:-1])
        places = {one: sum_of(here[-1], str(max(-offset, 0))), other: sum_of(here[-1], str(max(offset, 0)))}
        return [places[index] if index in places else next(rest) for index in range(rank)]

    return rearranged(value, node.spec.shape, dims)


@rule("cat", "concat", "concatenate")
def _cat(node: Node, given: list[Any], options: Keywords) -> Value:
    dim = given[1] if len(given) > 1 else options.get("dim", 0)
    parts = [part for part in given[0] if part.numel]
    return joined(parts, dim % len(node.spec.shape), node.spec.dtype)


def joined(parts: Sequence[Value], dim: int, dtype: str) -> Value:
    """The parts one after the other along a dimension."""
    shape = list(parts[0].shape)
    shape[dim] = sum(part.shape[dim] for part in parts)

    def choose(e: Emitter, dims: tuple[str, ...]) -> list[tuple[str, Value, Place]]:
        chosen, start = [], 0
        for number, part in enumerate(parts, 1):
            end = start + part.shape[dim]
            there = list(dims)
            there[dim] = f"{dims[dim]} - {start}" if start else dims[dim]
            begins = f"{dims[dim]} >= {start}" if start else ""  # what others have may not be read either
            ends = f"{dims[dim]} < {end}" if number < len(parts) else ""
            condition = " && ".join(filter(None, (begins, ends)))
            chosen.append((condition, part, e.at(part.shape, there)))
            start = end
        return chosen

    return Guarded(tuple(shape), dtype, choose, "0", tuple(parts))


@rule("slice_scatter")
def _slice_scatter(node: Node, given: list[Any], options: Keywords) -> Value:
    value, source = given[:2]
    dim = (given[2] if len(given) > 2 else 0) % len(value.shape)
    start = given[3] if len(given) > 3 and given[3] is not None else 0
    step = given[5] if len(given) > 5 else 1
    start = max(0, start + value.shape[dim]) if start < 0 else start
    return _scattered(value, source, dim, start, step)


@rule("select_scatter")
def _select_scatter(node: Node, given: list[Any], options: Keywords) -> Value:
    value, source, dim, index = given[:4]
    dim %= len(value.shape)
    wide = viewed(source, (*source.shape[:dim], 1, *source.shape[dim:]))
    return _scattered(value, wide, dim, index % value.shape[dim], 1)


def _scattered(value: Value, source: Value, dim: int, start: int, step: int) -> Value:
    """The value with a slice of a dimension taken from another one."""
    end = start + (source.shape[dim] - 1) * step + 1

    def choose(e: Emitter, dims: tuple[str, ...]) -> list[tuple[str, Value, Place]]:
        own = dims[dim]
        conditions = [f"{own} >= {start}" if start else "", f"{own} < {end}" if end < value.shape[dim] else ""]
        conditions.append(f"({own} - {start}) % {step} == 0" if step > 1 else "")
        there = list(dims)
        inner = f"{own} - {start}" if start else own
        there[dim] = inner if step == 1 else f"({inner}) / {step}"
        return [
            (" && ".join(filter(None, conditions)), source, e.at(source.shape, there)),
            ("", value, e.at(value.shape, dims)),
        ]

    return Guarded(value.shape, value.dtype, choose, "0", (value, source))


@rule("copy")
def _copy(node: Node, given: list[Any], options: Keywords) -> Value:
    return apply(node, "x", expanded(given[1], node.spec.shape))


@rule("fill")
def _fill(node: Node, given: list[Any], options: Keywords) -> Value:
    return apply(node, "x", given[1])


@rule("constant")
def _constant(node: Node, given: list[Any], options: Keywords) -> Value:
    """Numbers that stand in the module's code."""
    dtype, shape = node.spec.dtype, node.spec.shape
    numbers = _flat(given[0])
    if len(numbers) == 1:
        return Pointwise(shape, dtype, (numbers[0],), lambda text: text, dtype)

    def write(e: Emitter, dims: tuple[str, ...]) -> str:
        inside = ", ".join(literal(number, dtype) for number in numbers)
        return f"{e.table(computed(dtype), inside, len(numbers))}[{e.flat(e.at(shape, dims))}]"

    return Positional(shape, dtype, write)


def _flat(value: Any) -> list[Any]:
    return [one for item in value for one in _flat(item)] if isinstance(value, list) else [value]


@rule("stack")
def _stack(node: Node, given: list[Any], options: Keywords) -> Value:
    dim = (given[1] if len(given) > 1 else options.get("dim", 0)) % len(node.spec.shape)
    parts = [viewed(part, (*part.shape[:dim], 1, *part.shape[dim:])) for part in given[0]]
    return joined(parts, dim, node.spec.dtype)


@rule("pad", "constant_pad_nd")
def _pad(node: Node, given: list[Any], options: Keywords) -> Value:
    value, pads = given[0], given[1]
    mode = "constant"
    number: Any = 0
    if node.base == "pad":
        mode = given[2] if len(given) > 2 else options.get("mode", "constant")
        number = (given[3] if len(given) > 3 else options.get("value")) or 0
    else:
        number = given[2] if len(given) > 2 else 0
    return padded(value, before_of(pads, len(value.shape)), node.spec.shape, mode, number)


@rule("reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d")
def _pad_mode(node: Node, given: list[Any], options: Keywords) -> Value:
    value, pads = given[:2]
    mode = "reflect" if node.base.startswith("reflection") else "replicate"
    return padded(value, before_of(pads, len(value.shape)), node.spec.shape, mode, 0)


def before_of(pads: Sequence[int], rank: int) -> list[int]:
    """What is added before each dimension, of PyTorch's pairs from the last dimension on."""
    before = [0] * rank
    for pair in range(len(pads) // 2):
        before[rank - 1 - pair] = pads[2 * pair]
    return before


def padded(value: Value, before: Sequence[int], shape: Sequence[int], mode: str, number: Any) -> Value:
    """The value with elements around it: a number, or its own (`reflect`, `replicate`, `circular`)."""
    shape = tuple(shape)

    def choose(e: Emitter, dims: tuple[str, ...]) -> list[tuple[str, Value, Place]]:
        there, conditions = [], []
        for index, dim in enumerate(dims):
            extent = value.shape[index]
            if shape[index] == extent and not before[index]:
                there.append(dim)
                continue
            place = e.index(f"{dim} - {before[index]}" if before[index] >= 0 else f"{dim} + {-before[index]}")
            if mode == "constant":
                conditions += [f"{place} >= 0" if before[index] > 0 else "", f"{place} < {extent}"]
            elif mode == "replicate":
                place = e.index(f"min(max({place}, 0), {extent - 1})")
            elif mode == "reflect":
                place = e.index(f"{place} < 0 ? -{place} : {place}")
                place = e.index(f"{place} < {extent} ? {place} : {2 * extent - 2} - {place}")
            else:
                place = e.index(f"({place} + {extent}) % {extent}")
            there.append(place)
        where = Place(value.shape, tuple(there))
        return [(" && ".join(filter(None, conditions)), value, where)]

    return Guarded(shape, value.dtype, choose, literal(number, value.dtype), (value,))


@rule("arange")
def _arange(node: Node, given: list[Any], options: Keywords) -> Value:
    start, step = (0, 1) if len(given) < 2 else (given[0], given[2] if len(given) > 2 else 1)
    dtype = node.spec.dtype

    def write(e: Emitter, dims: tuple[str, ...]) -> str:
        index = f"static_cast<{computed(dtype)}>({dims[0]})"
        scaled = index if step == 1 else f"{index} * {literal(step, dtype)}"
        return scaled if start == 0 else f"{literal(start, dtype)} + {scaled}"

    return Positional(node.spec.shape, dtype, write)


@rule("linspace")
def _linspace(node: Node, given: list[Any], options: Keywords) -> Value:
    start, end, count = given[:3]
    dtype = node.spec.dtype
    step = (end - start) / max(count - 1, 1)
    write = lambda e, dims: f"{literal(float(start), dtype)} + {literal(step, dtype)} * {dims[0]}"  # noqa: E731
    return Positional(node.spec.shape, dtype, write)


@rule("eye")
def _eye(node: Node, given: list[Any], options: Keywords) -> Value:
    dtype = node.spec.dtype
    return Positional(
        node.spec.shape, dtype, lambda e, d: f"{d[0]} == {d[1]} ? {literal(1, dtype)} : {literal(0, dtype)}"
    )


@rule("tril", "triu")
def _triangle(node: Node, given: list[Any], options: Keywords) -> Value:
    value = given[0]
    offset = given[1] if len(given) > 1 else options.get("diagonal", 0)
    sign = "<=" if node.base == "tril" else ">="
    mask = Positional(
        value.shape,
        "bool",
        lambda e, dims: (
            f"{dims[-1]} {sign} {sum_of(dims[-2], str(offset)) if offset >= 0 else f'{dims[-2]} - {-offset}'}"
        ),
    )
    write = lambda c, x: f"{c} ? {x} : {literal(0, value.dtype)}"  # noqa: E731
    return Pointwise(value.shape, value.dtype, (mask, value), write)


@rule("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
def _upsample_nearest(node: Node, given: list[Any], options: Keywords) -> Value:
    value = given[0]
    spatial = len(node.spec.shape) - 2
    if any(want % have for have, want in zip(value.shape[2:], node.spec.shape[2:], strict=True)):
        raise CannotWrite("an upsampling by a fraction has no rule")

    def dims(here: tuple[str, ...]) -> list[str]:
        there = list(here[:2])
        for index in range(spatial):
            have, want = value.shape[2 + index], node.spec.shape[2 + index]
            there.append(here[2 + index] if want == have else f"{here[2 + index]} / {want // have}")
        return there

    return rearranged(value, node.spec.shape, dims)


__all__ = ["expanded", "joined", "padded", "permuted", "rearranged", "sliced", "viewed"]
