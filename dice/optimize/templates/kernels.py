"""Kernels for values: one thread per element, and running sums; those of rows and products have files of their own.

Each function writes one `__global__` function that stores some values, or raises `NeedsMemory` for what has to be
computed before it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dice.optimize.templates.emitter import Emitter, computed
from dice.optimize.templates.rows import Team, combine, start_of
from dice.optimize.templates.text import MOST_BLOCKS, THREADS, Constants, KernelText, Store, blocks, function, stored
from dice.optimize.templates.values import Product, Reduced, Scanned, Value, cast


def pointwise(name: str, stores: Sequence[Store]) -> KernelText:
    """One thread per element, in a loop over the grid. All values have as many elements."""
    e = Emitter()
    count = stores[0].value.numel
    with e.block() as frame:
        e.declare("i")
        for store in stores:
            e.line(stored(store, store.value.load(e, e.at_flat(store.value.shape, "i")), "i"))
    constants = Constants(name)
    block, items = constants.name("BLOCK", THREADS), constants.name("ITEMS", 1)
    loop = f"for (int i = blockIdx.x * {block} + threadIdx.x; i < {count}; i += gridDim.x * {block}) {{"
    body = [*e.frames[0].lines, loop, *(f"    {line}" for line in frame.lines), "}"]
    launch = f"std::min({blocks(count, f'({block} * {items})')}, {MOST_BLOCKS}), {block}"
    return function(name, e, stores, body, launch, {}, constants)


def scan(name: str, of: Scanned, store: Store) -> KernelText:
    """Running sums along a dimension: each thread has a stretch of the row, whose total the next ones add."""
    e = Emitter()
    shape, along = of.shape, of.along
    length = shape[along]
    outer = tuple(extent for index, extent in enumerate(shape) if index != along)
    rows = math.prod(outer)
    kind, threads = ("block", THREADS) if length >= 2 * THREADS else ("thread", 64)
    constants = Constants(name)
    team = Team(kind, threads, rows, length, constants.name("BLOCK", threads))
    e.declare("row", 0)
    dtype, ctype, kind = of.dtype, computed(of.dtype), of.kind
    start = start_of(kind, dtype)
    with e.block() as frame:
        e.declare("j")
        dims = list(e.dims(e.at_flat(outer, "row" if rows > 1 else "0")))
        dims.insert(along, "j")
        place = e.at(shape, dims)
        element = cast(of.source.load(e, place), of.source.dtype, dtype)
        add = f"s = {combine(kind, ctype, 's', element)};"
        flat = e.flat(place)
    body = [f"    {line}" for line in frame.lines]
    stored_line = "    " + stored(store, "s", flat)
    if team.kind == "thread":
        loop = f"for (int j = 0; j < {length}; j++) {{"
        lines = [f"{ctype} s = {start};", loop, *body, f"    {add}", stored_line, "}"]
    else:
        stretch = f"({blocks(length, team.block)})"
        loop = "for (int j = first; j < last; j++) {"
        lines = [
            f"__shared__ {ctype} totals[{team.block}];",
            f"int first = threadIdx.x * {stretch}, last = min(first + {stretch}, {length});",
            f"{ctype} s = {start};",
            *(loop, *body, f"    {add}", "}"),
            "totals[threadIdx.x] = s;",
            "__syncthreads();",
            f"s = {start};",
            f"for (int k = 0; k < threadIdx.x; k++) s = {combine(kind, ctype, 's', 'totals[k]')};",
            *(loop, *body, f"    {add}", stored_line, "}"),
        ]
    return function(name, e, [store], [*team.head, *e.frames[0].lines, *lines], team.launch, {}, constants)


def leaves(value: Value, kind: type, seen: set[int] | None = None) -> list[Value]:
    """The values of a kind that this one is computed of, without a tensor between; those nearest to it first."""
    if seen is None and isinstance(value, Reduced | Product | Scanned) and not value.memory:
        return [value] if isinstance(value, kind) else []
    seen = set() if seen is None else seen
    found: list[Value] = []
    for source in value.sources:
        if source.memory or id(source) in seen:
            continue
        seen.add(id(source))
        if isinstance(source, kind):
            found.append(source)
        elif not isinstance(source, Reduced | Product | Scanned):
            found += leaves(source, kind, seen)
    return found
