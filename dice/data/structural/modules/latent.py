"""Multi-head latent attention: keys and values come from one small vector per token, positions from a shared key."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F

from dice.data.structural.modules.attention import causal_mask, merge_heads, split_heads
from dice.data.structural.modules.norms import RMSNorm
from dice.data.structural.modules.rotary import rotary_angles, rotate_adjacent


class LatentAttention(nn.Module):
    """Multi-head latent attention: queries, keys and values through low ranks, rotary positions on a part of their own.

    Heads have `nope_dim` dimensions without positions and `rope_dim` with; the rotated key is one for all heads.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        q_rank: int,
        kv_rank: int,
        nope_dim: int,
        rope_dim: int,
        v_dim: int,
    ) -> None:
        super().__init__()
        self.head_sizes = [nope_dim, rope_dim]
        self.latent_sizes = [kv_rank, rope_dim]
        self.value_sizes = [nope_dim, v_dim]
        self.q_a_proj = nn.Linear(hidden_size, q_rank, bias=False)
        self.q_a_layernorm = RMSNorm(q_rank)
        self.q_b_proj = nn.Linear(q_rank, num_heads * (nope_dim + rope_dim), bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(hidden_size, kv_rank + rope_dim, bias=False)
        self.kv_a_layernorm = RMSNorm(kv_rank)
        self.kv_b_proj = nn.Linear(kv_rank, num_heads * (nope_dim + v_dim), bias=False)
        self.o_proj = nn.Linear(num_heads * v_dim, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        q = split_heads(self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))), sum(self.head_sizes))
        q_nope, q_rope = q.split(self.head_sizes, dim=-1)
        latent, k_rope = self.kv_a_proj_with_mqa(x).split(self.latent_sizes, dim=-1)
        kv = split_heads(self.kv_b_proj(self.kv_a_layernorm(latent)), sum(self.value_sizes))
        k_nope, v = kv.split(self.value_sizes, dim=-1)

        angles = rotary_angles(torch.arange(length, device=x.device), self.head_sizes[1])
        q_rope, k_rope = rotate_adjacent(q_rope, angles), rotate_adjacent(k_rope, angles)[:, None]
        scores = q_nope @ k_nope.mT + q_rope @ k_rope.mT
        scores = scores * sum(self.head_sizes) ** -0.5
        weights = scores.masked_fill(~causal_mask(length, x.device), float("-inf")).softmax(dim=-1)
        return self.o_proj(merge_heads(weights @ v))


class LatentAttentionLite(nn.Module):
    """Multi-head latent attention whose queries come straight from the input; keys are put together for fused use."""

    def __init__(
        self, hidden_size: int, num_heads: int, kv_rank: int, nope_dim: int, rope_dim: int, v_dim: int
    ) -> None:
        super().__init__()
        self.num_heads, self.nope_dim, self.rope_dim, self.v_dim = num_heads, nope_dim, rope_dim, v_dim
        self.q_proj = nn.Linear(hidden_size, num_heads * (nope_dim + rope_dim), bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(hidden_size, kv_rank + rope_dim, bias=False)
        self.kv_a_layernorm = RMSNorm(kv_rank)
        self.kv_b_proj = nn.Linear(kv_rank, num_heads * (nope_dim + v_dim), bias=False)
        self.o_proj = nn.Linear(num_heads * v_dim, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = split_heads(self.q_proj(x), self.nope_dim + self.rope_dim)
        latent, k_rope = self.kv_a_proj_with_mqa(x).split([self.kv_a_layernorm.weight.numel(), self.rope_dim], dim=-1)
        k_nope, v = split_heads(self.kv_b_proj(self.kv_a_layernorm(latent)), self.nope_dim + self.v_dim).split(
            [self.nope_dim, self.v_dim], dim=-1
        )
        angles = rotary_angles(torch.arange(x.shape[1], device=x.device), self.rope_dim)
        q = torch.cat((q[..., : self.nope_dim], rotate_adjacent(q[..., self.nope_dim :], angles)), dim=-1)
        k_rope = rotate_adjacent(k_rope, angles)[:, None].expand(-1, self.num_heads, -1, -1)
        k = torch.cat((k_nope, k_rope), dim=-1)
        return self.o_proj(merge_heads(F.scaled_dot_product_attention(q, k, v, is_causal=True)))


class LatentDecode(nn.Module):
    """One decoding step of latent attention over a cache of latents, the up-projections absorbed into query and output.

    `latents` (B, S, kv_rank) and `rope_keys` (B, S, rope_dim) are the cache; `x` (B, hidden) is the new token, whose
    own entry is in the cache already.
    """

    def __init__(
        self, hidden_size: int, num_heads: int, kv_rank: int, nope_dim: int, rope_dim: int, v_dim: int
    ) -> None:
        super().__init__()
        self.sizes = [nope_dim, rope_dim]
        self.num_heads = num_heads
        self.q_proj = nn.Linear(hidden_size, num_heads * (nope_dim + rope_dim), bias=False)
        self.key_up = nn.Parameter(torch.randn(num_heads, nope_dim, kv_rank) / nope_dim**0.5)
        self.value_up = nn.Parameter(torch.randn(num_heads, kv_rank, v_dim) / kv_rank**0.5)
        self.o_proj = nn.Linear(num_heads * v_dim, hidden_size, bias=False)

    def forward(self, x: torch.Tensor, latents: torch.Tensor, rope_keys: torch.Tensor) -> torch.Tensor:
        q_nope, q_rope = self.q_proj(x).unflatten(-1, (self.num_heads, -1)).split(self.sizes, dim=-1)
        position = torch.tensor([latents.shape[1] - 1], device=x.device)
        q_rope = rotate_adjacent(q_rope, rotary_angles(position, self.sizes[1]))
        q_latent = torch.einsum("bhd,hdr->bhr", q_nope, self.key_up)
        scores = torch.einsum("bhr,bsr->bhs", q_latent, latents) + torch.einsum("bhd,bsd->bhs", q_rope, rope_keys)
        weights = torch.softmax(scores * sum(self.sizes) ** -0.5, dim=-1)
        context = torch.einsum("bhs,bsr->bhr", weights, latents)
        return self.o_proj(torch.einsum("bhr,hrd->bhd", context, self.value_up).flatten(1))


class LatentCompression(nn.Module):
    """What latent attention writes to its cache: the normalised latent and the rotated shared key, side by side."""

    def __init__(self, hidden_size: int, kv_rank: int, rope_dim: int) -> None:
        super().__init__()
        self.sizes = [kv_rank, rope_dim]
        self.kv_a_proj_with_mqa = nn.Linear(hidden_size, kv_rank + rope_dim, bias=False)
        self.kv_a_layernorm = RMSNorm(kv_rank)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        latent, k_rope = self.kv_a_proj_with_mqa(x).split(self.sizes, dim=-1)
        angles = rotary_angles(torch.arange(x.shape[1], device=x.device), self.sizes[1])
        return torch.cat((self.kv_a_layernorm(latent), rotate_adjacent(k_rope, angles)), dim=-1)


class LightningIndexer(nn.Module):
    """Scores for sparse attention: how much each query wants each earlier token, by rectified products of heads."""

    def __init__(self, hidden_size: int, index_heads: int, index_dim: int) -> None:
        super().__init__()
        self.index_dim = index_dim
        self.scale = (index_heads * index_dim) ** -0.5
        self.wq = nn.Linear(hidden_size, index_heads * index_dim, bias=False)
        self.wk = nn.Linear(hidden_size, index_dim, bias=False)
        self.k_norm = nn.LayerNorm(index_dim)
        self.weights_proj = nn.Linear(hidden_size, index_heads, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = split_heads(self.wq(x), self.index_dim)
        k = self.k_norm(self.wk(x))[:, None]
        weights = self.weights_proj(x).transpose(1, 2)[..., None] * self.scale
        scores = (torch.relu(q @ k.mT) * weights).sum(dim=1)
        return scores.masked_fill(~causal_mask(x.shape[1], x.device), 0.0)
