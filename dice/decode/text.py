"""`Text`: one sequence while it is being denoised. Pure bookkeeping; no model, no sampling."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dice.decode.trace import StopReason, Trace


class Text:
    """A prompt followed by masks, and how far its denoising has come.

    The block grid is absolute from position 0: the block that holds the prompt's tail is the first to be denoised, and
    the tail is clean context inside it. Prompt tokens are never touched, whatever ids they have.
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
    ) -> None:
        self.index = index
        self.prompt_length = len(prompt)
        self.max_new_tokens = max_new_tokens
        self.block_size = block_size
        self.mask_token_id = mask_token_id
        self.stop_ids = stop_ids
        blocks = -(-(len(prompt) + max_new_tokens) // block_size)
        self.length = blocks * block_size
        self.ids = [*prompt, *[mask_token_id] * (self.length - len(prompt))]
        self.steps = [-1] * (self.length - len(prompt))
        self.logprobs = [0.0] * (self.length - len(prompt))
        self.block_start = len(prompt) // block_size * block_size
        self.masked = list(range(len(prompt), self.block_start + block_size))
        self.uncommitted = False  # the block before this one is finished but not yet in the cache
        self.step = 0
        self.block_step = 0
        self.forwards = 0
        self.stop_reason: StopReason | None = None
        self._generator = torch.Generator().manual_seed(seed)

    @property
    def window_start(self) -> int:
        """First position that the next forward must compute."""
        return self.block_start - self.block_size if self.uncommitted else self.block_start

    def padded(self, first: int, last: int, width: int) -> list[int]:
        """`width` ids from position `first`; masks from `last` on."""
        ids = self.ids[first : min(first + width, last)]
        return ids + [self.mask_token_id] * (width - len(ids))

    def uniforms(self) -> Tensor:
        """One random number in [0, 1) per masked position, float64 [masked], from this text's own generator."""
        return torch.rand(len(self.masked), generator=self._generator, dtype=torch.float64)

    def reveal(self, positions: Sequence[int], tokens: Sequence[int], logprobs: Sequence[float]) -> None:
        """Record one denoising step and move on to the next block when this one is full.

        `positions` are ascending and count from the end of the prompt.
        """
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
        end = self.block_start + self.block_size
        count = end - self.prompt_length
        token_ids = tuple(self.ids[self.prompt_length : end])
        stop = next((i for i, token in enumerate(token_ids) if token in self.stop_ids), None)
        kept = self.max_new_tokens if stop is None else min(stop + 1, self.max_new_tokens)
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
            stop_reason="length" if stop is None or stop >= self.max_new_tokens else "stop",
        )

    def _finish_block(self) -> None:
        end = self.block_start + self.block_size
        # The prompt's tail shares the first block, but a stop id in it ends nothing.
        answered = self.ids[max(self.prompt_length, self.block_start) : end]
        if any(token in self.stop_ids for token in answered):
            self.stop_reason = "stop"
        elif end >= self.length:
            self.stop_reason = "length"
        else:
            self.block_start = end
            self.masked = list(range(end, end + self.block_size))
            self.block_step = 0
            self.uncommitted = True
