"""Kernels of matrix products, in several styles: out[row, col] = sum over k of a[row, k] * b[k, col].

What differs between products is how their operands are addressed: `a` and `b` are expressions in which {row}, {k} and
{col} are filled by the style. Every style ends with the same epilogue, where `row`, `col` and the sum `v` are known.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import indent

from dice.synth.problem.chain import Step, statements

NAIVE = """    int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    if (row >= M || col >= N) return;
{offset}    float v = 0.0f;
    for (int k = 0; k < K; k++) v += {a} * {b};
{store}"""
TILED = """    __shared__ float as[{tile}][{tile}], bs[{tile}][{tile}];
    int tx = threadIdx.x, ty = threadIdx.y;
    int row = blockIdx.y * {tile} + ty, col = blockIdx.x * {tile} + tx;
{offset}    float v = 0.0f;
    for (int k = 0; k < K; k += {tile}) {{
        as[ty][tx] = row < M && k + tx < K ? {a} : 0.0f;
        bs[ty][tx] = col < N && k + ty < K ? {b} : 0.0f;
        __syncthreads();
        for (int j = 0; j < {tile}; j++) v += as[ty][j] * bs[j][tx];
        __syncthreads();
    }}
    if (row < M && col < N) {{
{store}    }}
"""
# Each thread holds a 4x4 patch of a 64x64 tile; 256 threads fetch 16 values of k for both sides together.
REGISTERS = """    __shared__ float as[16][64], bs[16][64];
    int tx = threadIdx.x, ty = threadIdx.y;
    int top = blockIdx.y * 64, left = blockIdx.x * 64;
{offset}    float sum[4][4] = {{}};
    for (int k0 = 0; k0 < K; k0 += 16) {{
        for (int t = ty * 16 + tx; t < 1024; t += 256) {{
            int row = top + {t_row}, ka = k0 + {t_ka}, kb = k0 + {t_kb}, col = left + {t_col};
            as[{t_ka}][{t_row}] = row < M && ka < K ? {a} : 0.0f;
            bs[{t_kb}][{t_col}] = col < N && kb < K ? {b} : 0.0f;
        }}
        __syncthreads();
        for (int j = 0; j < 16; j++)
            for (int p = 0; p < 4; p++)
                for (int q = 0; q < 4; q++) sum[p][q] += as[j][ty * 4 + p] * bs[j][tx * 4 + q];
        __syncthreads();
    }}
    for (int p = 0; p < 4; p++) {{
        for (int q = 0; q < 4; q++) {{
            int row = top + ty * 4 + p, col = left + tx * 4 + q;
            if (row < M && col < N) {{
                float v = sum[p][q];
{store}            }}
        }}
    }}
"""
# Each thread computes four neighbours of one row, so that a value of `a` is fetched once for all of them.
COLUMNS = """    int row = blockIdx.y * 16 + threadIdx.y, left = (blockIdx.x * 16 + threadIdx.x) * 4;
    if (row >= M) return;
{offset}    float sum[4] = {{}};
    for (int k = 0; k < K; k++) {{
        float f = {a};
        for (int q = 0; q < 4; q++) {{
            int col = left + q;
            if (col < N) sum[q] += f * {b};
        }}
    }}
    for (int q = 0; q < 4; q++) {{
        int col = left + q;
        if (col < N) {{
            float v = sum[q];
{store}        }}
    }}
"""
# Sixteen threads share the sum of one output; they meet in shared memory.
SPLIT = """    __shared__ float part[16][16];
    int tx = threadIdx.x, ty = threadIdx.y;
    int row = blockIdx.x, col = blockIdx.y * 16 + tx;
{offset}    float v = 0.0f;
    if (col < N)
        for (int k = ty; k < K; k += 16) v += {a} * {b};
    part[ty][tx] = v;
    __syncthreads();
    if (ty == 0 && col < N) {{
        for (int j = 1; j < 16; j++) v += part[j][tx];
{store}    }}
"""
# The sum over k is cut into slices, one block each, that meet by atomic additions.
SLICES = """    int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    if (row >= M || col >= N) return;
    int step = (K + gridDim.z - 1) / gridDim.z, start = blockIdx.z * step;
    float v = 0.0f;
    for (int k = start; k < min(start + step, K); k++) v += {a} * {b};
    atomicAdd(&out[{at}], v);
"""
WARP = """    int lane = threadIdx.x, row = blockIdx.x, col = blockIdx.y * 8 + threadIdx.y;
    if (col >= N) return;
{offset}    float v = 0.0f;
    for (int k = lane; k < K; k += 32) v += {a} * {b};
    for (int j = 16; j > 0; j /= 2) v += __shfl_down_sync(0xffffffff, v, j);
    if (lane == 0) {{
{store}    }}
"""
VECTOR = """    int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    if (row >= M || col >= N) return;
{offset}    const float *f = {x} + row * K, *g = {y} + col * K;
    float v = 0.0f;
    int k = 0;
    if (K % 4 == 0)
        for (; k < K; k += 4) {{
            float4 s = *reinterpret_cast<const float4*>(f + k), t = *reinterpret_cast<const float4*>(g + k);
            v += s.x * t.x + s.y * t.y + s.z * t.z + s.w * t.w;
        }}
    for (; k < K; k++) v += f[k] * g[k];
{store}"""


@dataclass(frozen=True, slots=True)
class Product:
    """One product kernel: its style, its body, and its launch in blocks of `across` x `down` outputs."""

    style: str
    body: str
    across: int
    down: int
    threads: str
    slices: bool = False  # several blocks add to one output, so `out` starts at zero

    def grid(self, batches: str = "") -> str:
        """The host line that makes the grid; `batches` is the expression for its third dimension."""
        columns = f"(N + {self.across - 1}) / {self.across}"
        rows = f"(M + {self.down - 1}) / {self.down}"
        plane = f"M, {columns}" if self.down == 1 else f"{columns}, {rows}"  # only the first may exceed 65,535
        depth = "std::max(1, std::min(K / 64, 16))" if self.slices else batches
        return f"    dim3 grid({plane}{', ' + depth if depth else ''});\n"

    @property
    def launch(self) -> str:
        return f"grid, {self.threads}"


@dataclass(frozen=True, slots=True)
class Operands:
    """How `a` and `b` are addressed, and what surrounds the sum. `k_first`: a moves slowest along k.

    `plain`: names of two tensors whose rows are both consecutive along k, which allows vector loads; else empty.
    """

    a: str
    b: str
    a_k_first: bool = False
    b_k_first: bool = True
    offset: str = ""
    extra: Sequence[str] = ()  # statements on v, before the chain
    at: str = "row * N + col"
    plain: tuple[str, ...] = ()
    batched: bool = False


def product(
    rng: random.Random, operands: Operands, post: Sequence[Step], *, long_k: bool = False, sliced: bool = False
) -> Product:
    """Draw a style that suits the operands. `long_k`: few outputs, each a long sum. `sliced`: cut into several."""
    weights = {"tiled16": 4.0, "naive": 2.0, "tiled32": 1.0, "registers": 4.5, "columns": 1.2, "split": 0.8}
    contiguous = not operands.a_k_first and not operands.b_k_first
    weights |= {"warp": 1.5 if contiguous else 0.0, "vector": 2.0 if operands.plain else 0.0}
    alone = not post and not operands.extra and not operands.batched
    weights |= {"slices": 1.0 if alone else 0.0}
    if long_k:
        weights |= {"split": 6.0, "warp": 6.0 if contiguous else 0.0, "slices": 4.0 if alone else 0.0}
    style = "slices" if sliced else rng.choices(tuple(weights), tuple(weights.values()))[0]
    return _WRITERS[style](operands, post)


def _store(operands: Operands, post: Sequence[Step], depth: int) -> str:
    text = "".join(f"{line}\n" for line in operands.extra) + statements(post, 0) + f"out[{operands.at}] = v;\n"
    return indent(text, " " * depth)


def _fill(operands: Operands, ka: str = "k", kb: str = "k") -> dict[str, str]:
    return {
        "a": operands.a.format(row="row", k=_index(operands.a, ka)),
        "b": operands.b.format(col="col", k=_index(operands.b, kb)),
        "offset": operands.offset,
        "at": operands.at,
    }


def _index(text: str, index: str) -> str:
    """`row * K + k + tx` needs no parentheses, `(k + tx) * M` and `k + tx < row` do."""
    careful = "{k} *" in text or "{k} <" in text or "{k} >" in text
    return f"({index})" if " " in index and careful else index


Writer = Callable[[Operands, Sequence[Step]], Product]


@dataclass(frozen=True, slots=True)
class _Plain:
    """A style whose text needs nothing beyond the operands. `depth`: spaces before the epilogue."""

    style: str
    text: str
    across: int
    down: int
    threads: str
    depth: int = 4
    slices: bool = False

    def __call__(self, operands: Operands, post: Sequence[Step]) -> Product:
        body = self.text.format(**_fill(operands), store=_store(operands, post, self.depth))
        return Product(self.style, body, self.across, self.down, self.threads, self.slices)


def _tiled(tile: int) -> Writer:
    def write(operands: Operands, post: Sequence[Step]) -> Product:
        fields = _fill(operands, "k + tx", "k + ty")
        body = TILED.format(**fields, store=_store(operands, post, 8), tile=tile)
        return Product(f"tiled{tile}", body, tile, tile, f"dim3({tile}, {tile})")

    return write


def _registers(operands: Operands, post: Sequence[Step]) -> Product:
    row, ka = ("t % 64", "t / 64") if operands.a_k_first else ("t / 16", "t % 16")
    col, kb = ("t % 64", "t / 64") if operands.b_k_first else ("t / 16", "t % 16")
    fields = _fill(operands, "ka", "kb") | {"t_row": row, "t_ka": ka, "t_col": col, "t_kb": kb}
    body = REGISTERS.format(**fields, store=_store(operands, post, 16))
    return Product("registers", body, 64, 64, "dim3(16, 16)")


def _vector(operands: Operands, post: Sequence[Step]) -> Product:
    x, y = operands.plain
    body = VECTOR.format(x=x, y=y, offset=operands.offset, store=_store(operands, post, 4))
    return Product("float4", body, 16, 16, "dim3(16, 16)")


_WRITERS: dict[str, Writer] = {
    "naive": _Plain("naive", NAIVE, 16, 16, "dim3(16, 16)"),
    "tiled16": _tiled(16),
    "tiled32": _tiled(32),
    "registers": _registers,
    "columns": _Plain("columns", COLUMNS, 64, 16, "dim3(16, 16)", 12),
    "split": _Plain("split_k", SPLIT, 16, 1, "dim3(16, 16)", 8),
    "slices": _Plain("split_k_atomic", SLICES, 16, 16, "dim3(16, 16)", slices=True),
    "warp": _Plain("warp_per_output", WARP, 8, 1, "dim3(32, 8)", 8),
    "vector": _vector,
}
