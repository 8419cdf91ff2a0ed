"""Attention of a few rows to many pages: the keys are split among programs, whose results are then merged.

All query heads that share a key head, of all positions of a tile, are the rows of one product. A row sees the keys up
to the end of its own block, which is all that block diffusion asks for: a block that is committed and the one after it
are rows of one tile and differ in nothing but that end.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def attend_kernel(
    q, cache, tiles, pages, out, sums, extents,
    page_count, table_width, rows, scale,
    QUERY: tl.constexpr, KEY: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr,
    TILE: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, SPLITS: tl.constexpr,
) -> None:  # fmt: skip
    """A program: TILE positions of a tile (there are PARTS such parts), a key head, one of SPLITS parts of the keys.

    `scale` includes log2(e). With one split, `out` is written, else `sums` float32 [SPLITS, N * A, D] (weighted values)
    and `extents` float32 [SPLITS, N * A, 2] (greatest score, sum of weights).
    """
    GROUPS: tl.constexpr = QUERY // KEY
    tile, part = tl.program_id(0) // PARTS, tl.program_id(0) % PARTS
    key_head, split = tl.program_id(1), tl.program_id(2)
    slot, row = tl.load(tiles + tile * 4), tl.load(tiles + tile * 4 + 1)
    first, count = tl.load(tiles + tile * 4 + 2), tl.load(tiles + tile * 4 + 3)
    if slot < 0:
        return
    if part * TILE >= count:
        return
    index = tl.arange(0, ROWS)
    token = part * TILE + index // GROUPS
    valid = (index < TILE * GROUPS) & (token < count)
    limit = ((first + token) // BLOCK + 1) * BLOCK
    end = ((first + tl.minimum((part + 1) * TILE, count) - 1) // BLOCK + 1) * BLOCK
    span = tl.cdiv(tl.cdiv(end, SPLITS), KEYS) * KEYS
    low = split * span
    dim = tl.arange(0, DIM)
    place = (row + token).to(tl.int64) * QUERY + key_head * GROUPS + index % GROUPS
    queries = tl.load(q + place[:, None] * DIM + dim[None, :], valid[:, None], other=0.0)
    peak = tl.full((ROWS,), float("-inf"), tl.float32)
    weight = tl.zeros((ROWS,), tl.float32)
    total = tl.zeros((ROWS, DIM), tl.float32)
    half = tl.full((), KEY * PAGE * DIM, tl.int64) * page_count  # from keys to values
    for start in range(low, tl.minimum(low + span, end), KEYS):
        position = start + tl.arange(0, KEYS)
        page = tl.load(pages + slot * table_width + start // PAGE).to(tl.int64)
        source = ((page * KEY + key_head) * PAGE + position % PAGE)[:, None] * DIM + dim[None, :]
        present = (position < end)[:, None]
        keys = tl.load(cache + source, present, other=0.0)
        values = tl.load(cache + half + source, present, other=0.0)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        scores = tl.where(position[None, :] < limit[:, None], scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        level = tl.where(higher == float("-inf"), 0.0, higher)
        shares = tl.exp2(scores - level[:, None])
        fade = tl.exp2(peak - level)
        weight = weight * fade + tl.sum(shares, 1)
        total = total * fade[:, None] + tl.dot(shares.to(values.dtype), values, input_precision="ieee")
        peak = higher
    if SPLITS == 1:
        found = (total / weight[:, None]).to(out.dtype.element_ty)
        tl.store(out + place[:, None] * DIM + dim[None, :], found, valid[:, None])
    else:
        place += split.to(tl.int64) * rows * QUERY
        if low < end:  # else the weights are 0, and nobody reads the sums
            tl.store(sums + place[:, None] * DIM + dim[None, :], total, valid[:, None])
        tl.store(extents + place * 2, peak, valid)
        tl.store(extents + place * 2 + 1, weight, valid)


@triton.jit
def merge_kernel(
    sums, extents, slots, out, rows,
    QUERY: tl.constexpr, DIM: tl.constexpr, SPLITS: tl.constexpr,
) -> None:  # fmt: skip
    """One query head of one row, from all splits."""
    row, head = tl.program_id(0), tl.program_id(1)
    if tl.load(slots + row) < 0:
        return
    dim, split = tl.arange(0, DIM), tl.arange(0, SPLITS)
    place = row.to(tl.int64) * QUERY + head
    each = split.to(tl.int64) * rows * QUERY + place
    peaks = tl.load(extents + each * 2)
    share = tl.exp2(peaks - tl.max(peaks, 0))
    weights = tl.load(extents + each * 2 + 1)
    weight = tl.sum(share * weights, 0)
    parts = tl.load(sums + each[:, None] * DIM + dim[None, :], (weights > 0)[:, None], other=0.0)
    total = tl.sum(parts * share[:, None], 0)
    tl.store(out + place * DIM + dim, (total / weight).to(out.dtype.element_ty))
