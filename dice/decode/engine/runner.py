"""Runs the forwards that the engine asks for, each at once: the CPU's way, without kernels or graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from dice.decode.engine.choose import Proposals, likeliest_of, propose, reveal, uniform_of
from dice.decode.engine.forward import PagedForward
from dice.decode.engine.group import Group
from dice.decode.engine.plain_ops import PlainOps
from dice.decode.engine.plan import Plan, Room, plan_step
from dice.decode.engine.slots import Shape, Slots
from dice.decode.engine.split_head import propose_split, whole_logits
from dice.decode.sampling import Likeliest
from dice.model.sdar import SDAR

TILE = 32  # most positions of a prompt that attend together


@dataclass(frozen=True)
class Piece:
    """Consecutive tokens of the text in a slot, to be read into its pages."""

    slot: int
    first: int
    tokens: Sequence[int]


@dataclass(frozen=True)
class Results:
    """Of one step. `table` int32 [T, 1 + 2 * B]: see `choose.reveal`. `likeliest`: by slot and place in its block, for
    the slots that asked."""

    table: npt.NDArray[np.int32]
    likeliest: Mapping[tuple[int, int], Likeliest] = field(default_factory=dict)

    def of_text(self, row: int) -> tuple[list[int], list[int], list[float], tuple[Likeliest, ...]]:
        """What was revealed of the text in a row: places in its block, tokens, their log-probabilities, and the
        likeliest tokens there, where its slot asked."""
        line = self.table[row]
        size = len(line) // 2
        tokens, logprobs = line[1 : 1 + size], line[1 + size :].view("float32")
        chosen = (tokens >= 0).nonzero()[0]
        keys = [(int(line[0]), place) for place in chosen.tolist()]
        told = tuple(self.likeliest[key] for key in keys if key in self.likeliest)
        return chosen.tolist(), tokens[chosen].tolist(), logprobs[chosen].tolist(), told


class Runner:
    """Everything on the model's device, by the plain ops. `model` is whole, or the shard of this rank of `group`."""

    def __init__(self, model: SDAR, shape: Shape, pages: int, *, fp8: bool = False, group: Group | None = None) -> None:
        self.device = model.lm_head.weight.device
        self.group = group or Group()
        self.slots = Slots(shape, self.device)
        self.forward = PagedForward(model, shape, pages, PlainOps(), fp8=fp8, group=self.group)
        self.mask_token_id = model.config.mask_token_id

    def room(self, texts: int, blocks: int) -> Room:
        """Of the next step, in which `texts` texts need about `blocks` blocks of rows: that is known a step late.

        Here rows that are not used cost nothing, so there is room for all.
        """
        return Room(texts, 2 * texts)

    def prefill(self, pieces: Sequence[Piece]) -> None:
        """Read whole blocks into the cache; each piece sees itself, block-causally, and its text before it."""
        self.forward.hidden(prefill_plan(pieces, self.slots.shape, self.device), self.slots, TILE)

    def step(self, room: Room, *, truncates: bool, asked: Mapping[int, int]) -> Callable[[], Results]:
        """One forward and one reveal; returns what waits for the results and gives them. `truncates`: a text in the
        slots draws with top-k or top-p. `asked`: how many of the likeliest tokens to tell, by slot."""
        slots = self.slots
        plan = plan_step(slots, room)
        if not len(plan.tiles):  # every text has ended meanwhile
            return lambda: Results(np.empty((0, 1 + 2 * slots.shape.block_size), dtype=np.int32))
        hidden = self.forward.hidden(plan, slots, slots.shape.window)
        places, size = plan.places.long(), slots.shape.block_size
        rows = plan.tiles[places // size, 0].long()
        logits, uniforms = self.forward.logits(hidden, plan.head_rows.long()), uniform_of(slots, plan)[places]
        if truncates or asked or self.group.shard.size == 1:
            logits = whole_logits(logits, slots.shape.vocab_size, self.group)
            found = propose(logits, rows, uniforms, slots, self.mask_token_id, truncates=truncates)
        else:
            found = propose_split(logits, rows, uniforms, slots, self.mask_token_id, self.group)
        every = Proposals.empty(len(plan.wanted), self.device)
        every.put(places, found)
        told: dict[tuple[int, int], Likeliest] = {}
        if asked:
            told = likeliest_of(found, rows, places % size, asked)
        results = reveal(every, plan, slots)
        return lambda: Results(results.cpu().numpy(), told)

    def timings(self) -> list[tuple[Room, float]]:
        """Milliseconds that the device takes for steps of each size, where those were measured."""
        return []

    def holds(self) -> bool:
        """Whether the model's parameters still are where they were."""
        return self.forward.holds()

    def stale(self) -> bool:
        """Whether the parameters may have new values since the last `refresh`."""
        return True

    def refresh(self) -> None:
        """The model's parameters have new values."""
        self.forward.refresh()


def prefill_plan(pieces: Sequence[Piece], shape: Shape, device: torch.device) -> Plan:
    """The rows of `pieces`, cut into tiles. No row has logits."""
    lengths = [len(piece.tokens) for piece in pieces]
    starts = np.cumsum([0, *lengths[:-1]])
    columns: dict[str, list[npt.NDArray[np.int32]]] = {"slots": [], "positions": [], "ids": [], "tiles": []}
    for piece, length, start in zip(pieces, lengths, starts.tolist(), strict=True):
        columns["slots"].append(np.full(length, piece.slot, dtype=np.int32))
        columns["positions"].append(np.arange(piece.first, piece.first + length, dtype=np.int32))
        columns["ids"].append(np.array(piece.tokens, dtype=np.int32))
        first = np.arange(0, length, TILE, dtype=np.int32)
        count = np.minimum(length - first, TILE)
        slot = np.full_like(first, piece.slot)
        columns["tiles"].append(np.stack((slot, start + first, piece.first + first, count), 1).astype(np.int32))
    on_device = {}
    for name, parts in columns.items():
        whole = torch.from_numpy(np.concatenate(parts))
        if device.type == "cuda":
            whole = whole.pin_memory()
        on_device[name] = whole.to(device, non_blocking=True)
    none = torch.zeros(0, dtype=torch.int32, device=device)
    return Plan(head_rows=none, places=none, wanted=none, **on_device)
