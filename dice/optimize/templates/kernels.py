"""Kernels for running sums, and what a kernel is computed of; those of elements, rows and products have files of their
own.

What writes a kernel writes one `__global__` function that stores some values, or raises `NeedsMemory` for what has to
be computed before it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from dice.optimize.templates.emitter import CannotWrite, Emitter, Place, computed, index_type
from dice.optimize.templates.teams import Team, combine, start_of
from dice.optimize.templates.text import (
    THREADS,
    Constants,
    KernelText,
    Store,
    function,
    indented,
    stored,
)
from dice.optimize.templates.values import Product, Reduced, Scanned, Value, cast

MANY_ROWS = 2048  # rows of running sums that keep a large GPU busy with a thread each


def scan(name: str, of: Scanned, store: Store) -> KernelText:
    """Running sums along a dimension: by a thread, or by a block that goes over the row in tiles, whose threads have
    neighbouring elements and add what those before them came to."""
    e = Emitter()
    shape, along = of.shape, of.along
    length = shape[along]
    outer = tuple(extent for index, extent in enumerate(shape) if index != along)
    rows = math.prod(outer)
    # Along another dimension than the last, neighbouring threads read neighbouring elements if each has a row.
    is_apart = along < len(shape) - 1 and rows >= MANY_ROWS
    kind, threads = ("block", THREADS) if length >= 2 * THREADS and not is_apart else ("thread", 64)
    constants = Constants(name)
    team = Team(kind, threads, rows, length, constants.name("BLOCK", threads))
    if index_type(length) != "int":
        raise CannotWrite("a running sum of more than 2^31 elements has no rule")
    e.declare("row", 0, rows)
    dtype, ctype, kind = of.dtype, computed(of.dtype), of.kind
    start = start_of(kind, dtype)

    def at_j() -> Place:
        e.declare("j")
        dims = list(e.dims(e.at_flat(outer, "row" if rows > 1 else "0")))
        dims.insert(along, "j")
        return e.at(shape, dims)

    with e.block() as load:
        place = at_j()
        element = cast(of.source.load(e, place), of.source.dtype, dtype)
        index = e.flat(place)
    lines = [f"{ctype} s = {start};"]
    if team.kind == "thread":
        add = f"s = {combine(kind, ctype, 's', element)};"
        keep = stored(store, "s", index)
        lines += [f"for (int j = 0; j < {length}; j++) {{", *indented([*load.lines, add, keep]), "}"]
    else:
        items = constants.name("ITEMS", 4)
        with e.block() as keeps:
            e.line(stored(store, "own[i]", e.flat(at_j())))
        lines += [
            f"__shared__ {ctype} totals[{team.block} / 32];",
            "int lane = threadIdx.x % 32, warp = threadIdx.x / 32;",
            f"for (int tile = 0; tile < {length}; tile += {team.block} * {items}) {{",
            *indented(_tile(of, team, items, [*load.lines, f"own[i] = {element};"], keeps.lines)),
            "}",
        ]
    return function(name, e, [store], [*team.head, *e.frames[0].lines, *lines], team.launch, {}, constants)


def _tile(of: Scanned, team: Team, items: str, load: Sequence[str], keep: Sequence[str]) -> list[str]:
    """The running sums of a block's tile. `s` is what came before it, and then what came until its end."""
    ctype, start = computed(of.dtype), start_of(of.kind, of.dtype)
    added = partial(combine, of.kind, ctype)
    place = f"int j = tile + threadIdx.x * {items} + i;"
    each = f"for (int i = 0; i < {items}; i++) {{"
    return [
        f"{ctype} own[{items}];",
        "#pragma unroll",
        each,
        f"    {place}",
        f"    own[i] = {start};",
        f"    if (j < {team.length}) {{",
        *indented(load, 2),
        "    }",
        f"    if (i > 0) own[i] = {added('own[i - 1]', 'own[i]')};",
        "}",
        f"{ctype} v = own[{items} - 1];",
        "for (int k = 1; k < 32; k *= 2) {",
        f"    {ctype} before = __shfl_up_sync(0xffffffff, v, k);",
        f"    if (lane >= k) v = {added('before', 'v')};",
        "}",
        "if (lane == 31) totals[warp] = v;",
        "__syncthreads();",
        f"{ctype} first = s;",
        f"for (int k = 0; k < {team.block} / 32; k++) {{",
        f"    if (k < warp) first = {added('first', 'totals[k]')};",
        f"    s = {added('s', 'totals[k]')};",
        "}",
        "v = __shfl_up_sync(0xffffffff, v, 1);",
        f"if (lane > 0) first = {added('first', 'v')};",
        "#pragma unroll",
        each,
        f"    {place}",
        f"    own[i] = {added('first', 'own[i]')};",
        f"    if (j < {team.length}) {{",
        *indented(keep, 2),
        "    }",
        "}",
        "__syncthreads();",
    ]


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
