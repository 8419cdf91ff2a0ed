"""An optional value model: what advantage to expect from a round of denoising, learned and then subtracted from it.

TraceRL's critic, whose only reward comes after the last round. With its discount and trace parameter of 1, the
generalised advantage of a round is the response's advantage minus the value of that round, and the return that values
are fitted to is the response's advantage. A round's value is the mean over the tokens that it revealed.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dice.model.sdar import SDAR
from dice.train.blocks import set_blocks, shard
from dice.train.engine import Engine
from dice.train.rl.batch import Micro, Minibatch
from dice.train.sft import TrainingError
from dice.train.weights import AdamWSettings, Weights
from dice.train.world import World


class Value:
    """A second model of the shape and weights of `model`, with one output per token that starts at 0."""

    def __init__(
        self, model: SDAR, settings: AdamWSettings, compute_dtype: torch.dtype, world: World, *, clip: float,
        clip_grad: float, recompute: bool,
    ) -> None:  # fmt: skip
        body = copy.deepcopy(model)
        body.lm_head = nn.Linear(model.config.hidden_size, 1, bias=False).to(model.lm_head.weight)
        nn.init.zeros_(body.lm_head.weight)
        shard(body, world, compute_dtype, reshard=True)
        set_blocks(body, compiled=False, recompute=recompute)
        self.weights, self.world = Weights(body, settings, compute_dtype), world
        self.lr, self.clip, self.clip_grad = settings.lr, clip, clip_grad

    @torch.no_grad()
    def estimate(self, like: Engine, micro: Micro) -> Tensor:
        """The value of each target [n]; `like` says how to attend."""
        return self._values(like, micro)

    def learn(self, like: Engine, batch: Minibatch, old: Sequence[Tensor], step: int) -> float:
        """Update number `step` towards the returns, by the squared error weighed as the policy's loss; returns it.

        Estimates gain nothing from leaving `old`, those before the first update, by more than `clip`. Raises
        `TrainingError` without the update for a loss or gradient that is not finite.
        """
        self.weights.model.zero_grad(set_to_none=True)
        self.weights.optimizer.zero_grad(set_to_none=False)
        total = batch.weight.new_zeros(())
        for micro, before in zip(batch, old, strict=True):
            value = self._values(like, micro)
            near = before + (value - before).clamp(-self.clip, self.clip)
            errors = torch.maximum((value - micro.advantage).square(), (near - micro.advantage).square())
            loss = 0.5 * (micro.weight * errors).sum()
            loss.backward()
            self.weights.collect()
            total += loss.detach()
        total = self.world.sum(total)
        if not (math.isfinite(float(total)) and math.isfinite(self.weights.clip(self.clip_grad))):
            raise TrainingError("The value model's loss or gradient is not a finite number; try a lower value_lr.")
        self.weights.update(self.lr, step)
        return float(total)

    def _values(self, like: Engine, micro: Micro) -> Tensor:
        model = self.weights.model
        values: Tensor = model.lm_head(micro.states(like.of(model)))
        return values.squeeze(1).to(micro.weight)


def mean_by_round(values: Tensor, micro: Micro, block_size: int) -> Tensor:
    """Each target's value replaced by the mean over the targets of its round, that is of its noisy block [n]."""
    _, number, count = torch.unique_consecutive(micro.index // block_size, return_inverse=True, return_counts=True)
    sums = values.new_zeros(len(count)).index_add(0, number, values)
    return (sums / count)[number]
