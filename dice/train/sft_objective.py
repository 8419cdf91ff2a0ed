"""The loss of SFT on packed rows: its gradient, micro-batch by micro-batch, and the score of held-out rows.

A row is read twice, [noisy ; clean]. A noisy block sees its own noisy tokens and the clean blocks before it; the loss
is cross-entropy at hidden tokens, weighted by 1/t, with no shift, over the number of trainable tokens of the batch:

    loss = (1 / N) * sum over hidden tokens i of weight_i * CE(logits_i, token_i)

An autoregressive model (family qwen3), there to compare with, reads the clean row once, from left to right; its loss is
the same sum over all trainable tokens, with weight 1 and the logits of the token before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dice.errors import UserError
from dice.model.sdar import SDAR
from dice.train.config import SFTConfig
from dice.train.engine import Engine
from dice.train.loss import masked_cross_entropy
from dice.train.noise import Corruption, all_of, corrupt, step_generator
from dice.train.packing import PackedRows
from dice.train.weights import Weights
from dice.train.world import World

MicroBatch = tuple[PackedRows, Corruption]


@dataclass(frozen=True, slots=True)
class Score:
    """`loss` is Eq. 2's; `nll` and `accuracy` are plain means over the hidden tokens."""

    loss: float
    nll: float
    accuracy: float

    @classmethod
    def of(cls, sums: Tensor, trained: int, hidden: int) -> Score:
        """From the sums of weighted losses, plain losses and correct guesses [3], and the tokens that they go over."""
        weighted, nll, hits = sums.tolist()
        return cls(weighted / max(1, trained), nll / max(1, hidden), hits / max(1, hidden))


class SFTObjective:
    """The loss of `weights` as `config` asks for it, computed by `engine` and shared by the processes of `world`.

    All noise is a function of (seed, purpose, number), so that a resumed run draws what an uninterrupted one would.
    """

    def __init__(self, config: SFTConfig, weights: Weights, engine: Engine, world: World) -> None:
        self.config, self.weights, self.engine, self.world = config, weights, engine, world
        self.mask_id = weights.model.config.mask_token_id
        self.micro_rows = micro_rows(config, world.size)

    def backward(self, batch: PackedRows, step: int) -> Score:
        """Add the gradient of the loss of `batch`, under the noise of `step`, to the weights."""
        noise = self._corrupt(batch, "train", step)
        trained = int(batch.trainable.sum())
        sums = torch.zeros(3, device=self.world.device)
        for micro, part in deal(self._parts(batch, noise), self.world):
            total, found = weighted_loss(self.engine, self.weights.model, micro, part, self.mask_id)
            (total / trained).backward()
            sums += found
        return Score.of(self.world.all_reduce_sum(sums), trained, int(noise.masked.sum()))

    def score(self, rows: PackedRows) -> Score:
        """Score held-out rows, always the same ones under the same noise, with the weights that would be exported."""
        sums = torch.zeros(3, device=self.world.device)
        trained = hidden = 0
        parts: list[MicroBatch] = []
        count = min(len(rows), self.config.eval_rows)
        for start in range(0, count, self.config.micro_rows):
            batch = rows.filled(start, min(count, start + self.config.micro_rows), self.config.micro_rows)
            noise = self._corrupt(batch, "eval", start)
            trained, hidden = trained + int(batch.trainable.sum()), hidden + int(noise.masked.sum())
            parts += self._parts(batch, noise)
        with self.weights.averaged():
            for micro, part in deal(parts, self.world):
                # With gradients on, although unused: without, compiled blocks would be compiled a second time.
                _, found = weighted_loss(self.engine, self.weights.model, micro, part, self.mask_id)
                sums += found
        return Score.of(self.world.all_reduce_sum(sums), trained, hidden)

    def _parts(self, batch: PackedRows, noise: Corruption) -> list[MicroBatch]:
        return list(zip(batch.split(self.micro_rows), split_noise(noise, self.micro_rows), strict=True))

    def _corrupt(self, batch: PackedRows, purpose: str, number: int) -> Corruption:
        config = self.config
        if batch.causal:
            return all_of(batch.trainable)
        return corrupt(
            batch.trainable, batch.documents, self.engine.mask.block_size, config.noise,
            step_generator(config.seed, purpose, number, self.world.device),
            t_min=config.t_min, t_max=config.t_max, stratified=config.stratified,
        )  # fmt: skip


def weighted_loss(
    engine: Engine, model: SDAR, batch: PackedRows, noise: Corruption, mask_id: int
) -> tuple[Tensor, Tensor]:
    """(sum of weighted losses, differentiable; [3] that sum, plain sum of losses, correct guesses, all detached).

    The caller divides by the trainable tokens of the whole batch. Only what predicts a hidden token goes through the
    output head: the token's own place, or in a family that shifts the place before it.
    """
    noisy = torch.where(noise.masked, mask_id, batch.tokens)
    hidden = engine(noisy, batch)
    row, column = noise.masked.nonzero(as_tuple=True)
    place = row * hidden.shape[1] + column
    if model.config.traits.shift:
        place = place - 1
    states = hidden.flatten(0, 1).index_select(0, place)
    labels, weights = batch.tokens[row, column], noise.weight[row, column]
    loss = masked_cross_entropy(states, model.lm_head.weight, labels, weights)
    return loss.total, torch.stack((loss.total.detach(), loss.nll.sum(), loss.hit.sum())).float()


def micro_rows(config: SFTConfig, processes: int) -> int:
    """Rows in a micro-batch: the most that divide the batch, stay within `micro_rows` and leave each process a share.

    Raises `UserError` when there are more processes than rows.
    """
    if processes > config.batch_rows:
        raise UserError(f"A batch of {config.batch_rows} rows cannot be dealt over {processes} processes.")
    limit = min(config.micro_rows, -(-config.batch_rows // processes))
    return next(size for size in range(limit, 0, -1) if config.batch_rows % size == 0)


def deal(parts: Sequence[MicroBatch], world: World) -> Iterator[MicroBatch]:
    """This process's micro-batches. All processes get as many, because the gathering of weights takes all of them: in
    the last round some may get one that they need not train on, with nothing hidden and so no gradient."""
    for first in range(0, len(parts), world.size):
        index = first + world.rank
        if index < len(parts):
            yield parts[index]
        else:
            rows, noise = parts[0]
            yield rows, Corruption(torch.zeros_like(noise.masked), torch.zeros_like(noise.weight))


def split_noise(noise: Corruption, size: int) -> Iterator[Corruption]:
    for masked, weight in zip(noise.masked.split(size), noise.weight.split(size), strict=True):
        yield Corruption(masked, weight)
