"""Small policies, samples of every layout, and TraceRL's loss token by token in Python."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from rl_traces import made_up_trace, random_prompt, slow_log_probabilities
from torch import Tensor

from dice.model.sdar import SDAR
from dice.train.rl.policy import Policy, PolicyConfig, ScoredTrace
from dice.train.weights import Weights

SMALL = PolicyConfig(lr=1e-2, row_tokens=256, max_new_tokens=24, minibatch=4)


def policy_of(model: SDAR, dtype: torch.dtype = torch.float64, reference: SDAR | None = None, **changes: Any) -> Policy:
    config = replace(SMALL, **changes)
    return Policy(copy.deepcopy(model), config, reference=reference, compute_dtype=dtype, say=pytest.fail)


def layouts() -> list[ScoredTrace]:
    """Prompts of every length modulo the block size, one shared by three responses; ends inside blocks."""
    lengths = (8, 9, 10, 11, 3, 10, 10)
    return [
        (made_up_trace(random_prompt(length, length), 2 + n % 3, seed=n, dropped=n % 4), (-1.0) ** n * (0.5 + 0.3 * n))
        for n, length in enumerate(lengths)
    ]


def recorded(weights: Weights) -> list[list[Tensor]]:
    """Will hold the gradients of each update that follows, before clipping."""
    found: list[list[Tensor]] = []
    clip = weights.clip

    def record(limit: float) -> float:
        found.append([weight.grad.clone() for weight in weights.params])
        return clip(limit)

    weights.clip = record
    return found


def gradients(policy: Policy, samples: list[ScoredTrace]) -> list[list[Tensor]]:
    """The policy's gradients in each update of one call, before clipping."""
    found = recorded(policy.weights)
    policy.update(samples)
    return found


def slow_loss(
    model: SDAR, samples: list[ScoredTrace], old: list[list[float]], anchor: list[list[float]], config: PolicyConfig
) -> Tensor:
    """TraceRL's loss, token by token in Python."""
    total: Any = 0.0
    for (trace, advantage), before, base in zip(samples, old, anchor, strict=True):
        found = slow_log_probabilities(model, trace, config.shrink, config.temperature)
        for i, (log_p, log_old, log_base) in enumerate(zip(found, before, base, strict=True)):
            ratio = (log_p - log_old).exp()
            low, high = 1 - config.clip_ratio, 1 + config.clip_ratio
            gain = torch.minimum(ratio * advantage, torch.clamp(ratio, low, high) * advantage)
            if config.mismatch_cap is not None:
                gain = gain * min(math.exp(log_old - trace.logprobs[i]), config.mismatch_cap)
            kl = (log_base - log_p).exp() - 1 + log_p - log_base
            total = total + (config.kl_coef * kl - gain) / config.max_new_tokens / len(samples)
    return total


def log_probabilities_of(model: SDAR, samples: list[ScoredTrace], config: PolicyConfig) -> list[list[float]]:
    with torch.no_grad():
        return [
            [float(v) for v in slow_log_probabilities(model, trace, config.shrink, config.temperature)]
            for trace, _ in samples
        ]


def assert_close(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        error, size = (one - other).norm().item(), other.norm().item()
        assert error <= 1e-6 * size + 1e-12


def assert_same(one: Policy, other: Policy) -> None:
    for name, tensor in one.tensors().items():
        assert torch.equal(tensor, other.tensors()[name]), name
    for ours, theirs in zip(one.sampler.parameters(), other.sampler.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def weights_of(policy: Policy) -> list[Tensor]:
    return [weight.detach().clone() for weight in policy.weights.params]
