"""Whole layers of mixtures of experts, diffusion language models, encoders and recurrent models."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F

from dice.data.structural.modules.attention import ClippedAttention, GroupedQueryAttention
from dice.data.structural.modules.encoders import (
    AlternatingRotaryEncoder,
    CrossAttention,
    EncoderAttention,
    PaddedAttention,
    RelativeCrossAttention,
)
from dice.data.structural.modules.experts import FineGrainedMixture, SparseMixture
from dice.data.structural.modules.latent import LatentAttentionLite
from dice.data.structural.modules.linear import DeltaLayer, WeightedKeyValue
from dice.data.structural.modules.masks import (
    BidirectionalRotaryAttention,
    BlockDiffusionAttention,
    RelativeBiasAttention,
    SinkAttention,
)
from dice.data.structural.modules.mlp import ChannelMix, ClampedSwiGLU, PackedGeGLU, QuickGELUMLP, SwiGLU
from dice.data.structural.modules.norms import BiasFreeLayerNorm, RMSNorm
from dice.data.structural.modules.statespace import DualMixer, GatedShortConv, RealGatedRecurrence, SelectiveMixer


class SparseLayer(nn.Module):
    """Decoder layer of grouped-query attention and a sparse mixture of experts."""

    def __init__(
        self,
        hidden_size: int,
        expert_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        num_experts: int,
        top_k: int,
    ) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(hidden_size)
        self.self_attn = GroupedQueryAttention(hidden_size, num_heads, num_kv_heads, head_dim, theta=1000000.0)
        self.post_attention_layernorm = RMSNorm(hidden_size)
        self.block_sparse_moe = SparseMixture(hidden_size, expert_size, num_experts, top_k)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        tokens = self.post_attention_layernorm(x).flatten(0, 1)
        return x + self.block_sparse_moe(tokens).view_as(x)


class LatentMixtureLayer(nn.Module):
    """Decoder layer of latent attention and many small experts."""

    def __init__(
        self,
        hidden_size: int,
        expert_size: int,
        num_heads: int,
        kv_rank: int,
        nope_dim: int,
        rope_dim: int,
        v_dim: int,
        num_experts: int,
        top_k: int,
        num_groups: int,
        top_groups: int,
    ) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(hidden_size)
        self.self_attn = LatentAttentionLite(hidden_size, num_heads, kv_rank, nope_dim, rope_dim, v_dim)
        self.post_attention_layernorm = RMSNorm(hidden_size)
        self.mlp = FineGrainedMixture(hidden_size, expert_size, num_experts, top_k, num_groups, top_groups)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        tokens = self.post_attention_layernorm(x).flatten(0, 1)
        return x + self.mlp(tokens).view_as(x)


class SinkLayer(nn.Module):
    """Decoder layer of attention with sinks and one clamped, gated expert."""

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
        self.input_layernorm = RMSNorm(hidden_size, eps=1e-5)
        self.self_attn = SinkAttention(hidden_size, num_heads, num_kv_heads, head_dim, window)
        self.post_attention_layernorm = RMSNorm(hidden_size, eps=1e-5)
        self.mlp = ClampedSwiGLU(hidden_size, intermediate_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        residual = x + self.self_attn(self.input_layernorm(x))
        return residual + self.mlp(self.post_attention_layernorm(residual))


class ClippedLayer(nn.Module):
    """Decoder layer with clipped attention, bias-free layer norms and one gated expert."""

    def __init__(self, hidden_size: int, intermediate_size: int, num_heads: int, num_kv_heads: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = BiasFreeLayerNorm(hidden_size), BiasFreeLayerNorm(hidden_size)
        self.attn = ClippedAttention(hidden_size, num_heads, num_kv_heads)
        self.w1 = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.v1 = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.w2 = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm_1(x))
        normed = self.norm_2(x)
        return x + self.w2(F.silu(self.w1(normed)) * self.v1(normed))


class MaskedDiffusionLayer(nn.Module):
    """Layer of a masked-diffusion language model: bidirectional attention, gated feed-forward layer."""

    def __init__(self, hidden_size: int, intermediate_size: int, num_heads: int) -> None:
        super().__init__()
        self.attn_norm = RMSNorm(hidden_size, eps=1e-5)
        self.attention = BidirectionalRotaryAttention(hidden_size, num_heads)
        self.ff_norm = RMSNorm(hidden_size, eps=1e-5)
        self.ff_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.ff_out = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attn_norm(x))
        normed = self.ff_norm(x)
        return x + self.ff_out(F.silu(self.ff_proj(normed)) * self.up_proj(normed))


class BlockDiffusionLayer(nn.Module):
    """Layer of a block-diffusion language model: block-causal attention, gated feed-forward layer."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        block_size: int,
    ) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(hidden_size, eps=1e-6)
        self.self_attn = BlockDiffusionAttention(hidden_size, num_heads, num_kv_heads, head_dim, block_size)
        self.post_attention_layernorm = nn.RMSNorm(hidden_size, eps=1e-6)
        self.mlp = SwiGLU(hidden_size, intermediate_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x + self.self_attn(self.input_layernorm(x))
        return h + self.mlp(self.post_attention_layernorm(h))


class PostNormEncoderLayer(nn.Module):
    """Post-normalised encoder layer over padded sequences, with exact GELU."""

    def __init__(self, hidden_size: int, intermediate_size: int, num_heads: int) -> None:
        super().__init__()
        self.attention = PaddedAttention(hidden_size, num_heads)
        self.intermediate = nn.Linear(hidden_size, intermediate_size)
        self.output = nn.Linear(intermediate_size, hidden_size)
        self.norm = nn.LayerNorm(hidden_size, eps=1e-12)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        x = self.attention(x, lengths)
        return self.norm(x + self.output(F.gelu(self.intermediate(x))))


class VisionLayer(nn.Module):
    """Pre-normalised encoder layer of a vision transformer."""

    def __init__(self, hidden_size: int, intermediate_size: int, num_heads: int) -> None:
        super().__init__()
        self.layernorm_before = nn.LayerNorm(hidden_size, eps=1e-12)
        self.attention = EncoderAttention(hidden_size, num_heads)
        self.layernorm_after = nn.LayerNorm(hidden_size, eps=1e-12)
        self.fc1 = nn.Linear(hidden_size, intermediate_size)
        self.fc2 = nn.Linear(intermediate_size, hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.layernorm_before(x))
        return x + self.fc2(F.gelu(self.fc1(self.layernorm_after(x))))


class ScaledVisionLayer(nn.Module):
    """Pre-normalised encoder layer of a vision transformer, each branch scaled by a learned vector."""

    def __init__(self, hidden_size: int, intermediate_size: int, num_heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(hidden_size, eps=1e-6)
        self.attn = EncoderAttention(hidden_size, num_heads)
        self.norm2 = nn.LayerNorm(hidden_size, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(hidden_size, intermediate_size), nn.GELU(), nn.Linear(intermediate_size, hidden_size)
        )
        self.scale1 = nn.Parameter(torch.ones(hidden_size))
        self.scale2 = nn.Parameter(torch.ones(hidden_size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.scale1 * self.attn(self.norm1(x))
        return x + self.scale2 * self.mlp(self.norm2(x))


class CausalTextLayer(nn.Module):
    """Layer of a text encoder with causal attention and the quick form of GELU."""

    def __init__(self, hidden_size: int, intermediate_size: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.layer_norm1 = nn.LayerNorm(hidden_size)
        self.in_proj = nn.Linear(hidden_size, 3 * hidden_size)
        self.out_proj = nn.Linear(hidden_size, hidden_size)
        self.layer_norm2 = nn.LayerNorm(hidden_size)
        self.mlp = QuickGELUMLP(hidden_size, intermediate_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.in_proj(self.layer_norm1(x)).unflatten(-1, (3, self.num_heads, -1)).transpose(1, 3).unbind(2)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out_proj(out.transpose(1, 2).flatten(2))
        return x + self.mlp(self.layer_norm2(x))


class SpeechDecoderLayer(nn.Module):
    """Decoder layer with causal self-attention, cross-attention to encoded audio and exact GELU."""

    def __init__(self, hidden_size: int, intermediate_size: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.self_norm = nn.LayerNorm(hidden_size)
        self.self_qkv = nn.Linear(hidden_size, 3 * hidden_size)
        self.self_out = nn.Linear(hidden_size, hidden_size)
        self.cross_norm = nn.LayerNorm(hidden_size)
        self.cross = CrossAttention(hidden_size, num_heads)
        self.final_norm = nn.LayerNorm(hidden_size)
        self.fc1 = nn.Linear(hidden_size, intermediate_size)
        self.fc2 = nn.Linear(intermediate_size, hidden_size)

    def forward(self, x: torch.Tensor, audio: torch.Tensor) -> torch.Tensor:
        q, k, v = self.self_qkv(self.self_norm(x)).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.self_out(out.transpose(1, 2).flatten(2))
        x = x + self.cross(self.cross_norm(x), audio)
        return x + self.fc2(F.gelu(self.fc1(self.final_norm(x))))


class RelativeEncoderLayer(nn.Module):
    """Encoder layer with relative position biases and gated tanh GELU, RMS norms before both."""

    def __init__(self, hidden_size: int, intermediate_size: int, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(hidden_size), RMSNorm(hidden_size)
        self.attention = RelativeBiasAttention(hidden_size, num_heads, head_dim)
        self.wi_0 = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.wi_1 = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.wo = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        normed = self.norm2(x)
        return x + self.wo(F.gelu(self.wi_0(normed), approximate="tanh") * self.wi_1(normed))


class CrossMLPLayer(nn.Module):
    """The second part of an encoder-decoder layer: cross-attention, then a feed-forward layer with ReLU."""

    def __init__(self, hidden_size: int, intermediate_size: int, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.cross = RelativeCrossAttention(hidden_size, num_heads, head_dim)
        self.norm = RMSNorm(hidden_size)
        self.wi = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.wo = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: torch.Tensor, encoded: torch.Tensor) -> torch.Tensor:
        x = self.cross(x, encoded)
        return x + self.wo(torch.relu(self.wi(self.norm(x))))


class LocalEncoderLayer(nn.Module):
    """Encoder layer with local rotary attention, gated GELU and norms without bias."""

    def __init__(self, hidden_size: int, intermediate_size: int, num_heads: int, window: int) -> None:
        super().__init__()
        self.attn_norm = nn.LayerNorm(hidden_size, bias=False)
        self.attn = AlternatingRotaryEncoder(hidden_size, num_heads, window)
        self.mlp_norm = nn.LayerNorm(hidden_size, bias=False)
        self.mlp = PackedGeGLU(hidden_size, intermediate_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.attn_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class AdaptiveLayer(nn.Module):
    """Layer of a diffusion transformer: a condition scales, shifts and gates both branches."""

    def __init__(self, hidden_size: int, intermediate_size: int, num_heads: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden_size, elementwise_affine=False, eps=1e-6)
        self.attn = EncoderAttention(hidden_size, num_heads)
        self.fc1 = nn.Linear(hidden_size, intermediate_size)
        self.fc2 = nn.Linear(intermediate_size, hidden_size)
        self.modulation = nn.Linear(hidden_size, 6 * hidden_size)

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        parts = self.modulation(F.silu(condition)).unsqueeze(1).chunk(6, dim=-1)
        shift1, scale1, gate1, shift2, scale2, gate2 = parts
        x = x + gate1 * self.attn(self.norm(x) * (1 + scale1) + shift1)
        hidden = self.norm(x) * (1 + scale2) + shift2
        return x + gate2 * self.fc2(F.gelu(self.fc1(hidden), approximate="tanh"))


class SelectiveLayer(nn.Module):
    """Layer of a selective state-space model: norm, mixer, residual."""

    def __init__(self, hidden_size: int, intermediate_size: int, state_size: int, step_rank: int) -> None:
        super().__init__()
        self.norm = RMSNorm(hidden_size, eps=1e-5)
        self.mixer = SelectiveMixer(hidden_size, intermediate_size, state_size, step_rank)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mixer(self.norm(x))


class HybridLayer(nn.Module):
    """Two layers of a hybrid: a state-space dual mixer, then a feed-forward layer with squared ReLU."""

    def __init__(
        self, hidden_size: int, intermediate_size: int, num_heads: int, state_size: int, mlp_size: int
    ) -> None:
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(hidden_size, eps=1e-5), RMSNorm(hidden_size, eps=1e-5)
        self.mixer = DualMixer(hidden_size, intermediate_size, num_heads, state_size)
        self.up_proj = nn.Linear(hidden_size, mlp_size, bias=False)
        self.down_proj = nn.Linear(mlp_size, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.mixer(self.norm1(x))
        return x + self.down_proj(F.relu(self.up_proj(self.norm2(x))).square())


class TimeMixLayer(nn.Module):
    """Layer of a recurrent model: time mixing by exponential averages, then channel mixing."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(hidden_size), nn.LayerNorm(hidden_size)
        self.mix = nn.Parameter(torch.rand(3, hidden_size))
        self.key = nn.Linear(hidden_size, hidden_size, bias=False)
        self.value = nn.Linear(hidden_size, hidden_size, bias=False)
        self.receptance = nn.Linear(hidden_size, hidden_size, bias=False)
        self.output = nn.Linear(hidden_size, hidden_size, bias=False)
        self.average = WeightedKeyValue(hidden_size)
        self.ffn = ChannelMix(hidden_size, intermediate_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.ln1(x)
        previous = F.pad(normed, (0, 0, 1, -1))
        k, v, r = (previous + (normed - previous) * mix for mix in self.mix)
        average = self.average(self.key(k), self.value(v))
        x = x + self.output(torch.sigmoid(self.receptance(r)) * average)
        return x + self.ffn(self.ln2(x))


class GatedRecurrentLayer(nn.Module):
    """Recurrent layer of a hybrid: a convolved, linearly recurrent branch times a GELU branch, with residual."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.norm = RMSNorm(hidden_size)
        self.linear_x = nn.Linear(hidden_size, hidden_size)
        self.linear_y = nn.Linear(hidden_size, hidden_size)
        self.conv = nn.Conv1d(hidden_size, hidden_size, 4, groups=hidden_size, padding=3)
        self.recurrence = RealGatedRecurrence(hidden_size, num_heads)
        self.linear_out = nn.Linear(hidden_size, hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm(x)
        branch = self.conv(self.linear_x(normed).mT)[..., : x.shape[1]].mT
        gate = F.gelu(self.linear_y(normed), approximate="tanh")
        return x + self.linear_out(self.recurrence(branch) * gate)


class ShortConvLayer(nn.Module):
    """Layer of a hybrid on short convolutions: gated convolution, then a gated feed-forward layer."""

    def __init__(self, hidden_size: int, intermediate_size: int, kernel_size: int) -> None:
        super().__init__()
        self.operator_norm = RMSNorm(hidden_size, eps=1e-5)
        self.conv = GatedShortConv(hidden_size, kernel_size)
        self.ffn_norm = RMSNorm(hidden_size, eps=1e-5)
        self.feed_forward = SwiGLU(hidden_size, intermediate_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.conv(self.operator_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class DeltaNetLayer(nn.Module):
    """Layer of a linear-attention model with the delta rule and a gated feed-forward layer."""

    def __init__(self, hidden_size: int, intermediate_size: int, num_heads: int) -> None:
        super().__init__()
        self.attn_norm = RMSNorm(hidden_size)
        self.attn = DeltaLayer(hidden_size, num_heads)
        self.mlp_norm = RMSNorm(hidden_size)
        self.mlp = SwiGLU(hidden_size, intermediate_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.attn_norm(x))
        return x + self.mlp(self.mlp_norm(x))
