"""The beginning and the end of a step on the device: which rows it computes, and which positions it reveals."""

from __future__ import annotations

import triton
import triton.language as tl

from dice.decode.engine import slots as at
from dice.decode.sampling import STRATEGIES as NAMES

NUMBERS, FACTORS = tl.constexpr(at.NUMBERS), tl.constexpr(4)
ACTIVE, BLOCK_START, UNCOMMITTED = tl.constexpr(at.ACTIVE), tl.constexpr(at.BLOCK_START), tl.constexpr(at.UNCOMMITTED)
BLOCK_STEP, DRAWN, OPEN_UNTIL = tl.constexpr(at.BLOCK_STEP), tl.constexpr(at.DRAWN), tl.constexpr(at.OPEN_UNTIL)
COUNT, EXTRA, STEPS = tl.constexpr(at.COUNT), tl.constexpr(at.EXTRA), tl.constexpr(at.STEPS)
STRATEGY, STOP_SET = tl.constexpr(at.STRATEGY), tl.constexpr(at.STOP_SET)
THRESHOLD, BOUND = tl.constexpr(at.THRESHOLD), tl.constexpr(at.BOUND)
SEQUENTIAL = tl.constexpr(NAMES.index("sequential"))
DYNAMIC = tl.constexpr(NAMES.index("low_confidence_dynamic"))
ENTROPY = tl.constexpr(NAMES.index("entropy_bounded"))


@triton.jit
def plan_kernel(
    numbers, masked, cursor, tiles, blocks, head_rows, places, rows, slots, texts, room, heads,
    BLOCK: tl.constexpr, SHIFT: tl.constexpr, SLOTS: tl.constexpr,
) -> None:  # fmt: skip
    """`plan.plan_step` without most of the rows, by one program. `blocks` [room, 2]: (slot, first position) of each
    block of rows; it, `tiles` and `places` [heads] hold -1 before. `rows`: see `Slots`."""
    index = tl.arange(0, SLOTS)
    start = tl.load(cursor)
    turn = (start + index) % slots
    own = numbers + turn * NUMBERS
    active = tl.load(own + ACTIVE, index < slots, other=0)
    two = tl.load(own + UNCOMMITTED, index < slots, other=0)
    if SHIFT:
        two = tl.zeros_like(two)
    need = active * (1 + two)
    count = tl.zeros_like(need)
    for lane in range(BLOCK):
        count += tl.load(masked + turn * BLOCK + lane, active > 0, other=0).to(tl.int32)
    last_block, last_head, last_text = tl.cumsum(need, 0), tl.cumsum(count, 0), tl.cumsum(active, 0)
    takes_part = (active > 0) & (last_block <= room) & (last_text <= texts) & (last_head <= heads)
    waits = tl.min(tl.where((active > 0) & ~takes_part, index, SLOTS), 0)
    if waits < SLOTS:
        tl.store(cursor, (start + waits) % slots)

    first = tl.load(own + BLOCK_START, index < slots, other=0) - BLOCK * two - SHIFT
    tile, block = tiles + (last_text - 1) * 4, last_block - need
    tl.store(tile, turn, takes_part)
    tl.store(tile + 1, block * BLOCK, takes_part)
    tl.store(tile + 2, first, takes_part)
    tl.store(tile + 3, need * BLOCK, takes_part)
    tl.store(rows + turn * 2, block * BLOCK, takes_part)
    tl.store(rows + turn * 2 + 1, tl.where(takes_part, need * BLOCK, 0), index < slots)
    tl.store(blocks + block * 2, turn, takes_part)
    tl.store(blocks + block * 2 + 1, first, takes_part)
    tl.store(blocks + block * 2 + 2, turn, takes_part & (two > 0))
    tl.store(blocks + block * 2 + 3, first + BLOCK, takes_part & (two > 0))
    head = last_head - count
    for lane in range(BLOCK):
        want = tl.load(masked + turn * BLOCK + lane, takes_part, other=0).to(tl.int32)
        tl.store(head_rows + head, last_block * BLOCK - BLOCK + lane, want > 0)
        tl.store(places + head, (last_text - 1) * BLOCK + lane, want > 0)
        head += want


@triton.jit
def rows_kernel(
    tiles, blocks, numbers, ids, masked, uniforms,
    slots_out, positions_out, ids_out, wanted, numbers_out,
    context, draws, texts, BLOCK: tl.constexpr, PADDED: tl.constexpr,
) -> None:  # fmt: skip
    """The rows of one block and, by the first `texts` programs, what is masked in one text, with random numbers."""
    index, lane = tl.program_id(0), tl.arange(0, PADDED)
    inside = lane < BLOCK
    slot, first = tl.load(blocks + index * 2), tl.load(blocks + index * 2 + 1)
    used = slot + tl.zeros_like(lane) >= 0
    out = index * BLOCK + lane
    token = tl.load(ids + slot.to(tl.int64) * context + first + lane, inside & used, other=0)
    tl.store(slots_out + out, tl.zeros_like(lane) + slot, inside)
    tl.store(positions_out + out, tl.where(used, first + lane, 0), inside)
    tl.store(ids_out + out, token, inside)
    if index < texts:
        slot = tl.load(tiles + index * 4)
        used = slot + tl.zeros_like(lane) >= 0
        want = tl.load(masked + slot * BLOCK + lane, inside & used, other=0).to(tl.int32)
        tl.store(wanted + out, want.to(tl.int8), inside)
        drawn = tl.load(numbers + slot * NUMBERS + DRAWN + tl.zeros_like(lane), used, other=0)
        place = drawn + tl.cumsum(want, 0) - want
        number = tl.load(uniforms + slot.to(tl.int64) * draws + place, (want > 0) & (place < draws), other=0.0)
        tl.store(numbers_out + out, number, inside)


@triton.jit
def before(values, masked, lane):
    """[i, j]: whether masked position j comes before i, or is i: smaller `values`, or as small and further left."""
    own, other = values[:, None], values[None, :]
    return masked[None, :] & ((other < own) | ((other == own) & (lane[None, :] <= lane[:, None])))


@triton.jit
def select(own, factor, logprob, entropy, masked, lane):
    """Which masked positions of a block to reveal now: `choose.select`."""
    steps = tl.minimum(tl.load(own + BLOCK_STEP), tl.load(own + STEPS) - 1)
    count = tl.load(own + COUNT) + (steps < tl.load(own + EXTRA)).to(tl.int32)
    count = tl.minimum(tl.maximum(count, 1), tl.sum(masked.to(tl.int32), 0))
    surest = masked & (tl.sum(before(-logprob, masked, lane).to(tl.int32), 1) <= count)
    sure = masked & (tl.exp(logprob) > tl.load(factor + THRESHOLD))
    leftmost = masked & (tl.cumsum(masked.to(tl.int32), 0) <= count)
    earlier = before(entropy, masked, lane)
    total = tl.sum(tl.where(earlier, entropy[None, :], 0.0), 1)
    bounded = masked & ((tl.sum(earlier.to(tl.int32), 1) <= 1) | (total < tl.load(factor + BOUND)))
    strategy = tl.load(own + STRATEGY)
    enough = tl.sum(sure.to(tl.int32), 0) >= count
    dynamic = tl.where(enough, sure.to(tl.int32), surest.to(tl.int32))
    chosen = tl.where(strategy == DYNAMIC, dynamic, surest.to(tl.int32))
    chosen = tl.where(strategy == SEQUENTIAL, leftmost.to(tl.int32), chosen)
    return tl.where(strategy == ENTROPY, bounded.to(tl.int32), chosen) > 0


@triton.jit
def reveal_kernel(
    tiles, wanted, tokens, logprobs, entropies, numbers, factors, ids,
    masked, opened, stops, results, context, vocabulary,
    BLOCK: tl.constexpr, PADDED: tl.constexpr,
) -> None:  # fmt: skip
    """`choose.reveal` for one text."""
    tile, lane = tl.program_id(0), tl.arange(0, PADDED)
    inside = lane < BLOCK
    slot = tl.load(tiles + tile * 4)
    line = results + tile * (1 + 2 * BLOCK)
    tl.store(line, slot)
    if slot < 0:
        return
    place = tile * BLOCK + lane
    was_masked = tl.load(wanted + place, inside, other=0) > 0
    token = tl.load(tokens + place, was_masked, other=0)
    logprob = tl.load(logprobs + place, was_masked, other=0.0)
    entropy = tl.load(entropies + place, was_masked, other=0.0)
    own, factor = numbers + slot * NUMBERS, factors + slot * FACTORS
    chosen = select(own, factor, logprob.to(tl.float64), entropy.to(tl.float64), was_masked, lane)
    tl.store(line + 1 + lane, tl.where(chosen, token, -1), inside)
    tl.store(line + 1 + BLOCK + lane, logprob.to(tl.int32, bitcast=True), inside)

    start, drawn, step = tl.load(own + BLOCK_START), tl.load(own + DRAWN), tl.load(own + BLOCK_STEP)
    where = ids + slot.to(tl.int64) * context + start + lane
    current = tl.where(chosen, token, tl.load(where, inside, other=0))
    still = was_masked & ~chosen
    full = tl.sum(still.to(tl.int32), 0) + tl.zeros_like(lane) == 0  # the same in every lane, as what follows
    written = tl.load(opened + slot * BLOCK + lane, inside, other=0) > 0
    ending = tl.load(stops + tl.load(own + STOP_SET).to(tl.int64) * vocabulary + current, written & full, other=0)
    stops_here = tl.sum(ending.to(tl.int32), 0)
    ends_here = tl.where(start + 2 * BLOCK <= tl.load(own + OPEN_UNTIL), stops_here, 1)
    goes_on = full & (ends_here + tl.zeros_like(lane) == 0)
    still_here = tl.max((~full | goes_on).to(tl.int32), 0)
    moves = tl.max(goes_on.to(tl.int32), 0)
    tl.debug_barrier()  # every thread has read the text's state
    tl.store(where, current, inside & chosen)
    tl.store(own + DRAWN, drawn + tl.sum(was_masked.to(tl.int32), 0))
    tl.store(own + ACTIVE, still_here)
    tl.store(own + BLOCK_START, start + moves * BLOCK)
    tl.store(own + UNCOMMITTED, moves)
    tl.store(own + BLOCK_STEP, (step + 1) * (1 - moves))
    tl.store(masked + slot * BLOCK + lane, (still | goes_on).to(tl.int8), inside)
    tl.store(opened + slot * BLOCK + lane, (written | goes_on).to(tl.int8), inside)
