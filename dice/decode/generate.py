"""Block-diffusion generation: one visible loop over a batch of texts, each on its own absolute block grid.

A text is denoised block by block. A step feeds the current block (masks where undecided) to the model and reveals some
positions. Keys and values of a block count only once computed from its finished tokens; that commit pass is fused with
the first step of the next block, as one window of two blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dice.decode.sampling import (
    MODES,
    STRATEGIES,
    Mode,
    Proposal,
    Strategy,
    forbid,
    propose,
    reveal_counts,
    select,
)
from dice.decode.text import Text
from dice.decode.trace import Trace
from dice.errors import UserError
from dice.model.cache import KVCache
from dice.model.sdar import MAX_BLOCK_SIZE, SDAR

PREFILL_TOKENS = 16384


class DecodeError(UserError):
    """The request cannot be decoded; the message is one sentence for the user."""


class ContextLengthError(DecodeError):
    """A prompt and its answer do not fit into the model's context."""


@dataclass(frozen=True, kw_only=True)
class DecodeConfig:
    """How to decode.

    - `block_size` None: the model's. `denoising_steps` per block, None: as many as the block has positions.
    - `remasking` picks the positions to reveal (see `sampling.select`), with `confidence_threshold` for
      "low_confidence_dynamic" and `entropy_bound` (nats) for "entropy_bounded".
    - `temperature`, `top_k`, `top_p` as everywhere; 0 or None switches top-k off, 1 or None top-p.
    - `mode` "auto" samples, but decodes greedily when temperature is 0 or top_k is 1. With top_k = 1 every confidence
      is 1, so that confidence-based remasking would lose its meaning; "compat" asks for exactly that, as the published
      evaluation has it.
    - `stop_ids` None: the model configuration's end-of-text ids; chat models want the tokenizer's `stop_ids`.
    - `vocab_limit`: number of tokens the tokenizer knows, when the model has unused embedding rows above.
    - `seed` None: fresh randomness. `max_active`: texts decoded at once; the others wait for a free row.
    """

    max_new_tokens: int = 1024
    block_size: int | None = None
    denoising_steps: int | None = None
    remasking: Strategy = "low_confidence_dynamic"
    confidence_threshold: float = 0.9
    entropy_bound: float = 0.35
    temperature: float = 1.0
    top_p: float | None = None
    top_k: int | None = None
    mode: Mode = "auto"
    seed: int | None = None
    stop_ids: frozenset[int] | None = None
    vocab_limit: int | None = None
    max_active: int = 64

    def __post_init__(self) -> None:
        checks = (
            (self.max_new_tokens >= 1, "max_new_tokens must be at least 1"),
            (
                self.block_size is None or 1 <= self.block_size <= MAX_BLOCK_SIZE,
                f"block_size must be 1 to {MAX_BLOCK_SIZE}",
            ),
            (self.denoising_steps is None or self.denoising_steps >= 1, "denoising_steps must be at least 1"),
            (self.remasking in STRATEGIES, f"remasking must be one of {', '.join(STRATEGIES)}"),
            (self.mode in MODES, f"mode must be one of {', '.join(MODES)}"),
            (self.temperature >= 0, "temperature must not be negative"),
            (self.mode != "sample" or self.temperature > 0, "mode `sample` needs a temperature above 0"),
            (self.top_p is None or 0 < self.top_p <= 1, "top_p must be above 0 and at most 1"),
            (self.top_k is None or self.top_k >= 0, "top_k must not be negative"),
            (0 <= self.confidence_threshold <= 1, "confidence_threshold must be between 0 and 1"),
            (self.entropy_bound >= 0, "entropy_bound must not be negative"),
            (self.max_active >= 1, "max_active must be at least 1"),
        )
        for holds, message in checks:
            if not holds:
                raise DecodeError(f"{message}.")

    @property
    def resolved_mode(self) -> Literal["sample", "greedy", "compat"]:
        """`mode` with "auto" decided."""
        if self.mode == "auto":
            return "greedy" if self.temperature == 0 or self.top_k == 1 else "sample"
        return self.mode


@dataclass(frozen=True, slots=True)
class StepEvent:
    """One denoising step of one text, as it happens. `positions` index the response (0 = first token after the prompt).

    `stop_reason` is set on a text's last event.
    """

    sample: int
    step: int
    block: int
    positions: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop_reason: Literal["stop", "length"] | None


def generate(
    model: SDAR,
    prompts: Sequence[Sequence[int]],
    config: DecodeConfig,
    on_step: Callable[[StepEvent], None] | None = None,
    seeds: Sequence[int] | None = None,
) -> list[Trace]:
    """Denoise an answer to each prompt (token ids); traces come back in the order of `prompts`.

    Prompt i draws its randomness from `seeds[i]`, by default from (config.seed, i), and from nothing else: apart from
    floating-point rounding its result does not depend on its batch. Raises `ContextLengthError` before any work when a
    prompt and `max_new_tokens` exceed the model's context, `DecodeError` for other impossible requests.
    """
    decoder = _Decoder(model, config, on_step)
    texts = decoder.texts(prompts, seeds)
    model.fuse()
    with torch.inference_mode():
        decoder.run(texts)
    return [text.trace(config.remasking, config.resolved_mode) for text in texts]


class _Decoder:
    """The loop behind `generate`: rows of a key/value cache, each occupied by one unfinished text."""

    def __init__(self, model: SDAR, config: DecodeConfig, on_step: Callable[[StepEvent], None] | None) -> None:
        self.model = model
        self.config = config
        self.on_step = on_step
        self.mode = config.resolved_mode
        self.block_size = config.block_size or model.config.block_size
        self.device = model.lm_head.weight.device
        denoising_steps = config.denoising_steps or self.block_size
        if denoising_steps > self.block_size:
            raise DecodeError(f"denoising_steps ({denoising_steps}) cannot exceed block_size ({self.block_size}).")
        self.reveal_counts = reveal_counts(self.block_size, denoising_steps)
        self.stop_ids = config.stop_ids if config.stop_ids is not None else _end_ids(model)

    def texts(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int] | None) -> list[Text]:
        if seeds is None:
            seeds = sample_seeds(self.config.seed, len(prompts))
        if len(seeds) != len(prompts):
            raise DecodeError(f"There are {len(prompts)} prompts but {len(seeds)} seeds.")
        mask_token_id, limit = self.model.config.mask_token_id, self.model.config.max_position_embeddings
        texts = []
        for index, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True)):
            text = Text(index, prompt, self.config.max_new_tokens, self.block_size, mask_token_id, self.stop_ids, seed)
            if text.length > limit:
                raise ContextLengthError(
                    f"Prompt {index} has {len(prompt)} tokens; with {self.config.max_new_tokens} new ones it needs "
                    f"{text.length} positions, but the model has {limit}."
                )
            if any(not 0 <= token < self.model.config.vocab_size for token in prompt):
                raise DecodeError(f"Prompt {index} holds a token id outside the model's vocabulary.")
            texts.append(text)
        return texts

    def run(self, texts: list[Text]) -> None:
        if not texts:
            return
        waiting = texts[::-1]
        active = [waiting.pop() for _ in range(min(self.config.max_active, len(texts)))]
        capacity = max(text.length for text in texts) + self.block_size
        cache = self.model.new_cache(len(active), capacity)
        self._prefill(active, cache)
        while active:
            self._step(active, cache)
            for row, text in enumerate(active):
                if text.stop_reason and waiting:
                    active[row] = waiting.pop()
                    self._prefill([active[row]], cache.rows(row, row + 1))
            unfinished = [row for row, text in enumerate(active) if not text.stop_reason]
            if unfinished and len(unfinished) < len(active):
                cache = cache.keep(unfinished)
            active = [active[row] for row in unfinished]

    def _prefill(self, texts: list[Text], cache: KVCache) -> None:
        """Cache the whole blocks of each prompt; rows are right-padded, a bounded number of tokens at a time."""
        longest = max(text.block_start for text in texts)
        if not longest:
            return
        rows = max(1, PREFILL_TOKENS // longest)
        for first in range(0, len(texts), rows):
            group = texts[first : first + rows]
            width = max(text.block_start for text in group)
            if width:
                ids = torch.tensor([text.padded(0, text.block_start, width) for text in group], device=self.device)
                self.model.prefill(ids, cache.rows(first, first + len(group)), self.block_size)
        for text in texts:
            text.forwards += text.block_start > 0

    def _step(self, texts: list[Text], cache: KVCache) -> None:
        """One forward and one reveal for every text; commits finished blocks on the way."""
        width = self.block_size * (2 if any(text.uncommitted for text in texts) else 1)
        starts = [text.window_start for text in texts]
        ids = torch.tensor([text.padded(text.window_start, text.length, width) for text in texts], device=self.device)
        hidden = self.model.step(ids, starts, cache, self.block_size)
        # Only masked positions need logits: the head and the softmax over the vocabulary dominate the sampler.
        wanted = [
            row * width + position - start
            for row, (text, start) in enumerate(zip(texts, starts, strict=True))
            for position in text.masked
        ]
        logits = self.model.logits(hidden.flatten(0, 1)[torch.tensor(wanted, device=self.device)]).float()
        proposal = self._propose(logits, texts)
        first = 0
        for text in texts:
            last = first + len(text.masked)
            self._reveal(text, proposal.part(first, last))
            first = last

    def _propose(self, logits: Tensor, texts: list[Text]) -> Proposal:
        config = self.config
        uniforms = None
        if self.mode == "sample":
            uniforms = torch.cat([text.uniforms() for text in texts]).to(self.device)
        return propose(
            forbid(logits, self.model.config.mask_token_id, config.vocab_limit),
            uniforms,
            mode=self.mode,
            temperature=config.temperature,
            top_k=config.top_k,
            top_p=config.top_p,
            with_entropy=config.remasking == "entropy_bounded",
        )

    def _reveal(self, text: Text, proposal: Proposal) -> None:
        chosen = select(
            proposal,
            self.config.remasking,
            self.reveal_counts[min(text.block_step, len(self.reveal_counts) - 1)],
            confidence_threshold=self.config.confidence_threshold,
            entropy_bound=self.config.entropy_bound,
        )
        positions = [text.masked[index] - text.prompt_length for index in chosen]
        tokens = [proposal.tokens[index] for index in chosen]
        logprobs = [proposal.logprobs[index] for index in chosen]
        step, block = text.step, text.block_start // self.block_size
        text.reveal(positions, tokens, logprobs)
        if self.on_step is not None:
            self.on_step(
                StepEvent(text.index, step, block, tuple(positions), tuple(tokens), tuple(logprobs), text.stop_reason)
            )


def sample_seeds(seed: int | None, count: int) -> list[int]:
    """Independent seeds for `count` samples; the i-th depends on `seed` and i alone. None: fresh randomness."""
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    return torch.randint(2**62, (count,), generator=generator).tolist()


def _end_ids(model: SDAR) -> frozenset[int]:
    ids = model.config.eos_token_id
    if ids is None:
        return frozenset()
    return frozenset((ids,) if isinstance(ids, int) else ids)
