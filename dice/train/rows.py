"""Training rows: pairs become token ids, documents on the block grid, and fixed-length rows without cross-talk.

A document is one pair: `[prompt | response <|im_end|> | tail]`. The prompt ends with the assistant's header; its
tokens are never hidden and never predicted. The tail fills the last block with pad tokens. Document positions count
from 0 and documents start at multiples of the block size, so the block grid is absolute within each document, exactly
as the sampler's.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dice.data.pairs import Message, Pair
from dice.errors import UserError

IM_END = "<|im_end|>"
Ids = npt.NDArray[np.int32]


class ChatTokenizer(Protocol):
    """What rows need of `dice.model.tokenizer.Tokenizer`."""

    pad_id: int
    mask_id: int

    def encode_batch(self, texts: list[str]) -> list[list[int]]: ...

    def render(self, messages: list[Message], *, add_generation_prompt: bool = True) -> str: ...


@dataclass(frozen=True, slots=True)
class Document:
    """Token ids without the tail, and how many of them are prompt."""

    ids: Ids
    prompt_length: int


@dataclass(frozen=True, slots=True)
class Rows:
    """N packed rows of L tokens. `documents` numbers a row's documents from 0 (the padding at its end is one too)."""

    tokens: Tensor  # [N, L] int32
    positions: Tensor  # [N, L] int32, from 0 in each document
    documents: Tensor  # [N, L] int32
    trainable: Tensor  # [N, L] bool
    used: int  # documents packed
    dropped_long: int = 0
    dropped_mask: int = 0

    def __len__(self) -> int:
        return self.tokens.shape[0]

    @property
    def row_tokens(self) -> int:
        return self.tokens.shape[1]

    def to(self, device: torch.device | str) -> Rows:
        tensors = (self.tokens, self.positions, self.documents, self.trainable)
        return Rows(*(tensor.to(device) for tensor in tensors), self.used, self.dropped_long, self.dropped_mask)

    def take(self, indices: Tensor) -> Rows:
        """The rows `indices` as a batch, integers as int64 ready for embedding and gathers."""
        return Rows(
            self.tokens[indices].long(),
            self.positions[indices].long(),
            self.documents[indices].long(),
            self.trainable[indices],
            self.used,
        )

    def split(self, size: int) -> Iterator[Rows]:
        for start in range(0, len(self), size):
            part = slice(start, start + size)
            yield Rows(self.tokens[part], self.positions[part], self.documents[part], self.trainable[part], self.used)

    def describe(self) -> str:
        trainable, total = int(self.trainable.sum()), self.trainable.numel()
        text = f"{self.used:,} documents in {len(self):,} rows of {self.row_tokens:,} tokens ({trainable / total:.0%} trained)"
        if self.dropped_long:
            text += f"; {self.dropped_long:,} too long, dropped"
        if self.dropped_mask:
            text += f"; {self.dropped_mask:,} with a mask token in their text, dropped"
        return text


def tokenize(pairs: Sequence[Pair], tokenizer: ChatTokenizer, response_prefix: str = "") -> list[Document]:
    """Each pair as a document. Prompt and response are encoded apart: at generation the prompt stands alone."""
    prompts = [tokenizer.render(list(pair.messages), add_generation_prompt=True) for pair in pairs]
    responses = [response_prefix + pair.response + IM_END for pair in pairs]
    encoded = zip(tokenizer.encode_batch(prompts), tokenizer.encode_batch(responses), strict=True)
    return [Document(np.array(prompt + response, dtype=np.int32), len(prompt)) for prompt, response in encoded]


def pack(
    documents: Sequence[Document],
    *,
    row_tokens: int,
    block_size: int,
    pad_id: int,
    mask_id: int,
    max_tokens: int | None = None,
    train_tail: bool = True,
) -> Rows:
    """Pack `documents` into rows: longest first, each into the fullest row that still holds it. Deterministic.

    Documents of more than `max_tokens` (default: a row) tokens with their tail, or whose text contains the mask token
    (the model could not tell it from a hidden one), are dropped and counted. `train_tail`: the pad tokens after
    `<|im_end|>` are predicted too, so what a generated last block holds after its end is defined. Raises `UserError`
    when nothing is left or a row is not a whole number of blocks.
    """
    if row_tokens % block_size:
        raise UserError(f"row_tokens {row_tokens} must be a multiple of the block size {block_size}.")
    limit = min(row_tokens, max_tokens or row_tokens)
    short = [document for document in documents if _on_grid(len(document.ids), block_size) <= limit]
    kept = [document for document in short if not (document.ids == mask_id).any()]
    if not kept:
        raise UserError(f"No training example is left: all {len(documents)} are longer than {limit} tokens or unusable.")
    lengths = [_on_grid(len(document.ids), block_size) for document in kept]
    places = place(lengths, row_tokens)
    shape = (1 + max(row for row, _ in places), row_tokens)
    tokens = np.full(shape, pad_id, dtype=np.int32)
    positions = np.zeros(shape, dtype=np.int32)
    numbers = np.zeros(shape, dtype=np.int32)
    trainable = np.zeros(shape, dtype=bool)
    fill, count = np.zeros(shape[0], dtype=np.int64), np.zeros(shape[0], dtype=np.int64)
    for document, length, (row, start) in zip(kept, lengths, places, strict=True):
        n = len(document.ids)
        tokens[row, start : start + n] = document.ids
        positions[row, start : start + length] = np.arange(length)
        numbers[row, start : start + length] = count[row]
        trainable[row, start + document.prompt_length : start + (length if train_tail else n)] = True
        fill[row], count[row] = start + length, count[row] + 1
    for row in range(shape[0]):  # the rest of a row is a document of its own that nobody attends to or predicts
        positions[row, fill[row] :] = np.arange(row_tokens - fill[row])
        numbers[row, fill[row] :] = count[row]
    tensors = (torch.from_numpy(array) for array in (tokens, positions, numbers, trainable))
    return Rows(*tensors, used=len(kept), dropped_long=len(documents) - len(short), dropped_mask=len(short) - len(kept))


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
