"""The ops of a layer and of a step's choices, each a kernel or two. See `forward.Ops`, `plan` and `choose`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import torch
import triton
from torch import Tensor

from dice.decode.engine.choose import Proposals
from dice.decode.engine.forward import Context, Heads, Norm
from dice.decode.engine.group import Group
from dice.decode.engine.kernels import head, schedule
from dice.decode.engine.kernels.attention import attend_kernel, attend_prefix_kernel, merge_kernel
from dice.decode.engine.kernels.early import launch
from dice.decode.engine.kernels.layer import (
    add_norm_kernel,
    quantize_kernel,
    rotate_store_kernel,
    silu_mul_kernel,
)
from dice.decode.engine.plan import Plan, Room
from dice.decode.engine.prefixes import STEP_TEXTS, TEXTS
from dice.decode.engine.slots import Shape, Slots
from dice.decode.engine.weights import FP8, HALF_SCALE, Scaled

# Rows of the largest tile of queries; programs that attention should at least have; and most parts of the keys.
MOST_ROWS, PROGRAMS, MOST_SPLITS = 128, 198, 32
SEGMENT = 4096  # of the vocabulary
# Of the programs that attend to what several texts begin with: rows, warps and reads under way.
PREFIX_ROWS, PREFIX_WARPS, PREFIX_STAGES = 64, 4, 3


def power_of_2(number: int) -> int:
    """The least power of 2 from `number` on, and from 2 on: nothing is gained by vectors of one."""
    return max(2, triton.next_power_of_2(number))


class KernelOps:
    """`programs`: how many programs of attention keep the device busy, which decides how keys are split."""

    def __init__(self, programs: int = PROGRAMS) -> None:
        self.programs = programs

    def add_norm(
        self, x: Tensor, delta: Tensor | None, norm: Norm, *, fp8: bool = False, half: bool = False
    ) -> Tensor | Scaled:
        rows, width = x.shape
        parts = 0 if delta is None else 1 if delta.dim() == 2 else len(delta)
        out, scales = (torch.empty_like(x, dtype=torch.float16), x) if half else _output(x, width, fp8)
        padded = power_of_2(width)
        add_norm_kernel[(rows,)](
            x, delta, norm.weight, out, scales, rows, width, norm.eps, PARTS=parts, EIGHTH=fp8,
            FACTOR=HALF_SCALE if half else 1.0, WIDTH=padded, num_warps=_warps(padded), **launch(x),
        )  # fmt: skip
        return Scaled(out, scales, x.dtype) if fp8 else out

    def silu_mul(self, gate_up: Tensor, *, fp8: bool = False) -> Tensor | Scaled:
        rows, width = len(gate_up), gate_up.shape[1] // 2
        out, scales = _output(gate_up, width, fp8)
        part = power_of_2(width) if fp8 else min(power_of_2(width), 2048)
        silu_mul_kernel[(rows, triton.cdiv(width, part))](
            gate_up, out, scales, width, EIGHTH=fp8, WIDTH=part, num_warps=_warps(part), **launch(gate_up)
        )
        return Scaled(out, scales, gate_up.dtype) if fp8 else out

    def quantize(self, x: Tensor) -> Scaled:
        out, scales = _output(x, x.shape[1], True)
        padded = power_of_2(x.shape[1])
        quantize_kernel[(len(x),)](x, out, scales, x.shape[1], WIDTH=padded, num_warps=_warps(padded), **launch(x))
        return Scaled(out, scales, x.dtype)

    def rotate_store(self, qkv: Tensor, heads: Heads, cache: Tensor, context: Context) -> Tensor:
        """Queries [N, A * D]; see `forward.Ops.attend`."""
        plan, pages = context.plan, context.slots.pages
        q = torch.empty(len(qkv), heads.query * heads.dim, dtype=qkv.dtype, device=qkv.device)
        each = max(1, min(16, 1024 // heads.dim))
        grid = (len(qkv), triton.cdiv(heads.query + 2 * heads.key, each))
        rotate_store_kernel[grid](
            qkv, heads.q_norm, heads.k_norm, context.cos, context.sin, plan.slots, plan.positions, pages, q, cache,
            cache.shape[1], pages.shape[1], heads.eps, QUERY=heads.query, KEY=heads.key, DIM=heads.dim,
            PAGE=cache.shape[3], NORMS=heads.q_norm is not None, HEADS=each, num_warps=4, **launch(qkv),
        )  # fmt: skip
        return q

    def attend(self, qkv: Tensor, heads: Heads, cache: Tensor, context: Context, *, half: bool = False) -> Tensor:
        plan, shape, groups = context.plan, context.slots.shape, heads.query // heads.key
        tile = min(triton.next_power_of_2(context.tile), max(1, MOST_ROWS // groups))
        parts = triton.cdiv(context.tile, tile)
        # All rows of a text are in one tile, and nobody else sees its keys, so one kernel can write and read them.
        in_one_tile = parts == 1 and (len(plan.tiles) == 1 or len(plan.head_rows) > 0)  # else a prompt is read
        fresh = in_one_tile and not shares_prefixes(context.slots, len(plan.tiles))
        q = qkv if fresh else self.rotate_store(qkv, heads, cache, context)
        grid = (len(plan.tiles) * parts, heads.key)
        splits = 1
        while grid[0] * grid[1] * splits < self.programs and splits < MOST_SPLITS:
            splits *= 2
        dtype, factor = (torch.float16, HALF_SCALE) if half else (q.dtype, 1.0)
        out = torch.empty(len(q), heads.query * heads.dim, dtype=dtype, device=q.device)
        numbers = partial(torch.empty, dtype=torch.float32, device=q.device)
        sums = numbers((splits, len(q) * heads.query, heads.dim)) if splits > 1 else q
        extents = numbers((splits, len(q) * heads.query, 2)) if splits > 1 else q
        common = self._attend_to_prefixes(q, heads, cache, context)
        padded = max(16, power_of_2(tile * groups))
        warps, stages = self._attend_by(grid[0] * grid[1], splits, padded)
        attend_kernel[(*grid, splits)](
            q, heads.q_norm, heads.k_norm, context.cos, context.sin, cache, plan.tiles, context.slots.pages,
            context.slots.prefixes, *(common or (q, q)), out, sums, extents, cache.shape[1],
            context.slots.pages.shape[1], len(q), math.log2(math.e) / math.sqrt(heads.dim), heads.eps, FRESH=fresh,
            NORMS=heads.q_norm is not None, QUERY=heads.query, KEY=heads.key, DIM=heads.dim, PAGE=cache.shape[3],
            BLOCK=shape.block_size, TILE=tile, PARTS=parts, ROWS=padded, KEYS=min(64, cache.shape[3]), SPLITS=splits,
            FACTOR=factor, PREFIXES=common is not None, num_warps=warps,
            num_stages=2 if q.dtype == torch.float32 else stages, **launch(q),
        )  # fmt: skip
        if splits > 1:
            merge_kernel[(len(q), heads.query)](
                sums, extents, plan.slots, out, len(q), QUERY=heads.query, DIM=heads.dim, SPLITS=splits,
                FACTOR=factor, num_warps=2, **launch(q),
            )  # fmt: skip
        return out

    def _attend_by(self, programs: int, splits: int, rows: int) -> tuple[int, int]:
        """Warps and stages of attention by `programs` x `splits` programs of `rows` rows each, by measurement.

        What is to be kept under way are reads: by two stages ahead where a processor has two programs at most, and
        else by as many programs as fit.
        """
        if rows > 32:
            return 8 if rows > 64 else 4, 2
        if programs >= 2 * self.programs:
            return 2, 2
        return 4, 3 if splits == 1 and 3 * programs <= 4 * self.programs else 2

    def _attend_to_prefixes(
        self, q: Tensor, heads: Heads, cache: Tensor, context: Context
    ) -> tuple[Tensor, Tensor] | None:
        """What rows [N, A * D] attend to among the positions that several texts have in common: weighted values
        float32 [N * A, D], and greatest scores and sums of weights [N * A, 2]."""
        plan, slots = context.plan, context.slots
        if not shares_prefixes(slots, len(plan.tiles)) or not len(plan.head_rows):  # the latter: a prompt is read
            return None
        groups = heads.query // heads.key
        numbers = partial(torch.empty, dtype=torch.float32, device=q.device)
        sums, extents = numbers((len(q) * heads.query, heads.dim)), numbers((len(q) * heads.query, 2))
        parts = triton.cdiv(TEXTS * context.tile * groups, PREFIX_ROWS)
        table = slots.prefixes[0, slots.shape.slots :]
        attend_prefix_kernel[(len(table) // (1 + TEXTS) * parts, heads.key)](
            q, cache, slots.rows, slots.pages, table, sums, extents, cache.shape[1], slots.pages.shape[1],
            math.log2(math.e) / math.sqrt(heads.dim), QUERY=heads.query, KEY=heads.key, DIM=heads.dim,
            PAGE=cache.shape[3], PARTS=parts, ROWS=PREFIX_ROWS, KEYS=min(64, cache.shape[3]), TEXTS=TEXTS,
            num_warps=PREFIX_WARPS, num_stages=2 if q.dtype == torch.float32 else PREFIX_STAGES,
        )  # fmt: skip
        return sums, extents


def shares_prefixes(slots: Slots, texts: int) -> bool:
    """Whether a step of so many texts reads once what several of them begin with."""
    return slots.has_prefixes and texts >= STEP_TEXTS


@dataclass(frozen=True)
class StepBuffers:
    """What the kernels of a step write for each other, in one place for all its replays. See `plan.Plan`."""

    plan: Plan
    cleared: Tensor  # tiles, blocks and places, which hold -1 at first
    blocks: Tensor
    uniforms: Tensor
    summaries: Tensor
    bests: Tensor
    found: Proposals  # the last for what is not used
    results: Tensor

    @classmethod
    def empty(cls, room: Room, shape: Shape, device: torch.device, ranks: int = 1) -> StepBuffers:
        """`ranks`: over how many the vocabulary is cut. All have as many segments as the one with the largest part."""
        heads, segments = room.heads(shape), triton.cdiv(triton.cdiv(shape.vocab_size, ranks), SEGMENT)
        most, parts = room.texts * shape.block_size, (room.texts * 4, room.blocks * 2, heads)
        cleared = torch.full((sum(parts),), -1, dtype=torch.int32, device=device)
        tiles, blocks, places = cleared.split(parts)
        return cls(
            replace(Plan.empty(room, shape, device), tiles=tiles.view(-1, 4), places=places),
            cleared, blocks.view(-1, 2),
            torch.zeros(most, dtype=torch.float64, device=device),
            torch.zeros(heads, segments, 3, device=device),
            torch.zeros(heads, segments, dtype=torch.int32, device=device),
            Proposals.empty(most + 1, device),
            torch.zeros(room.texts, 1 + 2 * shape.block_size, dtype=torch.int32, device=device),
        )  # fmt: skip


def plan_step(slots: Slots, room: Room, buffers: StepBuffers) -> None:
    """`plan.plan_step` and `choose.uniform_of`, into the buffers."""
    shape, plan = slots.shape, buffers.plan
    buffers.cleared.fill_(-1)
    schedule.plan_kernel[(1,)](
        slots.numbers, slots.masked, slots.cursor, plan.tiles, buffers.blocks, plan.head_rows, plan.places, slots.rows,
        shape.slots, room.texts, room.blocks, len(plan.places),
        BLOCK=shape.block_size, SHIFT=int(shape.shift), SLOTS=power_of_2(shape.slots),
    )  # fmt: skip
    schedule.rows_kernel[(room.blocks,)](
        plan.tiles, buffers.blocks, slots.numbers, slots.ids, slots.masked, slots.uniforms, plan.slots, plan.positions,
        plan.ids, plan.wanted, buffers.uniforms, shape.context, slots.uniforms.shape[1], room.texts,
        BLOCK=shape.block_size, PADDED=power_of_2(shape.block_size), num_warps=1,
    )  # fmt: skip


def propose(logits: Tensor, slots: Slots, buffers: StepBuffers, mask_token_id: int, group: Group | None = None) -> None:
    """`choose.propose` without top-k and top-p for all used rows of `logits` [R, v], into `buffers.found`.
    `logits` are those of this rank's part of the vocabulary."""
    plan, found, shape, group = buffers.plan, buffers.found, slots.shape, group or Group()
    (rows, segments), shard = buffers.bests.shape, group.shard
    part = shard.vocabulary(shape.vocab_size)
    head.summarise_kernel[(rows, segments)](
        logits, plan.tiles, plan.places, slots.numbers, slots.factors, buffers.summaries, buffers.bests,
        len(part), part.start, mask_token_id, segments, BLOCK=shape.block_size, SEGMENT=SEGMENT, num_warps=8,
    )  # fmt: skip
    summaries = group.gather(buffers.summaries)
    if shard.size > 1:  # rows that are not wanted are not written, but added up as well
        found.tokens.zero_()
        found.logprobs.zero_()
    head.propose_kernel[(rows,)](
        logits, plan.tiles, plan.places, slots.numbers, slots.factors, summaries, buffers.bests, buffers.uniforms,
        found.tokens, found.logprobs, found.entropies, len(part), part.start, mask_token_id, segments, shard.rank,
        shard.size, BLOCK=shape.block_size, SEGMENT=SEGMENT, SEGMENTS=power_of_2(segments * shard.size), num_warps=8,
    )  # fmt: skip
    group.add(found.tokens)
    group.add(found.logprobs)


def reveal(slots: Slots, buffers: StepBuffers) -> None:
    """`choose.reveal`, into `buffers.results`."""
    plan, found, shape = buffers.plan, buffers.found, slots.shape
    padded = power_of_2(shape.block_size)
    schedule.reveal_kernel[(len(plan.tiles),)](
        plan.tiles, plan.wanted, found.tokens, found.logprobs, found.entropies, slots.numbers, slots.factors,
        slots.ids, slots.masked, slots.opened, slots.stops, buffers.results, shape.context, shape.vocab_size,
        BLOCK=shape.block_size, PADDED=padded, num_warps=1 if padded <= 32 else 8,
    )  # fmt: skip


def _output(x: Tensor, width: int, fp8: bool) -> tuple[Tensor, Tensor]:
    """Where a row-wise kernel writes, and its scales [N, 1]; these are `x` where there are none."""
    out = torch.empty(len(x), width, dtype=FP8 if fp8 else x.dtype, device=x.device)
    return out, torch.empty(len(x), 1, dtype=torch.float32, device=x.device) if fp8 else x


def _warps(width: int) -> int:
    return 4 if width <= 2048 else 8 if width <= 8192 else 16
