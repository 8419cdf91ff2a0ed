"""Autoregressive decoding, one token after another from the keys and values of those before: Qwen, Llama and others.

A batch of texts of different lengths; a row whose text has ended goes to the next one that waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from dice.decode.request import (
    PREFILL_TOKENS,
    DecodeConfig,
    DecodeError,
    StepEvent,
    check_prompts,
    end_ids,
    prompt_seeds,
)
from dice.decode.sampling import forbid, propose
from dice.decode.trace import StopReason, Trace
from dice.model.cache import KVCache
from dice.model.family import NO_MASK
from dice.model.sdar import SDAR

# The block size at which block-causal attention is causal.
CAUSAL = 1


@dataclass
class _Text:
    """A prompt and what has been written after it. All but the last id have their keys and values in the cache."""

    index: int
    ids: list[int]
    prompt_length: int
    generator: torch.Generator
    logprobs: list[float] = field(default_factory=list)
    forwards: int = 0
    stop_reason: StopReason | None = None


def generate_autoregressive(
    model: SDAR,
    prompts: Sequence[Sequence[int]],
    config: DecodeConfig,
    on_step: Callable[[StepEvent], None] | None = None,
    seeds: Sequence[int] | None = None,
) -> list[Trace]:
    """Continue each prompt (token ids, at least one) by up to `config.max_new_tokens` tokens, stop token included.

    Of `config` this uses `max_new_tokens`, `temperature`, `top_k`, `top_p`, `mode`, `top_logprobs`, `stop_ids`,
    `vocab_limit`, `seed` and `max_active`; the rest speaks of blocks. Randomness, order and errors are those of
    `generate`.
    """
    check_prompts(model, prompts, config.max_new_tokens)
    if not all(prompts):
        raise DecodeError("A prompt is empty, but this model needs a token to continue from.")
    seeds = prompt_seeds(config.seed, seeds, len(prompts))
    texts = [
        _Text(index, list(prompt), len(prompt), torch.Generator().manual_seed(seed))
        for index, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True))
    ]
    model.fuse()
    with torch.inference_mode():
        _run(model, texts, config, on_step)
    return [_trace(text, config) for text in texts]


def _run(model: SDAR, texts: list[_Text], config: DecodeConfig, on_step: Callable[[StepEvent], None] | None) -> None:
    if not texts:
        return
    waiting = texts[::-1]
    active = [waiting.pop() for _ in range(min(config.max_active, len(texts)))]
    cache = model.new_cache(len(active), max(len(text.ids) for text in texts) + config.max_new_tokens)
    _prefill(model, active, cache)
    while active:
        _step(model, active, cache, config, on_step)
        for row, text in enumerate(active):
            if text.stop_reason and waiting:
                active[row] = waiting.pop()
                _prefill(model, [active[row]], cache.rows(row, row + 1))
        unfinished = [row for row, text in enumerate(active) if not text.stop_reason]
        if unfinished and len(unfinished) < len(active):
            cache = cache.keep(unfinished)
        active = [active[row] for row in unfinished]


def _prefill(model: SDAR, texts: list[_Text], cache: KVCache) -> None:
    """Cache each prompt but its last token; rows are right-padded, which causal attention never sees."""
    rows = max(1, PREFILL_TOKENS // max(len(text.ids) for text in texts))
    for first in range(0, len(texts), rows):
        group = texts[first : first + rows]
        width = max(len(text.ids) for text in group) - 1
        if not width:
            continue
        padded = [text.ids[:-1] + [0] * (width - len(text.ids) + 1) for text in group]
        ids = torch.tensor(padded, device=model.lm_head.weight.device)
        model.prefill(ids, cache.rows(first, first + len(group)), CAUSAL)
        for text in group:
            if len(text.ids) > 1:
                text.forwards += 1


def _step(
    model: SDAR,
    texts: list[_Text],
    cache: KVCache,
    config: DecodeConfig,
    on_step: Callable[[StepEvent], None] | None,
) -> None:
    """One token for every text."""
    device, mode = model.lm_head.weight.device, config.resolved_mode
    last = torch.tensor([text.ids[-1:] for text in texts], device=device)
    hidden = model.step(last, [len(text.ids) - 1 for text in texts], cache, CAUSAL)
    uniforms = None
    if mode == "sample":
        draws = [torch.rand(1, generator=text.generator, dtype=torch.float64) for text in texts]
        uniforms = torch.cat(draws).to(device)
    logits = forbid(model.logits(hidden[:, 0]).float(), model.config.mask_token_id, config.vocab_limit)
    proposal = propose(
        logits, uniforms, mode=mode, temperature=config.temperature, top_k=config.top_k, top_p=config.top_p,
        top_logprobs=config.top_logprobs,
    )  # fmt: skip
    stop_ids = config.stop_ids if config.stop_ids is not None else end_ids(model)
    for row, (text, token, logprob) in enumerate(zip(texts, proposal.tokens, proposal.logprobs, strict=True)):
        text.ids.append(token)
        text.logprobs.append(logprob)
        text.forwards += 1
        written = len(text.logprobs)
        if token in stop_ids:
            text.stop_reason = "stop"
        elif written == config.max_new_tokens:
            text.stop_reason = "length"
        if on_step is not None:
            place = written - 1
            likeliest = tuple(proposal.likeliest[row : row + 1])
            on_step(StepEvent(text.index, place, place, (place,), (token,), (logprob,), text.stop_reason, likeliest))


def _trace(text: _Text, config: DecodeConfig) -> Trace:
    assert text.stop_reason is not None
    written = len(text.logprobs)
    return Trace(
        prompt_ids=tuple(text.ids[: text.prompt_length]),
        token_ids=tuple(text.ids[text.prompt_length :]),
        steps=tuple(range(written)),
        logprobs=tuple(text.logprobs),
        kept=written,
        block_size=CAUSAL,
        mask_token_id=NO_MASK,
        strategy="autoregressive",
        mode=config.resolved_mode,
        forwards=text.forwards,
        stop_reason=text.stop_reason,
    )
