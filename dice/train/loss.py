"""Weighted cross-entropy at the hidden positions, without ever holding all logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_LOGITS = 1 << 26  # logits held at once: 256 MiB in float32


@dataclass(frozen=True, slots=True)
class MaskedLoss:
    """`total`: the weighted sum, differentiable. `nll`, `hit` [n]: each token's loss, and whether argmax got it."""

    total: Tensor
    nll: Tensor
    hit: Tensor


def masked_cross_entropy(hidden: Tensor, head: Tensor, labels: Tensor, weights: Tensor) -> MaskedLoss:
    """sum_i weights[i] * CE(hidden[i] @ head.T, labels[i]), no shift: position i predicts token i.

    `hidden` [n, H] final hidden states of the hidden tokens only, `head` [V, H], `labels` [n] int, `weights` [n].
    The softmax is taken in float32 (float64 when `hidden` is). Gradients are computed in the forward pass chunk by
    chunk, so memory holds one chunk of logits; n = 0 gives a total of 0 with zero gradients.
    """
    total, nll, hit = _ChunkedCrossEntropy.apply(hidden, head, labels, weights)
    return MaskedLoss(total, nll, hit)


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, labels: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        nll = torch.empty(hidden.shape[0], dtype=wide, device=hidden.device)
        hit = torch.empty(hidden.shape[0], dtype=torch.bool, device=hidden.device)
        wants_hidden, wants_head = ctx.needs_input_grad[:2]
        d_hidden = torch.zeros_like(hidden) if wants_hidden else None
        d_head = torch.zeros_like(head, dtype=wide) if wants_head else None
        size = max(1, CHUNK_LOGITS // head.shape[0])
        for start in range(0, hidden.shape[0], size):
            part = slice(start, start + size)
            logits = (hidden[part] @ head.T).to(wide)
            log_p = logits.log_softmax(-1)
            nll[part] = -log_p.gather(-1, labels[part, None]).squeeze(-1)
            hit[part] = logits.argmax(-1) == labels[part]
            if not (wants_hidden or wants_head):
                continue
            d_logits = log_p.exp_()
            d_logits[torch.arange(len(d_logits), device=hidden.device), labels[part]] -= 1
            d_logits = (d_logits * weights[part, None]).to(hidden.dtype)
            if d_hidden is not None:
                d_hidden[part] = (d_logits @ head).to(hidden.dtype)
            if d_head is not None:
                d_head += d_logits.T @ hidden[part]
        ctx.save_for_backward(d_hidden, d_head)
        ctx.head_dtype = head.dtype
        ctx.mark_non_differentiable(nll, hit)
        return (nll * weights).sum(), nll, hit

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_total: Tensor, *_: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        d_hidden, d_head = ctx.saved_tensors
        return (
            None if d_hidden is None else d_hidden * d_total.to(d_hidden.dtype),
            None if d_head is None else (d_head * d_total).to(ctx.head_dtype),
            None,
            None,
        )
