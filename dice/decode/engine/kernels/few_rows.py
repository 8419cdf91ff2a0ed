"""Products of a few rows with a large matrix, which take as long as reading the matrix takes.

cuBLAS reads at some four fifths of what the memory gives. Whether a kernel of ours does better depends on the sizes and
the GPU, so both are timed where they run, and the quicker is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from dice.decode.engine.weights import FEW_ROWS, Projection

Product = Callable[[Tensor, Tensor], Tensor]
REPLAYS = 5


class Cut(NamedTuple):
    """How the matrix is read: `columns` outputs a program, `width` inputs at a time, so many `stages` ahead."""

    columns: int
    width: int
    stages: int
    warps: int


CUTS = (Cut(16, 256, 5, 4), Cut(32, 256, 4, 4), Cut(32, 128, 6, 4), Cut(64, 128, 5, 4))


@triton.jit
def few_rows_kernel(
    x, weight, out, rows, columns, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr
) -> None:
    """out [rows, columns] = x [rows, width] times weight [columns, width] transposed; WIDTH divides the width."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.arange(0, ROWS)
    there, used = (column < columns)[:, None], (row < rows)[:, None]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, width, WIDTH):
        place = start + tl.arange(0, WIDTH)[None, :]
        part = tl.load(weight + column[:, None] * width + place, there, other=0.0, eviction_policy="evict_first")
        given = tl.load(x + row[:, None] * width + place, used, other=0.0, eviction_policy="evict_last")
        total = tl.dot(given, tl.trans(part), total, input_precision="ieee")
    where = out + row[:, None] * columns + column[None, :]
    tl.store(where, total.to(out.dtype.element_ty), used & (column < columns)[None, :])


def product(x: Tensor, weight: Tensor, cut: Cut) -> Tensor:
    """x [at most FEW_ROWS, in] times weight [out, in] transposed."""
    columns, width = weight.shape
    out = torch.empty(len(x), columns, dtype=x.dtype, device=x.device)
    few_rows_kernel[(triton.cdiv(columns, cut.columns),)](
        x, weight, out, len(x), columns, width, ROWS=FEW_ROWS, COLUMNS=cut.columns, WIDTH=cut.width,
        num_stages=cut.stages, num_warps=cut.warps,
    )  # fmt: skip
    return out


def tune(projections: Sequence[Projection]) -> None:
    """Let projections of one shape use whichever product is quickest for a few rows, cuBLAS or ours.

    One after the other, as in a forward: so many matrices fit into no cache.
    """
    first = projections[0]
    columns, width = first.weight.shape
    if first.bias is not None or first.weight.numel() >= 2**31:
        return
    x = torch.randn(FEW_ROWS // 2, width, device=first.weight.device).to(first.weight.dtype)
    ours: list[Product] = [partial(product, cut=cut) for cut in CUTS if width % cut.width == 0]
    times = [(_milliseconds(way, projections, x), way) for way in ours if _agrees(way, first, x)]
    library = _milliseconds(F.linear, projections, x)
    if times:
        least, way = min(times, key=lambda pair: pair[0])
        for projection in projections:
            projection.few_rows = way if least < library else None


def _agrees(way: Product, projection: Projection, x: Tensor) -> bool:
    expected = F.linear(x.double(), projection.weight[:64].double())
    found = way(x, projection.weight)[:, :64].double()
    return bool((found - expected).abs().max() <= 0.02 * expected.abs().max())


def _milliseconds(way: Product, projections: Sequence[Projection], x: Tensor) -> float:
    """Of one after another, replayed from a graph: a single launch from here takes longer than the product."""
    for projection in projections[:2]:
        way(x, projection.weight)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for projection in projections:
            way(x, projection.weight)
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    begun.record()
    for _ in range(REPLAYS):
        graph.replay()
    ended.record()
    ended.synchronize()
    return begun.elapsed_time(ended) / REPLAYS
