"""Complex values as two real ones, for which kernels are written: rotary positions, products in the frequency domain.

What has no line here keeps its complex value, which PyTorch then computes as before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

aten = torch.ops.aten
LONGEST = 1024  # of a Fourier transform that is summed as a product
Tensor = torch.Tensor


class Pair(NamedTuple):
    """Of tensors, or of the two plain numbers of a complex one."""

    real: Any
    imag: Any


def _pair(value: Any) -> Any:
    if isinstance(value, Pair) or not isinstance(value, Tensor):
        return value
    return Pair(value, torch.zeros_like(value))


def _side(value: Any, side: int) -> Any:
    """The arguments with one side of each pair."""
    if isinstance(value, Pair):
        return value[side]
    return [_side(one, side) for one in value] if isinstance(value, list | tuple) else value


def _linear(operator: Any) -> Callable[..., Any]:
    """What does the same to both sides: views, sums, differences."""

    def each(*args: Any, **kwargs: Any) -> Any:
        given = [[_pair(one) for one in value] if isinstance(value, list) else _pair(value) for value in args]
        found = [operator(*_side(given, side), **kwargs) for side in (0, 1)]
        return [Pair(*one) for one in zip(*found, strict=True)] if isinstance(found[0], list | tuple) else Pair(*found)

    return each


def _sum(operator: Any) -> Callable[..., Any]:
    """Of two, of which one may be real: then it has nothing on the other side."""

    def added(one: Any, other: Any, **kwargs: Any) -> Pair:
        left, right = (_pair(value) if isinstance(value, Tensor) else value for value in (one, other))
        real = operator(left.real, _side(right, 0), **kwargs)
        return Pair(real, operator(left.imag, right.imag, **kwargs) if isinstance(right, Pair) else left.imag)

    return added


def _bilinear(operator: Any) -> Callable[..., Any]:
    """Products of two, of which one may be real."""

    def product(*args: Any) -> Any:
        factors = list(args[1]) if isinstance(args[0], str) else list(args)
        call = (lambda *two: operator(args[0], list(two))) if isinstance(args[0], str) else operator
        if len(factors) != 2:
            raise NotImplementedError("a product of more than two")
        one, other = factors
        if not isinstance(one, Pair):
            return Pair(call(one, other.real), call(one, other.imag))
        if not isinstance(other, Pair):
            return Pair(call(one.real, other), call(one.imag, other))
        real = call(one.real, other.real) - call(one.imag, other.imag)
        return Pair(real, call(one.real, other.imag) + call(one.imag, other.real))

    return product


def _polar(length: Tensor, angle: Tensor) -> Pair:
    return Pair(length * angle.cos(), length * angle.sin())


def _quotient(one: Any, other: Any) -> Pair:
    if not isinstance(other, Pair):
        return Pair(one.real / other, one.imag / other)
    size = other.real * other.real + other.imag * other.imag
    found: Pair = _bilinear(aten.mul.Tensor)(one, Pair(other.real, -other.imag))
    return Pair(found.real / size, found.imag / size)


def _abs(value: Pair) -> Tensor:
    size: Tensor = (value.real * value.real + value.imag * value.imag).sqrt()
    return size


def _root(value: Pair) -> Pair:
    """Without a difference of two sizes that may be nearly equal."""
    far = ((_abs(value) + value.real.abs()) / 2).sqrt()
    near = torch.where(far > 0, value.imag.abs() / (2 * far), 0)
    real, imag = torch.where(value.real >= 0, far, near), torch.where(value.real >= 0, near, far)
    return Pair(real, torch.copysign(imag, value.imag))


def _chosen(condition: Tensor, one: Any, other: Any) -> Pair:
    left, right = _pair(one), _pair(other)
    return Pair(*(torch.where(condition, _side(left, side), _side(right, side)) for side in (0, 1)))


def _copied(value: Any, *, dtype: torch.dtype | None = None, **others: Any) -> Pair:
    kind = dtype.to_real() if dtype is not None else None
    return Pair(*(aten._to_copy.default(side, dtype=kind, **others) for side in _pair(value)))


def _zeros(shape: Sequence[int], *, dtype: torch.dtype, device: Any = None, **others: Any) -> Pair:
    one = torch.zeros(shape, dtype=dtype.to_real(), device=device)
    return Pair(one, one)


def opened(value: Tensor) -> Pair:
    """A complex tensor that somebody else computes."""
    sides = torch.view_as_real(value)
    return Pair(sides[..., 0], sides[..., 1])


# ---- Fourier transforms ---------------------------------------------------------------------------------------------


def _waves(size: int, count: int, like: Tensor) -> Pair:
    """cos and sin of 2 pi n k / size for n below `size` and k below `count`."""
    if size > LONGEST:
        raise NotImplementedError("a long transform")
    n, k = torch.arange(size, device=like.device), torch.arange(count, device=like.device)
    angle = (n[:, None] * k % size).to(like.dtype) * (2 * math.pi / size)
    return Pair(angle.cos(), angle.sin())


def _scale(sizes: Sequence[int], normalization: int) -> float:
    return 1.0 / math.prod(sizes) ** {0: 0.0, 1: 0.5, 2: 1.0}[normalization]


def _transform(value: Pair, dim: int, forward: bool) -> Pair:
    size = value.real.shape[dim]
    real, imag = value.real.movedim(dim, -1), value.imag.movedim(dim, -1)
    cos, sin = _waves(size, size, real)
    sin = -sin if forward else sin
    found = (torch.matmul(real, cos) - torch.matmul(imag, sin), torch.matmul(real, sin) + torch.matmul(imag, cos))
    return Pair(found[0].movedim(-1, dim), found[1].movedim(-1, dim))


def _scaled(value: Pair, by: float) -> Pair:
    return value if by == 1.0 else Pair(value.real * by, value.imag * by)


def _complex_to_complex(value: Pair, dims: Sequence[int], normalization: int, forward: bool) -> Pair:
    sizes = [value.real.shape[dim] for dim in dims]
    for dim in dims:
        value = _transform(value, dim, forward)
    return _scaled(value, _scale(sizes, normalization))


def _real_to_complex(x: Tensor, dims: Sequence[int], normalization: int, onesided: bool) -> Pair:
    size, last = x.shape[dims[-1]], dims[-1]
    cos, sin = _waves(size, size // 2 + 1 if onesided else size, x)
    moved = x.movedim(last, -1)
    value = Pair(torch.matmul(moved, cos).movedim(-1, last), -torch.matmul(moved, sin).movedim(-1, last))
    for dim in dims[:-1]:
        value = _transform(value, dim, True)
    return _scaled(value, _scale([x.shape[dim] for dim in dims], normalization))


def _complex_to_real(value: Pair, dims: Sequence[int], normalization: int, size: int) -> Tensor:
    """Each frequency but the first, and the last of an even size, stands for its conjugate, too."""
    for dim in dims[:-1]:
        value = _transform(value, dim, False)
    last = dims[-1]
    real, imag = value.real.movedim(last, -1), value.imag.movedim(last, -1)
    count = real.shape[-1]
    cos, sin = _waves(size, count, real)
    k = torch.arange(count, device=real.device)
    weight = torch.where((k == 0) | (k * 2 == size), 1.0, 2.0).to(real.dtype)
    found = torch.matmul(real * weight, cos.t()) - torch.matmul(imag * weight, sin.t())
    sizes = [*(value.real.shape[dim] for dim in dims[:-1]), size]
    return found.movedim(-1, last) * _scale(sizes, normalization)


_SAME_ON_BOTH = """
    view.default reshape.default unsqueeze.default squeeze.dim squeeze.default permute.default transpose.int t.default
    flatten.using_ints expand.default select.int slice.Tensor split.Tensor split_with_sizes.default chunk.default
    unbind.int movedim.int clone.default contiguous.default alias.default neg.default sum.dim_IntList sum.default
    mean.dim mean.default cat.default stack.default flip.default roll.default repeat.default
    slice_scatter.default select_scatter.default constant_pad_nd.default index_select.default copy.default
"""
_BOTH_FACTORS = "mul.Tensor mm.default bmm.default matmul.default einsum.default"


def _named(text: str) -> list[Any]:
    parts = (name.split(".") for name in text.split())
    return [getattr(getattr(aten, base), overload) for base, overload in parts]


PAIRS: dict[Any, Callable[..., Any]] = {
    **{operator: _linear(operator) for operator in _named(_SAME_ON_BOTH)},
    **{operator: _bilinear(operator) for operator in _named(_BOTH_FACTORS)},
    aten.add.Tensor: _sum(aten.add.Tensor),
    aten.sub.Tensor: _sum(aten.sub.Tensor),
    aten.div.Tensor: _quotient,
    aten.view_as_complex.default: lambda x: Pair(x[..., 0], x[..., 1]),
    aten.polar.default: _polar,
    aten.complex.default: Pair,
    aten.zeros.default: _zeros,
    aten.zeros_like.default: lambda value, **_: Pair(torch.zeros_like(value.real), torch.zeros_like(value.real)),
    aten.exp.default: lambda value: _polar(value.real.exp(), value.imag),
    aten._conj.default: lambda value: Pair(value.real, -value.imag),
    aten.conj.default: lambda value: Pair(value.real, -value.imag),
    aten.resolve_conj.default: lambda value: value,
    aten.view_as_real.default: lambda value: torch.stack(value, -1),
    aten.real.default: lambda value: value.real,
    aten.imag.default: lambda value: value.imag,
    aten.abs.default: _abs,
    aten.sqrt.default: _root,
    aten.log.default: lambda value: Pair(_abs(value).log(), torch.atan2(value.imag, value.real)),
    aten.where.self: _chosen,
    aten._to_copy.default: _copied,
    aten.angle.default: lambda value: torch.atan2(value.imag, value.real),
    aten._fft_r2c.default: _real_to_complex,
    aten._fft_c2c.default: _complex_to_complex,
    aten._fft_c2r.default: _complex_to_real,
}
