"""Small reductions within another kernel: a window's maximum where it is read, instead of a tensor of them before."""

from __future__ import annotations

from dice.optimize.templates.emitter import Emitter, Place, computed
from dice.optimize.templates.teams import combine, start_of
from dice.optimize.templates.text import indented
from dice.optimize.templates.values import Reduced, Value, cast

MOST = 16  # elements of a window


def is_window(value: Value) -> bool:
    return isinstance(value, Reduced) and value.length <= MOST and not value.kind.startswith("arg")


def written_here(e: Emitter, value: Reduced, place: Place) -> str:
    """The name that holds what is reduced for the element at a place, by the thread that asks for it."""
    source, dtype = value.source, value.dtype
    ctype, outer = computed(dtype), e.dims(place)
    name, tap = e.fresh("own_window"), e.fresh("tap")
    with e.block(pinned=True) as frame:
        e.declare(tap)
        inner = iter(e.dims(e.at_flat([source.shape[index] for index in value.over], tap)))
        kept = iter(outer)
        dims = [next(inner if index in value.over else kept) for index in range(len(source.shape))]
        element = cast(source.load(e, e.at(source.shape, dims)), source.dtype, dtype)
        e.line(f"{name} = {combine(value.kind, ctype, name, element)};")
    e.declare(name)
    e.frames[-1].lines += [
        f"{ctype} {name} = {start_of(value.kind, dtype)};",
        "#pragma unroll",
        f"for (int {tap} = 0; {tap} < {value.length}; {tap}++) {{",
        *indented(frame.lines),
        "}",
    ]
    return name
