"""Pooling of all kinds, and images as columns of windows and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dice.optimize.graph import Node
from dice.optimize.templates.emitter import Emitter, Place, sum_of, times
from dice.optimize.templates.layout import reduced
from dice.optimize.templates.pointwise import apply, rule
from dice.optimize.templates.reductions import accumulated
from dice.optimize.templates.shapes import permuted, viewed
from dice.optimize.templates.values import Guarded, Keywords, Pointwise, Positional, Value


@dataclass(frozen=True, slots=True)
class Axis:
    """How windows lie along one dimension of `extent` elements. `is_adaptive`: window `o` is from o * extent / out,
    rounded down, to (o + 1) * extent / out, rounded up, and at most `size` long; else all are as long."""

    extent: int
    out: int
    size: int
    stride: int = 1
    pad: int = 0
    dilation: int = 1
    is_adaptive: bool = False

    @classmethod
    def adaptive(cls, extent: int, out: int) -> Axis:
        if extent % out == 0:
            return cls(extent, out, extent // out, extent // out)
        size = max(-(-(o + 1) * extent // out) - o * extent // out for o in range(out))
        return cls(extent, out, size, is_adaptive=True)

    def start(self, out: str) -> str:
        """Where window `out` begins; before the first element where there is padding."""
        if self.is_adaptive:
            return f"{times(out, self.extent, self.extent * self.out)} / {self.out}"
        begins = times(out, self.stride, self.extent)
        return f"{begins} - {self.pad}" if self.pad else begins

    def place(self, e: Emitter, out: str, at: str) -> tuple[str, list[str]]:
        """Element `at` of window `out`, and when it is one."""
        moved = times(at, self.dilation, self.extent)
        if self.is_adaptive:
            place = e.index(sum_of(self.start(out), moved))
            return place, [f"{place} < (({out} + 1) * {self.extent} + {self.out - 1}) / {self.out}"]
        place = e.index(f"{sum_of(self.start(out), moved)}")
        reach = (self.out - 1) * self.stride + (self.size - 1) * self.dilation - self.pad
        return place, [
            *([f"{place} >= 0"] if self.pad else []),
            *([f"{place} < {self.extent}"] if reach >= self.extent else []),
        ]

    def is_even(self, with_padding: bool) -> bool:
        """Whether all windows count as many elements."""
        begin, end = (self.pad, self.extent + 2 * self.pad) if with_padding else (0, self.extent + self.pad)
        reach = (self.out - 1) * self.stride + self.size
        return not self.is_adaptive and self.pad <= begin and reach <= end

    def count(self, out: str, with_padding: bool) -> str:
        """How many elements window `out` has. PyTorch counts those of the padding, but none behind it."""
        if self.is_adaptive:
            return f"((({out} + 1) * {self.extent} + {self.out - 1}) / {self.out} - {self.start(out)})"
        start = f"({self.start(out)})"
        end = f"min({start} + {self.size}, {self.extent + (self.pad if with_padding else 0)})"
        return f"({end} - {start})" if with_padding else f"({end} - max({start}, 0))"


def windows(value: Value, axes: Sequence[Axis], fill: str) -> Value:
    """The elements of each output's window in further dimensions at the end."""
    n = len(axes)
    lead = len(value.shape) - n
    shape = (*value.shape[:lead], *(axis.out for axis in axes), *(axis.size for axis in axes))

    def choose(e: Emitter, dims: tuple[str, ...]) -> list[tuple[str, Value, Place]]:
        there, conditions = list(dims[:lead]), list[str]()
        for index, axis in enumerate(axes):
            place, inside = axis.place(e, dims[lead + index], dims[lead + n + index])
            there.append(place)
            conditions += inside
        return [(" && ".join(conditions), value, Place(value.shape, tuple(there)))]

    return Guarded(shape, value.dtype, choose, fill, (value,))


def _listed(value: Any, n: int, otherwise: Sequence[int]) -> list[int]:
    if value is None or value == []:
        return list(otherwise)
    return [value] * n if isinstance(value, int) else list(value) * (n if len(value) == 1 else 1)


def _axes(node: Node, given: list[Any], options: Keywords, dilation_at: int = -1) -> list[Axis]:
    n = next(int(one[0]) for one in node.base.split("pool")[1:])
    size = _listed(given[1], n, ())
    stride = _listed(given[2] if len(given) > 2 else options.get("stride"), n, size)
    pad = _listed(given[3] if len(given) > 3 else options.get("padding"), n, [0] * n)
    apart = given[dilation_at] if 0 < dilation_at < len(given) else options.get("dilation")
    dilation = _listed(apart, n, [1] * n)
    output = node.output[0] if isinstance(node.output, tuple) else node.spec
    assert output is not None
    extents, outs = given[0].shape[-n:], output.shape[-n:]
    return [Axis(*one) for one in zip(extents, outs, size, stride, pad, dilation, strict=True)]


def _over(found: Value, axes: Sequence[Axis]) -> range:
    return range(len(found.shape) - len(axes), len(found.shape))


@rule("max_pool1d", "max_pool2d", "max_pool3d")
def _max_pool(node: Node, given: list[Any], options: Keywords) -> Value:
    return _highest(given[0], _axes(node, given, options, 4))


@rule("max_pool2d_with_indices", "max_pool3d_with_indices")
def _max_pool_with_indices(node: Node, given: list[Any], options: Keywords) -> Any:
    axes = _axes(node, given, options, 4)
    return _highest(given[0], axes), _where(given[0], axes)


def _lowest(value: Value) -> str:
    return "-INFINITY" if value.dtype.startswith(("float", "bfloat")) else "(-2147483647 - 1)"


def _highest(value: Value, axes: Sequence[Axis]) -> Value:
    found = windows(value, axes, _lowest(value))
    return reduced(found, _over(found, axes), "max")


def _where(value: Value, axes: Sequence[Axis]) -> Value:
    """Where in its image each window has its largest element."""
    found = windows(value, axes, _lowest(value))
    place = reduced(found, _over(found, axes), "argmax", "int64")
    lead = len(place.shape) - len(axes)
    strides = [math.prod(axis.extent for axis in axes[index + 1 :]) for index in range(len(axes))]

    def begins(e: Emitter, dims: tuple[str, ...]) -> str:
        own = zip(axes, dims[lead:], strides, strict=True)
        return " + ".join(f"int64_t({axis.start(out)}) * {stride}" for axis, out, stride in own)

    def moved(start: str, tap: str) -> str:
        terms = [start]
        for index, (axis, stride) in enumerate(zip(axes, strides, strict=True)):
            after = math.prod(one.size for one in axes[index + 1 :])
            terms.append(f"({tap}) / {after} % {axis.size} * {axis.dilation * stride}")
        return " + ".join(terms)

    return Pointwise(place.shape, "int64", (Positional(place.shape, "int64", begins), place), moved, "int64")


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _avg_pool(node: Node, given: list[Any], options: Keywords) -> Value:
    axes = _axes(node, given, options)
    counted = given[5] if len(given) > 5 else options.get("count_include_pad", True)
    divisor = given[6] if len(given) > 6 else options.get("divisor_override")
    return _averaged(node, given[0], axes, counted, divisor)


def _averaged(node: Node, value: Value, axes: Sequence[Axis], counted: bool, divisor: int | None) -> Value:
    dtype = accumulated(node.spec.dtype)
    found = windows(value, axes, "0")
    summed = reduced(found, _over(found, axes), "sum", dtype)
    if divisor or all(axis.is_even(counted) for axis in axes):
        return apply(node, "x / y", summed, float(divisor or math.prod(axis.size for axis in axes)))
    lead = len(summed.shape) - len(axes)

    def count(e: Emitter, dims: tuple[str, ...]) -> str:
        return " * ".join(axis.count(out, counted) for axis, out in zip(axes, dims[lead:], strict=True))

    return apply(node, "x / y", summed, Positional(summed.shape, "int64", count))


@rule("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool2d",
      "_adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")  # fmt: skip
def _adaptive_pool(node: Node, given: list[Any], options: Keywords) -> Any:
    value = given[0]
    output = node.output[0] if isinstance(node.output, tuple) else node.spec
    assert output is not None
    n = int(node.base.rstrip("d")[-1])
    axes = [Axis.adaptive(*pair) for pair in zip(value.shape[-n:], output.shape[-n:], strict=True)]
    if "avg" in node.base:
        return _averaged(node, value, axes, True, None)
    highest = _highest(value, axes)
    return (highest, _where(value, axes)) if isinstance(node.output, tuple) else highest


# ---- columns -------------------------------------------------------------------------------------------------------


@rule("im2col")
def _im2col(node: Node, given: list[Any], options: Keywords) -> Value:
    value = given[0]
    *batch, channels, height, width = value.shape
    axes = [
        Axis(extent, (extent + 2 * pad - apart * (size - 1) - 1) // step + 1, size, step, pad, apart)
        for extent, size, apart, pad, step in zip((height, width), *given[1:5], strict=True)
    ]
    found = windows(value, axes, "0")
    rank = len(batch) + 1
    turned = permuted(found, [*range(rank), rank + 2, rank + 3, rank, rank + 1])
    return viewed(turned, node.spec.shape)


@rule("col2im")
def _col2im(node: Node, given: list[Any], options: Keywords) -> Value:
    """Each pixel is the sum of what the windows that it lies in have for it, at most one for each tap."""
    value, extents, sizes, dilations, pads, strides = given[:6]
    outs = [
        (extent + 2 * pad - apart * (size - 1) - 1) // step + 1
        for extent, size, apart, pad, step in zip(extents, sizes, dilations, pads, strides, strict=True)
    ]
    lead = tuple(node.spec.shape[:-2])
    columns = viewed(value, (*lead, *sizes, *outs))
    shape = (*lead, *extents, *sizes)
    rank = len(lead)

    def choose(e: Emitter, dims: tuple[str, ...]) -> list[tuple[str, Value, Place]]:
        there, conditions = [], []
        for index, (apart, pad, step, out) in enumerate(zip(dilations, pads, strides, outs, strict=True)):
            tap = times(dims[rank + 2 + index], apart, extents[index] + pad)
            moved = e.index(f"{sum_of(dims[rank + index], str(pad))} - {tap}")
            window = moved if step == 1 else e.index(f"{moved} / {step}")
            conditions += [f"{moved} >= 0", f"{window} < {out}"]
            conditions += [f"{moved} % {step} == 0"] if step > 1 else []
            there.append(window)
        return [(" && ".join(conditions), columns, e.at(columns.shape, (*dims[:rank], *dims[rank + 2 :], *there)))]

    found = Guarded(shape, value.dtype, choose, "0", (columns,))
    summed = reduced(found, range(rank + 2, rank + 4), "sum", accumulated(node.spec.dtype))
    return apply(node, "x", summed)


__all__ = ["Axis", "windows"]
