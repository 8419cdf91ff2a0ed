"""TraceRL's objective for one token: the clipped surrogate of its advantage, and its share of the KL penalty."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Log-ratios are clamped to this, as in the published code: exp stays finite, and a token that moved this far has no
# gradient.
LOG_RATIO_LIMIT = 10.0


@dataclass(frozen=True, slots=True)
class Terms:
    """Of each token: probability ratio new / old, surrogate to maximise, KL estimate, and whether clipping bites."""

    ratio: Tensor
    surrogate: Tensor
    kl: Tensor
    clipped: Tensor


def token_terms(new: Tensor, old: Tensor, anchor: Tensor, advantage: Tensor, clip_ratio: float) -> Terms:
    """Terms of tokens with log-probabilities `new` (differentiable), `old` (before the first update) and `anchor`.

    surrogate = min(r A, clip(r, 1 - e, 1 + e) A) with r = exp(clamp(new - old, -10, 10)). The estimate of the KL
    divergence from `anchor` is the one called k3, exp(clamp(anchor - new, -10, 10)) - 1 + new - anchor: it is never
    negative, and its gradient pulls towards the anchor.
    """
    ratio = (new - old).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    limited = ratio.clamp(1.0 - clip_ratio, 1.0 + clip_ratio)
    gain, limited_gain = ratio * advantage, limited * advantage
    moved = new - anchor
    kl = (-moved).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp() - 1.0 + moved
    return Terms(ratio, torch.minimum(gain, limited_gain), kl, limited_gain < gain)
