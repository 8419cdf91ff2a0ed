"""`Engine`: texts are submitted and aborted while others are being written; each step is one forward for all of them.

    engine = Engine(model)
    handle = engine.submit(prompt_ids, config, seed=1, on_step=show)
    while engine.step():
        ...
    handle.trace

A step never waits for its own results: it is given to the device, and while that works the results of the step before
are read. What a text says depends on its seed and not on its batch, on preemption or on what it shares with others.
One thread calls an engine; callbacks run in it, within `step`, and may submit and abort.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dice.decode.block_diffusion import check_denoising_steps, new_texts
from dice.decode.engine.pages import Pages
from dice.decode.engine.plan import Room, blocks_needed
from dice.decode.engine.residents import Handle, Residents
from dice.decode.engine.runner import Piece, Results, Runner
from dice.decode.engine.slots import Shape, truncates
from dice.decode.request import DecodeConfig, DecodeError, StepEvent, sample_seeds
from dice.decode.sampling import Likeliest
from dice.decode.text import Text
from dice.model.sdar import SDAR

__all__ = ["Engine", "Handle"]

PAGE_POSITIONS = 64


@dataclass(frozen=True)
class _Step:
    """A step that was given to the device, and who was in which slot then."""

    owners: dict[int, Handle]
    results: Callable[[], Results]


class Engine:
    """`slots`: texts written at once. `context`: most positions of a text. `cache_tokens`: positions for which there
    are keys and values, of all texts together; where they do not suffice, the youngest texts wait and begin again.

    `prefill_tokens` of prompts are read in one step at most. `block_size`: that of all its texts. `fp8`: weights and
    activations of all products but the head's (few rows stay in float16).

    Raises `DecodeError` for models that attend to everything.
    """

    def __init__(
        self,
        model: SDAR,
        *,
        slots: int = 64,
        context: int | None = None,
        cache_tokens: int | None = None,
        block_size: int | None = None,
        page_size: int | None = None,
        prefill_tokens: int = 8192,
        fp8: bool = False,
        make_runner: Callable[..., Runner] = Runner,
    ) -> None:
        config = model.config
        kind = config.traits.kind
        if kind == "diffusion":
            raise DecodeError(f"{config.family} attends to the whole answer, so nothing of it can be kept in pages.")
        self.model = model
        self.shift = kind == "autoregressive"
        size = 1 if self.shift else block_size or config.block_size
        context = min(context or config.max_position_embeddings, config.max_position_embeddings)
        page_size = page_size or math.lcm(PAGE_POSITIONS, size)
        if page_size % size:
            raise DecodeError(f"A page of {page_size} positions does not hold whole blocks of {size}.")
        cache_tokens = cache_tokens or slots * context
        self.pages = Pages(-(-cache_tokens // page_size), page_size)
        self.longest = min(context, self.pages.count * page_size)  # positions of a text that can be written
        self.shape = Shape(slots, size, context, page_size, config.vocab_size, self.shift)
        self.prefill_tokens = prefill_tokens
        self.forwards = self.preempted = self._submitted = 0
        self._runner = make_runner(model, self.shape, self.pages.count, fp8=fp8)
        self._residents = Residents(self._runner.slots, self.pages)
        self._waiting: deque[Handle] = deque()
        self._in_flight: _Step | None = None

    def own(self, config: DecodeConfig) -> DecodeConfig:
        """`config` as this engine decodes by it: an autoregressive model's has nothing to say of blocks. Raises
        `DecodeError` for another block size than the engine's."""
        if self.shift:
            return replace(config, block_size=1, denoising_steps=None, remasking="sequential")
        size = config.block_size or self.model.config.block_size
        if size != self.shape.block_size:
            raise DecodeError(f"This engine decodes blocks of {self.shape.block_size}, not of {size}.")
        check_denoising_steps(config, size)
        return config

    def timings(self) -> list[tuple[Room, float]]:
        return self._runner.timings()  # measured on a GPU only

    def holds(self, slots: int, context: int, block_size: int) -> bool:
        """Whether this engine has room for so many texts of such a length, and still runs on its model's weights."""
        fits = slots <= self.shape.slots and context <= self.shape.context
        return fits and block_size == self.shape.block_size and self._runner.holds()

    def stale(self) -> bool:
        """Whether the weights may have changed since this engine last took them over."""
        return self._runner.stale()

    def submit(
        self,
        prompt_ids: Sequence[int],
        config: DecodeConfig,
        seed: int | None = None,
        *,
        prefix: Sequence[int] = (),
        suffix: Sequence[int] = (),
        on_step: Callable[[StepEvent], None] | None = None,
        on_end: Callable[[Handle], None] | None = None,
    ) -> Handle:
        """Queue a text. Its answer begins with `prefix` and ends in `suffix`, token ids that nobody writes.

        The model sees a suffix as far as it shares the block of the last written token; `max_new_tokens` are written
        before it, or fewer if a stop token comes first. Raises `DecodeError`, `ContextLengthError`.
        """
        if self.shift and suffix:
            raise DecodeError("A model that writes one token after another sees no suffix; leave it out.")
        (seed,) = sample_seeds(None, 1) if seed is None else (seed,)
        (text,) = new_texts(self.model, [prompt_ids], self.own(config), [seed], prefix, suffix)
        return self.add(text, config, on_step, on_end)

    def add(
        self,
        text: Text,
        config: DecodeConfig,
        on_step: Callable[[StepEvent], None] | None = None,
        on_end: Callable[[Handle], None] | None = None,
    ) -> Handle:
        """Queue a text that may be given in parts. Raises `DecodeError` where it could never fit."""
        config = self.own(config)
        if text.length > (most := self.longest):
            raise DecodeError(f"A text needs {text.length} positions, but this engine keeps {most} of one at most.")
        if self.shift and not text.block_start:
            raise DecodeError("A prompt is empty, but this model needs a token to continue from.")
        handle = Handle(self._submitted, text, config, on_step, on_end)
        self._submitted += 1
        self._waiting.append(handle)
        return handle

    def abort(self, handle: Handle) -> None:
        """Give up a text: no event follows, and its slot and pages are free for the next step."""
        if handle.done:
            return
        if handle.state == "waiting":
            self._waiting.remove(handle)
            handle.state = "aborted"
        else:
            self._residents.leave(handle, "aborted")

    def abort_all(self) -> None:
        for handle in [*self._waiting, *self._residents]:
            self.abort(handle)
        self._in_flight = None

    @torch.inference_mode()
    def step(self) -> bool:
        """Read prompts, give one forward to the device, and read the results of the one before; whether there is more
        to do."""
        self._provide_pages()
        self._read_prompts()
        before, self._in_flight = self._in_flight, self._give_step()
        if before is not None:
            self._take_results(before)
        return bool(self._waiting or len(self._residents))

    def run(self) -> None:
        """Step until every text has ended."""
        while self.step():
            pass

    def refresh(self) -> None:
        """The model's parameters were given new values, in place: what was computed from the old ones is forgotten.

        Raises `DecodeError` while texts are being written.
        """
        if len(self._residents):
            raise DecodeError("Weights cannot change while texts are being written.")
        self._in_flight = None
        self.pages.forget()
        with torch.inference_mode():
            self._runner.refresh()

    def load_weights(self, weights: Sequence[tuple[str, Tensor]]) -> None:
        """Copy named tensors into the model's parameters, in place, and `refresh`. Raises `DecodeError` for names that
        the model lacks."""
        known = dict(self.model.named_parameters())
        if unknown := [name for name, _ in weights if name not in known]:
            raise DecodeError(f"The model has no weights named {', '.join(unknown[:3])}.")
        with torch.no_grad():
            for name, value in weights:
                known[name].copy_(value, non_blocking=True)
        self.refresh()

    def _read_prompts(self) -> None:
        """Give the device the next part of what is to be read, and start whoever has been read to the end."""
        pieces: list[Piece] = []
        room = self.prefill_tokens
        for handle in self._residents.in_state("reading"):
            room -= self._plan_reading(handle, room, pieces)
        while room > 0 and self._waiting and self._residents.enter(self._waiting[0]):
            room -= self._plan_reading(self._waiting.popleft(), room, pieces)
        if pieces:
            self.forwards += 1
            self._runner.prefill(pieces)
        for handle in self._residents.in_state("reading"):
            if handle.read >= self._residents.to_read(handle):
                self._residents.start(handle)

    def _plan_reading(self, handle: Handle, room: int, pieces: list[Piece]) -> int:
        """Append to `pieces` as much of a text as `room` positions allow, in whole blocks; returns how many."""
        size, text = self.shape.block_size, handle.text
        count = min(self._residents.to_read(handle) - handle.read, max(room // size, 1) * size) if room > 0 else 0
        if count:
            tokens = text.ids[handle.read : handle.read + count]
            pieces.append(Piece(handle.slot, handle.read, tokens))
            handle.read += count
            text.forwards += 1
            self.pages.publish(text.ids[: handle.read], handle.pages)
        return count

    def _provide_pages(self) -> None:
        """Give every text the pages of its next blocks, the oldest first; where they run out, the youngest leaves."""
        for handle in sorted(self._residents, key=lambda handle: handle.number):
            while handle.state in ("reading", "writing") and not self._residents.provide(handle):
                self._make_room()

    def _make_room(self) -> None:
        """Free pages: what has ended meanwhile, else the youngest text's, which waits and is read again later."""
        if self._in_flight is not None:
            before, self._in_flight = self._in_flight, None
            self._take_results(before)
            return
        handle = max(self._residents, key=lambda handle: handle.number)
        self._residents.leave(handle, "waiting")
        self._waiting.appendleft(handle)
        self.preempted += 1

    def _give_step(self) -> _Step | None:
        owners = {handle.slot: handle for handle in self._residents.in_state("writing")}
        if not owners:
            return None
        blocks = blocks_needed([handle.text for handle in owners.values()], self.shape)
        cuts = any(truncates(handle.config, self.shape.vocab_size) for handle in owners.values())
        asked = {slot: one.config.top_logprobs for slot, one in owners.items() if one.config.top_logprobs}
        self._residents.tell_prefixes()
        self.forwards += 1
        return _Step(owners, self._runner.step(self._runner.room(len(owners), blocks), truncates=cuts, asked=asked))

    def _take_results(self, step: _Step) -> None:
        """Record what a step revealed, and let go of the texts that ended with it."""
        results = step.results()
        for row, slot in enumerate(results.table[:, 0].tolist()):
            handle = step.owners.get(slot)
            if handle is not None and handle.state == "writing":
                self._reveal(handle, *results.of_text(row))

    def _reveal(
        self, handle: Handle, places: list[int], tokens: list[int], logprobs: list[float], told: tuple[Likeliest, ...]
    ) -> None:
        text, size = handle.text, self.shape.block_size
        start, step = text.block_start, text.step
        positions = [start - text.prompt_length + place for place in places]
        text.reveal(positions, tokens, logprobs)
        if handle.on_step is not None:
            block = step if self.shift else start // size
            done = tuple(positions), tuple(tokens), tuple(logprobs), text.stop_reason, told
            handle.on_step(StepEvent(text.index, step, block, *done))
        if text.stop_reason is not None:
            self._finish(handle)
        elif text.block_start + size > handle.open_until:
            # The next block holds given tokens: what is finished is read first, and then the host starts the text anew.
            handle.read, handle.state = start, "reading"
            text.uncommitted = text.behind = False

    def _finish(self, handle: Handle) -> None:
        config = handle.config
        handle.trace = handle.text.trace("autoregressive" if self.shift else config.remasking, config.resolved_mode)
        handle.answer_ids = handle.text.answer_ids()
        self._residents.leave(handle, "finished")
        if handle.on_end is not None:
            handle.on_end(handle)
