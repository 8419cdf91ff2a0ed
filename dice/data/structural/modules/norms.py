"""Normalisation, and the residual additions around it."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F


class RMSNorm(nn.Module):
    """Divide each row by its root mean square, then scale its elements."""

    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean_square = x.pow(2).mean(dim=-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(mean_square + self.eps))


class UnitOffsetRMSNorm(nn.Module):
    """RMS normalisation whose weight is stored as its difference from one."""

    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(hidden_size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x / torch.sqrt(x.square().mean(dim=-1, keepdim=True) + self.eps)
        return x * (1.0 + self.weight)


class BiasFreeLayerNorm(nn.Module):
    """Layer normalisation with a scale and no shift."""

    def __init__(self, hidden_size: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(dim=-1, keepdim=True)
        variance = centred.pow(2).mean(dim=-1, keepdim=True)
        return self.weight * centred * torch.rsqrt(variance + self.eps)


class PlainLayerNorm(nn.Module):
    """Layer normalisation without parameters."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (self.hidden_size,))


class UnitOffsetLayerNorm(nn.Module):
    """Layer normalisation whose scale is stored as its difference from one, with a shift."""

    def __init__(self, hidden_size: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(hidden_size))
        self.bias = nn.Parameter(torch.zeros(hidden_size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-1:], self.weight + 1, self.bias, self.eps)


class AddRMSNorm(nn.Module):
    """Add the output of a sublayer to the residual stream and normalise the sum for the next one."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.norm = RMSNorm(hidden_size)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self.norm(x + residual)


class AddLayerNorm(nn.Module):
    """Post-normalised residual: the sum of a sublayer and its input goes through a layer normalisation."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(hidden_size))
        self.norm = nn.LayerNorm(hidden_size, eps=1e-12)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self.norm(residual + (x + self.bias))


class ScaledAddRMSNorm(nn.Module):
    """Residual addition with a fixed multiplier on the sublayer, then RMS normalisation."""

    def __init__(self, hidden_size: int, residual_multiplier: float = 0.22) -> None:
        super().__init__()
        self.residual_multiplier = residual_multiplier
        self.norm = RMSNorm(hidden_size, eps=1e-5)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        stream = residual + self.residual_multiplier * x
        return stream + self.norm(stream)


class PostNormResidual(nn.Module):
    """Normalise what a sublayer gives, not what it takes, and add it to the stream."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.norm = RMSNorm(hidden_size)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return residual + self.norm(x)


class SandwichNorm(nn.Module):
    """Between two sublayers: normalise the output of the first, add it, and normalise the sum for the second."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.after = UnitOffsetRMSNorm(hidden_size)
        self.before = UnitOffsetRMSNorm(hidden_size)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        residual = residual + self.after(x)
        return self.before(residual)


class DeepNorm(nn.Module):
    """Post-normalised residual whose stream is scaled up, which keeps very deep stacks stable."""

    def __init__(self, hidden_size: int, num_layers: int) -> None:
        super().__init__()
        self.alpha = (2 * num_layers) ** 0.5
        self.norm = nn.LayerNorm(hidden_size)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self.norm(self.alpha * residual + x)


class ParallelNorms(nn.Module):
    """Two layer normalisations of one stream, as attention and MLP of a parallel block take them; side by side."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(hidden_size)
        self.mlp_norm = nn.LayerNorm(hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat((self.attention_norm(x), self.mlp_norm(x)), dim=-1)


class HeadRMSNorm(nn.Module):
    """Query-key normalisation: each head of packed queries and keys is RMS-normalised by itself."""

    def __init__(self, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads = [num_heads, num_kv_heads]
        self.head_dim = head_dim
        self.q_norm = RMSNorm(head_dim)
        self.k_norm = RMSNorm(head_dim)

    def forward(self, qk: torch.Tensor) -> torch.Tensor:
        q, k = qk.unflatten(-1, (-1, self.head_dim)).split(self.heads, dim=-2)
        return torch.cat((self.q_norm(q), self.k_norm(k)), dim=-2).flatten(-2)


class WideQKNorm(nn.Module):
    """Query-key normalisation over all heads at once, then a view by heads."""

    def __init__(self, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.sizes = [num_heads * head_dim, num_kv_heads * head_dim]
        self.head_dim = head_dim
        self.q_norm, self.k_norm = (RMSNorm(size) for size in self.sizes)

    def forward(self, qk: torch.Tensor) -> torch.Tensor:
        q, k = qk.split(self.sizes, dim=-1)
        packed = torch.cat((self.q_norm(q), self.k_norm(k)), dim=-1)
        return packed.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class GatedGroupRMSNorm(nn.Module):
    """Gate with SiLU, then RMS-normalise within groups of channels."""

    def __init__(self, intermediate_size: int, num_groups: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.num_groups = num_groups
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(intermediate_size))

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        grouped = (x * F.silu(gate)).unflatten(-1, (self.num_groups, -1))
        grouped = grouped * torch.rsqrt(grouped.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * grouped.flatten(-2)


class NormThenGate(nn.Module):
    """RMS-normalise each head of the recurrence's output, then gate it with SiLU."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.norm = RMSNorm(head_dim)

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return self.norm(x) * F.silu(gate)


class HeadGroupNorm(nn.Module):
    """Group normalisation of each token with a group per head, then a SiLU gate."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(num_heads, hidden_size, eps=64e-5)

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        normed = self.norm(x.flatten(0, 1)).view_as(x)
        return normed * F.silu(gate)


class UnitKeys(nn.Module):
    """SiLU, then queries and keys of length one per head; queries are scaled for the product."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.scale = head_dim**-0.5

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        q = F.normalize(F.silu(q), dim=-1) * self.scale
        k = F.normalize(F.silu(k), dim=-1)
        return torch.stack((q, k))


class AdaptiveLayerNorm(nn.Module):
    """Layer normalisation whose scale and shift follow from a conditioning vector."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden_size, elementwise_affine=False, eps=1e-6)
        self.modulation = nn.Linear(hidden_size, 2 * hidden_size)

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        shift, scale = self.modulation(F.silu(condition))[:, None].chunk(2, dim=-1)
        return self.norm(x) * (1 + scale) + shift


class LayerScaleResidual(nn.Module):
    """Residual addition with a learned scale per channel on the sublayer, then layer normalisation."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((hidden_size,), 0.1))
        self.norm = nn.LayerNorm(hidden_size, eps=1e-6)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self.norm(torch.addcmul(residual, x, self.scale))


class DynamicTanh(nn.Module):
    """A squashing function in the place of a normalisation."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.full((1,), 0.5))
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.bias = nn.Parameter(torch.zeros(hidden_size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.alpha * x) * self.weight + self.bias
