"""Attention as inference engines run it: one new token or a chunk of them against a cache, and the cores alone."""

from __future__ import annotations

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from dice.data.structural.modules.attention import causal_mask, merge_heads, split_heads
from dice.data.structural.modules.norms import RMSNorm
from dice.data.structural.modules.rotary import alibi_slopes, rotary_angles, rotate


class CachedDecode(nn.Module):
    """One decoding step of grouped-query attention: the new token's key and value join the cache (B, K, S, D)."""

    def __init__(self, hidden_size: int, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.q_proj = nn.Linear(hidden_size, num_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=False)

    def forward(self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        position = torch.full((1,), keys.shape[2], device=x.device)
        angles = rotary_angles(position, self.head_dim, theta=500000.0)
        q = rotate(split_heads(self.q_proj(x), self.head_dim), angles)
        keys = torch.cat((keys, rotate(split_heads(self.k_proj(x), self.head_dim), angles)), dim=2)
        values = torch.cat((values, split_heads(self.v_proj(x), self.head_dim)), dim=2)
        grouped = q.reshape(q.shape[0], keys.shape[1], -1, self.head_dim)  # the one query of each head in a group
        weights = torch.softmax(grouped @ keys.mT / math.sqrt(self.head_dim), dim=-1)
        return self.o_proj((weights @ values).reshape(x.shape[0], 1, -1))


class NormedDecode(nn.Module):
    """One decoding step with normalised queries and keys, against caches in which sequences have unequal lengths."""

    def __init__(self, hidden_size: int, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.groups = num_heads // num_kv_heads
        self.q_proj = nn.Linear(hidden_size, num_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=False)
        self.q_norm = RMSNorm(head_dim)

    def forward(self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """`x` (B, hidden); `keys`, `values` (B, S, K, D), of which the first `lengths` (B,) positions are filled."""
        q = self.q_norm(self.q_proj(x).unflatten(-1, (-1, self.head_dim)))
        angles = rotary_angles(lengths[:, None] - 1, self.head_dim, theta=1000000.0)
        q = rotate(q, angles).unflatten(1, (-1, self.groups))
        scores = torch.einsum("bkgd,bskd->bkgs", q, keys) * self.head_dim**-0.5
        empty = torch.arange(keys.shape[1], device=x.device) >= lengths[:, None]
        weights = scores.masked_fill(empty[:, None, None], float("-inf")).softmax(dim=-1)
        return self.o_proj(torch.einsum("bkgs,bskd->bkgd", weights, values).flatten(1))


class MultiQueryDecode(nn.Module):
    """One decoding step with a single key-value head, by fused attention over cache and new token."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.head_dim = hidden_size // num_heads
        self.c_attn = nn.Linear(hidden_size, hidden_size + 2 * self.head_dim)
        self.c_proj = nn.Linear(hidden_size, hidden_size)

    def forward(self, x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        """`x` (B, hidden); `cache` (B, S, 2 D): keys and values side by side."""
        q, new = self.c_attn(x).split([x.shape[-1], 2 * self.head_dim], dim=-1)
        keys, values = torch.cat((cache, new[:, None]), dim=1).chunk(2, dim=-1)
        out = F.scaled_dot_product_attention(q.unflatten(-1, (-1, self.head_dim)), keys, values)
        return self.c_proj(out.flatten(1))


class ChunkedPrefill(nn.Module):
    """A chunk of a prompt attends to the cache of what came before it and, causally, to itself."""

    def __init__(self, hidden_size: int, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.groups = num_heads // num_kv_heads
        self.q_proj = nn.Linear(hidden_size, num_heads * head_dim, bias=True)
        self.kv_proj = nn.Linear(hidden_size, 2 * num_kv_heads * head_dim, bias=True)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=False)

    def forward(self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        past, length = keys.shape[2], x.shape[1]
        angles = rotary_angles(torch.arange(past, past + length, device=x.device), self.head_dim, theta=1000000.0)
        q = rotate(split_heads(self.q_proj(x), self.head_dim), angles)
        k, v = split_heads(self.kv_proj(x), self.head_dim).chunk(2, dim=1)
        keys, values = torch.cat((keys, rotate(k, angles)), dim=2), torch.cat((values, v), dim=2)
        mask = torch.ones(length, past + length, dtype=torch.bool, device=x.device).tril(past)
        keys, values = (cache.repeat_interleave(self.groups, dim=1) for cache in (keys, values))
        return self.o_proj(merge_heads(F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)))


class PagedDecode(nn.Module):
    """Attention of one new token per sequence over a cache in pages, found through a table of page numbers."""

    def __init__(self, num_kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.num_kv_heads = num_kv_heads
        self.scale = head_dim**-0.5

    def forward(self, q: torch.Tensor, key_pages: torch.Tensor, value_pages: torch.Tensor, table: torch.Tensor):
        """`q` (B, H, D); pages (pages, page_size, K, D); `table` (B, pages of a sequence)."""
        keys, values = key_pages[table].flatten(1, 2), value_pages[table].flatten(1, 2)
        q = q.unflatten(1, (self.num_kv_heads, -1))
        weights = torch.einsum("bkgd,bskd->bkgs", q, keys).mul(self.scale).softmax(dim=-1)
        return torch.einsum("bkgs,bskd->bkgd", weights, values).flatten(1, 2)


class VerifyDrafts(nn.Module):
    """Speculative decoding: drafted tokens attend to the cache and, along a given tree, to each other."""

    def __init__(self, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.groups = num_heads // num_kv_heads
        self.scale = head_dim**-0.5

    def forward(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
        """The last positions of `keys` are those of the drafts; `parents` (drafts, drafts) holds 1 where one sees
        another."""
        drafts, total = q.shape[2], keys.shape[2]
        keys, values = keys.repeat_interleave(self.groups, 1), values.repeat_interleave(self.groups, 1)
        scores = torch.matmul(q, keys.transpose(2, 3)) * self.scale
        seen = F.pad(parents + torch.eye(drafts, device=q.device), (total - drafts, 0), value=1.0) > 0
        return torch.softmax(scores.masked_fill(~seen, float("-inf")), dim=-1) @ values


class SoftCapCore(nn.Module):
    """The core of soft-capped causal attention: scores, cap, mask, softmax, weighted sum."""

    def __init__(self, head_dim: int, cap: float = 30.0) -> None:
        super().__init__()
        self.scale = head_dim**-0.5
        self.cap = cap

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = self.cap * torch.tanh(q @ k.mT * (self.scale / self.cap))
        scores = scores.masked_fill(~causal_mask(q.shape[2], q.device), -torch.inf)
        return scores.softmax(dim=-1) @ v


class SinkCore(nn.Module):
    """The core of attention with sinks: each head's softmax has one more, learned logit in its denominator."""

    def __init__(self, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.scale = head_dim**-0.5
        self.sinks = nn.Parameter(torch.zeros(num_heads))

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * self.scale
        scores = scores + torch.full_like(scores[0, 0], float("-inf")).triu(1)
        sinks = self.sinks[:, None, None]
        largest = torch.maximum(scores.amax(dim=-1, keepdim=True), sinks)
        weights = torch.exp(scores - largest)
        total = weights.sum(dim=-1, keepdim=True) + torch.exp(sinks - largest)
        return torch.einsum("bhqk,bhkd->bhqd", weights / total, v)


class AlibiCore(nn.Module):
    """The core of causal attention with linear biases by distance, a slope per head."""

    def __init__(self, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.scale = 1.0 / math.sqrt(head_dim)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(k.shape[2], device=q.device)
        distance = positions[None, :] - positions[:, None]
        bias = distance * alibi_slopes(self.num_heads, q.device).view(-1, 1, 1)
        scores = torch.baddbmm(
            bias.repeat(q.shape[0], 1, 1), q.flatten(0, 1), k.flatten(0, 1).mT, alpha=self.scale
        ).masked_fill(distance > 0, float("-inf"))
        return torch.bmm(scores.softmax(dim=-1), v.flatten(0, 1)).view_as(q)


class StackedQueryInput(nn.Module):
    """What comes before the core: pre-normalisation, the packed projection, the split by heads, rotary positions."""

    def __init__(self, hidden_size: int, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.rotated = num_heads + num_kv_heads
        self.norm = RMSNorm(hidden_size)
        self.qkv_proj = nn.Linear(hidden_size, (num_heads + 2 * num_kv_heads) * head_dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = split_heads(self.qkv_proj(self.norm(x)), self.head_dim)
        angles = rotary_angles(torch.arange(x.shape[1], device=x.device), self.head_dim)
        return torch.cat((rotate(heads[:, : self.rotated], angles), heads[:, self.rotated :]), dim=1)


class AttentionOutput(nn.Module):
    """What comes after the core: heads are merged, projected, added to the stream, and the sum is normalised."""

    def __init__(self, hidden_size: int, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=False)
        self.norm = RMSNorm(hidden_size)

    def forward(self, heads: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self.norm(residual + self.o_proj(merge_heads(heads)))


class QuantizedCacheDecode(nn.Module):
    """One decoding step over a cache of 8-bit integers with a scale per position and head."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.scale = head_dim**-0.5

    def forward(
        self,
        q: torch.Tensor,
        keys: torch.Tensor,
        key_scales: torch.Tensor,
        values: torch.Tensor,
        value_scales: torch.Tensor,
    ) -> torch.Tensor:
        """`q` (B, K, G, D); `keys`, `values` (B, K, S, D) int8; scales (B, K, S)."""
        scores = (q @ keys.to(q.dtype).mT) * (self.scale * key_scales[:, :, None])
        weights = scores.softmax(dim=-1) * value_scales[:, :, None]
        return weights @ values.to(q.dtype)
