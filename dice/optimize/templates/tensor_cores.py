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

from dice.optimize.templates.emitter import Emitter
from dice.optimize.templates.text import THREADS, Constants, KernelText, Store, function, indented
from dice.optimize.templates.tiles import grid, result
from dice.optimize.templates.values import Memory, Moved, Product, Value, literal

LEAST_WORK = 1 << 24  # multiply-adds of a product; a smaller one takes no longer than its launch
LEAST_EXTENT = 32  # of rows and of columns, or most of a tile is empty
DEPTH = 16  # of a tile
FILLED = 120  # blocks that give each multiprocessor of a large GPU one
PAD_DEPTH, PAD_WIDTH = 4, 8  # behind a row of a tile, so that the lanes of a warp read from different banks
HALVES = ("float16", "bfloat16")

_HELPERS = {
    "split": """// x is high + low to 22 bits, and each of them is a TF32.
__device__ __forceinline__ void split(float x, unsigned& high, unsigned& low) {
    high = __float_as_uint(x) & 0xffffe000u;
    low = __float_as_uint(x - __uint_as_float(high)) & 0xffffe000u;
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
    them (a constant, at first `size`). `is_deep`: memory is read along k."""

    name: str
    index: str
    extent: int
    width: str
    size: int
    is_deep: bool

    def tile(self, depth: str) -> str:
        """Its two tiles, one of which is computed on while the other is filled."""
        rows, row, pad = (self.width, depth, PAD_DEPTH) if self.is_deep else (depth, self.width, PAD_WIDTH)
        return f"{self.name}_tile[2][{rows}][{row} + {pad}]"

    def next(self, depth: str) -> str:
        return f"{self.name}_next[{self.width} * {depth} / {THREADS}]"

    def at(self, index: str, k: str) -> str:
        where = f"[{index}][{k}]" if self.is_deep else f"[{k}][{index}]"
        return f"{self.name}_tile[stage ^ 1]{where}"

    def load(self, e: Emitter, of: Product, depth: str, z: str) -> list[str]:
        """The lines that read a thread's elements of the next tile."""
        low = depth if self.is_deep else self.width
        t_k, t_own = (f"t % {low}", f"t / {low}") if self.is_deep else (f"t / {low}", f"t % {low}")
        conditions = [
            _inside(self.index, self.extent, self.width, self.size),
            _inside("k", of.extents[3], depth, DEPTH),
        ]
        with e.block() as frame:
            for one in ("t", self.index, "k"):
                e.declare(one)
            e.line(
                f"int t = threadIdx.x + {THREADS} * i, {self.index} = tile_{self.index} + {t_own}, k = tile_k + {t_k};"
            )

            def make() -> str:
                return of.a(e, z, self.index, "k") if self.name == "a" else of.b(e, z, "k", self.index)

            text = e.guarded("float", " && ".join(conditions), literal(0, of.dtype), make)
            e.line(f"{self.name}_next[i] = {text};")
        return _unrolled("i", f"{self.width} * {depth} / {THREADS}", frame.lines)

    def keep(self, depth: str) -> list[str]:
        """The lines that put those into the tile."""
        low = depth if self.is_deep else self.width
        lines = [
            f"int t = threadIdx.x + {THREADS} * i;",
            f"{self.name}_tile[stage][t / {low}][t % {low}] = {self.name}_next[i];",
        ]
        return _unrolled("i", f"{self.width} * {depth} / {THREADS}", lines)


def product_on_tensor_cores(name: str, of: Product, store: Store) -> KernelText:
    """As `tiles.product`. Eight warps have a quarter of a tile's columns and half of its rows each, in tiles of 16 x 8
    that tensor cores sum; the next tile of both factors is read meanwhile."""
    e = Emitter()
    z_count, m_count, n_count, k_count = of.extents
    constants, sizes = Constants(name), _tile(of)
    bm, bn, bk = (constants.name(f"TILE_{one}", size) for one, size in zip("MNK", (*sizes, DEPTH), strict=True))
    for one in ("tile_m", "tile_n", "z", "tile_k"):
        e.declare(one, 0)
    z = "z" if z_count > 1 else "0"
    fast_a, fast_b = of.fast()
    a = Factor("a", "m", m_count, bm, sizes[0], fast_a == "k")
    b = Factor("b", "n", n_count, bn, sizes[1], fast_b == "k")
    loads = [line for one in (a, b) for line in one.load(e, of, bk, z)]
    results = _results(e, of, store, bm, bn, sizes, z)
    lines = [
        f"__shared__ float {a.tile(bk)};",
        f"__shared__ float {b.tile(bk)};",
        f"int tile_m = blockIdx.y * {bm}, tile_n = blockIdx.x * {bn}, z = blockIdx.z;",
        "int quarter = threadIdx.x % 4, group = threadIdx.x % 32 / 4, warp = threadIdx.x / 32;",
        f"int row = warp / 4 * ({bm} / 2) + group, column = warp % 4 * ({bn} / 4);",
        *e.frames[0].lines,
        f"float acc[{bm} / 32][{bn} / 32][4] = {{}};",
        f"float {a.next(bk)}, {b.next(bk)};",
        f"for (int tile_k = 0, stage = 0; tile_k < {k_count} + {bk}; tile_k += {bk}, stage ^= 1) {{",
        f"    bool is_last = tile_k >= {k_count};",
        "    if (!is_last) {",
        *indented(loads, 2),
        "    }",
        "    if (tile_k > 0) {",
        *indented(_sums(a, b, bm, bn, bk, all(map(_is_half, of.among))), 2),
        "    }",
        "    if (!is_last) {",
        *indented([*a.keep(bk), *b.keep(bk)], 2),
        "    }",
        "    __syncthreads();",
        "}",
        *results,
    ]
    return function(name, e, [store], lines, grid(of, bm, bn, sizes[0]), dict(_HELPERS), constants)


def _tile(of: Product) -> tuple[int, int]:
    """The largest tile that is not mostly empty, and of which there are enough for all multiprocessors."""
    z, m, n, _ = of.extents
    for rows, columns in ((128, 128), (128, 64)):
        if m > rows // 2 and n > columns // 2 and z * -(-m // rows) * -(-n // columns) >= FILLED:
            return rows, columns
    return 64, 64


def _inside(index: str, extent: int, width: str, size: int) -> str:
    """Whether an index is one of the tensor's; known when it is compiled where tiles fit."""
    return f"{index} < {extent}" if extent % size else f"({extent} % {width} == 0 || {index} < {extent})"


def _is_half(factor: Value) -> bool:
    """Whether a factor is read from memory that holds half precision."""
    while type(factor) is Moved and not factor.memory:
        factor = factor.source
    return factor.dtype in HALVES and (isinstance(factor, Memory) or bool(factor.memory))


def _sums(a: Factor, b: Factor, bm: str, bn: str, bk: str, is_half: bool) -> list[str]:
    """A tile's part of a thread's sums. `is_half`: no factor has a low part."""

    def registers(name: str, count: str) -> str:
        return ", ".join(f"{name}_{part}{count}" for part in (("high",) if is_half else ("high", "low")))

    def fill(element: str, name: str, place: str) -> str:
        if is_half:
            return f"{name}_high{place} = __float_as_uint({element});"
        return f"split({element}, {registers(name, place)});"

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
        *_unrolled("c", f"{bn} / 32", columns),
    ]
    return [
        f"unsigned {registers('b', f'[{bn} / 32][{bk} / 8][2]')};",
        *_unrolled("c", f"{bn} / 32", _unrolled("k", f"{bk} / 4", [fill(b_element, "b", "[c][k / 2][k % 2]")])),
        *_unrolled("r", f"{bm} / 32", rows),
    ]


def _results(e: Emitter, of: Product, store: Store, bm: str, bn: str, sizes: tuple[int, int], z: str) -> list[str]:
    """The lines that store a thread's sums: of the rows and columns that tensor cores leave it."""
    _, m_count, n_count, _ = of.extents
    inside = f"{_inside('m', m_count, bm, sizes[0])} && {_inside('n', n_count, bn, sizes[1])}"
    lines = [
        "int m = tile_m + row + 16 * r + s / 2 * 8, n = tile_n + column + 8 * c + 2 * quarter + s % 2;",
        f"if ({inside}) {{",
        *indented(result(e, of, store, z, "acc[r][c][s]")),
        "}",
    ]
    return _unrolled("r", f"{bm} / 32", _unrolled("c", f"{bn} / 32", _unrolled("s", "4", lines)))


def _unrolled(index: str, count: str, lines: Sequence[str]) -> list[str]:
    """A loop that is unrolled, since registers have no index."""
    return ["#pragma unroll", f"for (int {index} = 0; {index} < {count}; {index}++) {{", *indented(lines), "}"]
