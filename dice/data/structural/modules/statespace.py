"""Short convolutions and state-space layers.

Shapes: B batch, S positions, I channels, N states, H heads, P their width.
"""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F

from dice.data.structural.modules.norms import GatedGroupRMSNorm


class CausalConv(nn.Module):
    """Causal depthwise convolution over a few positions, then SiLU; channels last."""

    def __init__(self, intermediate_size: int, kernel_size: int) -> None:
        super().__init__()
        self.conv1d = nn.Conv1d(
            intermediate_size, intermediate_size, kernel_size, groups=intermediate_size, padding=kernel_size - 1
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.conv1d(x.transpose(1, 2))[..., : x.shape[1]]
        return F.silu(out).transpose(1, 2)


class GatedShortConv(nn.Module):
    """Short-convolution layer: the input gates itself before and after a causal depthwise convolution."""

    def __init__(self, hidden_size: int, kernel_size: int) -> None:
        super().__init__()
        self.in_proj = nn.Linear(hidden_size, 3 * hidden_size, bias=False)
        self.conv = nn.Conv1d(hidden_size, hidden_size, kernel_size, groups=hidden_size, bias=False)
        self.pad = kernel_size - 1
        self.out_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before, after, values = self.in_proj(x).mT.chunk(3, dim=1)
        mixed = self.conv(F.pad(before * values, (self.pad, 0)))
        return self.out_proj((after * mixed).mT)


class ShiftedConv(nn.Module):
    """Causal depthwise convolution written as a weighted sum of shifted copies, with a residual."""

    def __init__(self, hidden_size: int, kernel_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(kernel_size, hidden_size) * kernel_size**-0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        taps, length = len(self.weight), x.shape[1]
        padded = F.pad(x, (0, 0, taps - 1, 0))
        return x + sum(padded[:, tap : tap + length] * self.weight[tap] for tap in range(taps))


class ConvStep(nn.Module):
    """One decoding step of a causal depthwise convolution: the state (B, I, taps) shifts and takes the new token."""

    def __init__(self, intermediate_size: int, kernel_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(intermediate_size, kernel_size) * kernel_size**-0.5)
        self.bias = nn.Parameter(torch.zeros(intermediate_size))

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        window = torch.cat((state[:, :, 1:], x[:, :, None]), dim=-1)
        return F.silu(torch.sum(window * self.weight, dim=-1) + self.bias)


class TokenShift(nn.Module):
    """Each token is mixed with the one before it in five learned ways, for the five inputs of time mixing."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.rand(5, 1, 1, hidden_size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        previous = torch.cat((torch.zeros_like(x[:, :1]), x[:, :-1]), dim=1)
        return x + (previous - x) * self.mix


class LongConv(nn.Module):
    """Gated convolution as long as the sequence, by Fourier transforms; its filter decays."""

    def __init__(self, hidden_size: int, seq_len: int) -> None:
        super().__init__()
        decay = torch.exp(-torch.linspace(0.5, 5.0, hidden_size)[:, None] * torch.arange(seq_len) / seq_len)
        self.filter = nn.Parameter(torch.randn(hidden_size, seq_len) * decay / seq_len**0.5)
        self.skip = nn.Parameter(torch.ones(hidden_size))

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """`x`, `gate` (B, hidden, S)"""
        length = x.shape[-1]
        spectrum = torch.fft.rfft(x, n=2 * length) * torch.fft.rfft(self.filter[:, :length], n=2 * length)
        mixed = torch.fft.irfft(spectrum, n=2 * length)[..., :length]
        return gate * (mixed + x * self.skip[:, None])


def selective_scan(
    x: torch.Tensor, step: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor
) -> torch.Tensor:
    """x, step (B, S, I); a (I, N); b, c (B, S, N) -> (B, S, I)"""
    state = torch.zeros(*x.shape[::2], a.shape[1], device=x.device)
    decay = torch.exp(step[..., None] * a)
    drive = (step * x)[..., None] * b[:, :, None]
    outputs = []
    for t in range(x.shape[1]):
        state = decay[:, t] * state + drive[:, t]
        outputs.append((state * c[:, t, None]).sum(dim=-1))
    return torch.stack(outputs, dim=1)


class SelectiveScan(nn.Module):
    """The recurrence of a selective state space: decay and drive of each state follow from the input."""

    def __init__(self, intermediate_size: int, state_size: int) -> None:
        super().__init__()
        self.A_log = nn.Parameter(torch.log(torch.arange(1.0, state_size + 1)).repeat(intermediate_size, 1))
        self.D = nn.Parameter(torch.ones(intermediate_size))

    def forward(self, x: torch.Tensor, step: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return selective_scan(x, F.softplus(step), -self.A_log.exp(), b, c) + self.D * x


class SelectiveMixer(nn.Module):
    """The whole mixer of a selective state-space model: projection, short convolution, scan, gate, projection."""

    def __init__(self, hidden_size: int, intermediate_size: int, state_size: int, step_rank: int) -> None:
        super().__init__()
        self.sizes = [step_rank, state_size, state_size]
        self.in_proj = nn.Linear(hidden_size, 2 * intermediate_size, bias=False)
        self.conv1d = nn.Conv1d(intermediate_size, intermediate_size, 4, groups=intermediate_size, padding=3)
        self.x_proj = nn.Linear(intermediate_size, sum(self.sizes), bias=False)
        self.dt_proj = nn.Linear(step_rank, intermediate_size)
        self.A_log = nn.Parameter(torch.log(torch.arange(1.0, state_size + 1)).repeat(intermediate_size, 1))
        self.D = nn.Parameter(torch.ones(intermediate_size))
        self.out_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values, gate = self.in_proj(x).chunk(2, dim=-1)
        values = F.silu(self.conv1d(values.mT)[..., : x.shape[1]]).mT
        step, b, c = self.x_proj(values).split(self.sizes, dim=-1)
        step = F.softplus(self.dt_proj(step))
        out = selective_scan(values, step, -torch.exp(self.A_log), b, c) + values * self.D
        return self.out_proj(out * F.silu(gate))


class SelectiveStep(nn.Module):
    """One decoding step of a selective state space: the state (B, I, N) decays, is driven and read out."""

    def __init__(self, intermediate_size: int, state_size: int) -> None:
        super().__init__()
        self.A_log = nn.Parameter(torch.log(torch.arange(1.0, state_size + 1)).repeat(intermediate_size, 1))
        self.D = nn.Parameter(torch.ones(intermediate_size))
        self.dt_bias = nn.Parameter(torch.randn(intermediate_size))

    def forward(
        self, state: torch.Tensor, x: torch.Tensor, step: torch.Tensor, b: torch.Tensor, c: torch.Tensor
    ) -> torch.Tensor:
        step = F.softplus(step + self.dt_bias)[:, :, None]
        state = state * torch.exp(-step * torch.exp(self.A_log)) + step * x[:, :, None] * b[:, None]
        return torch.einsum("bin,bn->bi", state, c) + x * self.D


def head_scan(
    x: torch.Tensor, log_decay: torch.Tensor, b: torch.Tensor, c: torch.Tensor, state: torch.Tensor
) -> torch.Tensor:
    """x (B, S, H, P); log_decay (B, S, H); b, c (B, S, N); state (B, H, P, N) -> (B, S, H, P)"""
    outputs = []
    for t in range(x.shape[1]):
        drive = torch.einsum("bhp,bn->bhpn", x[:, t], b[:, t])
        state = state * log_decay[:, t].exp()[..., None, None] + drive
        outputs.append(torch.einsum("bhpn,bn->bhp", state, c[:, t]))
    return torch.stack(outputs, dim=1)


class HeadScan(nn.Module):
    """The recurrence of a state-space dual: one decay per head, input and output vectors shared by all heads."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.A_log = nn.Parameter(torch.log(torch.linspace(1, 16, num_heads)))
        self.dt_bias = nn.Parameter(torch.rand(num_heads) - 3)
        self.D = nn.Parameter(torch.ones(num_heads))

    def forward(
        self, x: torch.Tensor, step: torch.Tensor, b: torch.Tensor, c: torch.Tensor, state: torch.Tensor
    ) -> torch.Tensor:
        step = F.softplus(step + self.dt_bias)
        out = head_scan(x * step[..., None], -step * self.A_log.exp(), b, c, state)
        return out + x * self.D[:, None]


class ChunkedDual(nn.Module):
    """The same recurrence in chunks: products within each, a short recurrence of states between them."""

    def __init__(self, num_heads: int, chunk_size: int) -> None:
        super().__init__()
        self.chunk_size = chunk_size
        self.A_log = nn.Parameter(torch.log(torch.linspace(1, 16, num_heads)))

    def forward(self, x: torch.Tensor, step: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """x (B, S, H, P); step (B, S, H); b, c (B, S, N)"""
        step = F.softplus(step - 3.0)
        x, step, b, c = (one.unflatten(1, (-1, self.chunk_size)) for one in (x, step, b, c))
        total = (-step * self.A_log.exp()).cumsum(dim=2)  # log of the decay since the start of the chunk
        x = x * step[..., None]

        between = total[:, :, :, None] - total[:, :, None]  # (B, chunks, to, from, H)
        future = torch.ones(self.chunk_size, self.chunk_size, dtype=torch.bool, device=x.device).triu(1)
        decay = between.masked_fill(future[..., None], float("-inf")).exp()
        out = torch.einsum("bztn,bzsn,bztsh,bzshp->bzthp", c, b, decay, x)

        kept = (total[:, :, -1:] - total).exp()
        written = torch.einsum("bzsn,bzsh,bzshp->bzhpn", b, kept, x)
        state, states = torch.zeros_like(written[:, 0]), []
        for chunk in range(x.shape[1]):
            states.append(state)
            state = state * total[:, chunk, -1].exp()[..., None, None] + written[:, chunk]
        read = torch.einsum("bztn,bzhpn,bzth->bzthp", c, torch.stack(states, dim=1), total.exp())
        return (out + read).flatten(1, 2)


class DualMixer(nn.Module):
    """The whole mixer of a state-space dual model: projection, convolution, scan by heads, gated norm, projection."""

    def __init__(self, hidden_size: int, intermediate_size: int, num_heads: int, state_size: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.sizes = [intermediate_size, intermediate_size + 2 * state_size, num_heads]
        self.inner = [intermediate_size, state_size, state_size]
        self.in_proj = nn.Linear(hidden_size, sum(self.sizes), bias=False)
        self.conv1d = nn.Conv1d(self.sizes[1], self.sizes[1], 4, groups=self.sizes[1], padding=3)
        self.dt_bias = nn.Parameter(torch.rand(num_heads) - 3)
        self.A_log = nn.Parameter(torch.log(torch.arange(1.0, num_heads + 1)))
        self.D = nn.Parameter(torch.ones(num_heads))
        self.norm = GatedGroupRMSNorm(intermediate_size, 1)
        self.out_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, mixed, step = self.in_proj(x).split(self.sizes, dim=-1)
        mixed = F.silu(self.conv1d(mixed.mT)[..., : x.shape[1]].mT)
        values, b, c = mixed.split(self.inner, dim=-1)
        values = values.unflatten(-1, (self.num_heads, -1))
        step = F.softplus(step + self.dt_bias)
        state = torch.zeros(*values.shape[::2], values.shape[3], b.shape[-1], device=x.device)
        out = head_scan(values * step[..., None], -step * self.A_log.exp(), b, c, state)
        out = (out + values * self.D[:, None]).flatten(2)
        return self.out_proj(self.norm(out, gate))


class RealGatedRecurrence(nn.Module):
    """Linear recurrence with real gates: learned decay, sharpened by a gate, and an input scaled to keep its norm."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        width = hidden_size // num_heads
        self.num_heads = num_heads
        self.input_gate = nn.Parameter(torch.randn(num_heads, width, width) * width**-0.5)
        self.recurrence_gate = nn.Parameter(torch.randn(num_heads, width, width) * width**-0.5)
        self.decay = nn.Parameter(torch.linspace(-4.0, 0.0, hidden_size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = x.unflatten(-1, (self.num_heads, -1))
        gate = torch.einsum("bshd,hde->bshe", heads, self.input_gate).flatten(2).sigmoid()
        recurrence = torch.einsum("bshd,hde->bshe", heads, self.recurrence_gate).flatten(2).sigmoid()
        log_decay = -8.0 * recurrence * F.softplus(self.decay)
        drive = x * gate * torch.sqrt(-torch.expm1(2 * log_decay))
        decay, state, states = log_decay.exp(), torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            state = decay[:, t] * state + drive[:, t]
            states.append(state)
        return torch.stack(states, dim=1)


class DiagonalSpace(nn.Module):
    """Diagonal state space as a convolution: the kernel is a sum of decaying oscillations per channel."""

    def __init__(self, hidden_size: int, state_size: int) -> None:
        super().__init__()
        self.log_step = nn.Parameter(torch.linspace(-5.0, -2.0, hidden_size)[:, None])
        self.log_rate = nn.Parameter(torch.full((hidden_size, state_size), -0.7))
        self.turn = nn.Parameter(torch.arange(1.0, state_size + 1).repeat(hidden_size, 1))
        self.weight = nn.Parameter(torch.randn(hidden_size, state_size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` (B, hidden, S)"""
        length = x.shape[-1]
        time = torch.exp(self.log_step) * torch.arange(length, device=x.device)  # (hidden, S)
        waves = torch.exp(-self.log_rate.exp()[..., None] * time[:, None]) * torch.cos(
            self.turn[..., None] * time[:, None]
        )
        kernel = (self.weight[..., None] * waves).sum(dim=1) * torch.exp(self.log_step)
        spectrum = torch.fft.rfft(x, n=2 * length) * torch.fft.rfft(kernel, n=2 * length)
        return F.gelu(torch.fft.irfft(spectrum, n=2 * length)[..., :length] + x)
