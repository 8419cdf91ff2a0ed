"""What PyTorch's backward operators are made of, as far as kernels can be written for that.

Most are PyTorch's own tables. Those here scatter in PyTorch, where each of many threads adds to a place that others add
to; written as a sum for each place that is read, they are products, convolutions and elementwise work like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions

aten = torch.ops.aten
Table = dict[Any, Callable[..., Any]]
# PyTorch has one call for these, which no kernel by rule would gain upon; in parts they would be several.
_KEPT = ("embedding_dense_backward", "index_put", "_unsafe_index", "_unsafe_index_put", "index_add", "scatter_add")
_NORMALISATIONS = ("native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit")


@cache
def table() -> Table:
    found = dict(core_aten_decompositions())
    found |= get_decompositions([getattr(aten, name) for name in _NORMALISATIONS])
    for name in _KEPT:
        for overload in getattr(aten, name).overloads():
            found.pop(getattr(getattr(aten, name), overload), None)
    found[aten.convolution_backward.default] = convolution_backward
    found[aten.nll_loss_backward.default] = nll_loss_backward
    found[aten.avg_pool2d_backward.default] = avg_pool2d_backward
    return found


def nll_loss_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignored: int,
    total: torch.Tensor,
) -> torch.Tensor:
    """Minus one, times the weight, where the class is the target; the others are zero."""
    dim = 0 if x.dim() < 2 else 1
    shape = [1] * x.dim()
    shape[dim] = x.shape[dim]
    classes = torch.arange(x.shape[dim], device=x.device).reshape(shape)
    wanted = target.unsqueeze(dim)
    scale = gradient / total if reduction == 1 else gradient
    scale = scale.unsqueeze(dim) if scale.dim() else scale
    scaled = -scale * weight.reshape(shape) if weight is not None else -scale
    zero = torch.zeros((), dtype=x.dtype, device=x.device)
    return torch.where((classes == wanted) & (wanted != ignored), scaled, zero)


def avg_pool2d_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    window: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
) -> Any:
    """Each gradient spread evenly over its window: a transposed convolution of one channel at a time."""
    window, padding = _pair(window), _pair(padding)
    stride = _pair(stride) if stride else window
    if ceil_mode or (any(padding) and not count_include_pad and divisor is None) or x.dim() != 4:
        return NotImplemented
    channels = x.shape[1]
    number = 1.0 / (divisor or window[0] * window[1])
    weight = torch.full((channels, 1, *window), number, dtype=x.dtype, device=x.device)
    return _spread(gradient, weight, x, stride, padding, [1, 1], channels)


def convolution_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    wanted: Sequence[bool],
) -> Any:
    """Gradients of the input and of the weight are convolutions again."""
    rank = x.dim() - 2
    stride, padding, dilation = (_spelled(one, rank) for one in (stride, padding, dilation))
    of_x = of_weight = of_bias = None
    if wanted[0] and transposed:
        of_x = aten.convolution(gradient, weight, None, stride, padding, dilation, False, [0] * rank, groups)
    elif wanted[0]:
        of_x = _spread(gradient, weight, x, stride, padding, dilation, groups)
    if wanted[1]:
        first, second = (gradient, x) if transposed else (x, gradient)
        of_weight = _of_weight(first, second, weight, stride, padding, dilation, groups)
    if wanted[2]:
        of_bias = gradient.sum([0, *range(2, 2 + rank)])
    return of_x, of_weight, of_bias


def _spread(
    gradient: torch.Tensor,
    weight: torch.Tensor,
    x: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """The transposed convolution whose result has the shape of `x`: what no window reached gets zeros."""
    more = [
        have - ((out - 1) * step - 2 * pad + by * (size - 1) + 1)
        for have, out, step, pad, by, size in zip(
            x.shape[2:], gradient.shape[2:], stride, padding, dilation, weight.shape[2:], strict=True
        )
    ]
    return aten.convolution(gradient, weight, None, stride, padding, dilation, True, more, groups)


def _of_weight(
    x: torch.Tensor,
    gradient: torch.Tensor,
    weight: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """The convolution of the input with the gradient, with samples as channels: steps and spreads change places."""
    rank, count = x.dim() - 2, x.shape[0]
    inner = x.shape[1] // groups
    outer = gradient.shape[1] // groups
    by_group = x.reshape(count, groups, inner, *x.shape[2:]).transpose(0, 2)  # inner, groups, samples
    left = by_group.reshape(inner, groups * count, *x.shape[2:])
    right = gradient.transpose(0, 1)  # groups * outer, samples
    found = aten.convolution(left, right, None, dilation, padding, stride, False, [0] * rank, groups)
    for dim, size in enumerate(weight.shape[2:], 2):
        found = found.narrow(dim, 0, size)
    return found.transpose(0, 1).reshape(groups * outer, inner, *weight.shape[2:])


def _pair(value: Sequence[int]) -> list[int]:
    return _spelled(value, 2)


def _spelled(value: Sequence[int], rank: int) -> list[int]:
    return list(value) * rank if len(value) == 1 else list(value)
