"""Keys and values of texts being decoded. Slot i of a row holds position i of its text, always."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Window:
    """What one decoding step knows about its rows, computed once and used by every layer.

    `start` is the common first position, or None for ragged rows, which then write through `rows` [B, 1] and
    `positions` [B, N]. Keys before `end` are visible unless the additive `mask` (broadcastable to
    [B, 1, G * N, end]) forbids.
    """

    start: int | None
    end: int
    rows: Tensor | None
    positions: Tensor | None
    mask: Tensor | None
    cos: Tensor
    sin: Tensor


class KVCache:
    """Static storage [2, layers, B, capacity, K, D]; whoever decodes decides which slots count as committed."""

    def __init__(self, storage: Tensor, groups: int) -> None:
        self.storage = storage
        self.groups = groups
        self._layers = [(keys, values) for keys, values in zip(storage[0], storage[1], strict=True)]

    @property
    def capacity(self) -> int:
        return self.storage.shape[3]

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Keys and values [B, capacity, K, D] of one layer, as views."""
        return self._layers[index]

    def rows(self, first: int, last: int) -> KVCache:
        """A view of rows first..last-1; writing to it writes here."""
        return KVCache(self.storage[:, :, first:last], self.groups)

    def keep(self, rows: Sequence[int]) -> KVCache:
        """A copy that holds only `rows`, in that order."""
        index = torch.tensor(rows, device=self.storage.device)
        return KVCache(self.storage.index_select(2, index), self.groups)

    def window(self, starts: Sequence[int], length: int, block_size: int, cos: Tensor, sin: Tensor) -> Window:
        """Plan a step of `length` tokens per row from `starts`; `cos` and `sin` are whole tables [positions, 1, D]."""
        dtype, device = self.storage.dtype, self.storage.device
        first = starts[0]
        end = max(starts) + length
        mask: Tensor | None = None
        if any(start != first for start in starts):
            positions = torch.tensor(starts, device=device)[:, None] + torch.arange(length, device=device)
            rows = torch.arange(len(starts), device=device)[:, None]
            # Within one block all queries see the same keys, so one mask row serves them all.
            queries = positions if length > block_size else positions[:, :1]
            mask = self._mask(queries, end, block_size)
            return Window(None, end, rows, positions, mask, cos[positions].to(dtype), sin[positions].to(dtype))
        if length > block_size:
            mask = self._mask(torch.arange(first, end, device=device)[None], end, block_size)
        return Window(first, end, None, None, mask, cos[first:end].to(dtype), sin[first:end].to(dtype))

    def write(self, layer: int, window: Window, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store k, v [B, N, K, D]; return all visible keys and values as [B, K, end, D] views."""
        keys, values = self._layers[layer]
        if window.start is not None:
            keys[:, window.start : window.end].copy_(k)
            values[:, window.start : window.end].copy_(v)
        else:
            keys[window.rows, window.positions] = k
            values[window.rows, window.positions] = v
        return keys[:, : window.end].transpose(1, 2), values[:, : window.end].transpose(1, 2)

    def _mask(self, queries: Tensor, end: int, block_size: int) -> Tensor:
        """Additive block-causal mask [B, 1, N or G * N, end] for query positions [B, N]."""
        limit = (queries // block_size + 1) * block_size
        hidden = torch.arange(end, device=queries.device) >= limit[:, None, :, None]
        mask = torch.zeros(hidden.shape, dtype=self.storage.dtype, device=queries.device)
        mask.masked_fill_(hidden, float("-inf"))
        return mask if queries.shape[1] == 1 else mask.repeat(1, 1, self.groups, 1)
