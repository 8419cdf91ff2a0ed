"""Linear attention and its gated, decaying and delta-rule forms. Shapes: B batch, H heads, S positions, D, E widths."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F

from dice.data.structural.modules.attention import merge_heads, split_heads
from dice.data.structural.modules.norms import RMSNorm
from dice.data.structural.modules.rotary import rotary_angles, rotate_adjacent


class FeatureMapAttention(nn.Module):
    """Causal linear attention: positive features of queries and keys, running sums, a normaliser."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.head_dim = hidden_size // num_heads
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size, bias=False)
        self.out = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (split_heads(part, self.head_dim) for part in self.qkv(x).chunk(3, dim=-1))
        q, k = F.elu(q) + 1, F.elu(k) + 1
        products = (q @ k.mT).tril()
        out = (products @ v) / products.sum(dim=-1, keepdim=True).clamp(min=1e-6)
        return self.out(merge_heads(out))


class FeatureMapScan(nn.Module):
    """The core of causal linear attention by a running sum of key-value products in chunks."""

    def __init__(self, chunk_size: int) -> None:
        super().__init__()
        self.chunk_size = chunk_size

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (one.unflatten(2, (-1, self.chunk_size)) for one in (F.relu(q) + 0.1, F.relu(k) + 0.1, v))
        memory = torch.einsum("bhcsd,bhcse->bhcde", k, v).cumsum(dim=2)
        before = F.pad(memory, (0, 0, 0, 0, 1, -1))
        keys_before = F.pad(k.sum(dim=3).cumsum(dim=2), (0, 0, 1, -1))
        local = torch.tril(q @ k.mT)
        total = local.sum(dim=-1) + torch.einsum("bhcsd,bhcd->bhcs", q, keys_before)
        return ((local @ v + q @ before) / total[..., None]).flatten(2, 3)


def head_decays(num_heads: int, device: torch.device) -> torch.Tensor:
    """1 - 2^-5, 1 - 2^-6, ...: heads that forget ever more slowly."""
    return 1 - 2.0 ** (-5 - torch.arange(num_heads, device=device) * (7.0 / num_heads))


class ParallelRetention(nn.Module):
    """Retention as a product with a decaying mask, normalised by head, gated by SiLU."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.qkvg = nn.Linear(hidden_size, 4 * hidden_size, bias=False)
        self.out = nn.Linear(hidden_size, hidden_size, bias=False)
        self.norm = nn.RMSNorm(self.head_dim, elementwise_affine=False, eps=1e-6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v, gate = self.qkvg(x).chunk(4, dim=-1)
        q, k, v = (split_heads(part, self.head_dim) for part in (q, k, v))
        positions = torch.arange(x.shape[1], device=x.device)
        angles = rotary_angles(positions, self.head_dim)
        distance = (positions[:, None] - positions).clamp(min=0)
        decay = (head_decays(self.num_heads, x.device)[:, None, None] ** distance).tril()
        scores = rotate_adjacent(q, angles) @ rotate_adjacent(k, angles).mT * self.head_dim**-0.5
        out = self.norm((scores * decay) @ v)
        return self.out(F.silu(gate) * merge_heads(out))


class RecurrentRetention(nn.Module):
    """The core of retention as a recurrence: one decaying state (D, E) per head."""

    def __init__(self, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.scale = head_dim**-0.5

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        decay = head_decays(self.num_heads, q.device)[:, None, None]
        state, outputs = k.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1]), []
        for t in range(q.shape[2]):
            state = decay * state + k[:, :, t, :, None] * v[:, :, t, None]
            outputs.append((q[:, :, t, None] @ state)[:, :, 0] * self.scale)
        return torch.stack(outputs, dim=2)


class LightningAttention(nn.Module):
    """Linear attention in blocks with a decay per head: SiLU features, products within a block, a state between."""

    def __init__(self, num_heads: int, chunk_size: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.chunk_size = chunk_size

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k = F.silu(q), F.silu(k)
        slope = 2.0 ** (-8.0 / self.num_heads * torch.arange(1, self.num_heads + 1, device=q.device))
        place = torch.arange(self.chunk_size, device=q.device)
        within = torch.exp(-slope[:, None, None] * (place[:, None] - place).clamp(min=0)).tril()
        since = torch.exp(-slope[:, None] * (place + 1))[..., None]
        until = torch.exp(-slope[:, None] * (self.chunk_size - 1 - place))[..., None]
        whole = torch.exp(-slope * self.chunk_size)[:, None, None]
        state, outputs = k.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1]), []
        for q1, k1, v1 in zip(*(one.split(self.chunk_size, dim=2) for one in (q, k, v)), strict=True):
            outputs.append((q1 @ k1.mT * within) @ v1 + (q1 * since) @ state)
            state = whole * state + (k1 * until).mT @ v1
        return torch.cat(outputs, dim=2)


class GatedLinearAttention(nn.Module):
    """Linear attention whose state decays by a gate per key dimension and position, as a recurrence."""

    def __init__(self, temperature: float = 16.0) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        decay = torch.exp(F.logsigmoid(gate) / self.temperature)
        q = q * q.shape[-1] ** -0.5
        state = q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1])
        outputs = []
        for t in range(q.shape[2]):
            state = state * decay[:, :, t, :, None] + torch.einsum("bhd,bhe->bhde", k[:, :, t], v[:, :, t])
            outputs.append(torch.einsum("bhd,bhde->bhe", q[:, :, t], state))
        return torch.stack(outputs, dim=2)


class DeltaRule(nn.Module):
    """The delta rule: each key first takes away what the state holds for it, then writes its value."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
        k, beta = F.normalize(k, dim=-1), torch.sigmoid(beta)
        state = torch.zeros(*k.shape[:2], k.shape[-1], v.shape[-1], device=k.device)
        out = torch.empty_like(v)
        for t in range(k.shape[2]):
            key = k[:, :, t, :, None]
            held = (state * key).sum(dim=2)
            change = beta[:, :, t, None] * (v[:, :, t] - held)
            state = state + key * change[:, :, None]
            out[:, :, t] = self.scale * (q[:, :, t, :, None] * state).sum(dim=2)
        return out


class GatedDeltaRule(nn.Module):
    """The delta rule on a state that first decays by a gate per head, with learned rates; outputs are normalised."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.A_log = nn.Parameter(torch.log(torch.linspace(1, 16, num_heads)))
        self.dt_bias = nn.Parameter(torch.rand(num_heads) - 3)

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, a: torch.Tensor, b: torch.Tensor
    ) -> torch.Tensor:
        """q, k (B, S, H, D); v (B, S, H, E); a, b (B, S, H)"""
        q = F.normalize(q, dim=-1) * q.shape[-1] ** -0.5
        k = F.normalize(k, dim=-1)
        decay = torch.exp(-self.A_log.exp() * F.softplus(a + self.dt_bias))
        strength = b.sigmoid()
        state = q.new_zeros(*q.shape[::2], q.shape[-1], v.shape[-1])
        outputs = []
        for t in range(q.shape[1]):
            state = state * decay[:, t, :, None, None]
            held = torch.einsum("bhde,bhd->bhe", state, k[:, t])
            change = (v[:, t] - held) * strength[:, t, :, None]
            state = state + torch.einsum("bhd,bhe->bhde", k[:, t], change)
            outputs.append(torch.einsum("bhde,bhd->bhe", state, q[:, t]))
        return F.rms_norm(torch.stack(outputs, dim=1), v.shape[-1:], eps=1e-6)


class ChannelDeltaStep(nn.Module):
    """One decoding step of the delta rule with a decay per channel; the state is (B, H, D, E)."""

    def __init__(self, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.A_log = nn.Parameter(torch.rand(num_heads))
        self.dt_bias = nn.Parameter(torch.rand(num_heads, head_dim) - 2)

    def forward(
        self,
        state: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        gate: torch.Tensor,
        beta: torch.Tensor,
    ) -> torch.Tensor:
        q, k = (one / (one.norm(dim=-1, keepdim=True) + 1e-6) for one in (q, k))
        decay = torch.exp(-torch.exp(self.A_log)[:, None] * F.softplus(gate + self.dt_bias))
        state = state * decay[..., None]
        error = v - (state * k[..., None]).sum(dim=-2)
        state = state + k[..., None] * (beta.sigmoid() * error)[..., None, :]
        return (state * q[..., None]).sum(dim=-2)


class WeightedKeyValue(nn.Module):
    """The exponential average of values by keys with a decay per channel and a bonus for the current token, in a form
    that cannot overflow."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.time_decay = nn.Parameter(torch.linspace(-5.0, 1.0, hidden_size))
        self.time_first = nn.Parameter(torch.full((hidden_size,), 0.3))

    def forward(self, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        decay = -torch.exp(self.time_decay)
        top = bottom = torch.zeros_like(key[:, 0])
        largest = torch.full_like(key[:, 0], -1e38)
        outputs = []
        for k, v in zip(key.unbind(dim=1), value.unbind(dim=1), strict=True):
            now = torch.maximum(largest, self.time_first + k)
            old, new = torch.exp(largest - now), torch.exp(self.time_first + k - now)
            outputs.append((old * top + new * v) / (old * bottom + new))
            now = torch.maximum(largest + decay, k)
            old, new = torch.exp(largest + decay - now), torch.exp(k - now)
            top, bottom, largest = old * top + new * v, old * bottom + new, now
        return torch.stack(outputs, dim=1)


class MatrixValuedState(nn.Module):
    """Receptance reads a matrix state per head; decay follows from the input, the current token has a bonus."""

    def __init__(self, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.bonus = nn.Parameter(torch.randn(num_heads, head_dim, 1))

    def forward(self, r: torch.Tensor, k: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        decay = torch.exp(-torch.exp(w - 2.0))
        state = torch.zeros(*k.shape[:2], k.shape[-1], v.shape[-1], device=k.device)
        outputs = []
        for t in range(k.shape[2]):
            written = k[:, :, t, :, None] * v[:, :, t, None]
            outputs.append(torch.matmul(r[:, :, t, None], state + self.bonus * written))
            state = decay[:, :, t, :, None] * state + written
        return torch.cat(outputs, dim=2)


class GeneralisedDelta(nn.Module):
    """A state per head that decays by channel, takes away along one direction and writes along another."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.removal = nn.Parameter(torch.rand(hidden_size))
        self.rate = nn.Parameter(torch.randn(hidden_size))

    def forward(self, r: torch.Tensor, w: torch.Tensor, k: torch.Tensor, v: torch.Tensor, a: torch.Tensor):
        a = torch.sigmoid(self.rate + a)
        direction = F.normalize((k * self.removal).unflatten(-1, (self.num_heads, -1)), dim=-1)
        r, w, k, v, a = (one.unflatten(-1, (self.num_heads, -1)) for one in (r, w, k, v, a))
        decay = torch.exp(-0.606531 * torch.sigmoid(w))
        state = torch.zeros(*r.shape[::2], r.shape[-1], r.shape[-1], device=r.device)
        outputs = []
        for t in range(r.shape[1]):
            taken = (state @ direction[:, t, :, :, None]) * (direction * a)[:, t, :, None]
            state = state * decay[:, t, :, None] - taken + v[:, t, :, :, None] * k[:, t, :, None]
            outputs.append((state @ r[:, t, :, :, None]).flatten(1))
        return torch.stack(outputs, dim=1)


class ExponentialMemory(nn.Module):
    """Matrix memory with exponential input gates and sigmoid forget gates, in parallel form and stabilised."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.scale = head_dim**-0.5

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, i: torch.Tensor, f: torch.Tensor
    ) -> torch.Tensor:
        """q, k, v (B, H, S, D); i, f (B, H, S)"""
        forgotten = F.logsigmoid(f).cumsum(dim=-1)
        gates = forgotten[..., :, None] - forgotten[..., None, :] + i[..., None, :]
        future = torch.ones_like(gates[0, 0], dtype=torch.bool).triu(1)
        gates = gates.masked_fill(future, float("-inf"))
        largest = gates.amax(dim=-1, keepdim=True)
        weights = (q @ k.mT) * self.scale * torch.exp(gates - largest)
        normaliser = torch.maximum(weights.sum(dim=-1, keepdim=True).abs(), torch.exp(-largest))
        return (weights @ v) / (normaliser + 1e-6)


class DeltaLayer(nn.Module):
    """Layer with the delta rule: projections, short convolutions, unit keys, recurrence, normalised heads."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.head_dim = hidden_size // num_heads
        self.qkv_proj = nn.Linear(hidden_size, 3 * hidden_size, bias=False)
        self.b_proj = nn.Linear(hidden_size, num_heads, bias=False)
        self.conv = nn.Conv1d(3 * hidden_size, 3 * hidden_size, 4, groups=3 * hidden_size, padding=3, bias=False)
        self.o_norm = RMSNorm(self.head_dim)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.rule = DeltaRule()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        qkv = F.silu(self.conv(self.qkv_proj(x).mT)[..., : x.shape[1]]).mT
        q, k, v = (split_heads(part, self.head_dim) for part in qkv.chunk(3, dim=-1))
        out = self.rule(F.normalize(q, dim=-1), k, v, self.b_proj(x).transpose(1, 2))
        return self.o_proj(merge_heads(self.o_norm(out)))
