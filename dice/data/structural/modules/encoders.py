"""Attention of encoders and between sequences: bidirectional, padded, cross, gated, pooled."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F

from dice.data.structural.modules.attention import merge_heads, split_heads
from dice.data.structural.modules.norms import RMSNorm
from dice.data.structural.modules.rotary import rotary_angles, rotate


class EncoderAttention(nn.Module):
    """Bidirectional multi-head attention with biases and one packed projection."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size)
        self.proj = nn.Linear(hidden_size, hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        weights = (q * q.shape[-1] ** -0.5 @ k.transpose(-2, -1)).softmax(dim=-1)
        return self.proj((weights @ v).transpose(1, 2).flatten(2))


class PaddedAttention(nn.Module):
    """Bidirectional attention over padded sequences: positions from `lengths` (B,) on are not attended to."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.head_dim = hidden_size // num_heads
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.norm = nn.LayerNorm(hidden_size, eps=1e-12)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        q, k, v = (split_heads(part, self.head_dim) for part in self.qkv(x).chunk(3, dim=-1))
        filled = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=filled[:, None, None])
        return self.norm(x + self.dense(merge_heads(out)))


class AlternatingRotaryEncoder(nn.Module):
    """Local bidirectional attention: each position sees half a window to either side, with rotary positions."""

    def __init__(self, hidden_size: int, num_heads: int, window: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.window = window
        self.Wqkv = nn.Linear(hidden_size, 3 * hidden_size, bias=False)
        self.Wo = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(x.shape[1], device=x.device)
        near = (positions[:, None] - positions).abs() <= self.window // 2
        q, k, v = self.Wqkv(x).unflatten(-1, (3, self.num_heads, -1)).transpose(1, 3).unbind(dim=2)
        angles = rotary_angles(positions, q.shape[-1])
        out = F.scaled_dot_product_attention(rotate(q, angles), rotate(k, angles), v, attn_mask=near)
        return self.Wo(merge_heads(out))


class CrossAttention(nn.Module):
    """Decoder states attend to encoder states; the key projection has no bias."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.head_dim = hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, hidden_size)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size)
        self.out_proj = nn.Linear(hidden_size, hidden_size)

    def forward(self, x: torch.Tensor, encoded: torch.Tensor) -> torch.Tensor:
        q = split_heads(self.q_proj(x), self.head_dim)
        k = split_heads(self.k_proj(encoded), self.head_dim)
        v = split_heads(self.v_proj(encoded), self.head_dim)
        weights = torch.softmax(q @ k.transpose(2, 3) * self.head_dim**-0.5, dim=-1)
        return self.out_proj(merge_heads(weights @ v))


class GatedCrossAttention(nn.Module):
    """Text attends to image features with normalised queries and keys; a tanh gate lets the result into the stream."""

    def __init__(self, hidden_size: int, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.groups = num_heads // num_kv_heads
        self.q_proj = nn.Linear(hidden_size, num_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=False)
        self.q_norm, self.k_norm = RMSNorm(head_dim), RMSNorm(head_dim)
        self.gate = nn.Parameter(torch.full((1,), 0.5))

    def forward(self, x: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        q = self.q_norm(split_heads(self.q_proj(x), self.head_dim))
        k = self.k_norm(split_heads(self.k_proj(image), self.head_dim)).repeat_interleave(self.groups, dim=1)
        v = split_heads(self.v_proj(image), self.head_dim).repeat_interleave(self.groups, dim=1)
        out = self.o_proj(merge_heads(F.scaled_dot_product_attention(q, k, v)))
        return x + torch.tanh(self.gate) * out


class RelativeCrossAttention(nn.Module):
    """Cross-attention half of an encoder-decoder layer: RMS norm, unscaled attention without biases, residual."""

    def __init__(self, hidden_size: int, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.layer_norm = RMSNorm(hidden_size)
        self.q = nn.Linear(hidden_size, num_heads * head_dim, bias=False)
        self.k = nn.Linear(hidden_size, num_heads * head_dim, bias=False)
        self.v = nn.Linear(hidden_size, num_heads * head_dim, bias=False)
        self.o = nn.Linear(num_heads * head_dim, hidden_size, bias=False)

    def forward(self, x: torch.Tensor, encoded: torch.Tensor) -> torch.Tensor:
        q = split_heads(self.q(self.layer_norm(x)), self.head_dim)
        k, v = split_heads(self.k(encoded), self.head_dim), split_heads(self.v(encoded), self.head_dim)
        return x + self.o(merge_heads(F.scaled_dot_product_attention(q, k, v, scale=1.0)))


class Resampler(nn.Module):
    """A fixed number of learned queries draw what they need from image features and from each other."""

    def __init__(self, hidden_size: int, num_heads: int, num_queries: int) -> None:
        super().__init__()
        self.head_dim = hidden_size // num_heads
        self.queries = nn.Parameter(torch.randn(num_queries, hidden_size))
        self.norm_image = nn.LayerNorm(hidden_size)
        self.norm_queries = nn.LayerNorm(hidden_size)
        self.to_q = nn.Linear(hidden_size, hidden_size, bias=False)
        self.to_kv = nn.Linear(hidden_size, 2 * hidden_size, bias=False)
        self.to_out = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        queries = self.norm_queries(self.queries).expand(image.shape[0], -1, -1)
        q = split_heads(self.to_q(queries), self.head_dim)
        kv = self.to_kv(torch.cat((self.norm_image(image), queries), dim=1))
        k, v = (split_heads(part, self.head_dim) for part in kv.chunk(2, dim=-1))
        out = F.scaled_dot_product_attention(q, k, v)
        return queries + self.to_out(merge_heads(out))


class AttentionPooling(nn.Module):
    """One learned probe attends over all patches, which pools an image into a vector."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.probe = nn.Parameter(torch.randn(hidden_size))
        self.kv = nn.Linear(hidden_size, 2 * hidden_size, bias=False)
        self.out = nn.Linear(hidden_size, hidden_size)
        self.norm = nn.LayerNorm(hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        k, v = self.kv(x).unflatten(-1, (2, self.num_heads, -1)).unbind(dim=2)
        probe = self.probe.view(self.num_heads, -1)
        scores = torch.einsum("hd,bshd->bhs", probe, k) * probe.shape[-1] ** -0.5
        pooled = torch.einsum("bhs,bshd->bhd", scores.softmax(dim=-1), v)
        return self.norm(self.out(pooled.flatten(1)))
