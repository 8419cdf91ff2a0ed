"""Kernels whose threads share rows: reductions, and what is made of them within the same rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from textwrap import indent

from dice.optimize.templates.emitter import CannotWrite, Emitter, Place, computed, index_type, is_float
from dice.optimize.templates.text import (
    NAN_KEEPING,
    THREADS,
    Constants,
    KernelText,
    Store,
    blocks,
    function,
    stored,
)
from dice.optimize.templates.values import Reduced, Value, cast, literal

WARP_ROW, BLOCK_ROW = 32, 2048  # elements from which a warp, and a block, works on a row

_COMBINE = {"sum": "{a} + {b}", "prod": "{a} * {b}", "any": "{a} | {b}", "all": "{a} & {b}"}


def combine(kind: str, ctype: str, a: str, b: str) -> str:
    if kind in ("max", "min"):
        sign = ">" if kind == "max" else "<"
        is_float = ctype in ("float", "double")
        return f"{NAN_KEEPING[kind]}({a}, {b})" if is_float else f"({a} {sign} {b} ? {a} : {b})"
    return _COMBINE[kind].format(a=a, b=b)


def start_of(kind: str, dtype: str) -> str:
    if kind in ("max", "argmax", "min", "argmin"):
        is_max = kind.endswith("max")
        if is_float(dtype):
            return "-INFINITY" if is_max else "INFINITY"
        if computed(dtype) == "bool":
            return "false" if is_max else "true"
        limits = {
            "int64_t": ("(-9223372036854775807LL - 1)", "9223372036854775807LL"),
            "int": ("(-2147483647 - 1)", "2147483647"),
        }
        return limits[computed(dtype)][0 if is_max else 1]
    return {"sum": literal(0, dtype), "prod": literal(1, dtype), "any": "false", "all": "true"}[kind]


@dataclass(frozen=True, slots=True)
class Team:
    """The threads that work on one row. `block`: how the source calls the number of a block's threads."""

    kind: str  # "thread", "warp" or "block"
    threads: int  # of a block
    rows: int
    length: int
    block: str = "BLOCK"

    @property
    def head(self) -> list[str]:
        ctype = index_type(self.rows)
        first = "blockIdx.x" if ctype == "int" else "int64_t(blockIdx.x)"
        if self.kind == "block":
            return [f"{ctype} row = blockIdx.x;"]
        if self.kind == "warp":
            first = f"{ctype} row = {first} * ({self.block} / 32) + threadIdx.x / 32;"
            lines = [first, "int lane = threadIdx.x % 32;"]
        else:
            lines = [f"{ctype} row = {first} * {self.block} + threadIdx.x;"]
        return [*lines, f"if (row >= {self.rows}) return;"]

    @property
    def loop(self) -> str:
        start, step = {"thread": ("0", "1"), "warp": ("lane", "32"), "block": ("threadIdx.x", self.block)}[self.kind]
        advance = "j++" if step == "1" else f"j += {step}"
        return f"for ({index_type(self.length)} j = {start}; j < {self.length}; {advance}) {{"

    @property
    def lead(self) -> str:
        return {"thread": "", "warp": "lane == 0", "block": "threadIdx.x == 0"}[self.kind]

    @property
    def launch(self) -> str:
        per_block = {"thread": self.block, "warp": f"({self.block} / 32)"}.get(self.kind)
        return f"{blocks(self.rows, per_block) if per_block else self.rows}, {self.block}"

    def shared(self, kind: str, ctype: str) -> tuple[str, str]:
        """The device function that combines one value of each thread: its name and text; "" for one thread. That of a
        block is a template over its threads, for kernels of one region may have blocks of different sizes."""
        if self.kind == "thread":
            return "", ""
        name = f"{self.kind}_{kind}" + ("" if ctype == "float" else f"_{ctype.removesuffix('_t')}")
        shuffled = combine(kind, ctype, "v", "__shfl_xor_sync(0xffffffff, v, k)")
        if ctype == "bool":
            shuffled = combine(kind, ctype, "v", "(bool)__shfl_xor_sync(0xffffffff, (int)v, k)")
        lines = [f"for (int k = 16; k > 0; k /= 2) v = {shuffled};"]
        if self.kind == "block":
            lines += [
                f"__shared__ {ctype} s[BLOCK / 32];",
                "if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = v;",
                "__syncthreads();",
                "v = s[0];",
                f"for (int k = 1; k < BLOCK / 32; k++) v = {combine(kind, ctype, 'v', 's[k]')};",
                "__syncthreads();",
            ]
        body = indent("\n".join((*lines, "return v;")), "    ")
        return name, f"{self.template}__device__ {ctype} {name}({ctype} v) {{\n{body}\n}}"

    @property
    def template(self) -> str:
        """What stands before a device function of the team's."""
        return "template <int BLOCK> " if self.kind == "block" else ""

    def call(self, helper: str) -> str:
        return f"{helper}<{self.block}>" if self.kind == "block" else helper


def _beats(one: str, other: str, sign: str, ctype: str) -> str:
    """Whether a value comes before another one: NaN before all numbers, as in PyTorch's argmax and argmin."""
    plain = f"{one} {sign} {other}"
    return f"{plain} || ({one} != {one} && {other} == {other})" if ctype in ("float", "double") else plain


def _best_helper(team: Team, kind: str, ctype: str) -> tuple[str, str]:
    """The same for a largest or smallest value and where it was first: changes both."""
    if team.kind == "thread":
        return "", ""
    name = f"{team.kind}_{kind}" + ("" if ctype == "float" else f"_{ctype.removesuffix('_t')}")
    sign = ">" if kind == "argmax" else "<"
    same = "(o == v || (o != o && v != v))" if ctype in ("float", "double") else "o == v"
    better = f"if ({_beats('o', 'v', sign, ctype)} || ({same} && p < at)) {{ v = o; at = p; }}"
    lines = [
        "for (int k = 16; k > 0; k /= 2) {",
        f"    {ctype} o = __shfl_xor_sync(0xffffffff, v, k);",
        "    int p = __shfl_xor_sync(0xffffffff, at, k);",
        f"    {better}",
        "}",
    ]
    if team.kind == "block":
        lines += [
            f"__shared__ {ctype} values[BLOCK / 32];",
            "__shared__ int places[BLOCK / 32];",
            "if (threadIdx.x % 32 == 0) { values[threadIdx.x / 32] = v; places[threadIdx.x / 32] = at; }",
            "__syncthreads();",
            "for (int k = 0; k < BLOCK / 32; k++) {",
            f"    {ctype} o = values[k];",
            "    int p = places[k];",
            f"    {better}",
            "}",
            "__syncthreads();",
        ]
    body = indent("\n".join(lines), "    ")
    return name, f"{team.template}__device__ void {name}({ctype}& v, int& at) {{\n{body}\n}}"


class Rows:
    """A kernel whose threads share rows: the elements that one result of a reduction comes of.

    What is reduced over the same rows is had in the same kernel, in passes over the row.
    """

    def __init__(self, of: Reduced):
        self.shape = of.source.shape
        self.over, self.kept = of.over, of.kept
        self.length = of.length
        self.outer = tuple(self.shape[index] for index in self.kept)
        rows = math.prod(self.outer)
        self.team = _team(rows, self.length, is_inner=bool(self.over) and self.over[-1] == len(self.shape) - 1)
        self.helpers: dict[str, str] = {}
        self._sums: dict[int, str] = {}

    def fits(self, value: Value) -> bool:
        return value.numel in (math.prod(self.outer), math.prod(self.shape))

    def write(self, name: str, stores: Sequence[Store]) -> KernelText:
        e, constants = Emitter(), Constants(name)
        self.team = replace(self.team, block=constants.name("BLOCK", self.team.threads))
        e.on_source = lambda value, place: self._reduced(e, value, place)
        rows = math.prod(self.outer)
        e.declare("row", 0, rows)
        singles = [store for store in stores if store.value.numel == rows]
        single_lines = []
        for store in singles:
            text = store.value.load(e, e.at_flat(store.value.shape, "row" if rows > 1 else "0"))
            single_lines.append(stored(store, text, "row"))
        wide = [store for store in stores if store not in singles]
        if wide:
            with e.block() as frame:
                place = self._element(e)
                for store in wide:
                    value = store.value
                    where = place if value.shape == self.shape else e.at_flat(value.shape, e.flat(place))
                    e.line(stored(store, value.load(e, where), e.flat(place)))
            e.frames[0].lines += [self.team.loop, *(f"    {line}" for line in frame.lines), "}"]
        body = [*self.team.head, *e.frames[0].lines]
        lead = self.team.lead
        body += (
            [f"if ({lead}) {{", *(f"    {line}" for line in single_lines), "}"] if lead and singles else single_lines
        )
        return function(name, e, stores, body, self.team.launch, self.helpers, constants)

    def _element(self, e: Emitter) -> Place:
        """Element `j` of the row."""
        e.declare("j", count=self.length)
        outer = e.dims(e.at_flat(self.outer, "row"))
        inner_shape = tuple(self.shape[index] for index in self.over)
        is_trailing = self.over == tuple(range(len(self.shape) - len(self.over), len(self.shape)))
        if is_trailing and math.prod(self.outer) > 1:
            flat = e.joined("row", self.length, "j", math.prod(self.outer))
            return e.at_flat(self.shape, flat)
        inner = e.dims(e.at_flat(inner_shape, "j"))
        dims = [""] * len(self.shape)
        for index, text in zip(self.kept, outer, strict=True):
            dims[index] = text
        for index, text in zip(self.over, inner, strict=True):
            dims[index] = text
        return e.at(self.shape, dims)

    def _reduced(self, e: Emitter, value: object, place: Place) -> str | None:
        """The name that holds a reduction over this row, which is written where it was not yet."""
        if not isinstance(value, Reduced) or (value.source.shape, value.over) != (self.shape, self.over):
            return None
        where = e.flat(place)
        if where != "row" and not (where == "0" and math.prod(self.outer) == 1):
            return None
        if id(value) in self._sums:
            return self._sums[id(value)]
        with e.before():
            name = self._best(e, value) if value.kind.startswith("arg") else self._sum(e, value)
        self._sums[id(value)] = name
        return name

    def _sum(self, e: Emitter, value: Reduced) -> str:
        kind, dtype = value.kind, value.dtype
        ctype = computed(dtype)
        name = e.declare(e.fresh({"sum": "sum", "max": "top", "min": "low", "prod": "product"}.get(kind, kind)), 0)
        with e.block() as frame:
            element = value.source.load(e, self._element(e))
            e.line(f"{name} = {combine(kind, ctype, name, cast(element, value.source.dtype, dtype))};")
        e.frames[0].lines += [
            f"{ctype} {name} = {start_of(kind, dtype)};",
            self.team.loop,
            *(f"    {line}" for line in frame.lines),
            "}",
        ]
        helper, text = self.team.shared(kind, ctype)
        if helper:
            self.helpers[helper] = text
            e.frames[0].lines.append(f"{name} = {self.team.call(helper)}({name});")
        return name

    def _best(self, e: Emitter, value: Reduced) -> str:
        """Where the largest or smallest element of the row is."""
        if index_type(self.length) != "int":
            raise CannotWrite("the place of the largest of more than 2^31 elements has no rule")
        dtype = value.source.dtype
        ctype = computed(dtype)
        best, at = e.declare(e.fresh("best"), 0), e.declare(e.fresh("at"), 0)
        sign = ">" if value.kind == "argmax" else "<"
        with e.block() as frame:
            element = value.source.load(e, self._element(e))
            is_better = f"{_beats(element, best, sign, ctype)} || {at} == {self.length}"
            e.line(f"if ({is_better}) {{ {best} = {element}; {at} = j; }}")
        e.frames[0].lines += [
            f"{ctype} {best} = {start_of(value.kind, dtype)};",
            f"int {at} = {self.length};",
            self.team.loop,
            *(f"    {line}" for line in frame.lines),
            "}",
        ]
        helper, text = _best_helper(self.team, value.kind, ctype)
        if helper:
            self.helpers[helper] = text
            e.frames[0].lines.append(f"{self.team.call(helper)}({best}, {at});")
        return at


def _team(rows: int, length: int, is_inner: bool) -> Team:
    if length <= WARP_ROW or (not is_inner and rows >= 1024 and length <= 4096) or (length <= 128 and rows >= 1 << 16):
        return Team("thread", THREADS if rows >= THREADS * 64 else 64, rows, length)
    if length < BLOCK_ROW and rows >= 64:
        return Team("warp", THREADS, rows, length)
    return Team("block", 1024 if length >= 1 << 14 else THREADS, rows, length)
