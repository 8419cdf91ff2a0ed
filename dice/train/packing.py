"""Training rows: pairs become token ids, documents on the block grid, and fixed-length rows without cross-talk.

A document is one pair: `[prompt | response <|im_end|> | tail]`. The prompt ends with the assistant's header; its
tokens are never hidden and never predicted, unless whole documents are learned. A text without a prompt is one, too:
`[text <|im_end|> | tail]`, all of it learned. The tail fills the last block with pad tokens. Document positions count
from 0 and documents start at multiples of the block size, so the block grid is absolute within each document, exactly
as the sampler's.
"""

from __future__ import annotations

import itertools
import multiprocessing
import operator
import os
import re
import sys
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dice.data.pairs import Pair
from dice.errors import UserError
from dice.model.mask import BlockLayout
from dice.model.tokenizer import Tokenizer

# A worker process is started for every so many pairs; fewer are encoded sooner than it starts.
PAIRS_PER_WORKER = 1000
_THOUGHT = re.compile(r"(</?think>)")
Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Document:
    """Token ids without the tail, and how many of them are prompt."""

    ids: Ids
    prompt_length: int


@dataclass(frozen=True, slots=True)
class PackedRows:
    """N packed rows of L tokens. `documents` numbers a row's documents from 0 (the padding at its end is one too)."""

    tokens: Tensor  # [N, L] int32
    positions: Tensor  # [N, L] int32, from 0 in each document
    documents: Tensor  # [N, L] int32
    trainable: Tensor  # [N, L] bool
    used: int  # documents packed
    dropped_long: int = 0
    causal: bool = False  # read once, from left to right, and not as [noisy ; clean]

    def __len__(self) -> int:
        return self.tokens.shape[0]

    @property
    def row_tokens(self) -> int:
        return self.tokens.shape[1]

    def to(self, device: torch.device | str) -> Self:
        return self._each(lambda values: values.to(device))

    def take(self, indices: Tensor) -> Self:
        """The rows `indices` as a batch, integers as int64 ready for embedding and gathers."""
        return self._each(lambda values: values[indices].long() if values.dtype == torch.int32 else values[indices])

    def part(self, rows: slice) -> Self:
        return self._each(operator.itemgetter(rows))

    def split(self, size: int) -> Iterator[Self]:
        for start in range(0, len(self), size):
            yield self.part(slice(start, start + size))

    def filled(self, start: int, end: int, size: int) -> Self:
        """Rows start..end-1 as a batch of exactly `size` rows; the last one is repeated, and then trains nothing."""
        index = torch.arange(start, start + size, device=self.tokens.device)
        batch = self.take(index.clamp(max=end - 1))
        batch.trainable[end - start :] = False
        return batch

    def ids(self, noisy: Tensor) -> Tensor:
        """What the model reads, [N, 2L]: the tokens with some of them hidden, then the tokens. Causal: the tokens."""
        return self.tokens if self.causal else torch.cat((noisy, self.tokens), 1)

    def layout(self, block_size: int) -> BlockLayout:
        """Where each token of `ids` stands, and who may attend to whom."""
        made = BlockLayout.clean if self.causal else BlockLayout.noisy_clean
        return made(self.positions, block_size, self.documents)

    def _each(self, function: Callable[[Tensor], Tensor]) -> Self:
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        changed: dict[str, Any] = {
            name: function(values) for name, values in columns.items() if isinstance(values, Tensor)
        }
        return replace(self, **changed)

    def describe(self) -> str:
        trainable, total = int(self.trainable.sum()), self.trainable.numel()
        text = f"{self.used:,} documents in {len(self):,} rows of {self.row_tokens:,} ({trainable / total:.0%} trained)"
        if self.dropped_long:
            text += f"; {self.dropped_long:,} too long, dropped"
        return text


def tokenize(
    pairs: Sequence[Pair], tokenizer: Tokenizer, response_prefix: str = "", *, whole: bool = False
) -> list[Document]:
    """Each pair as a document. Prompt and response are encoded apart: at generation the prompt stands alone.

    `response_prefix` is put before every response that holds no thought of its own. `whole`: prompts count as part of
    what is learned.
    """
    prefix = tokenizer.encode(response_prefix, control=True)
    end = tokenizer.turn_end

    def document(pair: Pair) -> Document:
        if not pair.messages:
            return Document(np.array([*tokenizer.text_start, *tokenizer.encode(pair.response), end], np.int32), 0)
        prompt = tokenizer.encode_chat(pair.messages)
        pieces = _THOUGHT.split(pair.response)
        response = [token for piece in pieces for token in _encode_piece(piece, tokenizer)]
        before = prefix if len(pieces) == 1 else []  # a thought that is there is not begun twice
        return Document(np.array([*prompt, *before, *response, end], np.int32), 0 if whole else len(prompt))

    return _map_in_processes(document, pairs)


def _map_in_processes(function: Callable[[Pair], Document], pairs: Sequence[Pair]) -> list[Document]:
    """Encoding holds the interpreter lock, so one process would take half a minute for a large corpus."""
    workers = min(os.cpu_count() or 1, 16, len(pairs) // PAIRS_PER_WORKER)
    if workers < 2 or sys.platform != "linux":
        return [function(pair) for pair in pairs]
    bounds = [len(pairs) * index // workers for index in range(workers + 1)]
    # Forked workers get the function by inheritance: a tokenizer with its compiled chat template cannot be pickled.
    context = multiprocessing.get_context("fork")
    with context.Pool(workers, _WorkerInput.inherit, (function, pairs)) as pool:
        parts = pool.starmap(_map_range, itertools.pairwise(bounds))
    return [document for part in parts for document in part]


class _WorkerInput:
    """What a worker process maps over which pairs; set in worker processes only."""

    function: ClassVar[Callable[[Pair], Document]]
    pairs: ClassVar[Sequence[Pair]]

    @classmethod
    def inherit(cls, function: Callable[[Pair], Document], pairs: Sequence[Pair]) -> None:
        cls.function, cls.pairs = staticmethod(function), pairs


def _map_range(start: int, end: int) -> list[Document]:
    return [_WorkerInput.function(pair) for pair in _WorkerInput.pairs[start:end]]


def _encode_piece(text: str, tokenizer: Tokenizer) -> list[int]:
    """Reasoning markup is a control token where the tokenizer has one; everything else in a response is plain text."""
    token = tokenizer.token_id(text) if _THOUGHT.fullmatch(text) else None
    return tokenizer.encode(text) if token is None else [token]


def pack(
    documents: Sequence[Document],
    *,
    row_tokens: int,
    block_size: int,
    pad_id: int,
    max_tokens: int | None = None,
) -> PackedRows:
    """Pack `documents` into rows: longest first, each into the fullest row that still holds it. Deterministic.

    Documents of more than `max_tokens` (default: a row) tokens with their tail are dropped and counted. The pad tokens
    after `<|im_end|>` are predicted too, so that what a generated last block holds after its end is defined.
    Raises `UserError` when nothing is left or a row is not a whole number of blocks.
    """
    if row_tokens % block_size:
        raise UserError(f"row_tokens {row_tokens} must be a multiple of the block size {block_size}.")
    limit = min(row_tokens, max_tokens or row_tokens)
    kept = [document for document in documents if _on_grid(len(document.ids), block_size) <= limit]
    if not kept:
        raise UserError(f"No training example is left: all {len(documents)} are longer than {limit} tokens.")
    lengths = [_on_grid(len(document.ids), block_size) for document in kept]
    places = place(lengths, row_tokens)
    shape = (1 + max(row for row, _ in places), row_tokens)
    tokens = np.full(shape, pad_id, dtype=np.int32)
    positions = np.zeros(shape, dtype=np.int32)
    numbers = np.zeros(shape, dtype=np.int32)
    trainable = np.zeros(shape, dtype=bool)
    fill, count = np.zeros(shape[0], dtype=np.int64), np.zeros(shape[0], dtype=np.int64)
    for index in sorted(range(len(kept)), key=places.__getitem__):  # row by row, from left to right
        document, length, (row, start) = kept[index], lengths[index], places[index]
        n = len(document.ids)
        tokens[row, start : start + n] = document.ids
        positions[row, start : start + length] = np.arange(length)
        numbers[row, start : start + length] = count[row]
        trainable[row, start + document.prompt_length : start + length] = True
        fill[row], count[row] = start + length, count[row] + 1
    reach = limit // block_size * block_size
    for row in range(shape[0]):  # the rest of a row: documents that nobody predicts, no longer than real ones
        rest = np.arange(row_tokens - fill[row])
        positions[row, fill[row] :] = rest % reach
        numbers[row, fill[row] :] = count[row] + rest // reach
    return PackedRows(
        torch.from_numpy(tokens), torch.from_numpy(positions), torch.from_numpy(numbers), torch.from_numpy(trainable),
        used=len(kept), dropped_long=len(documents) - len(kept),
    )  # fmt: skip


def place(lengths: Sequence[int], capacity: int) -> list[tuple[int, int]]:
    """(row, start) of each length by best fit, longest first; rows fill from their start without gaps."""
    places = [(0, 0)] * len(lengths)
    free: list[tuple[int, int]] = []  # (room left, row), ascending
    rows = 0
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        slot = bisect_left(free, (lengths[index], -1))
        if slot == len(free):
            room, row = capacity, rows
            rows += 1
        else:
            room, row = free.pop(slot)
        places[index] = (row, capacity - room)
        if room > lengths[index]:
            insort(free, (room - lengths[index], row))
    return places


def batch_rows(step: int, size: int, total: int, seed: int) -> npt.NDArray[np.int64]:
    """Row numbers of batch `step`: a fresh permutation each epoch, batches running on across the epochs' borders.

    A function of its arguments only, so a resumed run reads exactly what an uninterrupted one would have read.
    """
    wanted = np.arange(step * size, (step + 1) * size)
    epochs = wanted // total
    orders = {epoch: np.random.default_rng((seed, int(epoch))).permutation(total) for epoch in np.unique(epochs)}
    return np.array([orders[epoch][index % total] for epoch, index in zip(epochs, wanted, strict=True)], dtype=np.int64)


def _on_grid(length: int, block_size: int) -> int:
    return -(-length // block_size) * block_size
