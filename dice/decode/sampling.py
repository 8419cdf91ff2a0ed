"""One denoising step's choices: which token would fill each masked position, and which positions to reveal now."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dice.model.family import NO_MASK

Strategy = Literal["sequential", "low_confidence_static", "low_confidence_dynamic", "entropy_bounded"]
Mode = Literal["auto", "sample", "greedy", "compat"]
STRATEGIES: tuple[Strategy, ...] = (
    "sequential",
    "low_confidence_static",
    "low_confidence_dynamic",
    "entropy_bounded",
)
Likeliest = tuple[tuple[int, float], ...]  # (token, log-probability), the likeliest first
MODES: tuple[Mode, ...] = ("auto", "sample", "greedy", "compat")


@dataclass(frozen=True, slots=True)
class Proposal:
    """What the model would write at M masked positions; one entry per position.

    `confidence` is the probability of the proposed token; see `propose` for the distribution it refers to.
    `entropy` (nats) is that of the untruncated distribution, and empty unless asked for. So is `likeliest`: the most
    likely tokens of the distribution that `logprobs` refers to.
    """

    tokens: list[int]
    logprobs: list[float]
    confidence: list[float]
    entropy: list[float]
    likeliest: Sequence[Likeliest] = ()

    def part(self, first: int, last: int) -> Proposal:
        """The proposal for positions first..last-1."""
        part = slice(first, last)
        numbers = self.tokens[part], self.logprobs[part], self.confidence[part], self.entropy[part]
        return Proposal(*numbers, self.likeliest[part])


def forbid(logits: Tensor, mask_token_id: int, vocab_limit: int | None = None) -> Tensor:
    """Rule out, in place, the mask token (if any) and vocabulary rows that no token has; returns `logits` [..., V]."""
    if mask_token_id != NO_MASK:
        logits[..., mask_token_id] = float("-inf")
    if vocab_limit is not None and vocab_limit < logits.shape[-1]:
        logits[..., vocab_limit:] = float("-inf")
    return logits


def truncate(logits: Tensor, top_k: int | None = None, top_p: float | None = None) -> Tensor:
    """Keep the `top_k` largest logits, then the smallest set of them whose probability reaches `top_p`; others -inf.

    Ties at the top-k edge go to the lowest token id, so that exactly k survive on every device. logits [M, V].
    """
    no_top_k = not top_k or top_k >= logits.shape[-1]
    share = 1.0 if top_p is None else top_p
    no_top_p = share >= 1.0
    if no_top_k and no_top_p:
        return logits
    values, order = logits.sort(dim=-1, descending=True, stable=True)
    if not no_top_k:
        values[..., top_k:] = float("-inf")
    if not no_top_p:
        probabilities = values.softmax(-1)
        before = probabilities.cumsum(-1) - probabilities
        values = values.masked_fill(before >= share, float("-inf"))
        values[..., 0] = logits.amax(-1)  # the best token always survives
    return torch.empty_like(logits).scatter_(-1, order, values)


def propose(
    logits: Tensor,
    uniforms: Tensor | None,
    *,
    mode: Mode,
    temperature: float,
    top_k: int | None = None,
    top_p: float | None = None,
    with_entropy: bool = False,
    top_logprobs: int = 0,
) -> Proposal:
    """Propose one token for each row of float32 `logits` [M, V], from which forbidden tokens are already ruled out.

    - "sample": draw from softmax(truncate(logits / temperature)) with the given `uniforms` [M] in [0, 1); confidence
      and log-probability refer to that same distribution.
    - "greedy": the most probable token; confidence and log-probability come from the untruncated softmax of
      logits / temperature (temperature 1 when it is 0), so that they stay informative.
    - "compat": the most probable token with confidence 1 and log-probability 0, which is what top_k = 1 means to the
      published evaluation; ties are left to `select`'s rule, lowest position first.

    `top_logprobs`: how many of the likeliest tokens are told besides.
    """
    scaled = logits if temperature in (0.0, 1.0) else logits / temperature
    source = scaled
    if mode == "sample":
        source = truncate(scaled, top_k, top_p)
        assert uniforms is not None
        tokens = draw(source.softmax(-1), uniforms)
        logprobs = source.gather(-1, tokens[:, None])[:, 0] - source.logsumexp(-1)
    else:
        tokens = scaled.argmax(-1)  # the first of equal maxima, on every device
        best = scaled.gather(-1, tokens[:, None])[:, 0]
        logprobs = torch.zeros_like(best) if mode == "compat" else best - scaled.logsumexp(-1)
    columns = [tokens.double(), logprobs.double()]
    if with_entropy:
        columns.append(entropy(scaled).double())
    rows = torch.stack(columns).tolist()  # one transfer from the device
    return Proposal(
        tokens=[int(token) for token in rows[0]],
        logprobs=rows[1],
        confidence=[math.exp(logprob) for logprob in rows[1]],
        entropy=rows[2] if with_entropy else [],
        likeliest=likeliest(source, top_logprobs) if top_logprobs else (),
    )


def likeliest(logits: Tensor, count: int) -> list[Likeliest]:
    """The `count` most likely tokens of each row of `logits` [M, V], or as many as are possible; of equally likely ones
    the lowest ids."""
    values, tokens = logits.sort(dim=-1, descending=True, stable=True)
    logprobs = values[:, :count] - logits.logsumexp(-1, keepdim=True)
    rows = zip(tokens[:, :count].tolist(), logprobs.tolist(), strict=True)
    return [tuple(pair for pair in zip(*row, strict=True) if pair[1] > -math.inf) for row in rows]


def draw(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Inverse-CDF sampling: token ids [M] from `probabilities` [M, V] and one uniform number each, in [0, 1).

    One number per position keeps a sample's randomness independent of who shares its batch. Sums run in float64, and a
    token of probability zero is never returned.
    """
    cumulative = probabilities.cumsum(-1, dtype=torch.float64)
    target = uniforms[:, None].double() * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, target, right=True)[:, 0].clamp_(max=probabilities.shape[-1] - 1)
    impossible = probabilities.gather(-1, tokens[:, None])[:, 0] == 0
    return torch.where(impossible, probabilities.argmax(-1), tokens)


def reveal_counts(block_size: int, denoising_steps: int) -> list[int]:
    """How many positions each step of a block reveals: block_size // steps, one more in the first remainder steps."""
    base, extra = divmod(block_size, denoising_steps)
    return [base + 1] * extra + [base] * (denoising_steps - extra)


def select(
    proposal: Proposal,
    strategy: Strategy,
    count: int,
    *,
    confidence_threshold: float = 0.9,
    entropy_bound: float = 0.35,
) -> list[int]:
    """Which of the M masked positions to reveal now, as ascending indices into the proposal; never none.

    - sequential: the leftmost `count`.
    - low_confidence_static: the `count` most confident.
    - low_confidence_dynamic: all above `confidence_threshold` if those are at least `count`, else the `count` most
      confident.
    - entropy_bounded: positions by ascending entropy while their sum stays below `entropy_bound`, at least one.

    Equal confidence (or entropy) goes to the leftmost position.
    """
    masked = len(proposal.tokens)
    count = min(max(count, 1), masked)
    if strategy == "sequential":
        return list(range(count))
    if strategy == "entropy_bounded":
        return sorted(_within_bound(proposal.entropy, entropy_bound))
    if strategy == "low_confidence_dynamic":
        sure = [index for index in range(masked) if proposal.confidence[index] > confidence_threshold]
        if len(sure) >= count:
            return sure
    ranked = sorted(range(masked), key=lambda index: (-proposal.logprobs[index], index))
    return sorted(ranked[:count])


def _within_bound(entropy: Sequence[float], bound: float) -> list[int]:
    ranked = sorted(range(len(entropy)), key=lambda index: (entropy[index], index))
    chosen, total = ranked[:1], entropy[ranked[0]]
    for index in ranked[1:]:
        total += entropy[index]
        if total >= bound:
            break
        chosen.append(index)
    return chosen


def entropy(logits: Tensor) -> Tensor:
    """Entropy [M] in nats of softmax(logits [M, V]); impossible tokens contribute nothing."""
    log_p = logits.log_softmax(-1)
    return -torch.special.xlogy(log_p.exp(), log_p.exp()).sum(-1)
