"""Traces for the tests of reinforcement learning: made up, or written by the real sampler; and a slow exact replay."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from training_helpers import MASK_ID, VOCAB

from dice.decode.generate import DecodeConfig, generate
from dice.decode.trace import Trace
from dice.model.sdar import SDAR


def made_up_trace(
    prompt: list[int], blocks: int, block_size: int = 4, seed: int = 0, dropped: int = 0, together: float = 0.4
) -> Trace:
    """A complete trace over `blocks` blocks with random ids, orders and log-probabilities.

    A position is revealed together with the one before it with probability `together`. The last `dropped` tokens come
    after the stop id.
    """
    rng = np.random.default_rng(seed)
    start = len(prompt) // block_size * block_size
    count = start + blocks * block_size - len(prompt)
    steps, step = np.zeros(count, dtype=int), -1
    for first in range(start, start + blocks * block_size, block_size):
        own = [p - len(prompt) for p in range(first, first + block_size) if p >= len(prompt)]
        for turn, position in enumerate(rng.permutation(own)):
            step += turn == 0 or rng.random() >= together
            steps[position] = step
    return Trace(
        prompt_ids=tuple(prompt), token_ids=tuple(rng.integers(4, VOCAB, size=count).tolist()),
        steps=tuple(steps.tolist()), logprobs=tuple((-3 * rng.random(count)).tolist()), kept=count - dropped,
        block_size=block_size, mask_token_id=MASK_ID, strategy="low_confidence_dynamic", mode="sample",
        forwards=step + 2, stop_reason="stop",
    )  # fmt: skip


def random_prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng((7, seed)).integers(4, VOCAB, size=length).tolist()


def sampled_traces(model: SDAR, prompts: list[list[int]], **settings: object) -> list[Trace]:
    """What the sampler itself writes: several tokens a step where it is sure, an end where it draws a stop id."""
    config = DecodeConfig(
        **{"max_new_tokens": 21, "confidence_threshold": 0.3, "mode": "sample", "seed": 5, **settings}
    )
    return generate(model, prompts, config)


def slow_rounds(trace: Trace, shrink: int = 1) -> Iterator[tuple[list[int], list[int]]]:
    """(what the sampler read: clean text before the block, then the block; kept tokens that the round revealed).

    Written from the definition of a trace: rounds come from its steps, what was seen from its frames.
    """
    size, prompt = trace.block_size, len(trace.prompt_ids)
    frames = [[*trace.prompt_ids, *frame] for frame in trace.frames()]
    final = [*trace.prompt_ids, *trace.token_ids]
    for start in range(prompt // size * size, len(final), size):
        inside = [i for i in range(len(trace.token_ids)) if start <= prompt + i < start + size]
        steps = sorted({trace.steps[i] for i in inside})
        for first in range(0, len(steps), shrink):
            group = steps[first : first + shrink]
            revealed = [i for i in inside if trace.steps[i] in group and i < trace.kept]
            if revealed:
                yield final[:start] + frames[group[0]][start : start + size], revealed


def slow_states(model: SDAR, ids: list[int], size: int) -> Tensor:
    """Hidden states [L, H] of one whole block-causal forward."""
    number = torch.arange(len(ids)) // size
    return model.hidden(torch.tensor([ids]), None, (number[:, None] >= number)[None, None])[0]


def slow_log_probabilities(model: SDAR, trace: Trace, shrink: int = 1, temperature: float = 1.0) -> list[Tensor]:
    """log p of each kept token, one whole forward with all logits per round."""
    found: dict[int, Tensor] = {}
    for ids, revealed in slow_rounds(trace, shrink):
        logits = model.lm_head(slow_states(model, ids, trace.block_size)) / temperature
        logits[:, MASK_ID] = float("-inf")
        log_p = logits.log_softmax(-1)
        found |= {i: log_p[len(trace.prompt_ids) + i, trace.token_ids[i]] for i in revealed}
    return [found[i] for i in range(trace.kept)]


def slow_values(model: SDAR, head: Tensor, trace: Trace) -> tuple[list[Tensor], list[float]]:
    """The value of each kept token, and the mean over those of its round."""
    values: dict[int, Tensor] = {}
    means: dict[int, float] = {}
    for ids, revealed in slow_rounds(trace):
        states = slow_states(model, ids, trace.block_size)
        values |= {i: states[len(trace.prompt_ids) + i] @ head for i in revealed}
        means |= dict.fromkeys(revealed, sum(float(values[i].detach()) for i in revealed) / len(revealed))
    return [values[i] for i in range(trace.kept)], [means[i] for i in range(trace.kept)]
