"""What an update of the policy did: statistics over the tokens that it learned from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from dice.model.sdar import SDARConfig
from dice.train.plan.flops import training_flops
from dice.train.rl.batch import Minibatch
from dice.train.rl.objective import token_terms
from dice.train.world import World


@dataclass(frozen=True, slots=True)
class UpdateStats:
    """What one call of `Policy.update` did. Means are over targets, the tokens learned from.

    `work`: the floating-point operations that it needed, of all processes (what was recomputed or scored not counted).
    `mismatch_*`: |log-probability by the trainer before the first update - that recorded by the sampler|; rounding
    only, where shrink is 1 and the sampler did not truncate. `nll`: the mean negative log-probability of the samples
    before the first update. `tokens`: positions that one pass over the samples reads, padding not counted.
    """

    samples: int
    skipped: int
    updates: int
    targets: int
    tokens: int
    work: float
    rows: int
    loss: float
    kl: float
    clip_fraction: float
    ratio_max: float
    grad_norm: float
    grad_norm_max: float
    nll: float
    mismatch_mean: float
    mismatch_p99: float
    mismatch_max: float

    def to_json(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Step:
    """One optimiser update; log-probabilities and advantages of this process's targets as columns [5, n], see
    `summarize`."""

    loss: float
    grad_norm: float
    columns: Tensor


def summarize(
    steps: Sequence[Step], batches: Sequence[Minibatch], *, config: SDARConfig, clip_ratio: float, scored: bool,
    world: World,
) -> UpdateStats:  # fmt: skip
    """Of all processes. `config`: the model's. `scored`: log-probabilities before the first update were computed for
    all samples, and not taken from the traces for those of later updates."""
    new, old, anchor, sampled, advantage = world.all_gather_cat(torch.cat([step.columns for step in steps], 1))
    terms = token_terms(new, old, anchor, advantage, clip_ratio)
    first = world.all_gather_cat(steps[0].columns)  # whose old ones are always the trainer's own
    mismatch = (old - sampled if scored else first[1] - first[3]).abs().sort().values
    samples, learned = sum(batch.samples for batch in batches), sum(len(batch.advantage) for batch in batches)
    norms = [step.grad_norm for step in steps]
    return UpdateStats(
        samples=samples,
        skipped=samples - learned,
        updates=len(steps),
        targets=len(new),
        tokens=sum(batch.rows.tokens_read for batch in batches),
        work=work(batches, len(new), config),
        rows=world.size * sum(len(batch.rows) for batch in batches),
        loss=sum(step.loss for step in steps) / len(steps),
        kl=float(terms.kl.mean()),
        clip_fraction=float(terms.clipped.float().mean()),
        ratio_max=float(terms.ratio.max()),
        grad_norm=sum(norms) / len(norms),
        grad_norm_max=max(norms),
        nll=-float(old.mean()),
        mismatch_mean=float(mismatch.mean()),
        mismatch_p99=float(mismatch[int(0.99 * (len(mismatch) - 1))]),
        mismatch_max=float(mismatch[-1]),
    )


def work(batches: Sequence[Minibatch], targets: int, config: SDARConfig) -> float:
    """Operations that one pass forward and backward needs, in all processes; padding is no work."""
    pairs, tokens = sum(batch.rows.pairs_read for batch in batches), sum(batch.rows.tokens_read for batch in batches)
    return training_flops(config, tokens=tokens, pairs=pairs, predicted=targets)
