"""Who may attend to whom: the block-diffusion mask of SDAR and BD3-LM, built from its named parts.

A training row holds a clean copy of each document and one or more noisy copies of it. Every token is described by three
integers, independent of where in the row it lies:

- position: its index in its document, from 0. Block number = position // block_size, an absolute grid.
- document: which packed document it belongs to; documents never see each other.
- view: 0 for the clean copy, 1, 2, ... for noisy copies; noisy copies never see each other.

Documents may continue a common beginning: a token whose `prefix` names another document, whose positions end where its
own document's begin, sees that one's clean copy as if it were part of its own.

The same rule, `may_attend`, gives a dense boolean mask (any device, the reference) and a FlexAttention mask.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

CLEAN = 0

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Tokens:
    """Block, document, view and prefix of some tokens; integer tensors of shapes that broadcast together."""

    block: Tensor
    document: Tensor
    view: Tensor
    prefix: Tensor | None = None

    def map(self, function: Callable[[Tensor], Tensor]) -> Tokens:
        prefix = None if self.prefix is None else function(self.prefix)
        return Tokens(function(self.block), function(self.document), function(self.view), prefix)


def block_diagonal(q: Tokens, k: Tokens) -> Tensor:
    """A noisy token sees its own block of its own noisy copy, in both directions."""
    return (q.view != CLEAN) & (q.view == k.view) & (q.block == k.block)


def offset_block_causal(q: Tokens, k: Tokens) -> Tensor:
    """A noisy token sees the clean copy of the blocks before its own."""
    return (q.view != CLEAN) & (k.view == CLEAN) & (k.block < q.block)


def block_causal(q: Tokens, k: Tokens) -> Tensor:
    """A clean token sees the clean copy of its own block and of those before."""
    return (q.view == CLEAN) & (k.view == CLEAN) & (k.block <= q.block)


def may_attend(q: Tokens, k: Tokens) -> Tensor:
    """True where query token q may attend to key token k (BD3-LM's three-part mask, per packed document)."""
    same_text = q.document == k.document
    if q.prefix is not None:
        same_text = same_text | (q.prefix == k.document)
    return same_text & (block_diagonal(q, k) | offset_block_causal(q, k) | block_causal(q, k))


def mask_mod(tokens: Tokens) -> MaskMod:
    """`may_attend` among `tokens` [B, L], as a function of FlexAttention's (batch, head, query index, key index)."""

    block, document, view, prefix = tokens.block, tokens.document, tokens.view, tokens.prefix

    def mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        query = Tokens(block[b, q], document[b, q], view[b, q], None if prefix is None else prefix[b, q])
        return may_attend(query, Tokens(block[b, k], document[b, k], view[b, k]))

    return mod


@dataclass(frozen=True)
class BlockLayout:
    """Position, document and view of every token of a batch; integer tensors [B, L] on one device.

    `prefix_ids`: the document that each token's own one continues (its own where there is none); None: none does.
    No row of the mask is ever empty: each token sees at least itself, padding included.
    """

    position_ids: Tensor
    document_ids: Tensor
    view_ids: Tensor
    block_size: int
    prefix_ids: Tensor | None = None

    @classmethod
    def clean(cls, position_ids: Tensor, block_size: int, document_ids: Tensor | None = None) -> BlockLayout:
        """Plain block-causal text: prefill, or scoring a finished text. `position_ids` [B, L]."""
        documents = torch.zeros_like(position_ids) if document_ids is None else document_ids
        return cls(position_ids, documents, torch.full_like(position_ids, CLEAN), block_size)

    @classmethod
    def noisy_clean(
        cls, position_ids: Tensor, block_size: int, document_ids: Tensor | None = None, noisy_views: int = 1
    ) -> BlockLayout:
        """Training rows [noisy ; clean] of length 2L (or [noisy 1 ; ... ; noisy n ; clean]) from [B, L] positions."""
        documents = torch.zeros_like(position_ids) if document_ids is None else document_ids
        copies = noisy_views + 1
        views = [torch.full_like(position_ids, view) for view in (*range(1, copies), CLEAN)]
        return cls(position_ids.repeat(1, copies), documents.repeat(1, copies), torch.cat(views, 1), block_size)

    def tokens(self) -> Tokens:
        """The same description by block number."""
        return Tokens(self.position_ids // self.block_size, self.document_ids, self.view_ids, self.prefix_ids)

    def dense(self) -> Tensor:
        """Boolean mask [B, 1, L, L]; True = may attend."""
        tokens = self.tokens()
        return may_attend(tokens.map(lambda part: part[:, None, :, None]), tokens.map(lambda part: part[:, None, None]))

    def mask_mod(self) -> MaskMod:
        """The same mask as a function of FlexAttention's (batch, head, query index, key index)."""
        return mask_mod(self.tokens())

    def block_mask(self) -> BlockMask:
        """FlexAttention's BlockMask for this layout (one mask per row, shared by all heads)."""
        rows, length = self.position_ids.shape
        return create_block_mask(self.mask_mod(), rows, None, length, length, device=str(self.position_ids.device))


def block_causal_mask(position_ids: Tensor, block_size: int) -> Tensor:
    """Boolean [B, 1, L, L] mask of plain block-causal text on the absolute grid."""
    return BlockLayout.clean(position_ids, block_size).dense()
