"""The ops of a layer in plain PyTorch: the CPU's path, and what the kernels are held against."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dice.decode.engine.forward import Context, Heads, Norm, whole
from dice.decode.engine.weights import HALF_SCALE, Scaled
from dice.model.sdar import rotate


@dataclass(frozen=True)
class Tile:
    """Rows `row` .. `row` + `count` - 1 of a forward: the keys of positions before `end`, in `pages`, that they see.

    `mask` [groups * count, end]: 0 for those that a row sees, -inf for the others; None where all see all.
    """

    row: int
    count: int
    end: int
    pages: Tensor | slice
    mask: Tensor | None


class Rows:
    """What all layers of a forward share: rotations of its rows, where their keys go, and its tiles.

    - `cos`, `sin` [N, 1, D]. `used`: those of the N rows that a text has, everywhere or as indices; `page`, `place`: of
      each used row.
    """

    def __init__(self, context: Context, page_size: int, groups: int, dtype: torch.dtype) -> None:
        plan, slots = context.plan, context.slots
        positions = plan.positions.long()
        self.cos, self.sin = (table[positions, None].to(dtype) for table in (context.cos, context.sin))
        self.used = (plan.slots >= 0).nonzero()[:, 0]
        positions = positions[self.used]
        self.page = slots.pages[plan.slots[self.used].long(), positions // page_size].long()
        self.place = positions % page_size
        self.all_used = len(self.used) == len(plan.slots)
        self.tiles = []
        size = slots.shape.block_size
        for slot, row, first, count in plan.tiles.tolist():
            if slot < 0:
                continue
            end = ((first + count - 1) // size + 1) * size
            mask = None
            if end > (first // size + 1) * size:
                limits = (torch.arange(first, first + count, device=slots.device) // size + 1) * size
                hidden = torch.arange(end, device=slots.device) >= limits[:, None]
                mask = torch.zeros(hidden.shape, dtype=dtype, device=slots.device).masked_fill_(hidden, float("-inf"))
                mask = mask.repeat(groups, 1)
            pages = slots.pages[slot, : -(-end // page_size)].long()
            self.tiles.append(Tile(row, count, end, _consecutive(pages), mask))


class PlainOps:
    """See `forward.Ops`."""

    def __init__(self) -> None:
        self._context: Context | None = None
        self._rows: Rows | None = None

    def rows(self, context: Context, heads: Heads, cache: Tensor) -> Rows:
        """Worked out by a forward's first layer, and kept for the others."""
        if self._rows is None or self._context is not context:
            self._context, self._rows = context, Rows(context, cache.shape[3], heads.query // heads.key, cache.dtype)
        return self._rows

    def add_norm(
        self, x: Tensor, delta: Tensor | None, norm: Norm, *, fp8: bool = False, half: bool = False
    ) -> Tensor | Scaled:
        if delta is not None:
            x.add_(whole(delta))
        normed = F.rms_norm(x, norm.weight.shape, norm.weight, norm.eps)
        return self.quantize(normed) if fp8 else halved(normed) if half else normed

    def rotate_store(self, qkv: Tensor, heads: Heads, cache: Tensor, context: Context) -> Tensor:
        """Queries [N, A * D]; see `forward.Ops.attend`."""
        rows = self.rows(context, heads, cache)
        split = qkv.view(len(qkv), -1, heads.dim)
        qk, v = split.split((heads.query + heads.key, heads.key), 1)
        if heads.q_norm is not None and heads.k_norm is not None:
            qk = F.rms_norm(qk, (heads.dim,), eps=heads.eps)
            qk[:, : heads.query] *= heads.q_norm
            qk[:, heads.query :] *= heads.k_norm
        q, k = rotate(qk, rows.cos, rows.sin).split((heads.query, heads.key), 1)
        if not rows.all_used:
            k, v = k[rows.used], v[rows.used]
        cache[0][rows.page, :, rows.place] = k
        cache[1][rows.page, :, rows.place] = v
        return q.flatten(1).contiguous()

    def attend(self, qkv: Tensor, heads: Heads, cache: Tensor, context: Context, *, half: bool = False) -> Tensor:
        q = self.rotate_store(qkv, heads, cache, context)
        groups = heads.query // heads.key
        out = torch.zeros_like(q)
        for tile in self.rows(context, heads, cache).tiles:
            found = cache[:, tile.pages].transpose(1, 2).flatten(2, 3)[:, None, :, : tile.end]  # [2, 1, K, end, D]
            # Query heads that share a key head are further rows of it.
            rows = q[tile.row : tile.row + tile.count].view(tile.count, heads.key, groups, heads.dim)
            asked = rows.permute(1, 2, 0, 3).flatten(1, 2)[None]
            given = F.scaled_dot_product_attention(asked, found[0], found[1], attn_mask=tile.mask)
            back = given.view(heads.key, groups, tile.count, heads.dim).permute(2, 0, 1, 3)
            out[tile.row : tile.row + tile.count] = back.reshape(tile.count, -1)
        return halved(out) if half else out

    def silu_mul(self, gate_up: Tensor, *, fp8: bool = False) -> Tensor | Scaled:
        gate, up = gate_up.chunk(2, -1)
        product = F.silu(gate) * up
        return self.quantize(product) if fp8 else product

    def quantize(self, x: Tensor) -> Scaled:
        return Scaled.of(x)


def halved(x: Tensor) -> Tensor:
    """x in float16, times HALF_SCALE."""
    return (x.float() * HALF_SCALE).half()


def _consecutive(pages: Tensor) -> Tensor | slice:
    """`pages` [n] as a range where they are one: what lies in a row is read where it is."""
    first, last = int(pages[0]), int(pages[-1])
    if last - first == len(pages) - 1 and bool((pages.diff() == 1).all()):
        return slice(first, last + 1)
    return pages
