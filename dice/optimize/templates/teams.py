"""Teams of threads that share a row, and how they combine what each of them has."""

from __future__ import annotations

import math
from dataclasses import dataclass
from textwrap import indent

from dice.optimize.templates.emitter import block_index, computed, index_type, is_float
from dice.optimize.templates.text import NAN_KEEPING, THREADS, blocks
from dice.optimize.templates.values import literal

MANY_COLUMNS = 1 << 17  # columns that keep a large GPU busy with a thread each
MOST_APART, FEW_ROWS = 128, 1024  # elements of a row, such as a window, that a thread reads, unless there are few rows
FEW_THREADS = 1 << 15  # that do not: rows are shared by more of them

_COMBINE = {"sum": "{a} + {b}", "prod": "{a} * {b}", "any": "{a} | {b}", "all": "{a} & {b}"}


def combine(kind: str, ctype: str, a: str, b: str) -> str:
    if kind in ("max", "min"):
        sign = ">" if kind == "max" else "<"
        is_float = ctype in ("float", "double")
        return f"{NAN_KEEPING[kind]}({a}, {b})" if is_float else f"({a} {sign} {b} ? {a} : {b})"
    if kind == "logsumexp":  # without a difference of equal ones, which may be infinite
        end = "f" if ctype == "float" else ""
        more = f"log1p{end}(exp{end}(-fabs{end}({a} - {b})))"
        return f"({a} == {b} ? {a} + 0.6931471805599453{end} : fmax{end}({a}, {b}) + {more})"
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
    return {
        "logsumexp": "-INFINITY",
        "sum": literal(0, dtype),
        "prod": literal(1, dtype),
        "any": "false",
        "all": "true",
    }[kind]


@dataclass(frozen=True, slots=True)
class Team:
    """The threads that work on one row. `block`: how the source calls the number of a block's threads; `lanes`: how
    many threads of a warp have a row."""

    kind: str  # "thread", "warp", "block", or "column": a row lies down a column, and a block has 32 side by side
    threads: int  # of a block
    rows: int
    length: int
    block: str = "BLOCK"
    lanes: int = 32

    @property
    def head(self) -> list[str]:
        ctype, last = index_type(self.rows), f"if (row >= {self.rows}) return;"
        first = block_index(self.rows)
        if self.kind == "block":
            return [f"{ctype} row = blockIdx.x;"]
        if self.kind == "column":
            lines = [f"{ctype} row = {first} * 32 + threadIdx.x % 32;"]
            return lines if self.rows % 32 == 0 else [*lines, last]
        if self.kind == "warp":
            own = f"{ctype} row = {first} * ({self.block} / {self.lanes}) + threadIdx.x / {self.lanes};"
            return [own, f"int lane = threadIdx.x % {self.lanes};", last]
        return [f"{ctype} row = {first} * {self.block} + threadIdx.x;", last]

    @property
    def start(self) -> str:
        """Where a thread begins in its row."""
        return {"thread": "0", "warp": "lane", "block": "threadIdx.x", "column": "threadIdx.x / 32"}[self.kind]

    @property
    def step(self) -> str:
        """How far it goes on."""
        steps = {"thread": "1", "warp": f"{self.lanes}", "block": self.block, "column": f"{self.block} / 32"}
        return steps[self.kind]

    @property
    def shared_by(self) -> int:
        """How many threads have a row."""
        return {"thread": 1, "warp": self.lanes, "block": self.threads, "column": self.threads // 32}[self.kind]

    def loop(self, name: str, count: int) -> str:
        advance = f"{name}++" if self.step == "1" else f"{name} += {self.step}"
        return f"for ({index_type(count)} {name} = {self.start}; {name} < {count}; {advance}) {{"

    @property
    def lead(self) -> str:
        is_first = {"warp": "lane == 0", "block": "threadIdx.x == 0", "column": "threadIdx.x < 32"}
        return is_first.get(self.kind, "")

    @property
    def launch(self) -> str:
        per_block = {"thread": self.block, "warp": f"({self.block} / {self.lanes})", "column": "32"}.get(self.kind)
        return f"{blocks(self.rows, per_block) if per_block else self.rows}, {self.block}"

    def shared(self, kind: str, ctype: str) -> tuple[str, str]:
        """The device function that combines one value of each thread: its name and text; "" for one thread. That of a
        block is a template over its threads, for kernels of one region may have blocks of different sizes."""
        if self.kind == "thread":
            return "", ""
        name = f"{self.kind}_{kind}" + ("" if ctype == "float" else f"_{ctype.removesuffix('_t')}")
        own, row = "threadIdx.x % 32", "threadIdx.x / 32"
        shuffled = "__shfl_xor_sync(0xffffffff, v, k)"
        if ctype == "bool":
            shuffled = "(bool)__shfl_xor_sync(0xffffffff, (int)v, k)"
        loop = f"for (int k = {'LANES / 2' if self.kind == 'warp' else '16'}; k > 0; k /= 2)"
        lines = [f"{loop} v = {combine(kind, ctype, 'v', shuffled)};"]
        if lines[0].count("__shfl") > 1:  # all threads of a warp have to be there each time
            lines = [f"{loop} {{", f"    {ctype} o = {shuffled};", f"    v = {combine(kind, ctype, 'v', 'o')};", "}"]
        if self.kind == "block":
            lines += [
                f"__shared__ {ctype} s[BLOCK / 32];",
                f"if ({own} == 0) s[{row}] = v;",
                "__syncthreads();",
                "v = s[0];",
                f"for (int k = 1; k < BLOCK / 32; k++) v = {combine(kind, ctype, 'v', 's[k]')};",
                "__syncthreads();",
            ]
        if self.kind == "column":
            lines = [
                f"__shared__ {ctype} s[BLOCK / 32][32];",
                f"s[{row}][{own}] = v;",
                "__syncthreads();",
                f"v = s[0][{own}];",
                f"for (int k = 1; k < BLOCK / 32; k++) v = {combine(kind, ctype, 'v', f's[k][{own}]')};",
                "__syncthreads();",
            ]
        body = indent("\n".join((*lines, "return v;")), "    ")
        return name, f"{self.template}__device__ {ctype} {name}({ctype} v) {{\n{body}\n}}"

    @property
    def template(self) -> str:
        """What stands before a device function of the team's."""
        return f"template <int {'LANES' if self.kind == 'warp' else 'BLOCK'}> "

    def call(self, helper: str) -> str:
        return f"{helper}<{self.lanes if self.kind == 'warp' else self.block}>"


def team_for(rows: int, length: int, width: int, lie: str) -> Team:
    """`width`: how many elements are read at once. `lie`: how rows lie in memory, see `Layout.lie`."""
    if lie == "apart" and length <= MOST_APART and rows >= FEW_ROWS:
        return Team("thread", THREADS if rows >= THREADS * 64 else 64, rows, length)
    if lie == "down":
        if rows >= MANY_COLUMNS or length < 32:
            return Team("thread", THREADS if rows >= THREADS * 64 else 64, rows, length)
        return Team("column", THREADS if length < 512 else 1024, rows, length)
    units = length // width
    if length > 1024 or (rows < 64 and length >= 256):
        return Team("block", min(max(_power(length / 16), 128), 1024), rows, length)
    lanes = min(_power(units / 4), 32)
    if rows * lanes < FEW_THREADS:
        lanes = min(_power(units), 32)
    if lanes == 1:
        return Team("thread", THREADS if rows >= THREADS * 64 else 64, rows, length)
    return Team("warp", THREADS, rows, length, lanes=lanes)


def _power(number: float) -> int:
    """The least power of two that is not below the number."""
    return 1 << max(0, math.ceil(number) - 1).bit_length()


def beats(one: str, other: str, sign: str, ctype: str) -> str:
    """Whether a value comes before another one: NaN before all numbers, as in PyTorch's argmax and argmin."""
    plain = f"{one} {sign} {other}"
    return f"{plain} || ({one} != {one} && {other} == {other})" if ctype in ("float", "double") else plain


def best_helper(team: Team, kind: str, ctype: str) -> tuple[str, str]:
    """The same for a largest or smallest value and where it was first: changes both."""
    if team.kind == "thread":
        return "", ""
    name = f"{team.kind}_{kind}" + ("" if ctype == "float" else f"_{ctype.removesuffix('_t')}")
    sign = ">" if kind == "argmax" else "<"
    same = "(o == v || (o != o && v != v))" if ctype in ("float", "double") else "o == v"
    better = f"if ({beats('o', 'v', sign, ctype)} || ({same} && p < at)) {{ v = o; at = p; }}"
    own, row = "threadIdx.x % 32", "threadIdx.x / 32"
    lines = [
        f"for (int k = {'LANES / 2' if team.kind == 'warp' else '16'}; k > 0; k /= 2) {{",
        f"    {ctype} o = __shfl_xor_sync(0xffffffff, v, k);",
        "    int p = __shfl_xor_sync(0xffffffff, at, k);",
        f"    {better}",
        "}",
    ]
    if team.kind != "warp":
        column, extent = (f"[{own}]", "[32]") if team.kind == "column" else ("", "")
        keep = f"values[{row}]{column} = v; places[{row}]{column} = at;"
        lines = [
            *(lines if team.kind == "block" else ()),
            f"__shared__ {ctype} values[BLOCK / 32]{extent};",
            f"__shared__ int places[BLOCK / 32]{extent};",
            keep if team.kind == "column" else f"if ({own} == 0) {{ {keep} }}",
            "__syncthreads();",
            "for (int k = 0; k < BLOCK / 32; k++) {",
            f"    {ctype} o = values[k]{column};",
            f"    int p = places[k]{column};",
            f"    {better}",
            "}",
            "__syncthreads();",
        ]
    body = indent("\n".join(lines), "    ")
    return name, f"{team.template}__device__ void {name}({ctype}& v, int& at) {{\n{body}\n}}"
