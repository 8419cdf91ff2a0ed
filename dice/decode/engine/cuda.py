"""The GPU's way to run a step: its kernels recorded once for each size in a CUDA graph, and replayed.

Sizes are few, so that there are few graphs. A step is run as it is the first time that its size comes up, recorded the
second time, and its results travel to the host while the next one runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dice.decode.engine.choose import likeliest_of, propose
from dice.decode.engine.graphs import record
from dice.decode.engine.group import Group
from dice.decode.engine.kernels import few_rows, ops
from dice.decode.engine.plan import Room
from dice.decode.engine.runner import TILE, Piece, Results, Runner, prefill_plan
from dice.decode.engine.slots import Shape
from dice.decode.engine.split_head import whole_logits
from dice.decode.sampling import Likeliest
from dice.model.sdar import SDAR

TEXTS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 384, 512, 768, 1024)
# Rows of a step up to which time is that of reading the weights, so that room for all costs nothing.
FREE_ROWS = 64
# How many timings of a size decide whether another is quicker for the same work.
TIMINGS = 8
# Parameters from which on a step of one text is worth the seconds that finding its quickest products takes.
LARGE_MODEL = 500_000_000
RESULTS_AHEAD = 4  # results that can be on their way at once; the engine asks for two


@dataclass(frozen=True)
class _Kind:
    """Which graph a step replays."""

    room: Room
    truncates: bool
    shares_prefixes: bool


@dataclass
class _Recorded:
    """One size of step: its buffers, its graph once it is recorded, and how long it took of late, in ms."""

    buffers: ops.StepBuffers
    landings: list[Tensor]  # pinned memory for its results, in turn
    runs: int = 0
    graph: torch.cuda.CUDAGraph | None = None
    logits: Tensor | None = None  # where the graph leaves them, if it ends there
    milliseconds: list[float] = field(default_factory=list)

    @property
    def typical_ms(self) -> float | None:
        """The median of the last timings; None where there are too few."""
        return sorted(self.milliseconds)[TIMINGS // 2] if len(self.milliseconds) == TIMINGS else None


class GraphRunner(Runner):
    """`Runner` with kernels and graphs. `wait`: how the host waits for a step's results."""

    def __init__(self, model: SDAR, shape: Shape, pages: int, *, fp8: bool = False, group: Group | None = None) -> None:
        super().__init__(model, shape, pages, fp8=fp8, group=group)
        self.wait: Callable[[torch.cuda.Event], None] = torch.cuda.Event.synchronize
        processors = torch.cuda.get_device_properties(self.device).multi_processor_count
        self.forward.ops = ops.KernelOps(processors * 3 // 2)
        self._tunes = sum(weight.numel() for weight in model.parameters()) >= LARGE_MODEL
        if self._tunes:
            with torch.inference_mode():
                few_rows.tune(self.forward)
        self.graphs = 0
        self._recorded: dict[_Kind, _Recorded] = {}
        self._pool = torch.cuda.graph_pool_handle()
        most = max(room.texts for room in self._rooms(shape.slots))
        width = 1 + 2 * shape.block_size
        self._landing = [torch.empty(most, width, dtype=torch.int32, pin_memory=True) for _ in range(RESULTS_AHEAD)]
        self._arrived = [torch.cuda.Event() for _ in range(RESULTS_AHEAD)]
        self._steps = 0

    def room(self, texts: int, blocks: int) -> Room:
        """The size at which most of the wanted rows are computed in a millisecond, as far as has been measured."""
        rooms = self._rooms(texts)
        fits = next((index for index, room in enumerate(rooms) if room.blocks >= blocks), len(rooms) - 1)
        enough = rooms[fits]
        if not fits:
            return enough
        less = rooms[fits - 1]
        times = [self._time(room) for room in (enough, less)]
        if times[0] is None:
            return enough
        if times[1] is None or less.blocks / times[1] > min(blocks, enough.blocks) / times[0]:
            return less
        return enough

    def prefill(self, pieces: Sequence[Piece]) -> None:
        self.forward.hidden(prefill_plan(pieces, self.slots.shape, self.device), self.slots, TILE)

    def step(self, room: Room, *, truncates: bool, asked: Mapping[int, int]) -> Callable[[], Results]:
        truncates = truncates or bool(asked)  # the kernels know no other token than the one that they take
        kind = self._kind(room, truncates)
        recorded = self._recorded.get(kind)
        if recorded is None:
            if self._tunes:
                few_rows.tune_parts(self.forward, room.blocks * self.slots.shape.block_size)
            landings = [landing[: room.texts] for landing in self._landing]
            recorded = self._recorded[kind] = _Recorded(self._new_buffers(room), landings)
        if recorded.runs == 1:
            self._record(recorded, truncates)
        # Every call of the driver delays the next step, so steps are timed only until enough is known.
        times = recorded.graph is not None and len(recorded.milliseconds) < TIMINGS
        begun = torch.cuda.Event(enable_timing=True) if times else None
        if begun is not None:
            begun.record()
        if recorded.graph is None:
            recorded.logits = self._compute(recorded.buffers, truncates)
        else:
            recorded.graph.replay()
        told: dict[tuple[int, int], Likeliest] = {}
        if recorded.logits is not None:
            told = self._choose_truncated(recorded.logits, recorded.buffers, asked)
        recorded.runs += 1
        turn = self._steps % RESULTS_AHEAD
        self._steps += 1
        landing = recorded.landings[turn]
        landing.copy_(recorded.buffers.results, non_blocking=True)
        arrived = self._arrived[turn] if begun is None else torch.cuda.Event(enable_timing=True)
        arrived.record()

        def results() -> Results:
            self.wait(arrived)
            if begun is not None and len(recorded.milliseconds) < TIMINGS:
                recorded.milliseconds.append(begun.elapsed_time(arrived))
            return Results(landing.numpy(), told)

        return results

    def _new_buffers(self, room: Room) -> ops.StepBuffers:
        return ops.StepBuffers.empty(room, self.slots.shape, self.device, self.group.shard.size)

    def _compute(self, buffers: ops.StepBuffers, truncates: bool) -> Tensor | None:
        """All of a step, without a word to the host; or, if it `truncates`, up to the logits, which are returned."""
        slots = self.slots
        ops.plan_step(slots, Room(len(buffers.plan.tiles), len(buffers.blocks)), buffers)
        hidden = self.forward.hidden(buffers.plan, slots, slots.shape.window)
        logits = self.forward.logits(hidden, buffers.plan.head_rows)
        if truncates:
            return logits
        ops.propose(logits, slots, buffers, self.mask_token_id, self.group)
        ops.reveal(slots, buffers)
        return None

    def _choose_truncated(
        self, logits: Tensor, buffers: ops.StepBuffers, asked: Mapping[int, int]
    ) -> dict[tuple[int, int], Likeliest]:
        """Top-k, top-p and the likeliest tokens need the vocabulary sorted, in float32; only steps with texts that ask
        for it pay for it. Returns the likeliest tokens that were `asked` for."""
        size, plan = self.slots.shape.block_size, buffers.plan
        used, places = plan.places >= 0, plan.places.clamp_min(0).long()
        rows = plan.tiles[places // size, 0].clamp_min(0).long()
        logits = whole_logits(logits, self.slots.shape.vocab_size, self.group)
        found = propose(logits, rows, buffers.uniforms[places], self.slots, self.mask_token_id)
        told = likeliest_of(found, torch.where(used, rows, -1), places % size, asked) if asked else {}
        buffers.found.put(torch.where(used, places, len(plan.wanted)), found)
        ops.reveal(self.slots, buffers)
        return told

    def _record(self, recorded: _Recorded, truncates: bool) -> None:
        def compute() -> None:
            recorded.logits = self._compute(recorded.buffers, truncates)

        recorded.graph = record(compute, self.device, self._pool)
        self.graphs += 1

    def timings(self) -> list[tuple[Room, float]]:
        """The sizes of step that were timed, and how many ms of the device each takes."""
        times = [(kind.room, one.typical_ms) for kind, one in self._recorded.items() if not kind.truncates]
        return [(room, milliseconds) for room, milliseconds in times if milliseconds is not None]

    def _kind(self, room: Room, truncates: bool) -> _Kind:
        return _Kind(room, truncates, ops.shares_prefixes(self.slots, room.texts))

    def _time(self, room: Room) -> float | None:
        recorded = self._recorded.get(self._kind(room, False))
        return None if recorded is None else recorded.typical_ms

    def _rooms(self, texts: int) -> list[Room]:
        """Sizes of step for so many texts, from the smallest: a block for each of them, up to two."""
        size = self.slots.shape.block_size
        texts = next((count for count in TEXTS if count >= texts), -(-texts // 256) * 256)
        if self.slots.shape.shift:
            return [Room(texts, texts)]
        if 2 * texts * size <= FREE_ROWS:
            return [Room(texts, 2 * texts)]
        # At least two blocks, or a text that needs two would wait for ever.
        quarters = {max(2, texts + texts * quarter // 4) for quarter in (1, 2, 4)}
        return [Room(texts, blocks) for blocks in sorted(quarters)]
