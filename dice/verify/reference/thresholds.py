"""Where a rounding decides: of what is compared with a sum or a quotient, rounded, or the largest of several sums.

`x > x.mean(1)` on a row of equal values is true or false by the last digit of the mean, which depends on the order in
which it was added up; `round(x / 127.0)` is one or the other where PyTorch on a GPU multiplies by the inverse. Of
inputs with many equal values that is no rare case, and there is no telling what is right.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from dice.verify.execution.dispatch import OperatorMode
from dice.verify.execution.evidence import Census
from dice.verify.reference.trial import unchanged
from dice.verify.tensors import near, transport

# Operators whose output jumps, as the families of a census call them.
JUMPS = frozenset(
    ("gt", "ge", "lt", "le", "eq", "ne", "sign", "sgn", "heaviside", "floor", "ceil", "round", "trunc", "floor_divide")
    + ("remainder", "fmod", "argmax", "argmin", "max", "topk", "sort", "kthvalue", "median", "bucketize")
    + ("searchsorted",)
)
_PRODUCTS = frozenset(("mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot", "convolution", "cudnn_convolution"))
SUMS = _PRODUCTS | frozenset(
    ("sum", "nansum", "mean", "prod", "var", "std", "var_mean", "std_mean", "norm", "linalg_vector_norm", "logsumexp")
    + ("cumsum", "cumprod", "logcumsumexp", "_softmax", "_log_softmax", "_cdist_forward", "trace", "avg_pool2d")
    + ("_adaptive_avg_pool2d", "avg_pool3d", "native_layer_norm", "native_group_norm", "native_batch_norm")
)
_FAMILIES = SUMS | frozenset(("mul", "contraction", "softmax", "log_softmax", "layer_norm", "group_norm", "batch_norm"))
ROUNDINGS = {torch.float32: 4.0, torch.float64: 4.0}  # that a sum in another order is off by; one in shorter formats
JUMP = 1e-2  # of the output's rms: no rounding that is not decisive


def decide(forward: Callable[[], Any], model: Any, output: Any, census: Census) -> bool:
    """Whether the output of the model's forward, of which the census is, would jump, were its sums a few roundings
    larger or smaller."""
    calls = census.work.calls
    if not any(calls[name] for name in JUMPS) or not any(calls[name] for name in _FAMILIES):
        return False
    for direction in (1.0, -1.0):
        with unchanged(model), OtherRounding(direction):
            other = forward()
        if any(_jumps(*pair) for pair in zip(transport.tensors(output), transport.tensors(other), strict=False)):
            return True
    return False


class OtherRounding(OperatorMode):
    """Inside, sums and quotients by a number are a few roundings further from zero, or nearer to it."""

    def __init__(self, direction: float) -> None:
        super().__init__()
        self.direction = direction

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.name().partition("::")[2].partition(".")[0]
        if name not in SUMS and not (name == "div" and _is_inexact(args[-1])):
            return result
        first, *rest = result if isinstance(result, tuple) else (result,)
        if first.is_floating_point():
            info = torch.finfo(first.dtype)
            first = first * (1 + self.direction * ROUNDINGS.get(first.dtype, 1.0) * info.eps)
        return (first, *rest) if isinstance(result, tuple) else first


def _is_inexact(divisor: Any) -> bool:
    """Whether multiplying by its inverse is not the same as dividing by it."""
    value = divisor.item() if isinstance(divisor, torch.Tensor) and not divisor.dim() else divisor
    return isinstance(value, int | float) and math.frexp(value)[0] not in (0.5, -0.5)


def _jumps(expected: torch.Tensor, other: torch.Tensor) -> bool:
    if expected.shape != other.shape:
        return True
    if not expected.is_floating_point():
        return not torch.equal(expected, other)
    expected, other = near.wide(expected), near.wide(other)
    finite = expected.isfinite()
    if not torch.equal(finite, other.isfinite()):
        return True
    one, two = expected[finite].double(), other[finite].double()
    return bool(one.numel()) and bool(((one - two).abs() > JUMP * one.square().mean().sqrt()).any())
