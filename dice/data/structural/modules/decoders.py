"""Whole decoder layers: how attention, feed-forward layer, norms and residuals are put together in each family."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F

from dice.data.structural.modules.attention import (
    AdjacentRotaryAttention,
    BiasedQueryKeyValueAttention,
    FusedCausalAttention,
    GroupedQueryAttention,
    MultiQueryAttention,
    PartialRotaryAttention,
    QueryKeyNormAttention,
    RotaryAttention,
    ScaledRotaryAttention,
    WideQueryKeyNormAttention,
    causal_mask,
    masked_attention,
    merge_heads,
    split_heads,
)
from dice.data.structural.modules.masks import (
    AlibiAttention,
    BiasedWindowAttention,
    ClippedAlibiAttention,
    NormedWindowAttention,
    SlidingWindowAttention,
    SoftCappedAttention,
)
from dice.data.structural.modules.mlp import GELUMLP, GeGLU, PackedSwiGLU, SquaredReLUMLP, SwiGLU, TanhGELUMLP
from dice.data.structural.modules.norms import (
    BiasFreeLayerNorm,
    PlainLayerNorm,
    RMSNorm,
    UnitOffsetLayerNorm,
    UnitOffsetRMSNorm,
)
from dice.data.structural.modules.rotary import rotary_angles, rotate


class PreNormLayer(nn.Module):
    """Decoder layer: RMS norms before grouped-query attention and before a gated feed-forward layer."""

    def __init__(
        self, hidden_size: int, intermediate_size: int, num_heads: int, num_kv_heads: int, head_dim: int
    ) -> None:
        super().__init__()
        self.self_attn = GroupedQueryAttention(hidden_size, num_heads, num_kv_heads, head_dim)
        self.mlp = SwiGLU(hidden_size, intermediate_size)
        self.input_layernorm = RMSNorm(hidden_size)
        self.post_attention_layernorm = RMSNorm(hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class WindowLayer(nn.Module):
    """Decoder layer with sliding-window attention; the residual stream and its norm are kept apart until the end."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        window: int,
    ) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(hidden_size, eps=1e-5)
        self.attention = SlidingWindowAttention(hidden_size, num_heads, num_kv_heads, head_dim, window)
        self.ffn_norm = RMSNorm(hidden_size, eps=1e-5)
        self.w1 = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.w2 = nn.Linear(intermediate_size, hidden_size, bias=False)
        self.w3 = nn.Linear(hidden_size, intermediate_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x + self.attention(self.attention_norm(x))
        normed = self.ffn_norm(h)
        return h + self.w2(F.silu(self.w1(normed)) * self.w3(normed))


class FullRotaryLayer(nn.Module):
    """Decoder layer of multi-head attention with rotary positions and norms without parameters."""

    def __init__(self, hidden_size: int, intermediate_size: int, num_heads: int) -> None:
        super().__init__()
        self.norm = PlainLayerNorm(hidden_size)
        self.attention = RotaryAttention(hidden_size, num_heads)
        self.ff_proj = nn.Linear(hidden_size, 2 * intermediate_size, bias=False)
        self.ff_out = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm(x))
        values, gate = self.ff_proj(self.norm(x)).chunk(2, dim=-1)
        return x + self.ff_out(F.silu(gate) * values)


class BiasedAttentionLayer(nn.Module):
    """Decoder layer whose attention has biases on queries, keys and values."""

    def __init__(
        self, hidden_size: int, intermediate_size: int, num_heads: int, num_kv_heads: int, head_dim: int
    ) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(hidden_size, eps=1e-6)
        self.self_attn = BiasedQueryKeyValueAttention(hidden_size, num_heads, num_kv_heads, head_dim)
        self.post_attention_layernorm = nn.RMSNorm(hidden_size, eps=1e-6)
        self.mlp = SwiGLU(hidden_size, intermediate_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class QueryKeyNormLayer(nn.Module):
    """Decoder layer with normalised queries and keys and a packed gated feed-forward layer."""

    def __init__(
        self, hidden_size: int, intermediate_size: int, num_heads: int, num_kv_heads: int, head_dim: int
    ) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(hidden_size)
        self.self_attn = QueryKeyNormAttention(hidden_size, num_heads, num_kv_heads, head_dim)
        self.post_attention_layernorm = RMSNorm(hidden_size)
        self.mlp = PackedSwiGLU(hidden_size, intermediate_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        residual = x
        x = residual + self.self_attn(self.input_layernorm(residual))
        residual = x
        return residual + self.mlp(self.post_attention_layernorm(residual))


class PostNormLayer(nn.Module):
    """Decoder layer that normalises what attention and feed-forward layer give, and nothing that they take."""

    def __init__(self, hidden_size: int, intermediate_size: int, num_heads: int) -> None:
        super().__init__()
        self.self_attn = WideQueryKeyNormAttention(hidden_size, num_heads)
        self.mlp = SwiGLU(hidden_size, intermediate_size)
        self.post_attention_layernorm = RMSNorm(hidden_size)
        self.post_feedforward_layernorm = RMSNorm(hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.post_attention_layernorm(self.self_attn(x))
        return x + self.post_feedforward_layernorm(self.mlp(x))


class UnitOffsetLayer(nn.Module):
    """Decoder layer of multi-query attention and a gated GELU feed-forward layer, norms with unit offset."""

    def __init__(self, hidden_size: int, intermediate_size: int, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.sizes = [num_heads * head_dim, head_dim, head_dim]
        self.head_dim = head_dim
        self.input_layernorm = UnitOffsetRMSNorm(hidden_size)
        self.qkv_proj = nn.Linear(hidden_size, sum(self.sizes), bias=False)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=False)
        self.post_attention_layernorm = UnitOffsetRMSNorm(hidden_size)
        self.mlp = GeGLU(hidden_size, intermediate_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv_proj(self.input_layernorm(x)).split(self.sizes, dim=-1)
        q, k, v = (split_heads(part, self.head_dim) for part in parts)
        angles = rotary_angles(torch.arange(x.shape[1], device=x.device), self.head_dim)
        out = masked_attention(rotate(q, angles), rotate(k, angles), v, causal_mask(x.shape[1], x.device))
        x = x + self.o_proj(merge_heads(out))
        return x + self.mlp(self.post_attention_layernorm(x))


class SoftCappedLayer(nn.Module):
    """Decoder layer with soft-capped window attention, gated GELU and norms before and after both."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        window: int,
    ) -> None:
        super().__init__()
        self.self_attn = SoftCappedAttention(hidden_size, num_heads, num_kv_heads, head_dim, window)
        self.mlp = GeGLU(hidden_size, intermediate_size)
        self.input_layernorm = UnitOffsetRMSNorm(hidden_size)
        self.post_attention_layernorm = UnitOffsetRMSNorm(hidden_size)
        self.pre_feedforward_layernorm = UnitOffsetRMSNorm(hidden_size)
        self.post_feedforward_layernorm = UnitOffsetRMSNorm(hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x)))
        return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))


class LocalNormedLayer(nn.Module):
    """Local decoder layer: normalised queries and keys in a window, gated GELU, four norms."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        window: int,
    ) -> None:
        super().__init__()
        self.self_attn = NormedWindowAttention(hidden_size, num_heads, num_kv_heads, head_dim, window)
        self.mlp = GeGLU(hidden_size, intermediate_size)
        self.norms = nn.ModuleList(UnitOffsetRMSNorm(hidden_size) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before_attention, after_attention, before_mlp, after_mlp = self.norms
        x = x + after_attention(self.self_attn(before_attention(x)))
        return x + after_mlp(self.mlp(before_mlp(x)))


class PackedLayer(nn.Module):
    """Decoder layer with packed projections in attention and feed-forward layer."""

    def __init__(
        self, hidden_size: int, intermediate_size: int, num_heads: int, num_kv_heads: int, head_dim: int
    ) -> None:
        super().__init__()
        self.heads = [num_heads, num_kv_heads, num_kv_heads]
        self.head_dim = head_dim
        self.input_layernorm = RMSNorm(hidden_size, eps=1e-5)
        self.qkv_proj = nn.Linear(hidden_size, sum(self.heads) * head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=False)
        self.post_attention_layernorm = RMSNorm(hidden_size, eps=1e-5)
        self.mlp = PackedSwiGLU(hidden_size, intermediate_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = split_heads(self.qkv_proj(self.input_layernorm(x)), self.head_dim)
        q, k, v = heads.split(self.heads, dim=1)
        angles = rotary_angles(torch.arange(x.shape[1], device=x.device), self.head_dim)
        out = masked_attention(rotate(q, angles), rotate(k, angles), v, causal_mask(x.shape[1], x.device))
        x = x + self.o_proj(merge_heads(out))
        return x + self.mlp(self.post_attention_layernorm(x))


class LearnedPositionLayer(nn.Module):
    """Decoder layer of multi-head attention and a tanh-GELU feed-forward layer, with biases and layer norms."""

    def __init__(self, hidden_size: int, intermediate_size: int, num_heads: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(hidden_size)
        self.attn = FusedCausalAttention(hidden_size, num_heads)
        self.ln_2 = nn.LayerNorm(hidden_size)
        self.mlp = TanhGELUMLP(hidden_size, intermediate_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class ParallelTwoNormLayer(nn.Module):
    """Parallel decoder layer: attention and feed-forward layer take the same stream, each through a norm of its own."""

    def __init__(self, hidden_size: int, intermediate_size: int, num_heads: int) -> None:
        super().__init__()
        self.input_layernorm = nn.LayerNorm(hidden_size)
        self.post_attention_layernorm = nn.LayerNorm(hidden_size)
        self.attention = PartialRotaryAttention(hidden_size, num_heads)
        self.mlp = GELUMLP(hidden_size, intermediate_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.attention(self.input_layernorm(x)) + self.mlp(self.post_attention_layernorm(x))


class ParallelOneNormLayer(nn.Module):
    """Parallel decoder layer of multi-query attention and GELU under one norm, without biases in the products."""

    def __init__(self, hidden_size: int, intermediate_size: int, num_heads: int) -> None:
        super().__init__()
        self.input_layernorm = nn.LayerNorm(hidden_size)
        self.self_attention = MultiQueryAttention(hidden_size, num_heads)
        self.dense_h_to_4h = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.dense_4h_to_h = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.input_layernorm(x)
        return x + self.self_attention(normed) + self.dense_4h_to_h(F.gelu(self.dense_h_to_4h(normed)))


class ParallelGatedLayer(nn.Module):
    """Parallel decoder layer of adjacent-pair rotary attention and a gated feed-forward layer, norm without bias."""

    def __init__(self, hidden_size: int, intermediate_size: int, num_heads: int, num_kv_heads: int) -> None:
        super().__init__()
        self.input_layernorm = BiasFreeLayerNorm(hidden_size)
        self.self_attn = AdjacentRotaryAttention(hidden_size, num_heads, num_kv_heads)
        self.mlp = SwiGLU(hidden_size, intermediate_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.input_layernorm(x)
        return x + self.self_attn(normed) + self.mlp(normed)


class AlibiLayer(nn.Module):
    """Decoder layer whose positions are biases by distance, with tanh GELU and biases everywhere."""

    def __init__(self, hidden_size: int, intermediate_size: int, num_heads: int) -> None:
        super().__init__()
        self.input_layernorm = nn.LayerNorm(hidden_size)
        self.self_attention = AlibiAttention(hidden_size, num_heads)
        self.post_attention_layernorm = nn.LayerNorm(hidden_size)
        self.dense_h_to_4h = nn.Linear(hidden_size, intermediate_size)
        self.dense_4h_to_h = nn.Linear(intermediate_size, hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attention(self.input_layernorm(x))
        hidden = F.gelu(self.dense_h_to_4h(self.post_attention_layernorm(x)), approximate="tanh")
        return x + self.dense_4h_to_h(hidden)


class ClippedAlibiLayer(nn.Module):
    """Decoder layer without any bias: clipped projections, biases by distance, exact GELU."""

    def __init__(self, hidden_size: int, intermediate_size: int, num_heads: int) -> None:
        super().__init__()
        self.norm_1 = BiasFreeLayerNorm(hidden_size)
        self.attn = ClippedAlibiAttention(hidden_size, num_heads)
        self.norm_2 = BiasFreeLayerNorm(hidden_size)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm_1(x))
        return x + self.down_proj(F.gelu(self.up_proj(self.norm_2(x))))


class BiasedWindowLayer(nn.Module):
    """Decoder layer with biased window attention and a tanh-GELU feed-forward layer."""

    def __init__(
        self, hidden_size: int, intermediate_size: int, num_heads: int, num_kv_heads: int, window: int
    ) -> None:
        super().__init__()
        self.input_layernorm = nn.LayerNorm(hidden_size)
        self.self_attn = BiasedWindowAttention(hidden_size, num_heads, num_kv_heads, window)
        self.post_attention_layernorm = nn.LayerNorm(hidden_size)
        self.mlp = TanhGELUMLP(hidden_size, intermediate_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x + self.self_attn(self.input_layernorm(x))
        return h + self.mlp(self.post_attention_layernorm(h))


class MultipliedLayer(nn.Module):
    """Decoder layer with multipliers on attention scores and on both residual branches."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        residual_multiplier: float = 0.22,
    ) -> None:
        super().__init__()
        self.residual_multiplier = residual_multiplier
        self.input_layernorm = RMSNorm(hidden_size)
        self.self_attn = ScaledRotaryAttention(hidden_size, num_heads, num_kv_heads, head_dim)
        self.post_attention_layernorm = RMSNorm(hidden_size)
        self.mlp = SwiGLU(hidden_size, intermediate_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.add(x, self.self_attn(self.input_layernorm(x)), alpha=self.residual_multiplier)
        return torch.add(x, self.mlp(self.post_attention_layernorm(x)), alpha=self.residual_multiplier)


class SquaredReLULayer(nn.Module):
    """Decoder layer with squared ReLU and layer norms with unit offset."""

    def __init__(
        self, hidden_size: int, intermediate_size: int, num_heads: int, num_kv_heads: int, head_dim: int
    ) -> None:
        super().__init__()
        self.input_layernorm = UnitOffsetLayerNorm(hidden_size)
        self.self_attn = GroupedQueryAttention(hidden_size, num_heads, num_kv_heads, head_dim, theta=10000.0)
        self.post_attention_layernorm = UnitOffsetLayerNorm(hidden_size)
        self.mlp = SquaredReLUMLP(hidden_size, intermediate_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x + self.self_attn(self.input_layernorm(x))
        return h + self.mlp(self.post_attention_layernorm(h))
