"""Whether values are the same, or near enough everywhere to need no closer look: a few passes over them in single
precision, where a whole comparison takes dozens in double. On gigabytes that is much of what a verification costs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

STRETCH = 1 << 24  # elements compared at a time: in float64, some eight times over
_norm = torch.linalg.vector_norm


@dataclass(frozen=True, slots=True)
class Sums:
    """Over all elements, every one of them finite on both sides."""

    count: int
    size_squares: float
    difference_squares: float
    worst: float  # the largest |actual - expected|


def sums(expected: torch.Tensor, actual: torch.Tensor) -> Sums | None:
    """Of two tensors of a shape; None where single precision does not do, or where a value is not finite."""
    if not expected.is_floating_point() or expected.dtype.itemsize > 4 or not expected.numel():
        return None
    size_squares = difference_squares = worst = 0.0
    for one, other in pairs(expected, actual):
        one = one.float()
        difference = other.float() - one
        found = torch.stack((_norm(one), _norm(difference), _norm(difference, math.inf))).tolist()
        if not math.isfinite(sum(found)):
            return None
        size_squares, difference_squares = size_squares + found[0] ** 2, difference_squares + found[1] ** 2
        worst = max(worst, found[2])
    return Sums(expected.numel(), size_squares, difference_squares, worst)


def relative(base: torch.Tensor, other: torch.Tensor, floor: float) -> float:
    """The largest difference in parts of |base|, or of `floor` where that is more."""
    floor = max(floor, torch.finfo(torch.float32).tiny)
    singles = ((one.float(), two.float()) for one, two in pairs(base, other))
    return max(float(((two - one).abs_() / one.abs().clamp_(min=floor)).max()) for one, two in singles)


def pairs(one: torch.Tensor, other: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Elements that belong together in two tensors of a shape, in parts of at most `STRETCH`, `wide`."""
    for parts in zip(*(torch.split(tensor.reshape(-1), STRETCH) for tensor in (one, other)), strict=True):
        yield wide(parts[0]), wide(parts[1])


def same_values(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors hold the same values, NaN included."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.stride() != other.stride():  # their stretches would not be of the same elements
        return _same_values(one, other)
    return all(_same_values(*parts) for parts in zip(stretches(one), stretches(other), strict=True))


def stretches(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """All elements in parts of at most `STRETCH`, not copied where they are dense."""
    strides = tensor.stride()
    tensor = tensor.permute(sorted(range(tensor.dim()), key=lambda number: -strides[number]))
    return torch.split(tensor.reshape(-1), STRETCH) if tensor.is_contiguous() else (tensor,)


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, in float32 where its numbers have 8 bits: with those PyTorch can do next to nothing."""
    return tensor.float() if tensor.is_floating_point() and tensor.dtype.itemsize == 1 else tensor


def _same_values(one: torch.Tensor, other: torch.Tensor) -> bool:
    one, other = wide(one), wide(other)
    return torch.equal(one, other) or bool(((one == other) | ((one != one) & (other != other))).all())
