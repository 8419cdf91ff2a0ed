"""The attention mask of training batches: a FlexAttention BlockMask built from intervals, or a dense boolean mask.

FlexAttention's own `create_block_mask` evaluates the mask at every pair of tokens of every batch. Packed rows have
more structure: the clean keys that a query sees are one interval. So which 128 x 128 tiles are empty, partial or full
follows from one comparison per query and key tile. Only the tiles come from here; inside a partial tile the kernel asks
`dice.model.mask.may_attend`, the rule that also makes the dense mask.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from dice.model.mask import BlockLayout, Tokens, may_attend
from dice.train.rows import Rows

TILE = 128


def layout(batch: Rows, block_size: int) -> BlockLayout:
    """Layout [R, 2L] of the training rows [noisy ; clean]."""
    return BlockLayout.noisy_clean(batch.positions, block_size, batch.documents)


class DenseMask:
    """Boolean masks [R, 1, 2L, 2L]: the reference, and the way on machines without FlexAttention kernels."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size

    def __call__(self, batch: Rows) -> Tensor:
        return layout(batch, self.block_size).dense()


class FlexMask:
    """BlockMasks for batches of one fixed shape.

    One BlockMask object serves the whole run: each call copies the new batch into its tensors. A compiled model
    therefore sees the same mask function and the same tensors at every step and is compiled once. The mask of a batch
    holds until the next call, so its backward pass must come first.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._tokens: Tokens | None = None
        self._mask: BlockMask | None = None

    def __call__(self, batch: Rows) -> BlockMask:
        described = layout(batch, self.block_size)
        tokens = Tokens(
            (described.position_ids // self.block_size).int(), described.document_ids.int(), described.view_ids.int()
        )
        if self._tokens is None or self._mask is None:
            self._tokens = tokens
            self._mask = _block_mask(*tiles(batch, self.block_size), self._tokens)
            return self._mask
        for name in ("block", "document", "view"):
            getattr(self._tokens, name).copy_(getattr(tokens, name))
        fresh = _block_mask(*tiles(batch, self.block_size), self._tokens)
        for name, value in vars(fresh).items():
            if isinstance(value, Tensor):
                getattr(self._mask, name).copy_(value)
        return self._mask


def fits_tiles(row_tokens: int, block_size: int) -> bool:
    """Whether FlexMask can serve this shape: whole tiles per row, whole blocks per tile."""
    return row_tokens % TILE == 0 and TILE % block_size == 0


def tiles(batch: Rows, block_size: int) -> tuple[Tensor, Tensor]:
    """(partial, full): which tiles of the [R, 2L, 2L] mask hold some True pairs, and which hold nothing else.

    Both [R, 2L/128, 2L/128] bool and disjoint. Exact, not a bound.
    """
    rows, length = batch.positions.shape
    index = torch.arange(length, device=batch.positions.device).expand(rows, length)
    start = index - batch.positions  # where the document begins
    block_start = index - batch.positions % block_size
    seen_from = torch.cat((start, start), 1)[..., None]  # clean keys [from, to) of each of the 2L queries
    seen_to = torch.cat((block_start, block_start + block_size), 1)[..., None]
    key = torch.arange(0, length, TILE, device=batch.positions.device)
    some = (seen_from < key + TILE) & (seen_to > key) & (seen_from < seen_to)
    every = (seen_from <= key) & (seen_to >= key + TILE)
    count = length // TILE
    clean_some = some.unflatten(1, (2 * count, TILE)).any(2)
    clean_every = every.unflatten(1, (2 * count, TILE)).all(2)
    # Noisy keys: a query sees its own block, which lies within its own tile. That tile is full when it is one block.
    diagonal = torch.eye(count, dtype=torch.bool, device=key.device)
    diagonal = torch.cat((diagonal, torch.zeros_like(diagonal))).expand(rows, -1, -1)
    full = torch.cat((diagonal if block_size == TILE else torch.zeros_like(diagonal), clean_every), -1)
    return torch.cat((diagonal, clean_some), -1) & ~full, full


def _block_mask(partial: Tensor, full: Tensor, tokens: Tokens) -> BlockMask:
    block, document, view = tokens.block, tokens.document, tokens.view

    def mask_mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        query = Tokens(block[b, q], document[b, q], view[b, q])
        return may_attend(query, Tokens(block[b, k], document[b, k], view[b, k]))

    lengths = (block.shape[1], block.shape[1])
    return BlockMask.from_kv_blocks(
        *_listed(partial), *_listed(full), BLOCK_SIZE=TILE, mask_mod=mask_mod, seq_lengths=lengths
    )


def _listed(flags: Tensor) -> tuple[Tensor, Tensor]:
    """How many tiles of each row of tiles are set [R, 1, T], and their indices first [R, 1, T, T], int32."""
    order = flags.int().argsort(dim=-1, descending=True, stable=True)
    return flags.sum(-1, dtype=torch.int32)[:, None], order.int()[:, None].contiguous()
