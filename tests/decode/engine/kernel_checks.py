"""Every kernel against plain PyTorch, on any device that runs kernels: Triton's interpreter, or a GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from unittest.mock import patch

import torch
from torch import Tensor

from dice.decode.engine import choose, prefixes
from dice.decode.engine import slots as at
from dice.decode.engine.forward import Context, Heads, Norm, whole
from dice.decode.engine.group import Group
from dice.decode.engine.kernels import few_rows, ops
from dice.decode.engine.plain_ops import PlainOps, halved
from dice.decode.engine.plan import Plan, Room, plan_step
from dice.decode.engine.runner import Piece, prefill_plan
from dice.decode.engine.slots import Shape, Slots
from dice.decode.engine.weights import FP8, HALF_SCALE, Projection
from dice.decode.request import DecodeConfig
from dice.decode.sampling import STRATEGIES
from dice.decode.text import Text
from dice.model.shard import Shard


@dataclass(frozen=True)
class Case:
    """Where and in what precision, and how large."""

    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    block_size: int = 4
    heads: tuple[int, int, int] = (6, 2, 16)
    width: int = 48
    vocabulary: int = 97
    slots: int = 5
    context: int = 96
    page_size: int = 32
    norms: bool = True
    shift: bool = False

    @property
    def tolerance(self) -> float:
        return {torch.float32: 2e-5, torch.bfloat16: 3e-2}[self.dtype]

    @property
    def shape(self) -> Shape:
        return Shape(self.slots, self.block_size, self.context, self.page_size, self.vocabulary, self.shift)

    def random(self, *size: int, seed: int = 0) -> Tensor:
        numbers = torch.randn(size, generator=torch.Generator().manual_seed(seed))
        return numbers.to(self.device, self.dtype)

    def near(self, found: Tensor, expected: Tensor, *, rough: bool = False) -> None:
        """`rough`: as near as float16 is."""
        atol = max(self.tolerance, 1e-3 * rough) * max(1.0, float(expected.abs().max()))
        torch.testing.assert_close(found.float(), expected.float(), atol=atol, rtol=1e-2)


def texts_in_slots(case: Case) -> Slots:
    """All slots but the second hold texts of different lengths, strategies and ways to draw, some of them halfway."""
    slots = Slots(case.shape, torch.device(case.device))
    chance = torch.Generator().manual_seed(7)
    pages = torch.randperm(slots.pages.numel(), generator=chance).view(slots.pages.shape)
    slots.pages.copy_(pages)
    slots.write_stops(0, frozenset(range(5, 60)))
    slots.write_stops(1, frozenset({1}))
    for slot in [slot for slot in range(case.slots) if slot != 1]:
        length = 3 + (11 * slot) % (case.context // 2)
        prompt = torch.randint(2, 60, (length,), generator=chance).tolist()
        text = Text(0, prompt, case.context // 2 - 8, case.block_size, case.vocabulary - 1, frozenset(), slot)
        config = DecodeConfig(
            remasking=STRATEGIES[slot % 4], denoising_steps=max(1, case.block_size // (1 + slot % 2)),
            confidence_threshold=0.02, entropy_bound=5.0, temperature=(1.0, 0.7, 0.0)[slot % 3],
            mode="compat" if slot == 4 else "auto", vocab_limit=case.vocabulary - 7 if slot == 2 else None,
        )  # fmt: skip
        if slot % 2:
            written = text.masked[:1]
            text.reveal([written[0] - length], [7], [0.0])
        text.uncommitted = slot in (0, 3) and text.block_start > 0
        slots.write_text(slot, text, text.all_uniforms())
        slots.start(slot, text, config, slot % 2)
    return slots


def plans(case: Case, slots: Slots) -> list[tuple[Plan, int]]:
    """(plan, longest tile) of a prompt's reading and of a step, of several texts and of one."""
    pieces = [
        Piece(0, 0, list(range(2, 2 + min(8 * case.block_size, case.context)))),
        Piece(2, case.block_size, [5] * case.block_size),
    ]
    readings = [prefill_plan(read, case.shape, slots.device) for read in (pieces, pieces[1:])]
    steps = [plan_step(slots, room) for room in (Room(case.slots, 2 * case.slots), Room(1, 2))]
    return [*((one, 32) for one in readings), *((one, case.shape.window) for one in steps)]


def check_rows(case: Case) -> None:
    """Norms, SiLU and fp8."""
    kernels, plain = ops.KernelOps(), PlainOps()
    x, delta = case.random(5, case.width, seed=1), case.random(5, case.width, seed=2)
    norm = Norm(case.random(case.width, seed=3), 1e-6)
    for added in (None, delta, case.random(3, 5, case.width, seed=4).float()):
        ours, theirs = x.clone(), x.clone()
        case.near(kernels.add_norm(ours, added, norm), plain.add_norm(theirs, added, norm))
        assert torch.equal(ours, theirs)
        halves = (one.add_norm(x.clone(), added, norm, half=True) for one in (kernels, plain))
        case.near(*halves, rough=True)
    case.near(kernels.silu_mul(delta), plain.silu_mul(delta))
    both = (
        (kernels.quantize(x), plain.quantize(x)),
        (
            kernels.add_norm(x.clone(), delta, norm, fp8=True),
            plain.add_norm(x.clone(), delta, norm, fp8=True),
        ),
        (kernels.silu_mul(delta, fp8=True), plain.silu_mul(delta, fp8=True)),
    )
    for ours, theirs in both:
        assert ours.values.dtype == FP8
        found, expected = (one.values.float() * one.scale for one in (ours, theirs))
        # Triton's interpreter rounds a few numbers that end a binade to the wrong one; a GPU rounds all alike.
        near = torch.isclose(found, expected, atol=0.01 * float(expected.abs().max()), rtol=0.13)
        assert near.float().mean() > (0.97 if case.device == "cpu" else 0.999)
        assert (found - expected).abs().mean() < 0.03 * expected.abs().mean()


def check_few_rows(case: Case) -> None:
    """Products of a few rows, in each way of reading the matrix; also of weights in fp8, with rows in float16."""
    for cut in few_rows.CUTS + few_rows.SPLIT_CUTS:
        # Each way reads more than once, also in fp8, of which it reads twice as many at a time.
        width = 4 * cut.width * cut.splits
        for rows in (7, 11):
            x = case.random(rows, width, seed=1)
            linear = torch.nn.Linear(width, 50, bias=False, device=case.device, dtype=case.dtype)
            linear.weight.data.copy_(case.random(50, width, seed=2) / 8)
            for fp8 in (False, True):
                projection = Projection((linear,), fp8=fp8)
                weight = projection.eighth.double() * projection.scale.T if fp8 else linear.weight.data.double()
                given = halved(x) if fp8 else x
                exact = (given.double() / HALF_SCALE if fp8 else x.double()) @ weight.T
                case.near(whole(few_rows.product(given, projection, cut)).to(case.dtype), exact.to(case.dtype))
                if cut.splits > 1:
                    continue
                gate, up = exact.chunk(2, -1)
                gated = torch.nn.functional.silu(gate) * up
                found = few_rows.product(given, projection, cut, gated=True)
                assert found.dtype == (torch.float16 if fp8 else case.dtype)
                case.near(found.float() / HALF_SCALE if fp8 else found, gated.to(case.dtype), rough=fp8)


def check_attention(case: Case, programs: int) -> None:
    """Heads into pages, and attention to them; `programs` decides into how many parts the keys are split."""
    slots = texts_in_slots(case)
    for plan, tile in plans(case, slots):
        compare_attention(case, slots, plan, tile, programs)


def check_prefixes(case: Case, programs: int) -> None:
    """The same where texts begin with the same pages, also if some of these take no part in the step."""
    slots = texts_in_slots(case)
    size, start = case.page_size, slots.numbers[:, at.BLOCK_START].tolist()
    alike = [slot for slot in range(case.slots) if start[slot] >= 2 * size]
    assert len(alike) > 2, "these texts are shorter than two pages"
    slots.pages[alike, :2] = slots.pages[alike[0], :2].clone()
    held = [(slot, slots.pages[slot].tolist()) for slot in (*alike, 0)]
    with patch.object(prefixes, "LEAST", size), patch.object(ops, "STEP_TEXTS", 2):
        slots.write_prefixes(prefixes.prefix_table(held, case.slots, size))
        assert slots.has_prefixes
        for room in (Room(case.slots, 2 * case.slots), Room(3, 4), Room(3, 4)):
            buffers = ops.StepBuffers.empty(room, case.shape, slots.device)
            ops.plan_step(slots, room, buffers)
            compare_attention(case, slots, buffers.plan, case.shape.window, programs)


def compare_attention(case: Case, slots: Slots, plan: Plan, tile: int, programs: int) -> None:
    query, key, dim = case.heads
    norms = (case.random(dim, seed=4), case.random(dim, seed=5)) if case.norms else (None, None)
    heads = Heads(query, key, dim, 1e-6, *norms)
    angle = torch.outer(torch.arange(case.context).float(), torch.rand(dim // 2))
    cos = torch.cat((angle.cos(), angle.cos()), -1).to(case.device)
    sin = torch.cat((-angle.sin(), angle.sin()), -1).to(case.device)
    pages = slots.pages.numel()
    filled = case.random(2, pages, key, case.page_size, dim, seed=6)
    context = Context(plan, slots, tile, cos, sin)
    used = (plan.slots >= 0).nonzero()[:, 0]
    qkv = case.random(len(plan.ids), (query + 2 * key) * dim, seed=8)
    ours, theirs = filled.clone(), filled.clone()
    kernels, plain = ops.KernelOps(programs), PlainOps()
    found, expected = (
        one.rotate_store(qkv, heads, cache, context) for one, cache in ((kernels, ours), (plain, theirs))
    )
    case.near(found[used], expected[used])
    case.near(ours, theirs)
    ours, theirs = filled.clone(), filled.clone()
    found, expected = (one.attend(qkv, heads, cache, context) for one, cache in ((kernels, ours), (plain, theirs)))
    case.near(found[used], expected[used])
    case.near(ours, theirs)
    found = kernels.attend(qkv, heads, ours, context, half=True)
    expected = plain.attend(qkv, heads, theirs, context, half=True)
    assert found.dtype == expected.dtype == torch.float16
    case.near(found[used], expected[used], rough=True)


def check_step(case: Case, room: Room, *, ends: bool = True) -> None:
    """What a step computes, what it proposes and what it reveals, for a few steps in a row. `ends`: some text must."""
    ours, theirs = texts_in_slots(case), texts_in_slots(case)
    mask_id = case.vocabulary - 1
    for step in range(4):
        buffers = ops.StepBuffers.empty(room, case.shape, ours.device)
        ops.plan_step(ours, room, buffers)
        plan = plan_step(theirs, room)
        texts, rows = len(plan.tiles), len(plan.ids)
        assert torch.equal(buffers.plan.tiles[:texts], plan.tiles) and (buffers.plan.tiles[texts:, 0] == -1).all()
        for name in ("slots", "positions", "ids"):
            assert torch.equal(getattr(buffers.plan, name)[:rows], getattr(plan, name)), name
        assert (buffers.plan.slots[rows:] == -1).all()
        most, heads = texts * case.block_size, len(plan.places)
        assert torch.equal(buffers.plan.wanted[:most], plan.wanted) and not buffers.plan.wanted[most:].any()
        assert torch.equal(buffers.plan.head_rows[:heads], plan.head_rows)
        assert torch.equal(buffers.plan.places[:heads], plan.places) and (buffers.plan.places[heads:] == -1).all()

        logits = 3 * case.random(room.heads(case.shape), case.vocabulary, seed=step)
        ops.propose(logits.clone(), ours, buffers, mask_id)
        places = plan.places.long()
        uniforms = choose.uniform_of(theirs, plan)[places]
        assert torch.equal(buffers.uniforms[places], uniforms)
        slot_of = plan.tiles[places // case.block_size, 0].long()
        expected = choose.propose(logits[:heads].clone(), slot_of, uniforms, theirs, mask_id)
        found = buffers.found
        assert torch.equal(found.tokens[places], expected.tokens)
        for name in ("logprobs", "entropies"):
            case.near(getattr(found, name)[places], getattr(expected, name))
        # From here on from the same numbers: rounding may turn a close choice.
        exact = choose.Proposals(found.tokens[:most], found.logprobs[:most], found.entropies[:most])
        ops.reveal(ours, buffers)
        results = choose.reveal(exact, plan, theirs)
        assert torch.equal(buffers.results[:texts, : 1 + case.block_size], results[:, : 1 + case.block_size])
        for name in ("numbers", "ids", "masked", "opened"):
            assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
        assert torch.equal(ours.cursor, theirs.cursor)
    assert not ends or (theirs.numbers[:, at.ACTIVE] == 0).sum() > 1, "no text came to its end"


class Recalled(Group):
    """A rank whose peers are run one after the other: it hears what they said in the round before."""

    def __init__(self, shard: Shard, said: list[Tensor]) -> None:
        self.shard, self.said = shard, said

    def gather(self, x: Tensor) -> Tensor:
        self.said[self.shard.rank] = x.clone()
        return torch.stack(self.said)


def check_split(case: Case, ranks: int) -> None:
    """What ranks propose that have a part of the vocabulary each: together, what one proposes that has it all."""
    slots, room = texts_in_slots(case), Room(case.slots, 2 * case.slots)
    whole = ops.StepBuffers.empty(room, case.shape, slots.device)
    ops.plan_step(slots, room, whole)
    logits = 3 * case.random(room.heads(case.shape), case.vocabulary, seed=1)
    ops.propose(logits, slots, whole, case.vocabulary - 1)
    shards = [Shard(rank, ranks) for rank in range(ranks)]
    blank = ops.StepBuffers.empty(room, case.shape, slots.device, ranks)
    said = [blank.summaries.clone() for _ in shards]
    for _ in range(2):  # in the first round nobody has heard of the others
        parts = []
        for shard in shards:
            buffers = replace(blank, plan=whole.plan, uniforms=whole.uniforms, bests=blank.bests.clone())
            buffers = replace(buffers, found=choose.Proposals.empty(len(whole.found.tokens), slots.device))
            tokens = shard.vocabulary(case.vocabulary)
            own = logits[:, tokens.start : tokens.stop].contiguous()
            ops.propose(own, slots, buffers, case.vocabulary - 1, Recalled(shard, said))
            parts.append(buffers.found)
    places = whole.plan.places[whole.plan.places >= 0].long()
    assert torch.equal(sum(part.tokens for part in parts)[places], whole.found.tokens[places])
    case.near(sum(part.logprobs for part in parts)[places], whole.found.logprobs[places])
    for part in parts:
        case.near(part.entropies[places], whole.found.entropies[places])


def check_drawing(case: Case, draws: int) -> float:
    """Total variation distance between tokens drawn and their distribution; all rows have the same logits."""
    shape = replace(case.shape, slots=draws)
    slots = Slots(shape, torch.device(case.device))
    room = Room(draws, 2 * draws)
    buffers = ops.StepBuffers.empty(room, shape, slots.device)
    buffers.plan.tiles[:, 0] = torch.arange(draws, dtype=torch.int32)
    buffers.plan.places.copy_(torch.arange(len(buffers.plan.places)))
    slots.numbers[:, at.VOCABULARY] = case.vocabulary
    slots.factors[:, at.TEMPERATURE] = 1.0
    chance = torch.Generator().manual_seed(3)
    buffers.uniforms.copy_(torch.rand(buffers.uniforms.shape, generator=chance, dtype=torch.float64))
    line = 2 * case.random(case.vocabulary, seed=9)
    ops.propose(line.repeat(len(buffers.uniforms), 1), slots, buffers, case.vocabulary - 1)
    line[-1] = float("-inf")
    counted = torch.bincount(buffers.found.tokens[:-1].long(), minlength=case.vocabulary).double()
    return float((counted / counted.sum() - line.double().softmax(-1)).abs().sum() / 2)
