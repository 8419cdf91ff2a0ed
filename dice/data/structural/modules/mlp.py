"""Feed-forward layers, and their activations alone as inference engines fuse them."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F

from dice.data.structural.modules.norms import RMSNorm, UnitOffsetRMSNorm


class SwiGLU(nn.Module):
    """Gated feed-forward layer with SiLU."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class PackedSwiGLU(nn.Module):
    """Gated feed-forward layer with SiLU whose gate and values come from one projection."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(hidden_size, 2 * intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(up * F.silu(gate))


class GeGLU(nn.Module):
    """Gated feed-forward layer with the tanh form of GELU."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))


class PackedGeGLU(nn.Module):
    """Gated feed-forward layer with exact GELU, values and gate from one projection."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.Wi = nn.Linear(hidden_size, 2 * intermediate_size, bias=False)
        self.Wo = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values, gate = self.Wi(x).chunk(2, dim=-1)
        return self.Wo(F.gelu(values) * gate)


class ReGLU(nn.Module):
    """Gated feed-forward layer with ReLU."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.wi_0 = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.wi_1 = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.wo = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.wi_0(x).relu() * self.wi_1(x)
        return self.wo(hidden)


class SigmoidGLU(nn.Module):
    """The first gated linear unit: half of a projection gates the other half with a sigmoid."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.up = nn.Linear(hidden_size, 2 * intermediate_size)
        self.down = nn.Linear(intermediate_size, hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.glu(self.up(x), dim=-1))


class TanhGELUMLP(nn.Module):
    """Feed-forward layer with biases and the tanh form of GELU, written out."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.c_fc = nn.Linear(hidden_size, intermediate_size)
        self.c_proj = nn.Linear(intermediate_size, hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.c_fc(x)
        inner = 0.7978845608028654 * (hidden + 0.044715 * hidden.pow(3))
        return self.c_proj(0.5 * hidden * (1.0 + torch.tanh(inner)))


class GELUMLP(nn.Module):
    """Feed-forward layer with biases and exact GELU."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.dense_h_to_4h = nn.Linear(hidden_size, intermediate_size)
        self.dense_4h_to_h = nn.Linear(intermediate_size, hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dense_4h_to_h(F.gelu(self.dense_h_to_4h(x)))


class QuickGELUMLP(nn.Module):
    """Feed-forward layer with the sigmoid approximation of GELU."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(hidden_size, intermediate_size)
        self.fc2 = nn.Linear(intermediate_size, hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.fc1(x)
        return self.fc2(hidden * torch.sigmoid(1.702 * hidden))


class SquaredReLUMLP(nn.Module):
    """Feed-forward layer with the square of ReLU."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(torch.relu(self.up_proj(x)).square())


class ReLUMLP(nn.Module):
    """Pre-normalised feed-forward half of a layer with ReLU, added to the stream."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.final_layer_norm = nn.LayerNorm(hidden_size)
        self.fc1 = nn.Linear(hidden_size, intermediate_size)
        self.fc2 = nn.Linear(intermediate_size, hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.fc2(F.relu(self.fc1(self.final_layer_norm(x))))


class ClampedSwiGLU(nn.Module):
    """Gated feed-forward layer with clamped gate and values, a steeper sigmoid, and one added to the values."""

    def __init__(self, hidden_size: int, intermediate_size: int, limit: float = 1.5) -> None:
        super().__init__()
        self.limit = limit
        self.gate_up_proj = nn.Linear(hidden_size, 2 * intermediate_size)
        self.down_proj = nn.Linear(intermediate_size, hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate_up = self.gate_up_proj(x)
        gate = gate_up[..., ::2].clamp(max=self.limit)
        up = gate_up[..., 1::2].clamp(-self.limit, self.limit)
        return self.down_proj((up + 1) * gate * torch.sigmoid(1.702 * gate))


class ChannelMix(nn.Module):
    """Feed-forward layer of a recurrent model: each token mixes with the one before it, ReLU squared, a gate."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.mix_key = nn.Parameter(torch.rand(hidden_size))
        self.mix_receptance = nn.Parameter(torch.rand(hidden_size))
        self.key = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.receptance = nn.Linear(hidden_size, hidden_size, bias=False)
        self.value = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        previous = F.pad(x, (0, 0, 1, -1))
        k = self.key(torch.lerp(previous, x, self.mix_key))
        r = self.receptance(torch.lerp(previous, x, self.mix_receptance))
        return torch.sigmoid(r) * self.value(torch.relu(k) ** 2)


class TrainableXIELUMLP(nn.Module):
    """Feed-forward layer with a learned activation: quadratic above zero, exponential below."""

    def __init__(self, hidden_size: int, intermediate_size: int, beta: float = 0.5) -> None:
        super().__init__()
        self.beta = beta
        self.alpha = nn.Parameter(torch.tensor([0.8, 0.3]))
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.up_proj(x)
        rise, fall = F.softplus(self.alpha)
        negative = (torch.expm1(hidden.clamp(max=-1e-6)) - hidden) * (self.beta + fall)
        activated = torch.where(hidden > 0, rise * hidden * hidden, negative) + self.beta * hidden
        return self.down_proj(activated)


class PreNormSwiGLU(nn.Module):
    """The feed-forward half of a pre-normalised decoder layer."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.norm = RMSNorm(hidden_size)
        self.gate_up_proj = nn.Linear(hidden_size, 2 * intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up_proj(self.norm(x)).chunk(2, dim=-1)
        return x + self.down_proj(F.silu(gate) * up)


class SandwichedGeGLU(nn.Module):
    """The feed-forward half of a decoder layer that normalises before and after it."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.pre_norm = UnitOffsetRMSNorm(hidden_size)
        self.post_norm = UnitOffsetRMSNorm(hidden_size)
        self.mlp = GeGLU(hidden_size, intermediate_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.post_norm(self.mlp(self.pre_norm(x)))


class LowRankSwiGLU(nn.Module):
    """Gated feed-forward layer with low-rank adapters beside its three frozen projections."""

    def __init__(self, hidden_size: int, intermediate_size: int, rank: int, alpha: float = 32.0) -> None:
        super().__init__()
        self.gate_up = nn.Linear(hidden_size, 2 * intermediate_size, bias=False)
        self.down = nn.Linear(intermediate_size, hidden_size, bias=False)
        self.gate_up_a = nn.Linear(hidden_size, rank, bias=False)
        self.gate_up_b = nn.Linear(rank, 2 * intermediate_size, bias=False)
        self.down_a = nn.Linear(intermediate_size, rank, bias=False)
        self.down_b = nn.Linear(rank, hidden_size, bias=False)
        self.scale = alpha / rank

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = (self.gate_up(x) + self.scale * self.gate_up_b(self.gate_up_a(x))).chunk(2, dim=-1)
        hidden = F.silu(gate) * up
        return self.down(hidden) + self.scale * self.down_b(self.down_a(hidden))


class QuantizedLinear(nn.Module):
    """Linear layer with 8-bit integer weights, a scale for each group of input channels, and a bias."""

    def __init__(self, hidden_size: int, intermediate_size: int, group_size: int) -> None:
        super().__init__()
        self.group_size = group_size
        weight = torch.randint(-127, 128, (intermediate_size, hidden_size), dtype=torch.int8)
        self.register_buffer("weight", weight)
        groups = hidden_size // group_size
        self.scales = nn.Parameter((0.5 + torch.rand(intermediate_size, groups)) / (73 * hidden_size**0.5))
        self.bias = nn.Parameter(torch.randn(intermediate_size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grouped = self.weight.unflatten(1, (-1, self.group_size)).to(x.dtype)
        weight = (grouped * self.scales[:, :, None]).flatten(1)
        return F.linear(x, weight, self.bias)


class SiluAndMul(nn.Module):
    """The activation between the packed projections of a gated layer: SiLU of one half times the other."""

    def __init__(self, intermediate_size: int) -> None:
        super().__init__()
        self.intermediate_size = intermediate_size

    def forward(self, packed: torch.Tensor) -> torch.Tensor:
        return F.silu(packed[..., : self.intermediate_size]) * packed[..., self.intermediate_size :]


class GeluTanhAndMul(nn.Module):
    """The activation between packed projections with the tanh form of GELU."""

    def __init__(self) -> None:
        super().__init__()

    def forward(self, packed: torch.Tensor) -> torch.Tensor:
        gate, up = packed.chunk(2, dim=-1)
        return F.gelu(gate, approximate="tanh").mul(up)


class ClampedSwiGLUActivation(nn.Module):
    """The activation of clamped, interleaved gates and values alone."""

    def __init__(self, limit: float = 2.0, steepness: float = 1.702) -> None:
        super().__init__()
        self.limit = limit
        self.steepness = steepness

    def forward(self, packed: torch.Tensor) -> torch.Tensor:
        gate, up = packed.unflatten(-1, (-1, 2)).unbind(dim=-1)
        gate = torch.clamp(gate, max=self.limit)
        up = torch.clamp(up, min=-self.limit, max=self.limit)
        return (up + 1.0) * (gate * torch.sigmoid(self.steepness * gate))
