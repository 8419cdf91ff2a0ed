"""A request to decode, and what a decoder reports while it works: shared by every kind of model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from dice.decode.sampling import MODES, STRATEGIES, Likeliest, Mode, Strategy
from dice.errors import UserError
from dice.model.sdar import MAX_BLOCK_SIZE, SDAR

# Prompts are read into the cache at most this many tokens at a time, padding included, which bounds the memory of the
# attention scores.
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
    - `top_logprobs`: how many of the likeliest tokens each `StepEvent` tells beside a revealed one.
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
    top_logprobs: int = 0
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
            (self.top_logprobs >= 0, "top_logprobs must not be negative"),
            (self.mode != "compat" or not self.top_logprobs, "mode `compat` knows no log-probabilities to tell"),
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

    `stop_reason` is set on a text's last event. `likeliest`: for each position the most likely tokens of the
    distribution that its token was taken from; empty unless `DecodeConfig.top_logprobs` asks for them.
    """

    sample: int
    step: int
    block: int
    positions: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop_reason: Literal["stop", "length"] | None
    likeliest: tuple[Likeliest, ...] = ()


def sample_seeds(seed: int | None, count: int) -> list[int]:
    """Independent seeds for `count` samples; the i-th depends on `seed` and i alone. None: fresh randomness."""
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    return torch.randint(2**62, (count,), generator=generator).tolist()


def end_ids(model: SDAR) -> frozenset[int]:
    """The end-of-text ids of the model's configuration."""
    ids = model.config.eos_token_id
    if ids is None:
        return frozenset()
    return frozenset((ids,) if isinstance(ids, int) else ids)


def check_prompts(model: SDAR, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> None:
    """Raise `DecodeError` for unknown ids, `ContextLengthError` where prompt and answer exceed the model's context."""
    limit, vocabulary = model.config.max_position_embeddings, model.config.vocab_size
    for index, prompt in enumerate(prompts):
        length = len(prompt) + max_new_tokens
        if length > limit:
            raise ContextLengthError(
                f"Prompt {index} has {len(prompt)} tokens; with {max_new_tokens} new ones it needs {length} positions, "
                f"but the model has {limit}."
            )
        if any(not 0 <= token < vocabulary for token in prompt):
            raise DecodeError(f"Prompt {index} holds a token id outside the model's vocabulary.")


def prompt_seeds(seed: int | None, seeds: Sequence[int] | None, prompts: int) -> Sequence[int]:
    """`seeds`, or those that follow from `seed`; one per prompt."""
    if seeds is None:
        return sample_seeds(seed, prompts)
    if len(seeds) != prompts:
        raise DecodeError(f"There are {prompts} prompts but {len(seeds)} seeds.")
    return seeds
