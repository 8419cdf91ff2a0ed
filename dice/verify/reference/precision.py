"""Was a float32 problem computed in a shorter format? The errors tell.

A common factor is no rounding, however near to one: a variance over `n` for one over `n - 1`.

Rounding inputs and weights to bfloat16, float16 or TF32 gives errors of its own pattern: evaluate the problem in
float64 on rounded inputs, and the errors of a kernel that rounds them likewise point the same way. And a result that
was held in half precision lies on that format's grid.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

FORMATS = ("bfloat16", "float16", "tf32", "truncated")  # the last is TF32 as tensor cores read plain float32
SHRUNK = "shrunk"  # no format: all values nearer to zero by what dropping bits takes from them on the average
_SHRINKS = 2.0**-11 * math.log(2)
SUSPICIOUS = 16.0  # times the reference's own distance from float64
LEAST_NOISE = 2.0**-24  # of the output's rms: one rounding of float32
CORRELATED = 0.4
CERTAIN = 4.0  # spreads
ON_GRID = 0.98
LOUDEST = 16.0  # times the error of rounding alone: what is farther off is wrong in another way
LEAST_VALUES = 16  # constants lie on any grid
SAMPLE = 1 << 16
FACTOR, ALIKE, MOST_ALIKE = 3e-5, 0.2, 0.95  # the least factor beside one; how far from it, and how many, others are
FEWEST = 6  # values that are off alike: fewer may be by chance
_TF32_BITS = 13  # of float32's mantissa that TF32 drops


def rounded(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """The values rounded to a format, in the tensor's own dtype; what is not floating-point stays."""
    if not tensor.is_floating_point():
        return tensor
    if name == SHRUNK:
        return tensor * (1 - _SHRINKS)
    if name in FORMATS[:2]:
        return tensor.to(getattr(torch, name)).to(tensor.dtype)
    bits = tensor.float().contiguous().view(torch.int32)
    half = 1 << (_TF32_BITS - 1) if name == "tf32" else 0
    bits = (bits + half) & -(1 << _TF32_BITS)
    return bits.view(torch.float32).to(tensor.dtype)


def is_suspicious(expected: torch.Tensor, actual: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether a float32 output is much farther from float64 than the reference's."""
    if expected.dtype != torch.float32 or actual.dtype != torch.float32 or not expected.numel():
        return False
    if not (expected.shape == actual.shape == exact.shape):
        return False
    own, error, size = (_rms(value) for value in (expected - exact, actual - exact, exact))
    return error > SUSPICIOUS * max(own, LEAST_NOISE * size)


def common_factor(expected: torch.Tensor, actual: torch.Tensor, exact: torch.Tensor) -> float:
    """The part by which nearly all values of a float32 output are too large, or too small; 0 where their errors are as
    different as roundings are, or the reference's are not smaller by far."""
    if expected.dtype != torch.float32 or not (expected.shape == actual.shape == exact.shape):
        return 0.0
    step = max(1, expected.numel() // SAMPLE)
    expected, actual, exact = (value.reshape(-1)[::step].double() for value in (expected, actual, exact))
    known = actual.isfinite() & (exact.abs() > 0.1 * _rms(exact))
    if int(known.sum()) < FEWEST:
        return 0.0
    own, parts = (((value - exact) / exact)[known] for value in (expected, actual))
    factor = float(parts.median())
    alike = float(((parts - factor).abs() <= ALIKE * abs(factor)).double().mean())
    small = float(own.abs().median()) * SUSPICIOUS <= abs(factor)
    return factor if abs(factor) >= FACTOR and alike >= MOST_ALIKE and small else 0.0


def downgrade(
    expected: torch.Tensor,
    actual: torch.Tensor,
    exact: torch.Tensor,
    evaluate: Callable[[str], torch.Tensor | None] | None,
) -> str:
    """The label of a suspicious output, or "". `evaluate(format)` is the float64 output for rounded inputs; without it
    only the output's own grid is looked at."""
    error = (actual - exact).reshape(-1)
    for name in FORMATS[:2]:
        near = _rms(error) <= LOUDEST * _rms(rounded(exact.float(), name) - exact)
        if near and _on_grid(actual, name) >= ON_GRID > _on_grid(expected, name):
            return f"precision_downgrade:{name}"
    if evaluate is None:
        return ""
    best, label = CORRELATED, ""
    for name in FORMATS:
        other = evaluate(name)
        if other is None or other.shape != exact.shape:
            continue
        pattern, kept = (other - exact).reshape(-1), error
        shrunk = evaluate(SHRUNK) if name == "truncated" else None
        if shrunk is not None:  # what is wrong by a smooth function of the inputs is so along with it
            pattern, kept = (_without(values, (shrunk - exact).reshape(-1)) for values in (pattern, error))
        found = abs(_correlation(kept, pattern))
        if found > best and _rms(error) <= LOUDEST * _rms(other - exact):
            best, label = found, f"precision_downgrade:{'tf32' if name == 'truncated' else name}"
    return label


def _on_grid(tensor: torch.Tensor, name: str) -> float:
    """The share of values that the format holds without rounding."""
    flat = tensor.reshape(-1)
    sample = flat[:: max(1, flat.numel() // SAMPLE)]
    sample = sample[(sample != 0) & sample.isfinite()]
    if len(set(sample.tolist())) < LEAST_VALUES:
        return 0.0
    return float((rounded(sample, name) == sample).float().mean())


def _correlation(one: torch.Tensor, other: torch.Tensor) -> float:
    """Cosine of two error patterns without their means; 0 where it may be chance: for patterns of few numbers, or in
    which few are large."""
    kept = one.isfinite() & other.isfinite()
    one, other = one[kept].double(), other[kept].double()
    if one.numel() < 16:
        return 0.0
    one, other = one - one.mean(), other - other.mean()
    size, products = float(one.norm() * other.norm()), one * other
    by_chance = float(products.norm())  # the spread of their sum, were signs thrown by coins
    found = float(products.sum())
    return found / size if size and abs(found) > CERTAIN * by_chance else 0.0


def _without(values: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
    """The part of a pattern that is not along another one."""
    known = values.isfinite() & direction.isfinite()
    along = direction.double().masked_fill(~known, 0.0)
    size = float(along.square().sum())
    share = float(along @ values.double().masked_fill(~known, 0.0)) / size if size else 0.0
    return values - share * direction


def _rms(tensor: torch.Tensor) -> float:
    finite = tensor[tensor.isfinite()].double()
    return float(finite.square().mean().sqrt()) if finite.numel() else 0.0
