"""What a problem is tried on: its own draws, and the same values with their signs and their scale changed.

Benchmarks draw nearly everything from [0, 1), where ReLU is the identity. Changing values keeps what kernels may rely
on: zeros stay zero (triangular matrices, masks), order stays (sorted inputs), whole-number and probability-like
floats (labels, masks, distributions) and integers keep their own draw.
"""

from __future__ import annotations

from typing import Any

import torch

from dice.verify import wire

SCALE = 3.0
SAMPLE = 1 << 16  # elements looked at to tell measurements from labels


def vary(inputs: Any, name: str) -> Any:
    """The inputs with family `name` applied to each float tensor."""
    change = {"given": lambda tensor: tensor, "centred": _centre, "scaled": _scale}[name]
    return wire.map_tensors(lambda tensor: change(tensor) if _is_free(tensor) else tensor, inputs)


def _is_free(tensor: torch.Tensor) -> bool:
    """Whether the values look like measurements, not like labels, masks or distributions."""
    if not tensor.is_floating_point() or tensor.numel() < 2 or tensor.dtype.itemsize < 2:
        return False
    flat = tensor.reshape(-1)
    sample = flat[:: max(1, flat.numel() // SAMPLE)].float()
    if bool((sample == sample.round()).all()):
        return False
    rows = tensor.reshape(-1, tensor.shape[-1])
    sums = rows[:: max(1, len(rows) * rows.shape[1] // SAMPLE)].float().sum(dim=-1)
    return rows.shape[1] < 2 or bool(((sums - 1).abs() > 1e-3).any())


def _centre(tensor: torch.Tensor) -> torch.Tensor:
    values = tensor[tensor != 0]
    positive = float((values > 0).float().mean())
    if 0.05 < positive < 0.95:
        return tensor
    return torch.where(tensor == 0, tensor, tensor - values.float().mean().to(tensor.dtype))


def _scale(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * SCALE
