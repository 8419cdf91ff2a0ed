"""What an operator's work is at heart, whatever operators it is spelt with: sums, curves, orders.

A product of matrices is a sum over the products of elements, a softmax two reductions and an exponential. Who has
PyTorch multiply with broadcasting and add up, or exponentiate and add up, and has a kernel do what is left, left the
work to PyTorch by another name. Arithmetic of single elements (a factor, a quotient, a bound) is nobody's heart; but a
product of matrices makes the elements that it adds up as it goes, and who has PyTorch take one in place of a sum over
differences of all pairs, as distances are, left those to it as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from dice.verify.ipc.operator_counts import COMPLEX_PRODUCT, NO_ESSENCE, TRANSFORM, Essence, family

_SUMS = frozenset(
    ("sum", "nansum", "mean", "prod", "max", "min", "amax", "amin", "aminmax", "argmax", "argmin", "any", "all")
    + ("norm", "linalg_vector_norm", "count_nonzero", "trace", "fused_rms_norm", "bincount", "histc")
    + ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss", "cumsum", "cumprod", "cummax")
    + ("cummin", "logcumsumexp", "index_add", "scatter_add", "scatter_reduce", "index_reduce", "segment_reduce")
    + ("max_pool2d_with_indices", "max_pool3d_with_indices", "max_pool2d", "max_pool3d", "avg_pool2d", "avg_pool3d")
    + ("adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool2d", "adaptive_max_pool3d", "mkldnn_max_pool2d")
    + ("softmax", "log_softmax", "logsumexp", "binary_cross_entropy")
    + ("var", "var_mean", "std", "std_mean", "layer_norm", "group_norm", "batch_norm", "batch_norm_legit")
)
_TWICE = frozenset(  # a mean and what is away from it, or a maximum and a sum
    ("softmax", "log_softmax", "logsumexp", "var", "var_mean", "std", "std_mean", "layer_norm", "group_norm")
    + ("batch_norm", "batch_norm_legit")
)
_CURVES = frozenset(
    ("softmax", "log_softmax", "logsumexp", "logcumsumexp", "binary_cross_entropy", "exp", "exp2", "expm1", "log")
    + ("log2", "log10", "log1p", "xlogy", "tanh", "sigmoid", "silu", "log_sigmoid_forward", "logit", "erf", "erfc")
    + ("erfinv", "gelu", "softplus", "mish", "elu", "celu", "sin", "cos", "tan", "asin", "acos", "atan", "atan2")
    + ("sinh", "cosh", "asinh", "acosh", "atanh", "lgamma", "digamma")
)
_ORDERS = frozenset(("sort", "topk", "kthvalue", "median", "nanmedian", "mode", "unique", "unique2", "argsort"))


def of(func: Any, args: Sequence[Any], result: Any, flops: int | None, elements: int) -> Essence:
    """How many elements a call adds up (or compares, for a maximum), sends through curves, and puts in order. `flops`:
    of a product, where PyTorch has a formula; `elements`: of its inputs or outputs. And what it adds up without writing
    it."""
    name = func.name().partition("::")[2]
    base, _, overload = name.partition(".")
    if family(func.name()) == "contraction":
        products = _products(flops, args)
        return (
            products,
            _scores(args) if "scaled_dot_product" in base else 0,
            0,
            products if products > elements else 0,
        )
    base = base.removesuffix("_").removeprefix("_").removeprefix("native_").removeprefix("cudnn_")
    if base in ("cdist_forward", "euclidean_dist"):
        pairs = result.numel() * args[0].shape[-1]
        return (pairs, 0, 0, pairs)
    if base.startswith("embedding_bag"):
        return (args[1].numel() * args[0].shape[-1], 0, 0, 0)
    if overload == "other" or "no_training" in base or (base.startswith("batch_norm") and not _trains(args)):
        return NO_ESSENCE  # the larger of two tensors, and what is normalised by numbers that are known
    sums = (base in _SUMS) + (base in _TWICE)
    return (sums * elements, (base in _CURVES) * elements, (base in _ORDERS) * elements, 0)


def part_of(kind: str, func: Any, args: Sequence[Any]) -> str:
    """Which part of a convolution by Fourier transforms a call of the family `kind` may be: a transform, or a product
    of two of them; "" for none."""
    if func.name().startswith(("aten::_fft", "aten::fft_")):
        return TRANSFORM
    factors = [argument for argument in args if isinstance(argument, torch.Tensor) and argument.is_complex()]
    return COMPLEX_PRODUCT if kind in ("contraction", "mul") and len(factors) > 1 else ""


def _products(flops: int | None, args: Sequence[Any]) -> int:
    """Products that are added up: without a formula, as for a matrix and a vector, the larger one's elements."""
    if flops is not None:
        return flops // 2
    return max((argument.numel() for argument in args if isinstance(argument, torch.Tensor)), default=0)


def _scores(args: Sequence[Any]) -> int:
    """Exponentials of an attention: one for each query and key."""
    query, key = (argument for argument in args[:2] if isinstance(argument, torch.Tensor))
    return math.prod(query.shape[:-1]) * key.shape[-2]


def _trains(args: Sequence[Any]) -> bool:
    return next((argument for argument in args if isinstance(argument, bool)), True)
