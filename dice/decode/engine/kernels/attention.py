"""Attention of a few rows to many pages: the keys are split among programs, whose results are then merged.

All query heads that share a key head, of all positions of a tile, are the rows of one product. A row sees the keys up
to the end of its own block, which is all that block diffusion asks for: a block that is committed and the one after it
are rows of one tile and differ in nothing but that end.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dice.decode.engine.kernels.layer import rotated


@triton.jit
def attend_kernel(
    q, q_norm, k_norm, cos, sin, cache, tiles, pages, out, sums, extents,
    page_count, table_width, rows, scale, eps,
    FRESH: tl.constexpr, NORMS: tl.constexpr, QUERY: tl.constexpr, KEY: tl.constexpr, DIM: tl.constexpr,
    PAGE: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr,
    KEYS: tl.constexpr, SPLITS: tl.constexpr, FACTOR: tl.constexpr,
) -> None:  # fmt: skip
    """A program: TILE positions of a tile (there are PARTS such parts), a key head, one of SPLITS parts of the keys.

    If FRESH, `q` [N, (A + 2K) * D] is what the product gave, of a text whose rows are all in this tile: heads are
    rotated and keys and values stored here, by every program that reads them from the pages.

    `scale` includes log2(e). With one split, `out` (times FACTOR) is written, else `sums` float32 [SPLITS, N * A, D]
    (weighted values) and `extents` float32 [SPLITS, N * A, 2] (greatest score, sum of weights).
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
    half = tl.full((), KEY * PAGE * DIM, tl.int64) * page_count  # from keys to values
    place = (row + token).to(tl.int64) * QUERY + key_head * GROUPS + index % GROUPS
    if FRESH:
        # The loads of all come first, so that one waits for the memory once.
        reads_new = low + span > first
        partner = (dim + DIM // 2) % DIM
        heads = ((row + token).to(tl.int64) * (QUERY + 2 * KEY) + key_head * GROUPS + index % GROUPS)[:, None] * DIM
        x = tl.load(q + heads + dim[None, :], valid[:, None], other=0.0).to(tl.float32)
        y = tl.load(q + heads + partner[None, :], valid[:, None], other=0.0).to(tl.float32)
        angle = (first + token)[:, None] * DIM + dim[None, :]
        angle_cos = tl.load(cos + angle, valid[:, None], other=0.0)
        angle_sin = tl.load(sin + angle, valid[:, None], other=0.0)
        new = tl.arange(0, TILE)
        own = ((new < count) & reads_new)[:, None]
        key_heads = ((row + new).to(tl.int64) * (QUERY + 2 * KEY) + QUERY + key_head)[:, None] * DIM
        new_x = tl.load(q + key_heads + dim[None, :], own, other=0.0).to(tl.float32)
        new_y = tl.load(q + key_heads + partner[None, :], own, other=0.0).to(tl.float32)
        new_values = tl.load(q + key_heads + KEY * DIM + dim[None, :], own, other=0.0)
        angle = (first + new)[:, None] * DIM + dim[None, :]
        new_cos, new_sin = tl.load(cos + angle, own, other=0.0), tl.load(sin + angle, own, other=0.0)
        new_page = tl.load(pages + slot * table_width + (first + new) // PAGE, (new < count) & reads_new, other=0)
        by_q, by_q_other, by_k, by_k_other = 1.0, 1.0, 1.0, 1.0
        if NORMS:
            by_q, by_q_other = tl.load(q_norm + dim)[None, :], tl.load(q_norm + partner)[None, :]
            by_k, by_k_other = tl.load(k_norm + dim)[None, :], tl.load(k_norm + partner)[None, :]
        queries = rotated(x, y, by_q, by_q_other, angle_cos, angle_sin, eps, DIM, NORMS).to(cache.dtype.element_ty)
        if reads_new:
            new_keys = rotated(new_x, new_y, by_k, by_k_other, new_cos, new_sin, eps, DIM, NORMS)
            place_in_page = (new_page.to(tl.int64) * KEY + key_head) * PAGE + (first + new) % PAGE
            there = place_in_page[:, None] * DIM + dim[None, :]
            tl.store(cache + there, new_keys.to(cache.dtype.element_ty), own)
            tl.store(cache + half + there, new_values, own)
            tl.debug_barrier()  # this program's other threads read them below
    else:
        queries = tl.load(q + place[:, None] * DIM + dim[None, :], valid[:, None], other=0.0)
    peak = tl.full((ROWS,), float("-inf"), tl.float32)
    weight = tl.zeros((ROWS,), tl.float32)
    total = tl.zeros((ROWS, DIM), tl.float32)
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
        found = total * (FACTOR / weight)[:, None]
        tl.store(out + place[:, None] * DIM + dim[None, :], found.to(out.dtype.element_ty), valid[:, None])
    else:
        place += split.to(tl.int64) * rows * QUERY
        if low < end:  # else the weights are 0, and nobody reads the sums
            tl.store(sums + place[:, None] * DIM + dim[None, :], total, valid[:, None])
        tl.store(extents + place * 2, peak, valid)
        tl.store(extents + place * 2 + 1, weight, valid)


@triton.jit
def merge_kernel(
    sums, extents, slots, out, rows,
    QUERY: tl.constexpr, DIM: tl.constexpr, SPLITS: tl.constexpr, FACTOR: tl.constexpr,
) -> None:  # fmt: skip
    """One query head of one row, from all splits, times FACTOR."""
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
    tl.store(out + place * DIM + dim, (total * (FACTOR / weight)).to(out.dtype.element_ty))
