"""Replayed responses as optimiser updates see them: minibatches of rows, run a few rows at a time."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from dice.train.engine import Engine
from dice.train.rl.replay import PackedReplays, Replay, pack_replays
from dice.train.world import World

T = TypeVar("T")

# Tokens of a row on a CPU, where all responses fit. A CPU has the dense mask alone, whose cost grows with the square of
# the row, and gains nothing from longer rows.
DENSE_ROW = 2048


@dataclass(frozen=True, slots=True)
class Micro:
    """Rows run at once, and their targets in row-major order: where they are, and what a loss needs to know [n].

    `sample`, `position`: which response each is of, and where in its text, the prompt included.
    """

    rows: PackedReplays
    index: Tensor
    labels: Tensor
    sampled: Tensor
    old: Tensor
    sample: Tensor
    position: Tensor
    advantage: Tensor
    weight: Tensor

    def states(self, engine: Engine) -> Tensor:
        """Final hidden states of the targets [n, H]."""
        return engine(self.rows.tokens, self.rows).flatten(0, 1).index_select(0, self.index)


@dataclass(frozen=True, slots=True)
class Minibatch:
    """This process's rows of one optimiser update, as many as each other process has.

    `advantage`, `weight` [R]: of each replayed response, in whichever process's rows, on the computing device.
    `samples`: these and those that are not replayed, but count in the mean.
    """

    rows: PackedReplays
    advantage: Tensor
    weight: Tensor
    micro_rows: int
    samples: int

    def __iter__(self) -> Iterator[Micro]:
        """The same micro-batches in every pass; rows come to the device when they are needed."""
        device = self.weight.device
        for rows in self.rows.split(self.micro_rows):
            here = rows.to(device).take(torch.arange(len(rows), device=device))
            index = here.trainable.flatten().nonzero().squeeze(1)
            columns = here.labels, here.sampled, here.old, here.sample, here.positions
            labels, sampled, old, sample, position = (column.flatten()[index] for column in columns)
            yield Micro(
                here, index, labels, sampled.to(self.weight), old.to(self.weight), sample, position,
                self.advantage[sample], self.weight[sample],
            )  # fmt: skip


def minibatch(
    replays: Sequence[Replay], advantage: Tensor, weight: Tensor, world: World, *, row_tokens: int, micro_rows: int,
    block_size: int, samples: int,
) -> Minibatch:  # fmt: skip
    """Pack `replays` into rows of `row_tokens`, on a CPU into shorter ones where all fit, and deal them in turn.

    All processes run as many micro-batches, because each gathers weights from all: some rows may be padding alone.
    """
    if weight.device.type == "cpu":
        longest = max(len(one.prefix) + len(one) for one in replays)
        row_tokens = min(row_tokens, max(longest, DENSE_ROW // block_size * block_size))
    multiple = micro_rows * world.size
    rows = pack_replays(replays, row_tokens=row_tokens, block_size=block_size, rows_multiple=multiple)
    return Minibatch(rows.part(slice(world.rank, None, world.size)), advantage, weight, micro_rows, samples)


def parts(items: Iterable[T], size: Callable[[T], int], limit: int) -> Iterator[list[T]]:
    """Consecutive items as parts of about `limit`, each handed on once half of another one is known; what is left in
    the end is divided evenly, so that none is a small remainder. A part ends with the item that reaches the next
    multiple of `limit`, so that there are as many as the whole has times `limit`."""
    held: list[T] = []
    sizes: list[int] = []
    room = limit  # of the part at hand: what the one before took too much is missing
    for item in items:
        held.append(item)
        sizes.append(size(item))
        while sum(sizes) >= room + limit / 2 and len(held) > 1:
            count = 1 + bisect_left(list(itertools.accumulate(sizes)), room)
            room += limit - sum(sizes[:count])
            yield held[:count]
            held, sizes = held[count:], sizes[count:]
    for part in even_parts(sizes, limit):
        yield held[part]


def even_parts(sizes: Sequence[int], limit: int) -> list[slice]:
    """Things of these `sizes`, in order, as parts of about equal size: as many as the whole has times `limit`.

    Of things of size 1 no part is larger than `limit`, and their sizes differ by one at most.
    """
    sums = [0, *itertools.accumulate(sizes)]
    count = max(1, -(-sums[-1] // limit))
    bounds = [bisect_left(sums, sums[-1] * part // count) for part in range(count)] + [len(sizes)]
    return [slice(start, end) for start, end in itertools.pairwise(bounds) if start < end]
