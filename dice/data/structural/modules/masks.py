"""Attention that sees a part of the sequence, or weighs it by distance, a cap or a sink."""

from __future__ import annotations

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from dice.data.structural.modules.attention import causal_mask, masked_attention, merge_heads, split_heads
from dice.data.structural.modules.norms import UnitOffsetRMSNorm
from dice.data.structural.modules.rotary import (
    alibi_slopes,
    relative_buckets,
    rotary_angles,
    rotate,
    rotate_adjacent,
    yarn_frequencies,
)


def window_mask(length: int, window: int, device: torch.device) -> torch.Tensor:
    """Each position sees itself and the `window - 1` before it."""
    positions = torch.arange(length, device=device)
    distance = positions[:, None] - positions
    return (distance >= 0) & (distance < window)


class SlidingWindowAttention(nn.Module):
    """Grouped-query attention with rotary positions that looks back over a fixed window."""

    def __init__(self, hidden_size: int, num_heads: int, num_kv_heads: int, head_dim: int, window: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.window = window
        self.q_proj = nn.Linear(hidden_size, num_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        angles = rotary_angles(torch.arange(length, device=x.device), self.head_dim)
        q = rotate(split_heads(self.q_proj(x), self.head_dim), angles)
        k = rotate(split_heads(self.k_proj(x), self.head_dim), angles)
        v = split_heads(self.v_proj(x), self.head_dim)
        out = masked_attention(q, k, v, window_mask(length, self.window, x.device))
        return self.o_proj(merge_heads(out))


class BiasedWindowAttention(nn.Module):
    """Sliding-window attention with a bias on every projection, by fused attention."""

    def __init__(self, hidden_size: int, num_heads: int, num_kv_heads: int, window: int) -> None:
        super().__init__()
        self.head_dim = hidden_size // num_heads
        self.groups = num_heads // num_kv_heads
        self.window = window
        self.q_proj = nn.Linear(hidden_size, hidden_size)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim)
        self.o_proj = nn.Linear(hidden_size, hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angles = rotary_angles(torch.arange(x.shape[1], device=x.device), self.head_dim, theta=100000.0)
        mask = window_mask(x.shape[1], self.window, x.device)
        q = rotate(split_heads(self.q_proj(x), self.head_dim), angles)
        k = rotate(split_heads(self.k_proj(x), self.head_dim), angles).repeat_interleave(self.groups, dim=1)
        v = split_heads(self.v_proj(x), self.head_dim).repeat_interleave(self.groups, dim=1)
        return self.o_proj(merge_heads(F.scaled_dot_product_attention(q, k, v, attn_mask=mask)))


class SoftCappedAttention(nn.Module):
    """Grouped-query attention in a sliding window whose scores are squashed into a range by tanh."""

    def __init__(
        self, hidden_size: int, num_heads: int, num_kv_heads: int, head_dim: int, window: int, cap: float = 50.0
    ) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.groups = num_heads // num_kv_heads
        self.window = window
        self.cap = cap
        self.q_proj = nn.Linear(hidden_size, num_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angles = rotary_angles(torch.arange(x.shape[1], device=x.device), self.head_dim)
        q = rotate(split_heads(self.q_proj(x), self.head_dim), angles)
        k = rotate(split_heads(self.k_proj(x), self.head_dim), angles).repeat_interleave(self.groups, dim=1)
        v = split_heads(self.v_proj(x), self.head_dim).repeat_interleave(self.groups, dim=1)
        scores = torch.matmul(q, k.mT) * self.head_dim**-0.5
        scores = self.cap * torch.tanh(scores / self.cap)
        scores = torch.where(window_mask(x.shape[1], self.window, x.device), scores, -torch.inf)
        return self.o_proj(merge_heads(scores.softmax(dim=-1) @ v))


class SinkAttention(nn.Module):
    """Grouped-query attention with a learned sink per head: a logit that takes weight and gives nothing."""

    def __init__(self, hidden_size: int, num_heads: int, num_kv_heads: int, head_dim: int, window: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.groups = num_heads // num_kv_heads
        self.window = window
        self.q_proj = nn.Linear(hidden_size, num_heads * head_dim)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * head_dim)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * head_dim)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size)
        self.sinks = nn.Parameter(torch.randn(num_heads))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        frequencies = yarn_frequencies(self.head_dim, 150000.0, 32.0, 4096, x.device)
        angles = torch.outer(torch.arange(length, device=x.device), frequencies)
        temperature = 0.1 * math.log(32.0) + 1.0
        q = temperature * rotate(split_heads(self.q_proj(x), self.head_dim), angles)
        k = temperature * rotate(split_heads(self.k_proj(x), self.head_dim), angles)
        v = split_heads(self.v_proj(x), self.head_dim)
        scores = q @ k.repeat_interleave(self.groups, dim=1).mT / math.sqrt(self.head_dim)
        scores = scores.masked_fill(~window_mask(length, self.window, x.device), float("-inf"))
        sinks = self.sinks.view(1, -1, 1, 1).expand(batch, -1, length, 1)
        weights = torch.cat((scores, sinks), dim=-1).softmax(dim=-1)[..., :-1]
        return self.o_proj(merge_heads(weights @ v.repeat_interleave(self.groups, dim=1)))


class NormedWindowAttention(nn.Module):
    """Local layer: heads of queries and keys are normalised with unit offset, rotated and attended within a window."""

    def __init__(self, hidden_size: int, num_heads: int, num_kv_heads: int, head_dim: int, window: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.window = window
        self.q_proj = nn.Linear(hidden_size, num_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=False)
        self.q_norm = UnitOffsetRMSNorm(head_dim)
        self.k_norm = UnitOffsetRMSNorm(head_dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.q_norm(split_heads(self.q_proj(x), self.head_dim))
        k = self.k_norm(split_heads(self.k_proj(x), self.head_dim))
        v = split_heads(self.v_proj(x), self.head_dim)
        angles = rotary_angles(torch.arange(x.shape[1], device=x.device), self.head_dim)
        mask = window_mask(x.shape[1], self.window, x.device)
        return self.o_proj(merge_heads(masked_attention(rotate(q, angles), rotate(k, angles), v, mask)))


class AlibiAttention(nn.Module):
    """Causal multi-head attention with a linear bias by distance in the place of positions; packed per head."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        q, k, v = self.query_key_value(x).unflatten(-1, (self.num_heads, 3, self.head_dim)).unbind(dim=-2)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(self.head_dim)
        bias = alibi_slopes(self.num_heads, x.device)[:, None, None] * torch.arange(length, device=x.device)
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(diagonal=1)
        weights = (scores + bias).masked_fill(future, float("-inf")).softmax(dim=-1)
        return self.dense(torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(-2))


class ClippedAlibiAttention(nn.Module):
    """Causal attention with clipped projections and a bias by distance, handed to fused attention as a mask."""

    def __init__(self, hidden_size: int, num_heads: int, clip: float = 2.0) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.clip = clip
        self.Wqkv = nn.Linear(hidden_size, 3 * hidden_size, bias=False)
        self.out_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (split_heads(part, self.head_dim) for part in self.Wqkv(x).clamp(-self.clip, self.clip).chunk(3, -1))
        positions = torch.arange(x.shape[1], device=x.device)
        distance = (positions[:, None] - positions).float()
        bias = -alibi_slopes(self.num_heads, x.device)[:, None, None] * distance
        bias = bias.masked_fill(distance < 0, float("-inf"))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(x.shape[0], -1, -1, -1))
        return self.out_proj(merge_heads(out))


class RelativeBiasAttention(nn.Module):
    """Bidirectional attention without scaling; a learned bias for each bucket of distances stands for positions."""

    def __init__(self, hidden_size: int, num_heads: int, head_dim: int, num_buckets: int = 32) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.num_buckets = num_buckets
        self.q = nn.Linear(hidden_size, num_heads * head_dim, bias=False)
        self.k = nn.Linear(hidden_size, num_heads * head_dim, bias=False)
        self.v = nn.Linear(hidden_size, num_heads * head_dim, bias=False)
        self.o = nn.Linear(num_heads * head_dim, hidden_size, bias=False)
        self.relative_attention_bias = nn.Embedding(num_buckets, num_heads)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(x.shape[1], device=x.device)
        buckets = relative_buckets(positions - positions[:, None], self.num_buckets, 128)
        bias = self.relative_attention_bias(buckets).permute(2, 0, 1)
        q, k, v = (split_heads(project(x), self.head_dim) for project in (self.q, self.k, self.v))
        weights = torch.softmax(q @ k.transpose(-1, -2) + bias, dim=-1)
        return self.o(merge_heads(weights @ v))


class BidirectionalRotaryAttention(nn.Module):
    """Attention of a masked-diffusion model: every position sees every other, with rotary positions."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.head_dim = hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.attn_out = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angles = rotary_angles(torch.arange(x.shape[1], device=x.device), self.head_dim, theta=500000.0)
        q = rotate(split_heads(self.q_proj(x), self.head_dim), angles)
        k = rotate(split_heads(self.k_proj(x), self.head_dim), angles)
        v = split_heads(self.v_proj(x), self.head_dim)
        return self.attn_out(merge_heads(F.scaled_dot_product_attention(q, k, v)))


class BlockDiffusionAttention(nn.Module):
    """Attention of block diffusion: bidirectional within a block of positions, causal between blocks."""

    def __init__(self, hidden_size: int, num_heads: int, num_kv_heads: int, head_dim: int, block_size: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.block_size = block_size
        self.q_proj = nn.Linear(hidden_size, num_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=False)
        self.q_norm = nn.RMSNorm(head_dim, eps=1e-6)
        self.k_norm = nn.RMSNorm(head_dim, eps=1e-6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(x.shape[1], device=x.device)
        blocks = positions // self.block_size
        angles = rotary_angles(positions, self.head_dim, theta=1000000.0)
        q = rotate(self.q_norm(split_heads(self.q_proj(x), self.head_dim)), angles)
        k = rotate(self.k_norm(split_heads(self.k_proj(x), self.head_dim)), angles)
        v = split_heads(self.v_proj(x), self.head_dim)
        out = masked_attention(q, k, v, blocks[:, None] >= blocks)
        return self.o_proj(merge_heads(out))


class ChunkedAttention(nn.Module):
    """Local layer of a long-context model: causal within chunks of the sequence, queries and keys of unit length."""

    def __init__(self, hidden_size: int, num_heads: int, num_kv_heads: int, head_dim: int, chunk_size: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.chunk_size = chunk_size
        self.q_proj = nn.Linear(hidden_size, num_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(x.shape[1], device=x.device)
        chunks = positions // self.chunk_size
        angles = rotary_angles(positions, self.head_dim, theta=500000.0)
        q = rotate_adjacent(split_heads(self.q_proj(x), self.head_dim), angles)
        k = rotate_adjacent(split_heads(self.k_proj(x), self.head_dim), angles)
        q, k = F.rms_norm(q, (self.head_dim,), eps=1e-6), F.rms_norm(k, (self.head_dim,), eps=1e-6)
        v = split_heads(self.v_proj(x), self.head_dim)
        mask = (chunks[:, None] == chunks) & (positions[:, None] >= positions)
        return self.o_proj(merge_heads(masked_attention(q, k, v, mask)))


class TemperedAttention(nn.Module):
    """Global layer without positions: queries are sharpened with the logarithm of their position."""

    def __init__(
        self, hidden_size: int, num_heads: int, num_kv_heads: int, head_dim: int, floor_scale: int = 64
    ) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.floor_scale = floor_scale
        self.q_proj = nn.Linear(hidden_size, num_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (split_heads(project(x), self.head_dim) for project in (self.q_proj, self.k_proj, self.v_proj))
        positions = torch.arange(x.shape[1], device=x.device)
        sharpness = 1.0 + 0.1 * torch.log1p(torch.floor((positions + 1.0) / self.floor_scale))
        out = masked_attention(q * sharpness[:, None], k, v, causal_mask(x.shape[1], x.device))
        return self.o_proj(merge_heads(out))


class PrefixAttention(nn.Module):
    """Prefix language model: the first positions see each other both ways, the others what is before them."""

    def __init__(self, hidden_size: int, num_heads: int, num_kv_heads: int, head_dim: int, prefix: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.prefix = prefix
        self.qkv_proj = nn.Linear(hidden_size, (num_heads + 2 * num_kv_heads) * head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=False)
        self.heads = [num_heads, num_kv_heads, num_kv_heads]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(x.shape[1], device=x.device)
        visible = (positions[:, None] >= positions) | (positions < self.prefix)
        angles = rotary_angles(positions, self.head_dim)
        q, k, v = split_heads(self.qkv_proj(x), self.head_dim).split(self.heads, dim=1)
        return self.o_proj(merge_heads(masked_attention(rotate(q, angles), rotate(k, angles), v, visible)))


class PackedAttention(nn.Module):
    """Several documents in one sequence: causal attention within each, positions counted anew from its start."""

    def __init__(self, hidden_size: int, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.q_proj = nn.Linear(hidden_size, num_heads * head_dim, bias=False)
        self.kv_proj = nn.Linear(hidden_size, 2 * num_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=False)

    def forward(self, x: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
        """`documents` (B, S): the number of the document of each position, never falling."""
        same = documents[:, :, None] == documents[:, None, :]
        mask = same & causal_mask(x.shape[1], x.device)
        angles = rotary_angles(mask.sum(dim=-1) - 1, self.head_dim)[:, None]
        q = split_heads(self.q_proj(x), self.head_dim)
        k, v = split_heads(self.kv_proj(x), self.head_dim).chunk(2, dim=1)
        return self.o_proj(merge_heads(masked_attention(rotate(q, angles), rotate(k, angles), v, mask[:, None])))
