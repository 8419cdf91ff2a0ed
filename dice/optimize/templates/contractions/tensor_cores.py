"""Large products on tensor cores, to float32's precision.

Tensor cores take TF32, which keeps 10 of float32's 23 bits behind the point. A factor is split into high + low, each a
TF32, and a * b is a_low * b_high + a_high * b_low + a_high * b_high; what is left out is some 2^-22 of the product.
Three of those are still fewer cycles than one on the cores for float32 (an H100's sheet: 495 TFLOP/s in TF32, 67
without). Numbers of half precision are TF32 as they are, and take one.

Tensor cores cut their sums off where other cores round, so each tile's part of a sum begins at zero and is added in
float32. An infinite factor may give NaN where PyTorch gives infinity, since its low part is no number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dice.optimize.templates.contractions.division import DEPTH, Tile, division
from dice.optimize.templates.contractions.tiles import Share, launch, result, share
from dice.optimize.templates.emitter import Emitter
from dice.optimize.templates.text import THREADS, Constants, KernelText, Store, function, indented
from dice.optimize.templates.values import Memory, Moved, Product, Value, literal, located, strides

LEAST_WORK = 1 << 24  # multiply-adds of a product; a smaller one takes no longer than its launch
LEAST_EXTENT = 32  # of rows and of columns, or most of a tile is empty
PAD_DEPTH, PAD_WIDTH = 4, 8  # behind a row of a tile, so that the lanes of a warp read from different banks
SHARED = 48 * 1024  # bytes of a block's shared memory
WARPS = THREADS // 32
HALVES = ("float16", "bfloat16")

_HELPERS = {
    "split": """// x as high + low to 22 bits; tensor cores read TF32, and no more, of either.
__device__ __forceinline__ void split(float x, unsigned& high, unsigned& low) {
    high = __float_as_uint(x);
    low = __float_as_uint(x - __uint_as_float(high & 0xffffe000u));
}""",
    "multiply_add": """// sums += a * b for 16 rows, 8 columns and a depth of 8; each lane of a warp holds some of them.
__device__ __forceinline__ void multiply_add(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}""",
}


def suits(of: Product) -> bool:
    """Whether a product is large enough, and of a type whose sums are float32's."""
    z, m, n, k = of.extents
    return of.dtype == "float32" and min(m, n) >= LEAST_EXTENT and k >= 2 * DEPTH and z * m * n * k >= LEAST_WORK


@dataclass(frozen=True, slots=True)
class Factor:
    """One factor of a product. `name`: a or b, `index`: m or n, of which there are `extent`; a tile has `width` of
    them (a constant, at first `size`) and is `depth` deep. `is_deep`: memory is read along k. `copied`: how many
    elements at once go to shared memory as they lie in memory, without a register between; 0 where they are computed.
    """

    name: str
    index: str
    extent: int
    width: str
    size: int
    depth: str
    is_deep: bool
    copied: int

    @property
    def tile(self) -> str:
        """The shape of a tile in shared memory."""
        rows, row, pad = (self.width, self.depth, PAD_DEPTH) if self.is_deep else (self.depth, self.width, PAD_WIDTH)
        return f"[{rows}][{row} + {pad}]"

    @property
    def bytes(self) -> int:
        return 4 * (self.size * (DEPTH + PAD_DEPTH) if self.is_deep else DEPTH * (self.size + PAD_WIDTH))

    @property
    def count(self) -> str:
        """How often a thread brings a part of a tile."""
        if self._leaves:
            return f"({self.width} * {self.depth} / {self._each} - 1) / {THREADS} + 1"
        return f"{self.width} * {self.depth} / {THREADS * self._each}"

    @property
    def _each(self) -> int:
        return max(1, self.copied)

    @property
    def _leaves(self) -> bool:
        """Whether the last time some threads have nothing to bring."""
        return self.size * DEPTH % (THREADS * self._each) > 0

    @property
    def _own(self) -> list[str]:
        """Where in a tile the thread's part `t` is: its row, and its first column."""
        low = self.depth if self.is_deep else self.width
        return [f"t / {low}", f"t % {low}"] if self._each == 1 else [f"t / ({low} / 4)", f"t % ({low} / 4) * 4"]

    def at(self, index: str, k: str) -> str:
        return f"{self.name}_tile[stage]" + (f"[{index}][{k}]" if self.is_deep else f"[{k}][{index}]")

    def load(self, e: Emitter, of: Product, own: Share) -> list[str]:
        """The lines that read a thread's elements of a tile: into shared memory, or into registers."""
        t_own, t_k = self._own if self.is_deep else reversed(self._own)
        inside = [_inside(self.index, self.extent, self.width, self.size), self._inside_k(of, own)]
        with e.block() as frame:
            for one in ("t", self.index, "k"):
                e.declare(one)
            first = f"int t = threadIdx.x + {THREADS} * i"
            e.line(f"{first}, {self.index} = tile_{self.index} + {t_own}, k = tile_k + {t_k};")
            there = located(e, *of.factor(e, self.name, own.z, self.index, "k")) if self.copied else None
            if there is not None:
                inside += [there.condition] if there.condition else []
                e.line(f"bool is_inside = {' && '.join(inside)};")
                to, come = f"&{self._to}", f"&{there.name}[is_inside ? {there.flat} : 0]"
                size = 4 * self.copied
                e.line(f"__pipeline_memcpy_async({to}, {come}, {size}, is_inside ? 0 : {size});")
            else:
                make = lambda: of.loaded(e, self.name, own.z, self.index, "k")  # noqa: E731
                text = e.guarded("float", " && ".join(inside), literal(0, of.dtype), make)
                e.line(f"{self.name}_next[i] = {text};")
        first, *lines = frame.lines
        if self._leaves:
            lines = [f"if (t < {self.width} * {self.depth} / {self._each}) {{", *indented(lines), "}"]
        return _unrolled("i", self.count, [first, *lines])

    @property
    def _to(self) -> str:
        return f"{self.name}_tile[next]" + "".join(f"[{one}]" for one in self._own)

    def _inside_k(self, of: Product, own: Share) -> str:
        if own.last.isdigit():
            return _inside("k", int(own.last), self.depth, DEPTH)
        return f"k < {own.last}"

    def keep(self) -> list[str]:
        """The lines that put what is in registers into the tile."""
        lines = [
            f"int t = threadIdx.x + {THREADS} * i;",
            f"{self._to} = {self.name}_next[i];",
        ]
        return [] if self.copied else _unrolled("i", self.count, lines)


def product_on_tensor_cores(name: str, of: Product, store: Store) -> KernelText:
    """As `tiles.product`. Eight warps share a tile's rows and columns, in tiles of 16 x 8 that tensor cores sum; the
    next tiles of both factors are brought meanwhile."""
    e, constants, tile = Emitter(), Constants(name), division(of.extents).tile
    sizes = (tile.rows, tile.columns, DEPTH)
    bm, bn, bk = (constants.name(f"TILE_{one}", size) for one, size in zip("MNK", sizes, strict=True))
    own = share(e, of, bm, bn)
    a, b = (_factor(of, one, width, tile, bk) for one, width in (("a", bm), ("b", bn)))
    stages = constants.name("STAGES", min(4, SHARED // (a.bytes + b.bytes)))
    loads = [line for one in (a, b) for line in one.load(e, of, own)]
    keeps = [*a.keep(), *b.keep()]
    warp = Warp(bm, bn, bk, tile.warps, WARPS // tile.warps)
    results = _results(e, of, store, warp, own.z, sizes)
    is_copied = a.copied or b.copied
    next_of = ", ".join(f"{one.name}_next[{one.count}]" for one in (a, b) if not one.copied)
    lines = [
        *(f"__shared__ __align__(16) float {one.name}_tile[{stages}]{one.tile};" for one in (a, b)),
        *own.lines,
        "int quarter = threadIdx.x % 4, group = threadIdx.x % 32 / 4, warp = threadIdx.x / 32;",
        f"int row = warp / {warp.across} * ({warp.height}) + group, column = warp % {warp.across} * ({warp.width});",
        *e.frames[0].lines,
        f"float acc[{warp.height} / 16][{warp.width} / 8][4] = {{}};",
        f"float {next_of};" if next_of else "",
        f"int steps = ({_difference(own)} + {bk} - 1) / {bk};",
        f"for (int step = 1 - {stages}; step < steps; step++) {{",
        f"    __pipeline_wait_prior({stages} - 2);" if is_copied else "",
        "    __syncthreads();",
        f"    int next = (step + {stages} - 1) % {stages}, "
        f"tile_k = {'' if own.first == '0' else f'{own.first} + '}(step + {stages} - 1) * {bk};",
        f"    if (tile_k < {own.last}) {{",
        *indented(loads, 2),
        "    }",
        "    __pipeline_commit();" if is_copied else "",
        "    if (step >= 0) {",
        f"        int stage = step % {stages};",
        *indented(_sums(a, b, warp, all(map(_is_half, of.among))), 2),
        "    }",
        *([f"    if (tile_k < {own.last}) {{", *indented(keeps, 2), "    }"] if keeps else []),
        "}",
        *results,
    ]
    bounds = f"{THREADS}, {tile.blocks}"
    return function(
        name, e, [store], [line for line in lines if line], launch(of, bm, bn), dict(_HELPERS), constants, bounds
    )


def _factor(of: Product, name: str, width: str, tile: Tile, depth: str) -> Factor:
    _, m_count, n_count, _ = of.extents
    index, extent, size = ("m", m_count, tile.rows) if name == "a" else ("n", n_count, tile.columns)
    is_deep = of.fast()[name == "b"] == "k"
    return Factor(name, index, extent, width, size, depth, is_deep, _copied(of, name, index, is_deep))


def _copied(of: Product, name: str, index: str, is_deep: bool) -> int:
    """How many elements of a factor can be copied at once: four where each row of memory is a multiple of 16 bytes."""
    e, z = Emitter(), "z" if of.extents[0] > 1 else "0"
    there = located(e, *of.factor(e, name, z, index, "k"))
    if there is None or there.dtype != "float32":
        return 0
    found = strides(e.frames[0].lines, there.flat, ("z", index, "k"))
    along, extent = ("k", of.extents[3]) if is_deep else (index, of.extents[1 if name == "a" else 2])
    if found is None or there.condition or found.pop(along, 0) != 1 or extent % 4:
        return 1
    return 4 if all(stride % 4 == 0 for stride in found.values()) else 1


def _difference(own: Share) -> str:
    return own.last if own.first == "0" else f"{own.last} - {own.first}"


def _inside(index: str, extent: int, width: str, size: int) -> str:
    """Whether an index is one of the tensor's; known when it is compiled where tiles fit."""
    return f"{index} < {extent}" if extent % size else f"({extent} % {width} == 0 || {index} < {extent})"


def _is_half(factor: Value) -> bool:
    """Whether a factor is read from memory that holds half precision."""
    while type(factor) is Moved and not factor.memory:
        factor = factor.source
    return factor.dtype in HALVES and (isinstance(factor, Memory) or bool(factor.memory))


@dataclass(frozen=True, slots=True)
class Warp:
    """What a warp sums of a tile of `bm` rows and `bn` columns, which `down` and `across` of them share."""

    bm: str
    bn: str
    bk: str
    down: int
    across: int

    @property
    def height(self) -> str:
        return f"{self.bm} / {self.down}"

    @property
    def width(self) -> str:
        return f"{self.bn} / {self.across}"


def _sums(a: Factor, b: Factor, warp: Warp, is_half: bool) -> list[str]:
    """A tile's part of a thread's sums. `is_half`: no factor has a low part."""

    def registers(name: str, count: str) -> str:
        return ", ".join(f"{name}_{part}{count}" for part in (("high",) if is_half else ("high", "low")))

    def fill(element: str, name: str, place: str) -> str:
        if is_half:
            return f"{name}_high{place} = __float_as_uint({element});"
        return f"split({element}, {registers(name, place)});"

    columns_, rows_, bk = f"{warp.width} / 8", f"{warp.height} / 16", warp.bk
    a_element = a.at("row + 16 * r + k % 2 * 8", "k / 2 * 4 + quarter")
    b_element = b.at("column + 8 * c + group", "k * 4 + quarter")
    pairs = (("high", "high"),) if is_half else (("low", "high"), ("high", "low"), ("high", "high"))
    products = [f"multiply_add(sums, a_{one}[k], b_{other}[c][k]);" for one, other in pairs]
    columns = [
        "float sums[4] = {};",
        *_unrolled("k", f"{bk} / 8", products),
        *_unrolled("s", "4", ["acc[r][c][s] += sums[s];"]),
    ]
    rows = [
        f"unsigned {registers('a', f'[{bk} / 8][4]')};",
        *_unrolled("k", f"{bk} / 2", [fill(a_element, "a", "[k / 4][k % 4]")]),
        *_unrolled("c", columns_, columns),
    ]
    return [
        f"unsigned {registers('b', f'[{columns_}][{bk} / 8][2]')};",
        *_unrolled("c", columns_, _unrolled("k", f"{bk} / 4", [fill(b_element, "b", "[c][k / 2][k % 2]")])),
        *_unrolled("r", rows_, rows),
    ]


def _results(e: Emitter, of: Product, store: Store, warp: Warp, z: str, sizes: tuple[int, int, int]) -> list[str]:
    """The lines that store a thread's sums: of the rows and columns that tensor cores leave it."""
    _, m_count, n_count, _ = of.extents
    in_pairs = of.in_pairs and store.value.dtype == "float32"
    inside = f"{_inside('m', m_count, warp.bm, sizes[0])} && {_inside('n', n_count, warp.bn, sizes[1])}"
    lines = [
        "int m = tile_m + row + 16 * r + s / 2 * 8, n = tile_n + column + 8 * c + 2 * quarter + s % 2;",
        f"if ({inside}) {{",
        *indented(result(e, of, store, z, "acc[r][c][s]", in_pairs)),
        "}",
    ]
    elements = [*(["float pair[2];"] if in_pairs else []), *_unrolled("s", "4", lines)]
    return _unrolled("r", f"{warp.height} / 16", _unrolled("c", f"{warp.width} / 8", elements))


def _unrolled(index: str, count: str, lines: Sequence[str]) -> list[str]:
    """A loop that is unrolled, since registers have no index."""
    return ["#pragma unroll", f"for (int {index} = 0; {index} < {count}; {index}++) {{", *indented(lines), "}"]
