"""Products of a few rows with a large matrix, which take as long as reading the matrix takes.

cuBLAS reads at some four fifths of what the memory gives. Whether a kernel of ours does better depends on the sizes and
the GPU, so both are timed where they run, and the quicker is taken. Weights in fp8 are multiplied with rows in the
model's own precision: nothing is gained by casting so few, and a kernel less stands between two products.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from dice.decode.engine.kernels.early import PIECE, begin, fetch, launch
from dice.decode.engine.kernels.ops import KernelOps
from dice.decode.engine.weights import FEW_ROWS, Product, Projection

REPLAYS = 5
# By shape, precision, device and number: finding out takes a second.
_quickest: dict[tuple[object, ...], Product | None] = {}


class Cut(NamedTuple):
    """How the matrix is read: `columns` outputs a program, `width` inputs of two bytes at a time, `stages` ahead."""

    columns: int
    width: int
    stages: int
    warps: int

    def inputs(self, weight: Tensor) -> int:
        """Inputs at a time: as many bytes in every precision, since shared memory holds no more of them."""
        return self.width * 2 // weight.element_size()


CUTS = (Cut(16, 256, 5, 4), Cut(32, 256, 4, 4), Cut(32, 128, 6, 4), Cut(64, 128, 5, 4), Cut(64, 64, 8, 4))


# Numbers times this, in float16, are multiplied with weights in fp8, for the GPU has no quick cast to bfloat16: up to
# a million they are finite, and down to a thousandth as precise as in bfloat16.
SHRINK = tl.constexpr(1 / 16)


@triton.jit
def few_rows_kernel(
    x, weight, scale, out, rows, columns, width,
    GATED: tl.constexpr, SCALED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
    BYTES: tl.constexpr, EARLY: tl.constexpr,
) -> None:  # fmt: skip
    """out [rows, columns] = x [rows, width] times weight [columns, width] transposed; WIDTH divides the width.

    If GATED, weight has twice as many rows, and out = silu(x times the first half) * (x times the second). If SCALED,
    it is in fp8, with `scale` for each of its rows. BYTES: of one of its numbers.
    """
    first = tl.program_id(0) * COLUMNS
    if EARLY:  # weights are there before x is
        fetch(weight, first, columns - 1, width, COLUMNS, BYTES)
        if GATED:
            fetch(weight, columns + first, 2 * columns - 1, width, COLUMNS, BYTES)
    begin(EARLY)
    column = first + tl.arange(0, COLUMNS)
    row = tl.arange(0, ROWS)
    there, used = (column < columns)[:, None], (row < rows)[:, None]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    second = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, width, WIDTH):
        place = start + tl.arange(0, WIDTH)[None, :]
        part = tl.load(weight + column[:, None] * width + place, there, other=0.0, eviction_policy="evict_first")
        given = tl.load(x + row[:, None] * width + place, used, other=0.0, eviction_policy="evict_last")
        if SCALED:
            given, part = (given.to(tl.float32) * SHRINK).to(tl.float16), part.to(tl.float16)
        total = tl.dot(given, tl.trans(part), total, input_precision="ieee")
        if GATED:
            other = weight + columns * width + column[:, None] * width + place
            part = tl.load(other, there, other=0.0, eviction_policy="evict_first")
            if SCALED:
                part = part.to(tl.float16)
            second = tl.dot(given, tl.trans(part), second, input_precision="ieee")
    if SCALED:
        total *= tl.load(scale + column, column < columns, other=0.0)[None, :] / SHRINK
        if GATED:
            second *= tl.load(scale + columns + column, column < columns, other=0.0)[None, :] / SHRINK
    if GATED:
        total = total / (1.0 + tl.exp(-total)) * second
    where = out + row[:, None] * columns + column[None, :]
    tl.store(where, total.to(out.dtype.element_ty), used & (column < columns)[None, :])


def product(x: Tensor, projection: Projection, cut: Cut, *, gated: bool = False) -> Tensor:
    """`projection.product` for at most FEW_ROWS rows [N, in] in the model's precision, also where the weights are in
    fp8. `gated`: silu of the result's first half times its second."""
    weight, scale = (projection.eighth, projection.scale) if projection.fp8 else (projection.weight, None)
    columns, width = len(weight) // (2 if gated else 1), weight.shape[1]
    out = torch.empty(len(x), columns, dtype=x.dtype, device=x.device)
    few_rows_kernel[(triton.cdiv(columns, cut.columns),)](
        x, weight, scale, out, len(x), columns, width, GATED=gated, SCALED=projection.fp8, ROWS=FEW_ROWS,
        COLUMNS=cut.columns, WIDTH=cut.inputs(weight), BYTES=weight.element_size(), num_stages=cut.stages,
        num_warps=cut.warps, **launch(x),
    )  # fmt: skip
    return out


def tune(projections: Sequence[Projection], *, gated: bool = False) -> None:
    """Let projections of one shape use whichever product is quickest for a few rows, PyTorch's or ours; `gated` ones
    with the activation that follows them."""
    first = projections[0]
    read = first.eighth if first.fp8 else first.weight
    whole = read.shape[1] * read.element_size() % PIECE.value == 0
    if first.bias is not None or first.weight.numel() >= 2**31 or not whole:
        return
    key = (*first.weight.shape, first.weight.dtype, first.weight.device, first.fp8, gated, len(projections))
    if key not in _quickest:
        _quickest[key] = _find_quickest(projections, gated)
    for projection in projections:
        chosen = _quickest[key]
        projection.few_rows, projection.few_rows_gated = (None, chosen) if gated else (chosen, None)


def _find_quickest(projections: Sequence[Projection], gated: bool) -> Product | None:
    """One projection after the other, as in a forward: so many matrices fit into no cache. None: PyTorch's."""
    first = projections[0]
    width, read = first.weight.shape[1], first.eighth if first.fp8 else first.weight
    x = torch.randn(FEW_ROWS // 2, width, device=first.weight.device).to(first.weight.dtype)
    library = _silu_mul_of_product if gated else _library
    expected = library(x, first)
    least, quickest = _milliseconds(library, projections, x), None
    for cut in CUTS:
        way = partial(product, cut=cut, gated=gated)
        if width % cut.inputs(read) == 0 and _agrees(way(x, first), expected):
            taken = _milliseconds(way, projections, x)
            if taken < least:
                least, quickest = taken, way
    return quickest


def _library(x: Tensor, projection: Projection) -> Tensor:
    return projection.product(KernelOps().quantize(x) if projection.fp8 else x)


def _silu_mul_of_product(x: Tensor, projection: Projection) -> Tensor:
    found = KernelOps().silu_mul(_library(x, projection))
    assert isinstance(found, Tensor)
    return found


def _agrees(found: Tensor, expected: Tensor) -> bool:
    return bool((found - expected).abs().max() <= 0.03 * expected.abs().max())


def _milliseconds(way: Product, projections: Sequence[Projection], x: Tensor) -> float:
    """Of one after another, replayed from a graph: a single launch from here takes longer than the product."""
    for projection in projections[:2]:
        way(x, projection)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for projection in projections:
            way(x, projection)
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    begun.record()
    for _ in range(REPLAYS):
        graph.replay()
    ended.record()
    ended.synchronize()
    return begun.elapsed_time(ended) / REPLAYS
