"""Traces become training rows in which every token is predicted from exactly what the sampler saw (TraceRL).

The sampler revealed a block in rounds: in each it read the clean text before the block and the block as it then was,
and revealed some positions. A response is therefore read once clean, plus one noisy copy of a block for each of the
block's rounds, whose targets are the tokens revealed in that round:

    [ clean blocks, from the one that holds the prompt's end | block b before round 0 | block b before round 1 | ... ]

A noisy copy sees itself and the clean blocks before its own. The whole blocks of the prompt are a document of their
own, which all responses to that prompt in a row continue: many samples of one problem read its prompt once. Positions
and blocks are those of the sampler, an absolute grid from the start of the prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dice.decode.trace import GIVEN, Trace
from dice.errors import UserError
from dice.model.mask import CLEAN, BlockLayout
from dice.train.packing import PackedRows

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


class ReplayError(UserError):
    """A trace cannot be trained on; the message says why."""


@dataclass(frozen=True, slots=True)
class Replay:
    """One response in the order in which it is read; all arrays but `prefix` have one entry for each token.

    `prefix` is the prompt up to its last whole block. `targets`: the tokens to predict, whose ids are in `labels` and
    whose log-probabilities under the sampler in `sampled`, and before the next update in `old`.
    """

    prefix: tuple[int, ...]
    tokens: Ints
    positions: Ints
    views: Ints
    labels: Ints
    targets: npt.NDArray[np.bool_]
    sampled: Floats
    old: Floats

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def rounds(self) -> int:
        """Of the block that took the most: the released code reads a response once for each of them."""
        return int(self.views.max(initial=CLEAN)) - CLEAN


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedReplays(PackedRows):
    """Rows of replayed responses: clean and noisy tokens side by side. `trainable` are the targets.

    `labels`, `sampled`, `old` [N, L] belong to them; `sample` [N, L] is the number of the response that a token is of.
    `tokens_read`: positions that are no padding, in all rows of the update; `pairs_read`: (query, key) pairs that these
    attend to, the work of attention.
    """

    views: Tensor
    prefixes: Tensor
    labels: Tensor
    sampled: Tensor
    old: Tensor
    sample: Tensor
    tokens_read: int
    pairs_read: int

    def ids(self, noisy: Tensor) -> Tensor:
        return noisy

    def layout(self, block_size: int) -> BlockLayout:
        return BlockLayout(self.positions, self.documents, self.views, block_size, self.prefixes)


def replay(trace: Trace, block_size: int, mask_token_id: int, shrink: int = 1, old: Floats | None = None) -> Replay:
    """What to read and what to predict for one response, for a model with this block size and mask token.

    `old`: the tokens' log-probabilities before the next update, where they are not to be those under the sampler.
    `shrink` joins every so many consecutive rounds of a block into one (TraceRL's s): fewer noisy copies, each
    predicting from what the first of its rounds saw. Tokens after `kept` are no targets, but stay where the sampler
    saw them; a round that revealed nothing else is left out. Given tokens are seen from the start, and are no targets.
    Raises `ReplayError` for other kinds of trace.
    """
    if (trace.block_size, trace.mask_token_id) != (block_size, mask_token_id):
        raise ReplayError(
            f"The trace has blocks of {trace.block_size} and the mask token {trace.mask_token_id}, but the model "
            f"blocks of {block_size} and the mask token {mask_token_id}: another model wrote it."
        )
    prompt, length = len(trace.prompt_ids), len(trace.prompt_ids) + len(trace.token_ids)
    pairs = zip(trace.steps, trace.token_ids, strict=True)
    undone = any(step == GIVEN and token == mask_token_id for step, token in pairs)
    if length % block_size or undone:
        raise ReplayError("The trace is not complete: its last block is cut off or not fully denoised.")
    first = prompt // block_size * block_size

    def by_block(response: Iterable[float], before: Iterable[float], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        return np.array([*before, *response], dtype=dtype).reshape(-1, block_size)

    tail = prompt - first
    tokens = by_block(trace.token_ids, trace.prompt_ids[first:], np.int32)
    sampled = by_block(trace.logprobs, [0.0] * tail, np.float32)
    before = sampled if old is None else by_block(old, [0.0] * tail, np.float32)
    steps = by_block(trace.steps, [GIVEN] * tail, np.int64)
    rounds = _rounds(steps) // shrink
    answer = by_block(np.arange(len(trace.token_ids)) < trace.kept, [False] * tail, bool) & (steps != GIVEN)
    positions = np.arange(first, length, dtype=np.int32).reshape(-1, block_size)

    used = np.zeros((len(tokens), block_size), dtype=bool)
    used[answer.nonzero()[0], rounds[answer]] = True
    block, number = used.nonzero()  # block by block, round by round
    seen, now = rounds[block] < number[:, None], (rounds[block] == number[:, None]) & answer[block]
    clean = np.zeros(tokens.size, dtype=np.int32)
    return Replay(
        prefix=trace.prompt_ids[:first],
        tokens=np.concatenate((tokens.ravel(), np.where(seen, tokens[block], mask_token_id).ravel())).astype(np.int32),
        positions=np.concatenate((positions.ravel(), positions[block].ravel())),
        views=np.concatenate((clean + CLEAN, (number + 1).repeat(block_size))).astype(np.int32),
        labels=np.concatenate((clean, tokens[block].ravel())),
        targets=np.concatenate((clean.astype(bool), now.ravel())),
        sampled=np.concatenate((clean, sampled[block].ravel())).astype(np.float32),
        old=np.concatenate((clean, before[block].ravel())).astype(np.float32),
    )


def _rounds(steps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The round of its block, from 0, in which each token was revealed, [K, B]; -1 for given tokens."""
    order = steps.argsort(axis=1, kind="stable")
    ascending = np.take_along_axis(steps, order, axis=1)
    later = np.diff(ascending, axis=1, prepend=ascending[:, :1]) != 0
    rounds = np.empty_like(steps)
    np.put_along_axis(rounds, order, later.cumsum(axis=1), axis=1)
    rounds -= (steps == GIVEN).any(axis=1, keepdims=True)  # given tokens, whose step is the least, took number 0
    return rounds


def pack_replays(
    replays: Sequence[Replay], *, row_tokens: int, block_size: int, rows_multiple: int = 1
) -> PackedReplays:
    """Pack responses into rows without cross-talk; deterministic, those of one prompt together, longest first.

    The number of rows is a multiple of `rows_multiple`. Padding is blocks that see themselves and predict nothing.
    Raises `ReplayError` when a response and its prompt need more than `row_tokens`.
    """
    if row_tokens % block_size:
        raise ReplayError(f"row_tokens {row_tokens} must be a multiple of the block size {block_size}.")
    rows = _place(replays, row_tokens)
    rows += [[] for _ in range(-len(rows) % rows_multiple)]
    shape = (len(rows), row_tokens)
    column = {name: np.zeros(shape, dtype=np.int32) for name in ("tokens", "views", "labels", "sample")}
    column |= {"trainable": np.zeros(shape, dtype=bool)}
    column |= {name: np.zeros(shape, dtype=np.float32) for name in ("sampled", "old")}
    column["positions"] = np.tile(np.arange(row_tokens, dtype=np.int32) % block_size, (len(rows), 1))
    column["documents"] = np.zeros(shape, dtype=np.int32)
    column["prefixes"] = np.zeros(shape, dtype=np.int32)
    tokens_read = pairs_read = 0
    for row, members in enumerate(rows):
        numbers: dict[tuple[int, ...], int] = {}  # document number of each prompt in this row
        start = document = 0
        for index in members:
            one = replays[index]
            if one.prefix and one.prefix not in numbers:
                part = slice(start, start + len(one.prefix))
                column["tokens"][row, part] = one.prefix
                column["positions"][row, part] = np.arange(len(one.prefix))
                column["documents"][row, part] = column["prefixes"][row, part] = numbers[one.prefix] = document
                start, document = part.stop, document + 1
            part = slice(start, start + len(one))
            column["tokens"][row, part] = one.tokens
            column["positions"][row, part] = one.positions
            column["views"][row, part] = one.views
            column["labels"][row, part] = one.labels
            column["trainable"][row, part] = one.targets
            column["sampled"][row, part] = one.sampled
            column["old"][row, part] = one.old
            column["sample"][row, part] = index
            column["documents"][row, part] = document
            column["prefixes"][row, part] = numbers.get(one.prefix, document)
            start, document = part.stop, document + 1
        tokens_read += start
        pairs_read += int((column["positions"][row, :start] // block_size + 1).sum()) * block_size
        rest = document + np.arange(row_tokens - start) // block_size
        column["documents"][row, start:] = column["prefixes"][row, start:] = rest
    tensors: dict[str, Any] = {name: torch.from_numpy(values) for name, values in column.items()}
    return PackedReplays(used=len(replays), tokens_read=tokens_read, pairs_read=pairs_read, **tensors)


def _place(replays: Sequence[Replay], row_tokens: int) -> list[list[int]]:
    """Which responses each row holds, in order. A prompt counts once for each row that has a response to it.

    Prompt by prompt, the one with most to read first; a response goes where it adds least, then where it fits best.
    """
    total: dict[tuple[int, ...], int] = {}
    for one in replays:
        total[one.prefix] = total.get(one.prefix, len(one.prefix)) + len(one)
    order = sorted(
        range(len(replays)), key=lambda i: (-total[replays[i].prefix], replays[i].prefix, -len(replays[i]), i)
    )
    rows: list[list[int]] = []
    room: list[int] = []
    holders: dict[tuple[int, ...], set[int]] = {}  # rows that hold a prompt
    for index in order:
        one = replays[index]
        held = holders.setdefault(one.prefix, set())
        need = len(one) + len(one.prefix)
        if need > row_tokens:
            raise ReplayError(
                f"A response takes {need} tokens to replay (prompt {len(one.prefix)}, rounds included), but row_tokens "
                f"is {row_tokens}; raise row_tokens."
            )
        choices = [(len(one), room[row] - len(one), row) for row in held if room[row] >= len(one)]
        if not choices:
            choices = [(need, free - need, row) for row, free in enumerate(room) if free >= need]
        if not choices:
            rows.append([])
            room.append(row_tokens)
            choices = [(need, row_tokens - need, len(rows) - 1)]
        cost, _, row = min(choices)
        rows[row].append(index)
        room[row] -= cost
        held.add(row)
    return rows
