"""Self-attention of the dense decoders: projections, positions, normalised queries and keys, grouped heads.

Shapes: B batch, H query heads, K key-value heads, S positions, D dimensions of a head.
"""

from __future__ import annotations

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from dice.data.structural.modules.norms import BiasFreeLayerNorm, RMSNorm, UnitOffsetRMSNorm
from dice.data.structural.modules.rotary import llama3_frequencies, rotary_angles, rotate, rotate_adjacent


def split_heads(x: torch.Tensor, head_dim: int) -> torch.Tensor:
    """(B, S, H * D) -> (B, H, S, D)"""
    return x.unflatten(-1, (-1, head_dim)).transpose(1, 2)


def merge_heads(x: torch.Tensor) -> torch.Tensor:
    """(B, H, S, D) -> (B, S, H * D)"""
    return x.transpose(1, 2).flatten(2)


def causal_mask(length: int, device: torch.device) -> torch.Tensor:
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


def masked_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Softmax attention where each key-value head serves a group of query heads."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return scores.masked_fill(~mask, float("-inf")).softmax(dim=-1) @ v


class FusedCausalAttention(nn.Module):
    """Causal multi-head attention with one projection for queries, keys and values, and no positions of its own."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.head_dim = hidden_size // num_heads
        self.c_attn = nn.Linear(hidden_size, 3 * hidden_size)
        self.c_proj = nn.Linear(hidden_size, hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (split_heads(part, self.head_dim) for part in self.c_attn(x).chunk(3, dim=-1))
        return self.c_proj(merge_heads(F.scaled_dot_product_attention(q, k, v, is_causal=True)))


class RotaryAttention(nn.Module):
    """Causal multi-head attention with rotary positions."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q = self.q_proj(x).view(batch, length, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, self.num_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.num_heads, self.head_dim).transpose(1, 2)
        angles = rotary_angles(torch.arange(length, device=x.device), self.head_dim)
        scores = rotate(q, angles) @ rotate(k, angles).transpose(-1, -2) / math.sqrt(self.head_dim)
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = torch.softmax(scores.masked_fill(future, float("-inf")), dim=-1)
        return self.o_proj((weights @ v).transpose(1, 2).reshape(batch, length, -1))


class GroupedQueryAttention(nn.Module):
    """Causal attention with rotary positions in which a group of query heads shares each key-value head."""

    def __init__(
        self, hidden_size: int, num_heads: int, num_kv_heads: int, head_dim: int, theta: float = 500000.0
    ) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.theta = theta
        self.q_proj = nn.Linear(hidden_size, num_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (split_heads(project(x), self.head_dim) for project in (self.q_proj, self.k_proj, self.v_proj))
        angles = rotary_angles(torch.arange(x.shape[1], device=x.device), self.head_dim, self.theta)
        out = masked_attention(rotate(q, angles), rotate(k, angles), v, causal_mask(x.shape[1], x.device))
        return self.o_proj(merge_heads(out))


class LongContextAttention(nn.Module):
    """Grouped-query attention whose rotary frequencies are stretched for long contexts, by fused attention."""

    def __init__(self, hidden_size: int, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.groups = num_heads // num_kv_heads
        self.q_proj = nn.Linear(hidden_size, num_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(x.shape[1], device=x.device)
        angles = torch.outer(positions, llama3_frequencies(self.head_dim, 500000.0, x.device))
        q = rotate(split_heads(self.q_proj(x), self.head_dim), angles)
        k = rotate(split_heads(self.k_proj(x), self.head_dim), angles).repeat_interleave(self.groups, dim=1)
        v = split_heads(self.v_proj(x), self.head_dim).repeat_interleave(self.groups, dim=1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(merge_heads(out))


class MultiQueryAttention(nn.Module):
    """Causal attention with rotary positions and a single key-value head; one projection makes all of them."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.query_key_value = nn.Linear(hidden_size, hidden_size + 2 * self.head_dim, bias=False)
        self.dense = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = split_heads(self.query_key_value(x), self.head_dim)
        q, k, v = heads.split([self.num_heads, 1, 1], dim=1)
        angles = rotary_angles(torch.arange(x.shape[1], device=x.device), self.head_dim)
        q, k = rotate(q, angles), rotate(k, angles)
        out = F.scaled_dot_product_attention(q, k.expand_as(q), v.expand_as(q), is_causal=True)
        return self.dense(merge_heads(out))


class BiasedQueryKeyValueAttention(nn.Module):
    """Grouped-query attention with rotary positions and a bias on queries, keys and values only."""

    def __init__(self, hidden_size: int, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.q_proj = nn.Linear(hidden_size, num_heads * head_dim, bias=True)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=True)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=True)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        angles = rotary_angles(torch.arange(length, device=x.device), self.head_dim, theta=1000000.0)
        q = rotate(split_heads(self.q_proj(x), self.head_dim), angles)
        k = rotate(split_heads(self.k_proj(x), self.head_dim), angles)
        v = split_heads(self.v_proj(x), self.head_dim)
        q = q.unflatten(1, (k.shape[1], -1))  # (B, K, H / K, S, D)
        scores = torch.einsum("bkgqd,bksd->bkgqs", q, k) * self.head_dim**-0.5
        scores = scores.masked_fill(~causal_mask(length, x.device), float("-inf"))
        out = torch.einsum("bkgqs,bksd->bkgqd", scores.softmax(dim=-1), v)
        return self.o_proj(merge_heads(out.flatten(1, 2)))


class QueryKeyNormAttention(nn.Module):
    """Grouped-query attention that RMS-normalises each head of queries and keys before rotating them."""

    def __init__(self, hidden_size: int, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.q_proj = nn.Linear(hidden_size, num_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=False)
        self.q_norm = RMSNorm(head_dim)
        self.k_norm = RMSNorm(head_dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = (*x.shape[:2], -1, self.head_dim)
        q = self.q_norm(self.q_proj(x).view(shape)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(shape)).transpose(1, 2)
        v = self.v_proj(x).view(shape).transpose(1, 2)
        angles = rotary_angles(torch.arange(x.shape[1], device=x.device), self.head_dim, theta=1000000.0)
        out = masked_attention(rotate(q, angles), rotate(k, angles), v, causal_mask(x.shape[1], x.device))
        return self.o_proj(merge_heads(out))


class WideQueryKeyNormAttention(nn.Module):
    """Multi-head attention that RMS-normalises queries and keys over all heads at once, then rotates them."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.head_dim = hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.q_norm = RMSNorm(hidden_size)
        self.k_norm = RMSNorm(hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angles = rotary_angles(torch.arange(x.shape[1], device=x.device), self.head_dim, theta=500000.0)
        q = split_heads(self.q_norm(self.q_proj(x)), self.head_dim)
        k = split_heads(self.k_norm(self.k_proj(x)), self.head_dim)
        v = split_heads(self.v_proj(x), self.head_dim)
        out = F.scaled_dot_product_attention(rotate(q, angles), rotate(k, angles), v, is_causal=True)
        return self.o_proj(merge_heads(out))


class AdjacentRotaryAttention(nn.Module):
    """Grouped-query attention with rotary positions on adjacent pairs and bias-free layer norms per head."""

    def __init__(self, hidden_size: int, num_heads: int, num_kv_heads: int) -> None:
        super().__init__()
        self.head_dim = hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.q_norm = BiasFreeLayerNorm(self.head_dim)
        self.k_norm = BiasFreeLayerNorm(self.head_dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        q = self.q_norm(split_heads(self.q_proj(x), self.head_dim))
        k = self.k_norm(split_heads(self.k_proj(x), self.head_dim))
        v = split_heads(self.v_proj(x), self.head_dim)
        angles = rotary_angles(torch.arange(length, device=x.device), self.head_dim, theta=75000.0)
        q, k = rotate_adjacent(q, angles), rotate_adjacent(k, angles)
        return self.o_proj(merge_heads(masked_attention(q, k, v, causal_mask(length, x.device))))


class PartialRotaryAttention(nn.Module):
    """Multi-head attention that rotates a quarter of each head; queries, keys and values are packed head by head."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.head_dim = hidden_size // num_heads
        self.rotary_dim = self.head_dim // 4
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = split_heads(self.query_key_value(x), 3 * self.head_dim).chunk(3, dim=-1)
        angles = rotary_angles(torch.arange(x.shape[1], device=x.device), self.rotary_dim)
        q, k = self.turn(q, angles), self.turn(k, angles)
        return self.dense(merge_heads(F.scaled_dot_product_attention(q, k, v, is_causal=True)))

    def turn(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        turned, kept = x.split([self.rotary_dim, self.head_dim - self.rotary_dim], dim=-1)
        return torch.cat((rotate(turned, angles), kept), dim=-1)


class ScaledRotaryAttention(nn.Module):
    """Grouped-query attention whose scores have a multiplier of their own instead of 1 / sqrt(D)."""

    def __init__(
        self, hidden_size: int, num_heads: int, num_kv_heads: int, head_dim: int, attention_multiplier: float = 0.0625
    ) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.attention_multiplier = attention_multiplier
        self.sizes = [num_heads * head_dim, num_kv_heads * head_dim, num_kv_heads * head_dim]
        self.qkv_proj = nn.Linear(hidden_size, sum(self.sizes), bias=False)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (split_heads(part, self.head_dim) for part in self.qkv_proj(x).split(self.sizes, dim=-1))
        angles = rotary_angles(torch.arange(x.shape[1], device=x.device), self.head_dim)
        q, k = rotate(q, angles), rotate(k, angles)
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.attention_multiplier)
        return self.o_proj(merge_heads(out))


class ClippedAttention(nn.Module):
    """Grouped-query attention that clips the packed projection before it is split and rotated."""

    def __init__(self, hidden_size: int, num_heads: int, num_kv_heads: int, clip: float = 1.0) -> None:
        super().__init__()
        self.head_dim = hidden_size // num_heads
        self.heads = [num_heads, num_kv_heads, num_kv_heads]
        self.clip = clip
        self.Wqkv = nn.Linear(hidden_size, sum(self.heads) * self.head_dim, bias=False)
        self.out_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        packed = self.Wqkv(x).clamp(-self.clip, self.clip)
        q, k, v = split_heads(packed, self.head_dim).split(self.heads, dim=1)
        angles = rotary_angles(torch.arange(x.shape[1], device=x.device), self.head_dim, theta=500000.0)
        out = masked_attention(rotate(q, angles), rotate(k, angles), v, causal_mask(x.shape[1], x.device))
        return self.out_proj(merge_heads(out))


class GatedAttention(nn.Module):
    """Grouped-query attention whose output is gated per element by a sigmoid that the query projection also makes."""

    def __init__(self, hidden_size: int, num_heads: int, num_kv_heads: int, head_dim: int, rotary_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.rotary_dim = rotary_dim
        self.q_proj = nn.Linear(hidden_size, 2 * num_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=False)
        self.q_norm = UnitOffsetRMSNorm(head_dim)
        self.k_norm = UnitOffsetRMSNorm(head_dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, gate = split_heads(self.q_proj(x), 2 * self.head_dim).chunk(2, dim=-1)
        k, v = split_heads(self.k_proj(x), self.head_dim), split_heads(self.v_proj(x), self.head_dim)
        angles = rotary_angles(torch.arange(x.shape[1], device=x.device), self.rotary_dim, theta=10000000.0)
        q, k = self.turn(self.q_norm(q), angles), self.turn(self.k_norm(k), angles)
        out = masked_attention(q, k, v, causal_mask(x.shape[1], x.device))
        return self.o_proj(merge_heads(out * torch.sigmoid(gate)))

    def turn(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        return torch.cat((rotate(x[..., : self.rotary_dim], angles), x[..., self.rotary_dim :]), dim=-1)


class DifferentialAttention(nn.Module):
    """The difference of two softmax maps attends to pairs of value heads, which cancels what both maps share."""

    def __init__(self, hidden_size: int, num_heads: int, lambda_init: float = 0.8) -> None:
        super().__init__()
        self.head_dim = hidden_size // num_heads
        self.lambda_init = lambda_init
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.lambdas = nn.Parameter(0.1 * torch.randn(4, self.head_dim))
        self.norm = nn.RMSNorm(2 * self.head_dim, eps=1e-5, elementwise_affine=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angles = rotary_angles(torch.arange(x.shape[1], device=x.device), self.head_dim)
        q = rotate(split_heads(self.q_proj(x), self.head_dim), angles)
        k = rotate(split_heads(self.k_proj(x), self.head_dim), angles)
        v = split_heads(self.v_proj(x), 2 * self.head_dim)
        scores = q @ k.transpose(-1, -2) * self.head_dim**-0.5
        weights = scores.masked_fill(~causal_mask(x.shape[1], x.device), float("-inf")).softmax(dim=-1)
        q1, k1, q2, k2 = self.lambdas
        share = torch.exp((q1 * k1).sum()) - torch.exp((q2 * k2).sum()) + self.lambda_init
        out = (weights[:, 0::2] - share * weights[:, 1::2]) @ v
        return self.o_proj(merge_heads((1 - self.lambda_init) * self.norm(out)))


class LogLengthAttention(nn.Module):
    """Attention whose queries grow with the logarithm of their position beyond the length of training."""

    def __init__(self, hidden_size: int, num_heads: int, trained_length: int = 128) -> None:
        super().__init__()
        self.head_dim = hidden_size // num_heads
        self.trained_length = trained_length
        self.c_attn = nn.Linear(hidden_size, 3 * hidden_size)
        self.c_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(x.shape[1], device=x.device)
        angles = rotary_angles(positions, self.head_dim)
        q, k, v = (split_heads(part, self.head_dim) for part in self.c_attn(x).split(x.shape[-1], dim=-1))
        growth = (torch.log(positions + 1.0) / math.log(self.trained_length)).clamp(min=1.0)
        q = rotate(q, angles) * growth[:, None]
        out = F.scaled_dot_product_attention(q, rotate(k, angles), v, is_causal=True)
        return self.c_proj(merge_heads(out))
