"""`Text`: one sequence while it is being denoised. Pure bookkeeping; no model, no sampling."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dice.decode.trace import GIVEN, StopReason, Trace


class Text:
    """A prompt followed by masks, and how far its denoising has come.

    The block grid is absolute from position 0: the block that holds the prompt's tail is the first to be denoised, and
    the tail is clean context inside it. Given tokens are never touched, whatever ids they have: those of the prompt,
    `prefix`, with which the answer begins, and `suffix`, which follows `max_new_tokens` written ones.

    Or `answer` is given whole, as far as its last block's end, and only its `holes`, ranges of its positions, are
    written again.

    Blocks without a mask are not denoised. The first block after such ones is denoised only when the keys and values of
    all blocks before it have been computed, which `behind` asks for.
    """

    def __init__(
        self,
        index: int,
        prompt: Sequence[int],
        max_new_tokens: int,
        block_size: int,
        mask_token_id: int,
        stop_ids: frozenset[int],
        seed: int,
        *,
        prefix: Sequence[int] = (),
        suffix: Sequence[int] = (),
        answer: Sequence[int] = (),
        holes: Sequence[range] = (),
    ) -> None:
        self.index = index
        self.prompt_length = len(prompt)
        self.max_new_tokens = max_new_tokens
        self.block_size = block_size
        self.mask_token_id = mask_token_id
        self.stop_ids = stop_ids
        self.suffix = tuple(suffix)
        self.first_written = len(prompt) + len(prefix)
        self.answer_end = len(prompt) + len(answer) if answer else self.first_written + max_new_tokens + len(suffix)
        self.length = -(-self.answer_end // block_size) * block_size
        if answer:
            self.holes = [range(len(prompt) + hole.start, len(prompt) + hole.stop) for hole in holes]
        else:
            self.holes = [range(self.first_written, self.length)]
        if suffix:
            end = self.first_written + max_new_tokens
            self.holes = [range(self.first_written, end), range(end + len(suffix), self.length)]
        self.holes = sorted((hole for hole in self.holes if hole), key=lambda hole: hole.start)
        gap = [mask_token_id] * (max_new_tokens if suffix else 0)
        self.ids = [*prompt, *prefix, *gap, *suffix, *answer]
        self.ids += [mask_token_id] * (self.length - len(self.ids))
        for hole in self.holes:
            self.ids[hole.start : hole.stop] = [mask_token_id] * len(hole)
        self.steps = [GIVEN] * (self.length - len(prompt))
        self.logprobs = [0.0] * (self.length - len(prompt))
        self.block_start = 0
        self.masked: list[int] = []
        self.uncommitted = False  # the block before this one is finished but not yet in the cache
        self.behind = False  # the cache lacks blocks before this one, and more than one
        self.step = 0
        self.block_step = 0
        self.forwards = 0
        self.drawn = 0  # random numbers used
        self.stop_reason: StopReason | None = None
        self._generator = torch.Generator().manual_seed(seed)
        self._open_block(0)
        self.uncommitted = self.behind = False  # the prompt is read before anything is denoised

    @property
    def window_start(self) -> int:
        """First position that the next forward must compute."""
        return self.block_start - self.block_size if self.uncommitted else self.block_start

    @property
    def open_until(self) -> int:
        """Where the run of blocks ends that begins with this one and goes on with blocks of nothing but masks."""
        end = self.block_start + self.block_size
        for hole in self.holes:
            if hole.start <= end < hole.stop:
                return hole.stop // self.block_size * self.block_size
        return end

    def padded(self, first: int, last: int, width: int) -> list[int]:
        """`width` ids from position `first`; masks from `last` on."""
        ids = self.ids[first : min(first + width, last)]
        return ids + [self.mask_token_id] * (width - len(ids))

    def uniforms(self) -> Tensor:
        """One random number in [0, 1) per masked position, float64 [masked], from this text's own generator."""
        return torch.rand(len(self.masked), generator=self._generator, dtype=torch.float64)

    def all_uniforms(self) -> Tensor:
        """All numbers that `uniforms` could ever return, in order, float64 [N]; for who draws them itself."""
        blocks = self.length // self.block_size - self.block_start // self.block_size
        count = blocks * self.block_size * (self.block_size + 1) // 2
        return torch.rand(count, generator=self._generator, dtype=torch.float64)

    def reveal(self, positions: Sequence[int], tokens: Sequence[int], logprobs: Sequence[float]) -> None:
        """Record one denoising step and move on to the next block when this one is full.

        `positions` are ascending and count from the end of the prompt.
        """
        self.drawn += len(self.masked)
        for position, token, logprob in zip(positions, tokens, logprobs, strict=True):
            self.ids[self.prompt_length + position] = token
            self.steps[position] = self.step
            self.logprobs[position] = logprob
            self.masked.remove(self.prompt_length + position)
        self.step += 1
        self.block_step += 1
        self.forwards += 1
        self.uncommitted = False
        if not self.masked:
            self._finish_block()

    def trace(self, strategy: str, mode: str) -> Trace:
        """The finished text as a value. Only what was denoised: masks of later blocks are not part of it."""
        assert self.stop_reason is not None
        end = self.length if self.stop_reason == "length" else self.block_start + self.block_size
        count = end - self.prompt_length
        token_ids = tuple(self.ids[self.prompt_length : end])
        kept, stop_reason = self._kept(token_ids)
        return Trace(
            prompt_ids=tuple(self.ids[: self.prompt_length]),
            token_ids=token_ids,
            steps=tuple(self.steps[:count]),
            logprobs=tuple(self.logprobs[:count]),
            kept=kept,
            block_size=self.block_size,
            mask_token_id=self.mask_token_id,
            strategy=strategy,
            mode=mode,
            forwards=self.forwards,
            stop_reason=stop_reason,
        )

    def answer_ids(self) -> tuple[int, ...]:
        """The finished answer. With a suffix it ends in it: also where a stop token came first, which is left out."""
        token_ids = tuple(self.ids[self.prompt_length : self.length])
        kept, stop_reason = self._kept(token_ids)
        if self.suffix and stop_reason == "stop":
            return token_ids[: kept - 1] + self.suffix
        return token_ids[:kept]

    def _kept(self, token_ids: Sequence[int]) -> tuple[int, StopReason]:
        """How many tokens after the prompt are the answer, and why it ends there."""
        first = self.first_written - self.prompt_length
        written = range(first, min(first + self.max_new_tokens, len(token_ids)))
        stop = next((i for i in written if self.steps[i] != GIVEN and token_ids[i] in self.stop_ids), None)
        if stop is None:
            return min(self.answer_end - self.prompt_length, len(token_ids)), "length"
        return stop + 1, "stop"

    def written(self, start: int) -> list[int]:
        """Positions of the block that begins at `start` which are not given."""
        block = range(start, start + self.block_size)
        return [p for hole in self.holes for p in range(max(hole.start, block.start), min(hole.stop, block.stop))]

    def _finish_block(self) -> None:
        end = self.block_start + self.block_size
        # Given tokens share a block with written ones, but a stop id among them ends nothing.
        if any(self.ids[position] in self.stop_ids for position in self.written(self.block_start)):
            self.stop_reason = "stop"
        else:
            self._open_block(end)

    def _open_block(self, first: int) -> None:
        """Go on with the first block from position `first` on, a block's start, that has masks."""
        start = min((max(hole.start, first) for hole in self.holes if hole.stop > first), default=self.length)
        start = start // self.block_size * self.block_size
        if start >= self.length:
            self.stop_reason = "length"
            return
        self.uncommitted, self.behind = start == first, start > first
        self.block_start, self.block_step = start, 0
        self.masked = self.written(start)
