"""Kernels whose threads share rows: reductions, and what is made of them within the same rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from dice.optimize.templates.emitter import CannotWrite, Emitter, Place, computed, index_type
from dice.optimize.templates.layout import Layout
from dice.optimize.templates.passes import Passes
from dice.optimize.templates.pointwise import written
from dice.optimize.templates.teams import beats, best_helper, combine, start_of
from dice.optimize.templates.text import Constants, KernelText, Store, as_stored, function, indented, stored
from dice.optimize.templates.values import (
    Moments,
    Moved,
    Pointwise,
    Reduced,
    Softmax,
    Value,
    cast,
    literal,
)
from dice.optimize.templates.vectors import width_for

MOST_TAPS = 16  # elements of a window


class Rows(Layout):
    """What is reduced over the same rows is had in the same kernel: in passes over the row, or of the row's elements
    where its threads have room to keep them."""

    def write(self, name: str, stores: Sequence[Store]) -> KernelText:
        """In vectors where that pays, and with rows kept where they are read more than once."""
        passes, own = self._passes(stores)
        wide = [store.value for store in stores if store.value.numel != self.number]
        width = width_for(wide, passes, math.prod(self.shape))
        keep = self._common(passes)
        given = [value for value in keep if value.memory]  # where there is no room for what is made of those, too
        for vectors in (width, 1) if width > 1 and self.length % width == 0 else (1,):
            for kept in (keep, given, []) if keep else ([],):
                kernel = RowKernel(self, Constants(name), vectors, kept, own, len(passes) == 1 or bool(kept))
                if kernel.has_room:
                    text = kernel.write(name, stores)
                    if kernel.pays:
                        return text
        raise AssertionError("a kernel without vectors, which keeps nothing, is always written")

    # ---- what several passes read ----------------------------------------------------------------------------------

    def _passes(self, stores: Sequence[Store]) -> tuple[list[Value], set[int]]:
        """What each pass over the rows computes: a reduction's elements, or a result's. And which reductions there are,
        by identity."""
        passes = [store.value for store in stores if store.value.numel != self.number]
        seen, own = set[int](), set[int]()
        waiting = [store.value for store in stores]
        while waiting:
            value = waiting.pop()
            if id(value) in seen or value.memory:
                continue
            seen.add(id(value))
            if self.is_own(value):
                passes += value.sources
                own.add(id(value))
            waiting += value.sources
        return passes, own

    def _common(self, passes: Sequence[Value]) -> list[Value]:
        """The values that at least two passes compute of the row's elements, without what is reduced over it."""
        found = [self._plain(one) for one in passes]
        while True:
            counts = Counter(key for one in found for key in one)
            splits = {key: self._sources(value) for one in found for key, value in one.items()}
            # What is made of the one value that another pass computes is left to that, which then both have in common.
            by_another = {
                key for key, of in splits.items() if len(of) == 1 and not of.keys().isdisjoint(counts.keys() - {key})
            }
            shared = {own for key in by_another for own in splits[key]}
            alone = {key for key, count in counts.items() if count == 1} - shared
            taken_apart = [
                {
                    key: value
                    for own in one
                    for key, value in (splits[own] if own in by_another | alone else {own: one[own]}).items()
                }
                for one in found
            ]
            if [set(one) for one in taken_apart] == [set(one) for one in found]:
                break
            found = taken_apart
        every = {key: value for one in found for key, value in one.items()}
        return [value for key, value in every.items() if counts[key] > 1]

    def _plain(self, value: Value) -> dict[int, Value]:
        """The largest parts of it that are of the rows' size and need nothing that is reduced over them."""
        if value.numel == math.prod(self.shape) and not self._needs_sums(value, set()):
            return {id(value): value}
        if value.memory or isinstance(value, Reduced):
            return {}
        return {key: part for source in value.sources for key, part in self._plain(source).items()}

    def _needs_sums(self, value: Value, seen: set[int]) -> bool:
        if value.memory or id(value) in seen:
            return False
        seen.add(id(value))
        return self.is_own(value) or any(self._needs_sums(source, seen) for source in value.sources)

    def _sources(self, value: Value) -> dict[int, Value]:
        """What it is made of, of the same size; itself where that is not known or nothing."""
        if value.memory or not isinstance(value, Pointwise | Moved):
            return {id(value): value}
        sizes = {id(one): one for one in value.sources if one.numel == value.numel}
        return sizes or {id(value): value}


class RowKernel(Passes):
    """One kernel under way. `written`: the reductions that are its own; `reads_once`: whether it reads each element
    once, so that windows may be computed where they are read."""

    def __init__(
        self, rows: Layout, constants: Constants, width: int, kept: Sequence[Value], written: set[int], reads_once: bool
    ):
        super().__init__(rows, constants, width, kept)
        self._written, self._reads_once = written, reads_once
        self.e.on_source = self._reduced
        self._sums: dict[int, str] = {}

    def write(self, name: str, stores: Sequence[Store]) -> KernelText:
        e, rows = self.e, self.rows
        self.keep()
        singles = [store for store in stores if store.value.numel == rows.number]
        single_lines = []
        for store in singles:
            text = store.value.load(e, e.at_flat(store.value.shape, "row" if rows.number > 1 else "0"))
            single_lines.append(stored(store, text, "row"))
        self._write_wide([store for store in stores if store not in singles])
        body = [*self.team.head, *e.frames[0].lines]
        lead = self.team.lead
        body += [f"if ({lead}) {{", *indented(single_lines), "}"] if lead and singles else single_lines
        bounds = self.team.block if self.team.threads > 256 else ""
        return function(name, e, stores, body, self.team.launch, self.helpers, self.constants, bounds)

    def _write_wide(self, stores: Sequence[Store]) -> None:
        """The pass that stores what has as many elements as the rows."""
        if not stores:
            return
        e, before, after = self.e, list[str](), list[str]()
        with self.walk(before, after) as place:
            for store in stores:
                value = store.value
                flat = e.flat(place)
                text = value.load(e, place if value.shape == self.rows.shape else e.at_flat(value.shape, flat))
                high = e.vector_of(flat)
                if self.width == 1 or high is None:
                    e.line(stored(store, text, flat))
                    continue
                vector = e.vector(value.dtype)
                before.append(f"{vector} own_{store.name};")
                e.line(f"own_{store.name}.val[k] = {as_stored(store, text)};")
                after.append(f"reinterpret_cast<{vector}*>({store.name})[{high}] = own_{store.name};")

    # ---- what is reduced -------------------------------------------------------------------------------------------

    def _reduced(self, value: object, place: Place) -> str | None:
        """The name that holds a reduction over this row, which is written where it was not yet."""
        if not isinstance(value, Reduced):
            return None
        if not self.rows.is_own(value):
            return written_here(self.e, value, place) if self._reads_once and is_window(value) else None
        where = self.e.flat(place)
        if where != "row" and not (where == "0" and self.rows.number == 1):
            return None
        if id(value) not in self._sums:
            together = value.together
            in_one_pass = together is not None and not self.kept and self._has(*together.members[:2])
            with self.e.before():
                if in_one_pass and isinstance(together, Softmax):
                    self._softmax(together)
                elif in_one_pass and isinstance(together, Moments):
                    self._moments(together)
                else:
                    name = self._best(value) if value.kind.startswith("arg") else self._sum(value)
                    self._sums[id(value)] = name
        return self._sums[id(value)]

    def _has(self, *values: Reduced) -> bool:
        """Whether all of them are reduced here."""
        return {id(one) for one in values} <= self._written

    def _name(self, value: Reduced) -> str:
        stem = {"sum": "sum", "max": "top", "min": "low", "prod": "product"}.get(value.kind, value.kind)
        return self.e.declare(self.e.fresh(stem), 0)

    def _sum(self, value: Reduced) -> str:
        e, kind, dtype = self.e, value.kind, value.dtype
        ctype = computed(dtype)
        name = self._name(value)
        e.frames[0].lines.append(f"{ctype} {name} = {start_of(kind, dtype)};")
        with self.walk() as place:
            element = value.source.load(e, place)
            e.line(f"{name} = {combine(kind, ctype, name, cast(element, value.source.dtype, dtype))};")
        self._share(kind, ctype, name)
        return name

    def _share(self, kind: str, ctype: str, name: str) -> None:
        """Combine what the team's threads have."""
        helper, text = self.team.shared(kind, ctype)
        if helper:
            self.helpers[helper] = text
            self.e.frames[0].lines.append(f"{name} = {self.team.call(helper)}({name});")

    def _best(self, value: Reduced) -> str:
        """Where the largest or smallest element of the row is."""
        if index_type(self.rows.length) != "int":
            raise CannotWrite("the place of the largest of more than 2^31 elements has no rule")
        e, dtype = self.e, value.source.dtype
        ctype = computed(dtype)
        best, at = e.declare(e.fresh("best"), 0), e.declare(e.fresh("at"), 0)
        sign = ">" if value.kind == "argmax" else "<"
        e.frames[0].lines += [f"{ctype} {best} = {start_of(value.kind, dtype)};", f"int {at} = {self.rows.length};"]
        with self.walk() as place:
            element = value.source.load(e, place)
            is_better = f"{beats(element, best, sign, ctype)} || {at} == {self.rows.length}"
            j = e.joined("c", self.width, "k", self.rows.length // self.width) if self.width > 1 else "j"
            e.line(f"if ({is_better}) {{ {best} = {element}; {at} = {j}; }}")
        helper, text = best_helper(self.team, value.kind, ctype)
        if helper:
            self.helpers[helper] = text
            e.frames[0].lines.append(f"{self.team.call(helper)}({best}, {at});")
        return at

    def _softmax(self, of: Softmax) -> None:
        """The maximum and the sum of exponents in one pass: the sum so far is scaled where there is a new maximum."""
        highest, summed = of.members
        e, dtype = self.e, summed.dtype
        ctype, vector = computed(dtype), self.width > 1
        top, total = self._name(highest), self._name(summed)
        own = "own[k]" if vector else "own"
        e.frames[0].lines.append(f"{ctype} {top} = -INFINITY, {total} = {start_of('sum', dtype)};")
        scale = written("x == y ? 1 : exp(x - y)", dtype, x=top, y="higher")
        add = (
            f"{total} += {own} == -INFINITY ? {start_of('sum', dtype)} : {written('exp(x - y)', dtype, x=own, y=top)};"
        )
        each = ["#pragma unroll", f"for (int k = 0; k < {self.width}; k++) {add}"] if vector else [add]
        before = [f"{ctype} own{f'[{self.width}]' if vector else ''}, higher = {top};"]
        with self.walk(before, [f"{total} *= {scale};", f"{top} = higher;", *each]) as place:
            text = of.source.load(e, place)
            e.line(f"{own} = {cast(text, of.source.dtype, dtype)};")
            e.line(f"higher = {combine('max', ctype, 'higher', own)};")
        lines = e.frames[0].lines
        if self.team.kind != "thread":
            lines.append(f"{ctype} own_{top} = {top};")
            self._share("max", ctype, top)
            lines.append(f"{total} *= {written('x == y ? 1 : exp(x - y)', dtype, x=f'own_{top}', y=top)};")
            self._share("sum", ctype, total)
        self._sums |= {id(highest): top, id(summed): total}

    def _moments(self, of: Moments) -> None:
        """The sum of the elements and of their squared distances from the mean in one pass: each thread follows mean
        and squares of what it has seen (Welford), a vector at a time."""
        summed, squared, *more = of.members
        e, dtype, width = self.e, summed.dtype, self.width
        ctype, zero = computed(dtype), literal(0, dtype)
        total, squares = self._name(summed), self._name(squared)
        mean, seen = e.declare(e.fresh("mean"), 0), e.declare(e.fresh("seen"), 0)
        e.frames[0].lines.append(f"{ctype} {mean} = {zero}, {squares} = {zero}, {seen} = {zero};")
        also = [self._name(one) for one in more if self._has(one)]
        e.frames[0].lines += [f"{ctype} {name} = {zero};" for name in also]
        each = f"#pragma unroll\nfor (int k = 0; k < {width}; k++) "
        # A division that rounds has a branch, which the reads of later vectors would wait for.
        over = "__fdividef({}, {})" if ctype == "float" else "{} / ({})"
        if width > 1:
            before = [f"{ctype} own[{width}], near = {zero}, apart = {zero};"]
            after = [
                f"near /= {width};",
                f"{each}apart += (own[k] - near) * (own[k] - near);",
                f"{ctype} gap = near - {mean}, share = {over.format(width, f'{seen} + {width}')};",
                f"{mean} += gap * share;",
                f"{squares} += apart + gap * gap * {seen} * share;",
                f"{seen} += {width};",
            ]
        else:
            before = [f"{ctype} own;"]
            after = [
                f"{seen} += 1;",
                f"{ctype} gap = own - {mean};",
                f"{mean} += {over.format('gap', seen)};",
                f"{squares} += gap * (own - {mean});",
            ]
        with self.walk(before, [line for text in after for line in text.split("\n")]) as place:
            text = cast(of.source.load(e, place), of.source.dtype, dtype)
            e.line(f"own[k] = {text};" if width > 1 else f"own = {text};")
            if width > 1:
                e.line("near += own[k];")
            for name in also:
                e.line(f"{name} += {cast(of.plain.load(e, place), of.plain.dtype, dtype)};")
        e.frames[0].lines.append(f"{ctype} {total} = {seen} * {mean};")
        self._share("sum", ctype, total)
        e.frames[0].lines += [
            f"{mean} -= {total} / {literal(self.rows.length, dtype)};",
            f"{squares} += {seen} * {mean} * {mean};",
        ]
        for name in (squares, *also):
            self._share("sum", ctype, name)
        self._sums |= {id(one): name for one, name in zip(of.members, (total, squares, *also), strict=False)}


# ---- windows: rows that one thread reduces where they are read, instead of a tensor of them before ------------------


def is_window(value: Value) -> bool:
    return isinstance(value, Reduced) and value.length <= MOST_TAPS and not value.kind.startswith("arg")


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
