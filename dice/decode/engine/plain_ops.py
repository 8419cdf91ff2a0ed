"""The ops of a layer in plain PyTorch: the CPU's path, and what the kernels are held against."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from dice.decode.engine.forward import Context, Heads, Norm
from dice.decode.engine.weights import Scaled
from dice.model.sdar import rotate


class PlainOps:
    """See `forward.Ops`."""

    def add_norm(self, x: Tensor, delta: Tensor | None, norm: Norm, *, fp8: bool = False) -> Tensor | Scaled:
        if delta is not None:
            x.add_(delta)
        normed = F.rms_norm(x, norm.weight.shape, norm.weight, norm.eps)
        return self.quantize(normed) if fp8 else normed

    def rotate_store(self, qkv: Tensor, heads: Heads, cache: Tensor, context: Context) -> Tensor:
        plan, slots, page_size = context.plan, context.slots, cache.shape[3]
        parts = qkv.view(len(qkv), -1, heads.dim).split((heads.query, heads.key, heads.key), 1)
        q, k, v = parts
        if heads.q_norm is not None and heads.k_norm is not None:
            q = F.rms_norm(q, (heads.dim,), heads.q_norm, heads.eps)
            k = F.rms_norm(k, (heads.dim,), heads.k_norm, heads.eps)
        positions = plan.positions.long()
        cos, sin = (table[positions, None].to(q.dtype) for table in (context.cos, context.sin))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        used = plan.slots >= 0
        page = slots.pages[plan.slots[used].long(), positions[used] // page_size].long()
        place = positions[used] % page_size
        cache[0][page, :, place] = k[used]
        cache[1][page, :, place] = v[used]
        return q.flatten(1)

    def attend(self, q: Tensor, heads: Heads, cache: Tensor, context: Context) -> Tensor:
        size, page_size = context.slots.shape.block_size, cache.shape[3]
        groups = heads.query // heads.key
        out = torch.zeros_like(q)
        for slot, row, first, count in context.plan.tiles.tolist():
            if slot < 0:
                continue
            limits = (torch.arange(first, first + count, device=q.device) // size + 1) * size
            end = int(limits[-1])
            pages = context.slots.pages[slot, : -(-end // page_size)].long()
            keys, values = cache[:, pages].transpose(1, 2).flatten(2, 3)[:, :, :end]  # [K, end, D]
            hidden = torch.arange(end, device=q.device) >= limits[:, None]
            mask = torch.zeros(hidden.shape, dtype=q.dtype, device=q.device).masked_fill_(hidden, float("-inf"))
            rows = q[row : row + count].view(count, heads.key, groups, heads.dim).permute(1, 2, 0, 3)
            found = F.scaled_dot_product_attention(rows.flatten(1, 2), keys, values, attn_mask=mask.repeat(groups, 1))
            back = found.view(heads.key, groups, count, heads.dim).permute(2, 0, 1, 3)
            out[row : row + count] = back.reshape(count, -1)
        return out

    def silu_mul(self, gate_up: Tensor, *, fp8: bool = False) -> Tensor | Scaled:
        gate, up = gate_up.chunk(2, -1)
        product = F.silu(gate) * up
        return self.quantize(product) if fp8 else product

    def quantize(self, x: Tensor) -> Scaled:
        return Scaled.of(x)
