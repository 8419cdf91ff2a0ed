"""Products of rows with a large matrix: of a few, which take as long as reading the matrix takes, and of some more.

cuBLAS reads at some four fifths of what the memory gives. Whether a kernel of ours does better depends on the sizes and
the GPU, so both are timed where they run, and the quicker is taken. For some hundred rows cuBLAS gives a product with
many inputs and few outputs, as an MLP's second, to a part of the processors; in two parts it may be quicker, and is
timed, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from dice.decode.engine.forward import Norm, PagedForward, whole
from dice.decode.engine.graphs import record
from dice.decode.engine.kernels.early import LINE, begin, fetch, finish, launch
from dice.decode.engine.kernels.ops import KernelOps
from dice.decode.engine.plain_ops import halved
from dice.decode.engine.weights import FEW_ROWS, HALF_SCALE, Product, Projection, Scaled

REPLAYS = 5
TIMED = 12  # of a model's products of more rows: several times what a GPU's cache holds
MOST_ROWS = 512  # from which on a product in one part keeps a GPU busy
GATE_UP, ADDED = 2, (1, 3)  # among `PagedForward.alike`; ADDED: to the residual, by the norm that follows
# By shape, precision, device and number: finding out takes a second. And by the number of rows: whether in parts.
_found: dict[tuple[object, ...], Product | None] = {}
_in_parts: dict[tuple[object, ...], bool] = {}


class Cut(NamedTuple):
    """How the matrix is read: `columns` outputs a program, `width` inputs of two bytes at a time, `stages` ahead; and a
    program reads one of `splits` parts of the inputs, whose results are left to be added up."""

    columns: int
    width: int
    stages: int
    warps: int
    splits: int = 1

    def inputs(self, weight: Tensor) -> int:
        """Inputs at a time: as many bytes in every precision, since shared memory holds no more of them."""
        return self.width * 2 // weight.element_size()


CUTS = (
    Cut(16, 256, 5, 2), Cut(16, 256, 4, 2), Cut(32, 256, 3, 2), Cut(32, 128, 6, 2), Cut(32, 128, 3, 2),
    Cut(64, 128, 5, 4), Cut(64, 128, 3, 4),
)  # fmt: skip
SPLIT_CUTS = (Cut(16, 256, 4, 2, 2), Cut(32, 128, 3, 2, 2), Cut(32, 128, 4, 2, 2), Cut(64, 128, 5, 4, 2))


@triton.jit
def few_rows_kernel(
    x, weight, weight_scale, out, rows, columns, width,
    GATED: tl.constexpr, GIVEN: tl.constexpr, FACTOR: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr, SPLITS: tl.constexpr, BYTES: tl.constexpr, EARLY: tl.constexpr,
) -> None:  # fmt: skip
    """out [rows, columns] = x [rows, width] times weight [columns, width] transposed; WIDTH divides the width.
    With SPLITS, each of which WIDTH divides, out is float32 [SPLITS, rows, columns], and the product its sum.

    If GATED, weight has twice as many rows, and out = silu(x times the first half) * (x times the second). Weights in
    fp8 have scales [columns]; x is in float16 then, to which they have to be converted for so few rows anyway. GIVEN,
    FACTOR: by which x is multiplied, and by which out shall be. BYTES: of a weight. Weights are the matrix unit's rows,
    of which it takes 16, and those of x its columns, of which it takes 8.
    """
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    part_width = width // SPLITS
    begun = tl.program_id(1) * part_width
    if EARLY:  # nobody writes weights, so what is read first may come before x is there
        line = tl.arange(0, WIDTH * BYTES // LINE)[None, :] * (LINE // BYTES)
        foremost = weight + tl.minimum(column, columns - 1)[:, None] * width + begun + line
        fetch(foremost)
        if GATED:
            fetch(foremost + columns * width)
    begin(EARLY)
    row = tl.arange(0, ROWS)
    there, used = (column < columns)[:, None], (row < rows)[:, None]
    total = tl.zeros((COLUMNS, ROWS), tl.float32)
    second = tl.zeros((COLUMNS, ROWS), tl.float32)
    for start in range(begun, begun + part_width, WIDTH):
        place = start + tl.arange(0, WIDTH)[None, :]
        part = tl.load(weight + column[:, None] * width + place, there, other=0.0, eviction_policy="evict_first")
        given = tl.trans(tl.load(x + row[:, None] * width + place, used, other=0.0, eviction_policy="evict_last"))
        total = tl.dot(part.to(given.dtype), given, total, input_precision="ieee")
        if GATED:
            other = weight + columns * width + column[:, None] * width + place
            part = tl.load(other, there, other=0.0, eviction_policy="evict_first")
            second = tl.dot(part.to(given.dtype), given, second, input_precision="ieee")
    finish(EARLY)
    if weight_scale is not None:
        total *= tl.load(weight_scale + column, column < columns, other=0.0)[:, None] / GIVEN
        if GATED:
            second *= tl.load(weight_scale + columns + column, column < columns, other=0.0)[:, None] / GIVEN
    if GATED:
        total = total / (1.0 + tl.exp(-total)) * second
    where = out + (tl.program_id(1) * rows + row)[None, :] * columns + column[:, None]
    tl.store(where, (total * FACTOR).to(out.dtype.element_ty), there & (row < rows)[None, :])


def product(x: Tensor | Scaled, projection: Projection, cut: Cut, *, gated: bool = False) -> Tensor:
    """`projection.product` for x [N, in], N at most FEW_ROWS; if that is in fp8, x is in float16, times HALF_SCALE.

    `gated`: silu of the result's first half times its second, in the precision of x, as what comes next wants it.
    Of a cut with splits, float32 [splits, N, out], which is to be added up.
    """
    assert isinstance(x, Tensor)
    weight, halves = projection.read, gated and projection.fp8
    columns, width = len(weight) // (2 if gated else 1), weight.shape[1]
    shape: tuple[int, ...] = (len(x), columns)
    dtype = x.dtype if halves else projection.weight.dtype
    if cut.splits > 1:
        shape, dtype = (cut.splits, *shape), torch.float32
    out = torch.empty(shape, dtype=dtype, device=x.device)
    few_rows_kernel[(triton.cdiv(columns, cut.columns), cut.splits)](
        x, weight, projection.scale if projection.fp8 else None, out, len(x), columns, width, GATED=gated,
        GIVEN=HALF_SCALE if projection.fp8 else 1.0, FACTOR=HALF_SCALE if halves else 1.0,
        ROWS=8 if len(x) <= 8 else FEW_ROWS, COLUMNS=cut.columns, WIDTH=cut.inputs(weight), SPLITS=cut.splits,
        BYTES=weight.element_size(), num_stages=cut.stages, num_warps=cut.warps, **launch(x),
    )  # fmt: skip
    return out


def tune(forward: PagedForward) -> None:
    """Let a model's products of a few rows take the quickest way, PyTorch's or ours. In fp8 all take ours, or none."""
    *kinds, head = forward.alike()
    # What several ranks add up they add up in the model's precision.
    added = () if forward.group.shard.size > 1 else ADDED
    ways = [_quickest(kind, gated=number == GATE_UP, added=number in added) for number, kind in enumerate(kinds)]
    forward.halves = forward.fp8 and None not in ways
    for number, (kind, way) in enumerate(zip(kinds, ways, strict=True)):
        for projection in kind if forward.halves or not forward.fp8 else []:
            projection.few_rows, projection.few_rows_gated = (None, way) if number == GATE_UP else (way, None)
    head[0].few_rows = _quickest(head)


def tune_parts(forward: PagedForward, rows: int) -> None:
    """Let products of so many rows be in two parts where that is quicker, those in which parts are added up anyway."""
    if not FEW_ROWS < rows <= MOST_ROWS or forward.fp8 or forward.group.shard.size > 1:
        return
    kinds = forward.alike()
    for projections in (kinds[number] for number in ADDED):
        weight = projections[0].weight
        if projections[0].bias is not None or weight.shape[1] % 16:  # halves of a row of weights begin at 16 bytes
            continue
        key = (rows, *weight.shape, weight.dtype, weight.device, len(projections))
        if key not in _in_parts:
            _in_parts[key] = _quicker_in_parts(projections[:TIMED], rows)
        if _in_parts[key]:
            for projection in projections:
                projection.rows_in_parts.add(rows)


def _quicker_in_parts(projections: Sequence[Projection], rows: int) -> bool:
    x = _rows(rows, projections[0])
    whole_ms, parts_ms = (
        min(_milliseconds(way, projections, x, added=True) for _ in range(2))
        for way in (lambda x, one: one.product(x), lambda x, one: one.in_parts(x))
    )
    return parts_ms < whole_ms


def _quickest(projections: Sequence[Projection], *, gated: bool = False, added: bool = False) -> Product | None:
    """Of projections of one shape; `gated` ones with the activation that follows them, and the results of those that
    are `added` to the residual may come in parts. None: PyTorch's."""
    first = projections[0]
    if first.bias is not None or first.weight.numel() >= 2**31:
        return None
    key = (*first.weight.shape, first.weight.dtype, first.weight.device, first.fp8, gated, added, len(projections))
    if key not in _found:
        _found[key] = _find_quickest(projections, gated, added)
    return _found[key]


def _find_quickest(projections: Sequence[Projection], gated: bool, added: bool) -> Product | None:
    """One projection after the other, as in a forward: so many matrices fit into no cache."""
    first = projections[0]
    width = first.weight.shape[1]
    x = _rows(FEW_ROWS // 2, first)
    given = halved(x) if first.fp8 else x
    library = partial(_library, gated=gated)
    expected = library(x, first) * (HALF_SCALE if first.fp8 and gated else 1.0)
    least, quickest = _milliseconds(library, projections, x, added), None
    for cut in CUTS + SPLIT_CUTS if added else CUTS:
        way = partial(product, cut=cut, gated=gated)
        if width % (cut.inputs(first.read) * cut.splits) == 0:
            taken = _milliseconds(way, projections, given, added)
            if taken < least and _agrees(whole(way(given, first)), expected):
                least, quickest = taken, way
    return quickest


def _rows(count: int, projection: Projection) -> Tensor:
    """Some rows for it; those who draw random numbers beside us draw the same as without."""
    weight = projection.weight
    draws = torch.Generator(weight.device).manual_seed(0)
    return torch.randn(count, weight.shape[1], device=weight.device, generator=draws).to(weight.dtype)


def _library(x: Tensor | Scaled, projection: Projection, *, gated: bool) -> Tensor:
    """With the kernels that a product in fp8, or an activation, takes besides."""
    assert isinstance(x, Tensor)
    ops = KernelOps()
    found = projection.product(ops.quantize(x) if projection.fp8 else x)
    if gated:
        activated = ops.silu_mul(found)
        assert isinstance(activated, Tensor)
        return activated
    return found


def _agrees(found: Tensor, expected: Tensor) -> bool:
    """Within the rounding of bfloat16, or of rows in fp8."""
    return bool((found - expected).abs().max() <= 0.05 * expected.abs().max())


def _milliseconds(way: Product, projections: Sequence[Projection], x: Tensor, added: bool) -> float:
    """Of one after another, with a norm of the residual between them, which as in a forward lets the memory idle. If
    `added`, the norm first adds the result to it.

    Replayed from a graph: a single launch from here takes longer than the product.
    """
    shape = projections[0].weight.shape
    ops, residual = KernelOps(), x.new_ones(len(x), shape[0] if added else min(shape))
    norm = Norm(residual[0], 1e-6)

    def run(projections: Sequence[Projection]) -> None:
        for projection in projections:
            found = way(x, projection)
            ops.add_norm(residual, found if added else None, norm)

    try:
        run(projections[:2])
    except triton.runtime.errors.OutOfResources:  # more shared memory than this GPU has
        return float("inf")
    torch.cuda.synchronize()
    graph = record(lambda: run(projections), x.device)
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    begun.record()
    for _ in range(REPLAYS):
        graph.replay()
    ended.record()
    ended.synchronize()
    return begun.elapsed_time(ended) / REPLAYS
