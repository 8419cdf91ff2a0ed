"""What an operator's work is at heart, whatever operators it is spelt with: sums, curves, orders.

A product of matrices is a sum over the products of elements, a softmax two reductions and an exponential. Who has
PyTorch multiply with broadcasting and add up, or exponentiate and add up, and has a kernel do what is left, left the
work to PyTorch by another name. Arithmetic of single elements (a factor, a quotient, a bound) is nobody's heart; but a
product of matrices makes the elements that it adds up as it goes, and who has PyTorch take one in place of a sum over
differences of all pairs, as distances are, left those to it as well.

The tables below say which operators are of one kind: sums over all or over windows (pooling, resizing, sampling), sums
of elements by place (`index_add`, `index_put`, `bincount`), curves (special functions, powers), orders. Not in them is
what copies by place, which computes nothing, and what takes matrices apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy
import torch

from dice.verify.ipc.operator_counts import COMPLEX_PRODUCT, NO_ESSENCE, TRANSFORM, Essence, family

_SUMS = frozenset(  # of as many elements as they are given, or as they give
    ("sum", "nansum", "mean", "prod", "max", "min", "amax", "amin", "aminmax", "argmax", "argmin", "any", "all")
    + ("norm", "linalg_vector_norm", "weight_norm_interface", "renorm", "dist", "count_nonzero", "trace")
    + ("fused_rms_norm", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss", "multi_margin_loss")
    + ("multilabel_margin_loss_forward", "binary_cross_entropy", "binary_cross_entropy_with_logits")
    + ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "softmax", "log_softmax", "masked_softmax", "logsumexp")
    + ("var", "var_mean", "std", "std_mean", "layer_norm", "group_norm", "batch_norm", "batch_norm_legit")
)
_TWICE = frozenset(  # a mean and what is away from it, or a maximum and a sum
    ("softmax", "log_softmax", "masked_softmax", "logsumexp", "var", "var_mean", "std", "std_mean", "layer_norm")
    + ("group_norm", "batch_norm", "batch_norm_legit")
)
_WINDOWS = frozenset(  # weighted sums, or maxima, over the places near one: resizing is pooling and the other way round
    ("max_pool2d_with_indices", "max_pool3d_with_indices", "max_pool2d", "max_pool3d", "avg_pool2d", "avg_pool3d")
    + ("adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool2d", "adaptive_max_pool3d", "mkldnn_max_pool2d")
    + ("fractional_max_pool2d", "fractional_max_pool3d", "upsample_linear1d", "upsample_bilinear2d")
    + ("upsample_bilinear2d_aa", "upsample_trilinear3d", "upsample_bicubic2d", "upsample_bicubic2d_aa")
    + ("grid_sampler_2d", "grid_sampler_2d_cpu_fallback", "grid_sampler_3d", "cudnn_grid_sampler", "grid_sampler")
)
_ADDED = {  # elements added up in places that others name: the argument that holds them
    **dict.fromkeys(("index_add", "index_reduce"), 3),
    **dict.fromkeys(("scatter_add", "scatter_reduce"), 2),  # as many as there are places
    **dict.fromkeys(("bincount", "histc", "histogram", "segment_reduce", "embedding_dense_backward", "col2im"), 0),
}
_PUTS = ("put", "index_put", "index_put_impl", "unsafe_index_put")  # and add where they are told to accumulate
_POWERS = ("pow", "ldexp")  # but for roots and whole exponents
_CURVES = frozenset(
    ("softmax", "log_softmax", "masked_softmax", "logsumexp", "logcumsumexp", "binary_cross_entropy", "exp", "exp2")
    + ("binary_cross_entropy_with_logits", "expm1", "log", "log2", "log10", "log1p", "logaddexp", "logaddexp2")
    + ("xlogy", "tanh", "sigmoid", "silu", "log_sigmoid_forward", "logit", "erf", "erfc", "erfinv", "gelu", "softplus")
    + ("mish", "elu", "celu", "glu", "sin", "cos", "tan", "sinc", "asin", "acos", "atan", "atan2", "polar", "angle")
    + ("sinh", "cosh", "asinh", "acosh", "atanh", "lgamma", "digamma", "polygamma", "igamma", "igammac", "i0")
    + _POWERS
)
_CURVE_STARTS = ("special_",)  # functions of Bessel, Hurwitz and others
_ORDERS = frozenset(
    ("sort", "topk", "kthvalue", "median", "nanmedian", "mode", "unique", "unique2", "unique_dim", "argsort")
)
_LOOKED_UP = ("searchsorted", "bucketize")  # places in an order, of each element
_PREFIXES = ("_", "native_", "cudnn_", "foreach_", "safe_")


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
    base = base.removesuffix("_")
    for prefix in _PREFIXES:
        base = base.removeprefix(prefix)
    if base in ("cdist_forward", "euclidean_dist", "pdist_forward"):
        pairs = result.numel() * args[0].shape[-1]
        return (pairs, 0, 0, pairs)
    if base.startswith("embedding_bag"):
        return (args[1].numel() * args[0].shape[-1], 0, 0, 0)
    if overload == "other" or "no_training" in base or (base.startswith("batch_norm") and not _trains(args)):
        return NO_ESSENCE  # the larger of two tensors, and what is normalised by numbers that are known
    sums, sorts = (base in _SUMS) + (base in _TWICE), base in _ORDERS or base in _LOOKED_UP
    bends = base in _CURVES or base.startswith(_CURVE_STARTS)
    bends = bends and not (base in _POWERS and _is_root(args[1]))
    if isinstance(result, torch.Tensor) and not sums and base not in _ORDERS:
        elements = result.numel()  # one by one, with numbers or a table beside them that are no work
    return (sums * elements + _added_up(base, overload, args, result), bends * elements, sorts * elements, 0)


def _added_up(base: str, overload: str, args: Sequence[Any], result: Any) -> int:
    """How many elements a call adds up that are near one another, or meant for the same place."""
    if base in _WINDOWS:
        first = result[0] if isinstance(result, list | tuple) else result
        return int(max(args[0].numel(), first.numel()))
    if base in _PUTS:
        adds = len(args) > 3 and args[3] is True
        return _put(args) if adds else 0
    if base == "scatter" and overload in ("reduce", "value_reduce"):
        return int(args[2].numel())
    return int(args[_ADDED[base]].numel()) if base in _ADDED else 0


def _put(args: Sequence[Any]) -> int:
    """How many elements `index_put` writes: its values are spread over the places that its indices name."""
    target, indices, values = args[:3]
    if isinstance(indices, torch.Tensor):
        return int(indices.numel())
    named = {axis: one for axis, one in enumerate(indices) if one is not None}
    if any(one.dtype in (torch.bool, torch.uint8) for one in named.values()):
        return int(values.numel())
    rest = math.prod(size for axis, size in enumerate(target.shape) if axis not in named)
    return int(rest * math.prod(numpy.broadcast_shapes(*(tuple(one.shape) for one in named.values()))))


def _is_root(exponent: Any) -> bool:
    """Whether a power is had by multiplying and square roots; any other is an exponential and a logarithm."""
    if isinstance(exponent, torch.Tensor):
        return not exponent.is_floating_point() and not exponent.is_complex()
    if isinstance(exponent, list | tuple):
        return all(map(_is_root, exponent))
    return isinstance(exponent, int | float) and float(2 * exponent).is_integer()


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
