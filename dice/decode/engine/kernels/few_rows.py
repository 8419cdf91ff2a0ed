"""Products of a few rows with a large matrix, which take as long as reading the matrix takes.

cuBLAS reads at some four fifths of what the memory gives. Whether a kernel of ours does better depends on the sizes and
the GPU, so both are timed where they run, and the quicker is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from dice.decode.engine.kernels.ops import KernelOps
from dice.decode.engine.weights import FEW_ROWS, Product, Projection, Scaled

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


CUTS = (Cut(16, 256, 5, 4), Cut(32, 256, 4, 4), Cut(32, 128, 6, 4), Cut(64, 128, 5, 4))


@triton.jit
def few_rows_kernel(
    x, weight, x_scale, weight_scale, out, rows, columns, width,
    GATED: tl.constexpr, SCALED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    """out [rows, columns] = x [rows, width] times weight [columns, width] transposed; WIDTH divides the width.

    If GATED, weight has twice as many rows, and out = silu(x times the first half) * (x times the second). If SCALED,
    both are in fp8, with scales [rows] and [columns].
    """
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.arange(0, ROWS)
    there, used = (column < columns)[:, None], (row < rows)[:, None]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    second = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, width, WIDTH):
        place = start + tl.arange(0, WIDTH)[None, :]
        part = tl.load(weight + column[:, None] * width + place, there, other=0.0, eviction_policy="evict_first")
        given = tl.load(x + row[:, None] * width + place, used, other=0.0, eviction_policy="evict_last")
        total = tl.dot(given, tl.trans(part), total, input_precision="ieee")
        if GATED:
            other = weight + columns * width + column[:, None] * width + place
            part = tl.load(other, there, other=0.0, eviction_policy="evict_first")
            second = tl.dot(given, tl.trans(part), second, input_precision="ieee")
    if GATED:
        total = total / (1.0 + tl.exp(-total)) * second
    if SCALED:
        by_row = tl.load(x_scale + row, row < rows, other=0.0)
        total = total * by_row[:, None] * tl.load(weight_scale + column, column < columns, other=0.0)[None, :]
    where = out + row[:, None] * columns + column[None, :]
    tl.store(where, total.to(out.dtype.element_ty), used & (column < columns)[None, :])


def product(x: Tensor | Scaled, projection: Projection, cut: Cut, *, gated: bool = False) -> Tensor:
    """`projection.product` for at most FEW_ROWS rows. `gated`: silu of the result's first half times its second."""
    scaled = isinstance(x, Scaled)
    given, weight = (x.values, projection.eighth) if isinstance(x, Scaled) else (x, projection.weight)
    columns, width = len(weight) // (2 if gated else 1), weight.shape[1]
    out = torch.empty(len(x), columns, dtype=x.dtype, device=given.device)
    few_rows_kernel[(triton.cdiv(columns, cut.columns),)](
        given, weight, x.scale if isinstance(x, Scaled) else None, projection.scale if scaled else None, out, len(x),
        columns, width, GATED=gated, SCALED=scaled, ROWS=FEW_ROWS, COLUMNS=cut.columns, WIDTH=cut.inputs(weight),
        num_stages=cut.stages, num_warps=cut.warps,
    )  # fmt: skip
    return out


def tune(projections: Sequence[Projection], *, gated: bool = False) -> None:
    """Let projections of one shape use whichever product is quickest for a few rows, PyTorch's or ours; `gated` ones
    with the activation that follows them."""
    first = projections[0]
    if first.bias is not None or first.weight.numel() >= 2**31:
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
    numbers = torch.randn(FEW_ROWS // 2, width, device=first.weight.device).to(first.weight.dtype)
    x = Scaled.of(numbers) if first.fp8 else numbers
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


def _library(x: Tensor | Scaled, projection: Projection) -> Tensor:
    return projection.product(x)


def _silu_mul_of_product(x: Tensor | Scaled, projection: Projection) -> Tensor:
    found = KernelOps().silu_mul(projection.product(x))
    assert isinstance(found, Tensor)
    return found


def _agrees(found: Tensor, expected: Tensor) -> bool:
    return bool((found - expected).abs().max() <= 0.03 * expected.abs().max())


def _milliseconds(way: Product, projections: Sequence[Projection], x: Tensor | Scaled) -> float:
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
