"""Attention of a few rows to many pages: the keys are split among programs, whose results are then merged.

All query heads that share a key head, of all positions of a tile, are the rows of one product. A row sees the keys up
to the end of its own block, which is all that block diffusion asks for: a block that is committed and the one after it
are rows of one tile and differ in nothing but that end.

Where texts begin alike (`prefixes`), what they have in common is attended to first, for several texts by one program,
and each text's own program goes on from there.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dice.decode.engine.kernels.early import LINE, begin, fetch, finish
from dice.decode.engine.kernels.layer import rotated


@triton.jit
def attend_kernel(
    q, q_norm, k_norm, cos, sin, cache, tiles, pages, prefixes, common_sums, common_extents, out, sums, extents,
    page_count, table_width, rows, scale, eps,
    FRESH: tl.constexpr, NORMS: tl.constexpr, QUERY: tl.constexpr, KEY: tl.constexpr, DIM: tl.constexpr,
    PAGE: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr,
    KEYS: tl.constexpr, SPLITS: tl.constexpr, FACTOR: tl.constexpr, PREFIXES: tl.constexpr, EARLY: tl.constexpr,
) -> None:  # fmt: skip
    """A program: TILE positions of a tile (there are PARTS such parts), a key head, one of SPLITS parts of the keys.

    If FRESH, `q` [N, (A + 2K) * D] is what the product gave, of a text whose rows are all in this tile: heads are
    rotated, and keys and values stored, by every program that reads them from the pages.

    `scale` includes log2(e). With one split, `out` (times FACTOR) is written, else `sums` float32 [SPLITS, N * A, D]
    (weighted values) and `extents` float32 [SPLITS, N * A, 2] (greatest score, sum of weights). If PREFIXES, the first
    `prefixes[slot]` positions are in `common_sums` [N * A, D] and `common_extents` [N * A, 2] already.
    """
    GROUPS: tl.constexpr = QUERY // KEY
    tile, part = tl.program_id(0) // PARTS, tl.program_id(0) % PARTS
    key_head, split = tl.program_id(1), tl.program_id(2)
    slot, row = tl.load(tiles + tile * 4), tl.load(tiles + tile * 4 + 1)
    first, count = tl.load(tiles + tile * 4 + 2), tl.load(tiles + tile * 4 + 3)
    if (slot < 0) | (part * TILE >= count):
        begin(EARLY)
        return
    index = tl.arange(0, ROWS)
    token = part * TILE + index // GROUPS
    valid = (index < TILE * GROUPS) & (token < count)
    limit = ((first + token) // BLOCK + 1) * BLOCK
    end = ((first + tl.minimum((part + 1) * TILE, count) - 1) // BLOCK + 1) * BLOCK
    known = 0
    if PREFIXES:
        known = tl.load(prefixes + slot)
    span = tl.cdiv(tl.cdiv(end - known, SPLITS), KEYS) * KEYS
    low = known + split * span
    dim = tl.arange(0, DIM)
    head = key_head * GROUPS + index % GROUPS
    place = (row + token).to(tl.int64) * QUERY + head
    half = tl.full((), KEY * PAGE * DIM, tl.int64) * page_count  # from keys to values
    table = pages + slot * table_width
    highest = tl.minimum(low + span, end)
    if EARLY:
        fetch_keys(cache, table, half, key_head, low, highest, KEY, DIM, PAGE, KEYS)
    if FRESH:
        place_in_q = (row + token).to(tl.int64) * (QUERY + 2 * KEY) + head
        queries = rotate_own(
            q, q_norm, k_norm, cos, sin, cache, table, half, place_in_q, first + token, valid, row, first, count,
            key_head, low + span > first, eps, NORMS, QUERY, KEY, DIM, PAGE, TILE, EARLY,
        )  # fmt: skip
    else:
        begin(EARLY)
        queries = tl.load(q + place[:, None] * DIM + dim[None, :], valid[:, None], other=0.0)
    peak, weight, total = attend_to(
        queries, cache, table, half, key_head, low, highest, end, limit, scale, KEY, DIM, PAGE, ROWS, KEYS
    )
    finish(EARLY)
    if PREFIXES:
        there = valid & (known > 0) & (split == 0)
        peak, weight, total = with_common(peak, weight, total, common_sums, common_extents, place, there, DIM)
    keep(out, sums, extents, place, split, low < end, rows, peak, weight, total, valid, QUERY, DIM, SPLITS, FACTOR)


@triton.jit
def keep(
    out, sums, extents, place, split, any_keys, rows, peak, weight, total, valid,
    QUERY: tl.constexpr, DIM: tl.constexpr, SPLITS: tl.constexpr, FACTOR: tl.constexpr,
) -> None:  # fmt: skip
    """Attention itself where all keys were seen, else what is to be merged."""
    dim = tl.arange(0, DIM)
    if SPLITS == 1:
        found = total * (FACTOR / weight)[:, None]
        tl.store(out + place[:, None] * DIM + dim[None, :], found.to(out.dtype.element_ty), valid[:, None])
    else:
        place += split.to(tl.int64) * rows * QUERY
        if any_keys:  # else the weights are 0, and nobody reads the sums
            tl.store(sums + place[:, None] * DIM + dim[None, :], total, valid[:, None])
        tl.store(extents + place * 2, peak, valid)
        tl.store(extents + place * 2 + 1, weight, valid)


@triton.jit
def with_common(peak, weight, total, sums, extents, place, there, DIM: tl.constexpr) -> tuple[tl.tensor, ...]:
    """What rows attend to, and where `there` what `attend_prefix_kernel` left for them."""
    dim = tl.arange(0, DIM)
    common_peak = tl.load(extents + place * 2, there, other=float("-inf"))
    common_weight = tl.load(extents + place * 2 + 1, there, other=0.0)
    common = tl.load(sums + place[:, None] * DIM + dim[None, :], there[:, None], other=0.0)
    higher = tl.maximum(peak, common_peak)
    level = tl.where(higher == float("-inf"), 0.0, higher)
    share, common_share = tl.exp2(peak - level), tl.exp2(common_peak - level)
    return (
        higher,
        weight * share + common_weight * common_share,
        total * share[:, None] + common * common_share[:, None],
    )


@triton.jit
def attend_prefix_kernel(
    q, cache, places, pages, groups, sums, extents, page_count, table_width, scale,
    QUERY: tl.constexpr, KEY: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr, PARTS: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, TEXTS: tl.constexpr,
) -> None:  # fmt: skip
    """A program: one of PARTS parts of the rows of a group's texts, a key head, all positions that they share.

    `groups` [G, 1 + TEXTS]: see `prefixes`. `places` [S, 2]: first row and rows of each slot's text in this step.
    `sums`, `extents`: as those of `attend_kernel` with one split.
    """
    GROUPS: tl.constexpr = QUERY // KEY
    group = groups + tl.program_id(0) // PARTS * (1 + TEXTS)
    part, key_head = tl.program_id(0) % PARTS, tl.program_id(1)
    common = tl.load(group)
    if common == 0:
        return
    text = tl.arange(0, TEXTS)
    slot = tl.load(group + 1 + text)
    first = tl.load(places + slot * 2, slot >= 0, other=0)
    count = tl.load(places + slot * 2 + 1, slot >= 0, other=0)
    end = tl.cumsum(count, 0)
    index = part * ROWS + tl.arange(0, ROWS)
    token = index // GROUPS  # of all that the texts of the group compute, one after the other
    if part * ROWS >= tl.sum(count, 0) * GROUPS:
        return
    own = (token[:, None] >= (end - count)[None, :]) & (token[:, None] < end[None, :])
    row = tl.sum(tl.where(own, (first + count - end)[None, :], 0), 1) + token
    valid = token < tl.sum(count, 0)
    dim = tl.arange(0, DIM)
    place = row.to(tl.int64) * QUERY + key_head * GROUPS + index % GROUPS
    queries = tl.load(q + place[:, None] * DIM + dim[None, :], valid[:, None], other=0.0)
    half = tl.full((), KEY * PAGE * DIM, tl.int64) * page_count
    table = pages + tl.load(group + 1) * table_width
    peak, weight, total = attend_to(
        queries, cache, table, half, key_head, 0, common, common, tl.full((ROWS,), 1 << 30, tl.int32), scale,
        KEY, DIM, PAGE, ROWS, KEYS,
    )  # fmt: skip
    tl.store(sums + place[:, None] * DIM + dim[None, :], total, valid[:, None])
    tl.store(extents + place * 2, peak, valid)
    tl.store(extents + place * 2 + 1, weight, valid)


@triton.jit
def attend_to(
    queries, cache, table, half, key_head, low, high, end, limit, scale,
    KEY: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
) -> tuple[tl.tensor, ...]:  # fmt: skip
    """Positions `low` to `high` - 1 of those before `end`: greatest score, sum of weights, weighted values."""
    dim = tl.arange(0, DIM)
    peak = tl.full((ROWS,), float("-inf"), tl.float32)
    weight = tl.zeros((ROWS,), tl.float32)
    total = tl.zeros((ROWS, DIM), tl.float32)
    page = tl.load(table + low // PAGE, low < high, other=0).to(tl.int64)
    for start in range(low, high, KEYS):
        position = start + tl.arange(0, KEYS)
        source = ((page * KEY + key_head) * PAGE + position % PAGE)[:, None] * DIM + dim[None, :]
        present = (position < end)[:, None]
        keys = tl.load(cache + source, present, other=0.0)
        values = tl.load(cache + half + source, present, other=0.0)
        # The next one is known before its keys are asked for, so that reads can be several tiles ahead.
        page = tl.load(table + (start + KEYS) // PAGE, start + KEYS < high, other=0).to(tl.int64)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        scores = tl.where(position[None, :] < limit[:, None], scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        level = tl.where(higher == float("-inf"), 0.0, higher)
        shares = tl.exp2(scores - level[:, None])
        fade = tl.exp2(peak - level)
        weight = weight * fade + tl.sum(shares, 1)
        total = total * fade[:, None] + tl.dot(shares.to(values.dtype), values, input_precision="ieee")
        peak = higher
    return peak, weight, total


@triton.jit
def rotate_own(
    qkv, q_norm, k_norm, cos, sin, cache, table, half, place, position, valid, row, first, count, key_head, stores, eps,
    NORMS: tl.constexpr, QUERY: tl.constexpr, KEY: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr,
    TILE: tl.constexpr, EARLY: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The queries at `place` in `qkv`; and if it `stores`, the tile's keys and values of a head go into their pages.

    Loads come first, so that the memory is waited for once; and of them those that need nothing of the kernel before.
    """
    dim = tl.arange(0, DIM)
    partner = (dim + DIM // 2) % DIM
    new = tl.arange(0, TILE)
    own = (new < count) & stores
    x_cos, x_sin = load_angles(cos, sin, position, valid, DIM)
    new_cos, new_sin = load_angles(cos, sin, first + new, own, DIM)
    page = tl.load(table + (first + new) // PAGE, own, other=0).to(tl.int64)
    by_q, by_q_other, by_k, by_k_other = 1.0, 1.0, 1.0, 1.0
    if NORMS:
        by_q, by_q_other = tl.load(q_norm + dim)[None, :], tl.load(q_norm + partner)[None, :]
        by_k, by_k_other = tl.load(k_norm + dim)[None, :], tl.load(k_norm + partner)[None, :]
    begin(EARLY)
    x, y = load_heads(qkv, place, valid, DIM)
    new_place = (row + new).to(tl.int64) * (QUERY + 2 * KEY) + QUERY + key_head
    keys, others = load_heads(qkv, new_place, own, DIM)
    values = tl.load(qkv + (new_place + KEY)[:, None] * DIM + dim[None, :], own[:, None], other=0.0)
    queries = rotated(x, y, by_q, by_q_other, x_cos, x_sin, eps, DIM, NORMS).to(cache.dtype.element_ty)
    if stores:
        turned = rotated(keys, others, by_k, by_k_other, new_cos, new_sin, eps, DIM, NORMS)
        there = ((page * KEY + key_head) * PAGE + (first + new) % PAGE)[:, None] * DIM + dim[None, :]
        tl.store(cache + there, turned.to(cache.dtype.element_ty), own[:, None])
        tl.store(cache + half + there, values, own[:, None])
        tl.debug_barrier()  # other threads of this program read them next
    return queries


@triton.jit
def load_heads(qkv, place, wanted, DIM: tl.constexpr) -> tuple[tl.tensor, ...]:
    """Heads [R, DIM] at `place` [R], and each element's partner in the rotation."""
    dim, head = tl.arange(0, DIM), place[:, None] * DIM
    x = tl.load(qkv + head + dim[None, :], wanted[:, None], other=0.0).to(tl.float32)
    y = tl.load(qkv + head + ((dim + DIM // 2) % DIM)[None, :], wanted[:, None], other=0.0).to(tl.float32)
    return x, y


@triton.jit
def load_angles(cos, sin, position, wanted, DIM: tl.constexpr) -> tuple[tl.tensor, ...]:
    """Cosines and sines [R, DIM] of the angles at `position` [R]."""
    angle = position[:, None] * DIM + tl.arange(0, DIM)[None, :]
    return tl.load(cos + angle, wanted[:, None], other=0.0), tl.load(sin + angle, wanted[:, None], other=0.0)


@triton.jit
def fetch_keys(
    cache, table, half, key_head, start, end,
    KEY: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr, KEYS: tl.constexpr,
) -> None:  # fmt: skip
    """Ask for KEYS keys and values from position `start` on, if it is before `end`: most were stored long ago."""
    EACH: tl.constexpr = LINE // (cache.dtype.element_ty.primitive_bitwidth // 8)
    LINES: tl.constexpr = (KEYS * DIM + EACH - 1) // EACH  # those of a page and head lie one after the other
    if start < end:
        page = tl.load(table + start // PAGE).to(tl.int64)
        place = ((page * KEY + key_head) * PAGE + start % PAGE) * DIM + tl.arange(0, LINES) * EACH
        fetch(cache + place)
        fetch(cache + half + place)


@triton.jit
def merge_kernel(
    sums, extents, slots, out, rows,
    QUERY: tl.constexpr, DIM: tl.constexpr, SPLITS: tl.constexpr, FACTOR: tl.constexpr, EARLY: tl.constexpr,
) -> None:  # fmt: skip
    """One query head of one row, from all splits, times FACTOR."""
    row, head = tl.program_id(0), tl.program_id(1)
    slot = tl.load(slots + row)
    begin(EARLY)
    if slot < 0:
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
    finish(EARLY)
    tl.store(out + place * DIM + dim, (total * (FACTOR / weight)).to(out.dtype.element_ty))
