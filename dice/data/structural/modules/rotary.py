"""Positions: rotary embeddings and their scalings, sinusoids, and biases by distance.

Shapes: B batch, H heads, S positions, D dimensions of a head; angles are (..., S, D / 2).
"""

from __future__ import annotations

import math

import torch
import torch.nn as nn


def rotary_angles(positions: torch.Tensor, dim: int, theta: float = 10000.0) -> torch.Tensor:
    exponents = torch.arange(0, dim, 2, device=positions.device) / dim
    return positions[..., None] * theta**-exponents


def rotate(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rotate the pairs of dimensions (i, i + D / 2)."""
    cos, sin = angles.cos(), angles.sin()
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def rotate_adjacent(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rotate the pairs of dimensions (2 i, 2 i + 1)."""
    cos, sin = angles.cos(), angles.sin()
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)


def llama3_frequencies(dim: int, theta: float, device: torch.device) -> torch.Tensor:
    """Frequencies stretched eightfold beyond the 8192 positions of pre-training, with a smooth transition."""
    frequencies = theta ** -(torch.arange(0, dim, 2, device=device) / dim)
    turns = 8192 * frequencies / (2 * math.pi)
    keep = ((turns - 1.0) / (4.0 - 1.0)).clamp(0, 1)
    return keep * frequencies + (1 - keep) * frequencies / 8.0


def yarn_frequencies(dim: int, theta: float, factor: float, context: int, device: torch.device) -> torch.Tensor:
    """YaRN: frequencies that turn often within the context are kept, those that hardly turn are interpolated."""
    pairs = torch.arange(0, dim, 2, device=device)
    frequencies = theta ** -(pairs / dim)
    low, high = (dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(theta)) for turns in (32, 1))
    low, high = max(math.floor(low), 0), min(math.ceil(high), dim - 1)
    ramp = ((pairs / 2 - low) / max(high - low, 0.001)).clamp(0, 1)
    return frequencies * (1 - ramp) + frequencies / factor * ramp


class RotaryHalves(nn.Module):
    """Rotary position embedding of queries or keys (B, H, S, D), on pairs (i, i + D / 2)."""

    def __init__(self, head_dim: int, theta: float = 500000.0) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.theta = theta

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(x.shape[-2], device=x.device)
        return rotate(x, rotary_angles(positions, self.head_dim, self.theta))


class RotaryAdjacent(nn.Module):
    """Rotary position embedding on adjacent pairs of dimensions."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angles = rotary_angles(torch.arange(x.shape[2], device=x.device), self.head_dim)
        return rotate_adjacent(x, angles)


class RotaryComplex(nn.Module):
    """Rotary position embedding as a product of complex numbers; heads come after positions: (B, S, H, D)."""

    def __init__(self, head_dim: int, theta: float = 10000.0) -> None:
        super().__init__()
        self.register_buffer("frequencies", theta ** -(torch.arange(0, head_dim, 2) / head_dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angles = torch.outer(torch.arange(x.shape[1], device=x.device), self.frequencies)
        turns = torch.polar(torch.ones_like(angles), angles)
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * turns[:, None]).flatten(-2)


class PartialRotary(nn.Module):
    """Rotary position embedding of the first dimensions of each head; the others pass unchanged."""

    def __init__(self, rotary_dim: int) -> None:
        super().__init__()
        self.rotary_dim = rotary_dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turned, kept = x[..., : self.rotary_dim], x[..., self.rotary_dim :]
        positions = torch.arange(x.shape[-2], device=x.device)
        turned = rotate(turned, rotary_angles(positions, self.rotary_dim))
        return torch.cat((turned, kept), dim=-1)


class RotaryLlama3(nn.Module):
    """Rotary position embedding of queries and keys together, with the frequencies of a context extended eightfold."""

    def __init__(self, num_heads: int, num_kv_heads: int, head_dim: int, theta: float = 500000.0) -> None:
        super().__init__()
        self.heads = num_heads + num_kv_heads
        self.head_dim = head_dim
        self.theta = theta

    def forward(self, qk: torch.Tensor) -> torch.Tensor:
        x = qk.unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)
        frequencies = llama3_frequencies(self.head_dim, self.theta, x.device)
        angles = torch.outer(torch.arange(x.shape[2], device=x.device), frequencies)
        return rotate(x, angles)


class RotaryYarn(nn.Module):
    """Rotary position embedding with YaRN's frequencies and its temperature on the result."""

    def __init__(self, head_dim: int, factor: float = 32.0, context: int = 4096, theta: float = 150000.0) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.factor = factor
        self.context = context
        self.theta = theta

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        frequencies = yarn_frequencies(self.head_dim, self.theta, self.factor, self.context, x.device)
        angles = torch.arange(x.shape[-2], device=x.device)[:, None] * frequencies
        temperature = 0.1 * math.log(self.factor) + 1.0
        return temperature * rotate(x, angles)


class RotaryDynamicNTK(nn.Module):
    """Rotary position embedding whose base grows once the sequence is longer than the context of pre-training."""

    def __init__(self, head_dim: int, context: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.context = context

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[-2]
        stretch = max(1.0, 2.0 * length / self.context - 1.0)
        theta = 10000.0 * stretch ** (self.head_dim / (self.head_dim - 2))
        return rotate(x, rotary_angles(torch.arange(length, device=x.device), self.head_dim, theta))


class RotaryInterpolated(nn.Module):
    """Position interpolation: rotary embedding of positions divided by a factor, for tokens at given positions."""

    def __init__(self, head_dim: int, factor: float = 8.0) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.factor = factor

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        angles = rotary_angles(positions / self.factor, self.head_dim, theta=1000000.0)
        return rotate(x, angles[:, None])


class RotaryLongFactors(nn.Module):
    """Rotary embedding with a learned stretch for each frequency, as found by search for very long contexts."""

    def __init__(self, head_dim: int, extension: float = 32.0, context: int = 4096) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.scale = math.sqrt(1 + math.log(extension) / math.log(context))
        self.stretch = nn.Parameter(torch.linspace(1.0, 2 * extension, head_dim // 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angles = rotary_angles(torch.arange(x.shape[2], device=x.device), self.head_dim) / self.stretch
        cos, sin = self.scale * angles.cos(), self.scale * angles.sin()
        turned = torch.cat((-x[..., self.head_dim // 2 :], x[..., : self.head_dim // 2]), dim=-1)
        return x * torch.cat((cos, cos), dim=-1) + turned * torch.cat((sin, sin), dim=-1)


class RotaryMultimodal(nn.Module):
    """Rotary embedding whose frequencies are shared out among time, height and width; positions are (3, B, S)."""

    def __init__(self, head_dim: int, theta: float = 1000000.0) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.theta = theta
        quarter = head_dim // 8
        self.sections = [head_dim // 2 - 2 * (quarter + quarter // 2), quarter + quarter // 2, quarter + quarter // 2]

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        angles = rotary_angles(positions, self.head_dim, self.theta)
        parts = angles.split(self.sections, dim=-1)
        angles = torch.cat([part[axis] for axis, part in enumerate(parts)], dim=-1)
        return rotate(x, angles[:, None])


class RotaryPatches(nn.Module):
    """Two-dimensional rotary embedding of image patches: half of the pairs turn with the row, half with the column."""

    def __init__(self, head_dim: int, grid_size: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.grid_size = grid_size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        side = torch.arange(self.grid_size, device=x.device)
        rows, columns = torch.meshgrid(side, side, indexing="ij")
        angles = [rotary_angles(axis.flatten(), self.head_dim // 2) for axis in (rows, columns)]
        return rotate(x, torch.cat(angles, dim=-1))


class SinusoidPositions(nn.Module):
    """Scaled features plus fixed sinusoids of the position."""

    def __init__(self, hidden_size: int, scale: float = 0.5) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half = self.hidden_size // 2
        rates = torch.exp(-math.log(10000.0) / (half - 1) * torch.arange(half, device=x.device))
        angles = torch.arange(x.shape[1], device=x.device)[:, None] * rates
        return self.scale * x + torch.cat((angles.sin(), angles.cos()), dim=1)


def alibi_slopes(num_heads: int, device: torch.device) -> torch.Tensor:
    """A geometric sequence from 2^(-8 / H) to 2^-8."""
    return 2.0 ** (-8.0 / num_heads * torch.arange(1, num_heads + 1, device=device))


def relative_buckets(distance: torch.Tensor, num_buckets: int, max_distance: int) -> torch.Tensor:
    """Bidirectional buckets: one for each small distance, then logarithmically wider ones up to `max_distance`."""
    half = num_buckets // 2
    exact = half // 2
    side = (distance > 0).long() * half
    distance = distance.abs()
    ratio = torch.log(distance.clamp(min=1) / exact) / math.log(max_distance / exact)
    far = (exact + (ratio * (half - exact)).long()).clamp(max=half - 1)
    return side + torch.where(distance < exact, distance, far)
