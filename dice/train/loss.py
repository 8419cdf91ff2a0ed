"""Losses of token log-probabilities, without ever holding all logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dice.decode.sampling import forbid
from dice.model.family import NO_MASK

# How many logits are held at once: 256 MiB in float32.
CHUNK_LOGITS = 1 << 26

TokenLoss = Callable[[Tensor, slice], Tensor]
"""(log-probabilities of the tokens `part`, part) -> the loss of each; differentiable, each by its own token alone."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """How logits become probabilities. The sampler's settings give the sampler's probabilities."""

    temperature: float = 1.0
    mask_token_id: int = NO_MASK
    vocab_limit: int | None = None

    def scale(self, logits: Tensor) -> Tensor:
        """What the softmax is taken of; may change `logits` in place."""
        logits = forbid(logits, self.mask_token_id, self.vocab_limit)
        return logits if self.temperature == 1.0 else logits / self.temperature


PLAIN = Distribution()


@dataclass(frozen=True, slots=True)
class TokenScores:
    """`total`: the sum of the token losses, differentiable. `log_p`, `hit` [n]: each token's log-probability, and
    whether argmax got it."""

    total: Tensor
    log_p: Tensor
    hit: Tensor


@dataclass(frozen=True, slots=True)
class MaskedLoss:
    """`total`: the weighted sum, differentiable. `nll`, `hit` [n]: each token's loss, and whether argmax got it."""

    total: Tensor
    nll: Tensor
    hit: Tensor


def masked_cross_entropy(hidden: Tensor, head: Tensor, labels: Tensor, weights: Tensor) -> MaskedLoss:
    """sum_i weights[i] * CE(hidden[i] @ head.T, labels[i]); see `score_tokens`. `weights` [n]."""
    scores = score_tokens(hidden, head, labels, lambda log_p, part: -log_p * weights[part])
    return MaskedLoss(scores.total, -scores.log_p, scores.hit)


def score_tokens(
    hidden: Tensor, head: Tensor, labels: Tensor, loss: TokenLoss, distribution: Distribution = PLAIN
) -> TokenScores:
    """sum_i loss_i(log p(labels[i])), p = softmax(hidden[i] @ head.T); no shift: position i predicts token i.

    `distribution` may change the logits before the softmax, as a sampler does.
    `hidden` [n, H] final hidden states of the wanted tokens only, `head` [V, H], `labels` [n] int.
    The softmax is taken in float32 (float64 when `hidden` is). Gradients are computed in the forward pass chunk by
    chunk, so memory holds one chunk of logits; n = 0 gives a total of 0 with zero gradients.
    """
    return TokenScores(*_ChunkedTokenLoss.apply(hidden, head, labels, loss, distribution))


@torch.no_grad()
def log_probabilities(hidden: Tensor, head: Tensor, labels: Tensor, distribution: Distribution = PLAIN) -> Tensor:
    """log p(labels[i]) [n] alone; arguments as for `score_tokens`."""
    return score_tokens(hidden.detach(), head.detach(), labels, lambda log_p, part: log_p, distribution).log_p


class _ChunkedTokenLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, labels: Tensor, loss: TokenLoss, distribution: Distribution
    ) -> tuple[Tensor, Tensor, Tensor]:
        wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        scores = torch.empty(hidden.shape[0], dtype=wide, device=hidden.device)
        losses = torch.empty_like(scores)
        hit = torch.empty(hidden.shape[0], dtype=torch.bool, device=hidden.device)
        wants_hidden, wants_head = ctx.needs_input_grad[:2]
        d_hidden = torch.zeros_like(hidden) if wants_hidden else None
        d_head = torch.zeros_like(head, dtype=wide) if wants_head else None
        size = max(1, CHUNK_LOGITS // head.shape[0])
        for start in range(0, hidden.shape[0], size):
            part = slice(start, start + size)
            logits = distribution.scale((hidden[part] @ head.T).to(wide))
            log_p = logits.log_softmax(-1)
            scores[part] = log_p.gather(-1, labels[part, None]).squeeze(-1)
            hit[part] = logits.argmax(-1) == labels[part]
            losses[part], slope = _with_slope(loss, scores[part], part)
            if not (wants_hidden or wants_head):
                continue
            d_logits = log_p.exp_()
            d_logits[torch.arange(len(d_logits), device=hidden.device), labels[part]] -= 1
            d_logits = (d_logits * (-slope / distribution.temperature)[:, None]).to(hidden.dtype)
            if d_hidden is not None:
                d_hidden[part] = (d_logits @ head).to(hidden.dtype)
            if d_head is not None:
                d_head += d_logits.T @ hidden[part]
        ctx.save_for_backward(d_hidden, d_head)
        ctx.head_dtype = head.dtype
        ctx.mark_non_differentiable(scores, hit)
        return losses.sum(), scores, hit

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_total: Tensor, *_: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        d_hidden, d_head = ctx.saved_tensors
        return (
            None if d_hidden is None else d_hidden * d_total.to(d_hidden.dtype),
            None if d_head is None else (d_head * d_total).to(ctx.head_dtype),
            None,
            None,
            None,
        )


def _with_slope(loss: TokenLoss, log_p: Tensor, part: slice) -> tuple[Tensor, Tensor]:
    """The losses of some tokens, and the derivative of each by its log-probability."""
    with torch.enable_grad():
        leaf = log_p.detach().requires_grad_()
        losses = loss(leaf, part)
        (slope,) = torch.autograd.grad(losses.sum(), leaf)
    return losses.detach(), slope
