"""The attention mask of training batches: a FlexAttention BlockMask built from intervals, or a dense boolean mask.

FlexAttention's own `create_block_mask` evaluates the mask at every pair of tokens of every batch. Packed rows have
more structure: the clean keys that a query sees are one interval of its row (two where its document continues another
one), and the noisy keys are its own block. So which 128 x 128 tiles are empty, partial or full follows from a few
comparisons per query and key tile. Only the tiles come from here; inside a partial tile the kernel asks
`dice.model.mask.may_attend`, the rule that also makes the dense mask.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from dice.model.mask import CLEAN, BlockLayout, Tokens, mask_mod
from dice.train.packing import PackedRows

# Tokens of a side of the tiles that FlexAttention computes in.
TILE = 128


class DenseMask:
    """Boolean masks [R, 1, N, N]: the reference, and the way on machines without FlexAttention kernels."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size

    def __call__(self, batch: PackedRows) -> Tensor:
        return batch.layout(self.block_size).dense()


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

    def __call__(self, batch: PackedRows) -> BlockMask:
        layout = batch.layout(self.block_size)
        tokens = layout.tokens().map(Tensor.int)
        if self._tokens is None or self._mask is None:
            self._tokens = tokens
            self._mask = _block_mask(*tiles(layout), self._tokens)
            return self._mask
        _copy_tensors(tokens, self._tokens)
        _copy_tensors(_block_mask(*tiles(layout), self._tokens), self._mask)
        return self._mask


def fits_tiles(row_tokens: int, block_size: int) -> bool:
    """Whether FlexMask can serve this shape: whole tiles per row, whole blocks per tile."""
    return row_tokens % TILE == 0 and TILE % block_size == 0


def tiles(layout: BlockLayout) -> tuple[Tensor, Tensor]:
    """(partial, full): which tiles of the [R, N, N] mask hold some True pairs, and which hold nothing else.

    Both [R, N/128, N/128] bool and disjoint. Exact, not a bound. Asks of the layout that the clean copy of a document
    is consecutive in its row, that every block lies whole within a tile, and that document ids are below N/block_size.
    """
    document, clean = layout.document_ids.long(), layout.view_ids == CLEAN
    rows, length = document.shape
    index = torch.arange(length, device=document.device).expand(rows, length)
    begin = _per_document(torch.where(clean, index, length), document, layout.block_size, "amin")
    end = _per_document(torch.where(clean, index + 1, 0), document, layout.block_size, "amax")
    shift = _per_document(torch.where(clean, index - layout.position_ids, length), document, layout.block_size, "amin")
    # Positions below this are visible in the clean copy: up to a clean token's own block, before a noisy one's.
    limit = (layout.position_ids // layout.block_size + clean.long()) * layout.block_size
    tile = torch.arange(0, length, TILE, device=document.device)

    def visible(text: Tensor) -> Tensor:
        """How many clean keys of document `text` [R, N] each query sees in each tile, [R, N, T]."""
        stop = torch.minimum(shift.gather(1, text) + limit, end.gather(1, text))
        start = begin.gather(1, text)
        return (stop[..., None].clamp(max=tile + TILE) - start[..., None].clamp(min=tile)).clamp(min=0)

    seen = visible(document)
    if layout.prefix_ids is not None:
        prefix = layout.prefix_ids.long()
        seen = seen + visible(prefix) * (prefix != document)[..., None]
    own_noisy = (index // TILE * TILE)[..., None] == tile
    seen = seen + layout.block_size * (own_noisy & ~clean[..., None])
    by_tile = seen.unflatten(1, (-1, TILE))
    full = (by_tile == TILE).all(2)
    return (by_tile > 0).any(2) & ~full, full


def _per_document(values: Tensor, document: Tensor, block_size: int, reduce: str) -> Tensor:
    """[R, N / block_size] the smallest or largest of `values` [R, N] in each document."""
    start = values.shape[1] if reduce == "amin" else 0
    out = values.new_full((values.shape[0], values.shape[1] // block_size), start)
    return out.scatter_reduce(1, document, values, reduce)


def _block_mask(partial: Tensor, full: Tensor, tokens: Tokens) -> BlockMask:
    lengths = (tokens.block.shape[1], tokens.block.shape[1])
    return BlockMask.from_kv_blocks(
        *_listed(partial), *_listed(full), BLOCK_SIZE=TILE, mask_mod=mask_mod(tokens), seq_lengths=lengths
    )


def _copy_tensors(source: object, target: object) -> None:
    for name, value in vars(source).items():
        if isinstance(value, Tensor):
            getattr(target, name).copy_(value)


def _listed(flags: Tensor) -> tuple[Tensor, Tensor]:
    """How many tiles of each row of tiles are set [R, 1, T], and their indices first [R, 1, T, T], int32."""
    order = flags.int().argsort(dim=-1, descending=True, stable=True)
    return flags.sum(-1, dtype=torch.int32)[:, None], order.int()[:, None].contiguous()
