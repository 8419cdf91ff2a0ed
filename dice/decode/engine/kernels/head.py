"""From logits to a token, its log-probability and the entropy of each row, reading the logits once.

The vocabulary is cut into segments; a program summarises one, and another merges the summaries of a row. A token is
drawn by inverting the cumulative distribution: the segment follows from the summaries, and only that one is read again.
Nothing of the size of the vocabulary is written.

Where the vocabulary is cut over ranks, `first` is the token of this rank's first logit. Its summaries are merged with
those of all ranks, whose segments follow each other; the rank whose segment it is tells the token, the others 0.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dice.decode.engine import slots as at

NUMBERS, FACTORS = tl.constexpr(at.NUMBERS), tl.constexpr(4)
VOCABULARY, MODE, TEMPERATURE = tl.constexpr(at.VOCABULARY), tl.constexpr(at.MODE), tl.constexpr(at.TEMPERATURE)
SAMPLE = tl.constexpr(at.RESOLVED_MODES.index("sample"))
COMPAT = tl.constexpr(at.RESOLVED_MODES.index("compat"))


@triton.jit
def scaled_logits(
    logits,
    row,
    column,
    numbers,
    factors,
    slot,
    vocabulary,
    first,
    mask_id,
):
    """Logits over temperature, -inf where no token is allowed. `vocabulary`: how many logits a row has."""
    token = first + column
    allowed = (token < tl.load(numbers + slot * NUMBERS + VOCABULARY)) & (token != mask_id)
    found = tl.load(logits + row.to(tl.int64) * vocabulary + column, column < vocabulary, other=float("-inf"))
    temperature = tl.load(factors + slot * FACTORS + TEMPERATURE).to(tl.float32)
    return tl.where(allowed, found.to(tl.float32) / temperature, float("-inf"))


@triton.jit
def summarise_kernel(
    logits, tiles, places, numbers, factors, summaries, bests,
    vocabulary, first, mask_id, segments, BLOCK: tl.constexpr, SEGMENT: tl.constexpr,
) -> None:  # fmt: skip
    """Of one row, which predicts position `places[row]`, and one segment: the greatest logit, the sum of
    exp(logit - greatest), the same weighted by the exponent, and the column of the greatest (the first of equal ones).
    """
    row, segment = tl.program_id(0), tl.program_id(1)
    position = tl.load(places + row)
    if position < 0:
        return
    slot = tl.load(tiles + position // BLOCK * 4)
    column = segment * SEGMENT + tl.arange(0, SEGMENT)
    x = scaled_logits(logits, row, column, numbers, factors, slot, vocabulary, first, mask_id)
    peak = tl.max(x, 0)
    best = tl.min(tl.where(x == peak, column, 2147483647), 0)
    below = x - tl.where(peak == float("-inf"), 0.0, peak)
    share = tl.exp(below)
    place = row * segments + segment
    tl.store(summaries + place * 3, peak)
    tl.store(summaries + place * 3 + 1, tl.sum(share, 0))
    tl.store(summaries + place * 3 + 2, tl.sum(tl.where(share > 0, share * below, 0.0), 0))
    tl.store(bests + place, best)


@triton.jit
def propose_kernel(
    logits, tiles, places, numbers, factors, summaries, bests, uniforms,
    tokens, logprobs, entropies, vocabulary, first, mask_id, segments, rank, ranks,
    BLOCK: tl.constexpr, SEGMENT: tl.constexpr, SEGMENTS: tl.constexpr,
) -> None:  # fmt: skip
    """A row's token, log-probability and entropy, from the summaries [ranks, rows, segments, 3] of its segments."""
    row = tl.program_id(0)
    position = tl.load(places + row)
    if position < 0:
        return
    slot = tl.load(tiles + position // BLOCK * 4)
    index = tl.arange(0, SEGMENTS)
    inside = index < segments * ranks
    place = (index // segments * tl.num_programs(0) + row) * segments + index % segments
    peaks = tl.load(summaries + place * 3, inside, other=float("-inf"))
    peak = tl.max(peaks, 0)
    fade = tl.exp(peaks - peak)
    sums = tl.load(summaries + place * 3 + 1, inside, other=0.0) * fade
    total = tl.sum(sums, 0)
    lower = tl.where(fade > 0, peaks - peak, 0.0)
    weighted = tl.load(summaries + place * 3 + 2, inside, other=0.0) * fade + sums * lower
    tl.store(entropies + position, tl.log(total) - tl.sum(weighted, 0) / total)

    mode = tl.load(numbers + slot * NUMBERS + MODE)
    segment = tl.min(tl.where(peaks == peak, index, SEGMENTS - 1), 0)
    found = tl.load(bests + row * segments + segment % segments)
    if mode == SAMPLE:
        target = tl.load(uniforms + position) * tl.sum(sums.to(tl.float64), 0)
        upto = tl.cumsum(sums.to(tl.float64), 0)
        last = tl.max(tl.where(sums > 0, index, 0), 0)
        segment = tl.minimum(tl.sum((upto <= target).to(tl.int32), 0), last)
        before = tl.sum(tl.where(index < segment, sums.to(tl.float64), 0.0), 0)
        column = segment % segments * SEGMENT + tl.arange(0, SEGMENT)
        x = scaled_logits(logits, row, column, numbers, factors, slot, vocabulary, first, mask_id)
        share = tl.exp(x - peak).to(tl.float64)
        reached = (before + tl.cumsum(share, 0) > target) & (share > 0)
        drawn = tl.min(tl.where(reached, column, 2147483647), 0)
        # Rounding can leave the target just beyond the segment's sum.
        found = tl.where(drawn == 2147483647, tl.max(tl.where(share > 0, column, 0), 0), drawn)
    mine = segment // segments == rank
    tl.store(tokens + position, tl.where(mine, first + found, 0))
    own = scaled_logits(logits, row, found, numbers, factors, slot, vocabulary, first, mask_id)
    tl.store(logprobs + position, tl.where((mode == COMPAT) | (not mine), 0.0, own - peak - tl.log(total)))
