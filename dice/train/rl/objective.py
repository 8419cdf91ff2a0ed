"""TraceRL's objective for one token: the clipped surrogate of its advantage, and its share of the KL penalty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

KL = Literal["k1", "k3"]
LOG_RATIO_LIMIT = 10.0  # as published: keeps exp finite, and stops the gradient of tokens that moved this far


@dataclass(frozen=True, slots=True)
class Terms:
    """Of each token: probability ratio new / old, surrogate to maximise, KL estimate, and whether clipping bites."""

    ratio: Tensor
    surrogate: Tensor
    kl: Tensor
    clipped: Tensor


def token_terms(new: Tensor, old: Tensor, anchor: Tensor, advantage: Tensor, clip_ratio: float, kind: KL) -> Terms:
    """Terms of tokens with log-probabilities `new` (differentiable), `old` (before the first update) and `anchor`.

    surrogate = min(r A, clip(r, 1 - e, 1 + e) A) with r = exp(clamp(new - old, -10, 10)). The KL estimate is against
    `anchor`: k1 = new - anchor, k3 = exp(clamp(anchor - new, -10, 10)) - 1 + new - anchor. k3 is never negative and its
    gradient pulls towards the anchor; k1's gradient is zero on average at r = 1, so k1 is a penalty in name only.
    """
    ratio = (new - old).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    limited = ratio.clamp(1.0 - clip_ratio, 1.0 + clip_ratio)
    gain, limited_gain = ratio * advantage, limited * advantage
    kl = new - anchor
    if kind == "k3":
        kl = (-kl).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp() - 1.0 + kl
    return Terms(ratio, torch.minimum(gain, limited_gain), kl, limited_gain < gain)
