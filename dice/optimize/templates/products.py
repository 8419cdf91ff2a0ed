"""Operators that are sums of products: matrix products of every kind, convolutions, attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dice.optimize.graph import Node
from dice.optimize.templates.emitter import CannotWrite, Emitter, Place, sum_of, times
from dice.optimize.templates.pointwise import apply, rule
from dice.optimize.templates.reductions import accumulated, point, reduced, total
from dice.optimize.templates.shapes import expanded, permuted, viewed
from dice.optimize.templates.values import Guarded, Moved, Positional, Product, Value, cast, runs_along

FEW = 8  # rows or columns of a product up to which threads share each sum instead of a tile
TILE, TILES = (
    64,
    128,
)  # rows and columns of a block's tile, and tiles that keep most of a large GPU's multiprocessors busy
LEAST_PART = 256  # terms of a sum that is made in parts


def matrix_product(a: Value, b: Value, dtype: str) -> Value:
    """[z, m, k] times [z, k, n] as [z, m, n]."""
    z, m, k = a.shape
    n = b.shape[2]
    work = accumulated(dtype)
    if k == 1:
        return point("x * y", work, (z, m, n), a, b)
    if min(m, n) < FEW or k < FEW:
        return _shared_sum(a, b, work)
    if (parts := _parts(a.shape, n)) > 1:
        return _in_parts(a, b, dtype, parts)

    def place(e: Emitter, iz: str, im: str, in_: str) -> Place:
        row = e.joined(iz, m, im, z) if z > 1 else im
        return e.at_flat((z, m, n), e.joined(row, n, in_, z * m) if n > 1 else row)

    return Product(
        (z, m, n),
        work,
        (z, m, n, k),
        lambda e, iz, im, ik: cast(a.load(e, e.at(a.shape, (iz, im, ik))), a.dtype, work),
        lambda e, iz, ik, in_: cast(b.load(e, e.at(b.shape, (iz, ik, in_))), b.dtype, work),
        place,
        lambda: ("mk"[runs_along(a) - 1], "kn"[runs_along(b) - 1]),
        (a, b),
    )


def _parts(shape: Sequence[int], n: int) -> int:
    """In how many parts the sums of a product are made, so that most of a GPU has one."""
    z, m, k = shape
    tiles = z * math.ceil(m / TILE) * math.ceil(n / TILE)
    parts = 1
    while 2 * parts * tiles <= TILES and k % (2 * parts) == 0 and k // (2 * parts) >= LEAST_PART:
        parts *= 2
    return parts


def _in_parts(a: Value, b: Value, dtype: str, parts: int) -> Value:
    """The same, with the sums' terms dealt out, and then the parts added."""
    (z, m, k), n = a.shape, b.shape[2]
    left = permuted(viewed(a, (z, m, parts, k // parts)), (0, 2, 1, 3))
    some = matrix_product(viewed(left, (z * parts, m, k // parts)), viewed(b, (z * parts, k // parts, n)), dtype)
    return reduced(viewed(some, (z, parts, m, n)), [1], "sum")


def _shared_sum(a: Value, b: Value, work: str) -> Value:
    """The same where a tile would be nearly empty: a reduction over the products."""
    z, m, k = a.shape
    n = b.shape[2]
    shape = (z, m, n, k)
    left = Moved(shape, a.dtype, a, lambda e, p: e.at(a.shape, [e.dims(p)[i] for i in (0, 1, 3)]))
    right = Moved(shape, b.dtype, b, lambda e, p: e.at(b.shape, [e.dims(p)[i] for i in (0, 3, 2)]))
    return reduced(point("x * y", work, shape, left, right), [3], "sum")


def _with(node: Node, value: Value, bias: Value | None) -> Value:
    if bias is not None:
        return apply(node, "x + y", value, bias)
    return apply(node, "x", value) if value.dtype != node.spec.dtype else value


@rule("linear")
def _linear(node: Node, given: list[Any], options: dict[str, Any]) -> Value:
    value, weight = given[:2]
    bias = given[2] if len(given) > 2 else options.get("bias")
    features = value.shape[-1]
    rows = viewed(value, (1, value.numel // features, features))
    turned = permuted(viewed(weight, (1, *weight.shape)), (0, 2, 1))
    return _with(node, viewed(matrix_product(rows, turned, node.spec.dtype), node.spec.shape), bias)


@rule("mm", "bmm", "matmul", "mv", "dot", "vdot", "inner")
def _matmul(node: Node, given: list[Any], options: dict[str, Any]) -> Value:
    result = _multiplied(given[0], given[1], node.spec.dtype)
    return _with(node, viewed(result, node.spec.shape), None)


def _multiplied(a: Value, b: Value, dtype: str) -> Value:
    """As `torch.matmul` broadcasts."""
    a = viewed(a, (1, *a.shape)) if len(a.shape) == 1 else a
    b = viewed(b, (*b.shape, 1)) if len(b.shape) == 1 else b
    *batch_a, m, k = a.shape
    *batch_b, _, n = b.shape
    if math.prod(batch_b) == 1:  # one matrix for all rows
        return matrix_product(viewed(a, (1, math.prod(batch_a) * m, k)), viewed(b, (1, k, n)), dtype)
    rank = max(len(batch_a), len(batch_b))
    batch_a, batch_b = [[1] * (rank - len(one)) + list(one) for one in (batch_a, batch_b)]
    batch = [max(pair) for pair in zip(batch_a, batch_b, strict=True)]
    count = math.prod(batch)
    wide_a = viewed(expanded(viewed(a, (*batch_a, m, k)), (*batch, m, k)), (count, m, k))
    wide_b = viewed(expanded(viewed(b, (*batch_b, k, n)), (*batch, k, n)), (count, k, n))
    return matrix_product(wide_a, wide_b, dtype)


@rule("addmm", "addbmm", "baddbmm", "addmv")
def _addmm(node: Node, given: list[Any], options: dict[str, Any]) -> Value:
    bias, a, b = given[:3]
    beta, alpha = options.get("beta", 1), options.get("alpha", 1)
    if node.base == "addbmm":
        raise CannotWrite("addbmm has no rule")
    result: Value = viewed(_multiplied(a, b, node.spec.dtype), node.spec.shape)
    if alpha != 1:
        result = point("x * y", result.dtype, result.shape, result, float(alpha))
    if beta != 1:
        bias = point("x * y", accumulated(bias.dtype), bias.shape, bias, float(beta))
    return _with(node, result, bias)


@rule("einsum")
def _einsum(node: Node, given: list[Any], options: dict[str, Any]) -> Value:
    equation, operands = given[0].replace(" ", ""), list(given[1])
    if "..." in equation or "->" not in equation:
        raise CannotWrite("an einsum with an ellipsis, or without an arrow, has no rule")
    left, result = equation.split("->")
    terms = left.split(",")
    if any(len(set(term)) != len(term) for term in terms):
        raise CannotWrite("an einsum over a diagonal has no rule")
    sizes = {
        label: extent
        for term, value in zip(terms, operands, strict=True)
        for label, extent in zip(term, value.shape, strict=True)
    }
    while len(operands) > 1:
        one, other = terms[0], terms[1]
        later = set(result).union(*terms[2:])
        value, term = _contract(one, operands[0], other, operands[1], later, sizes, node.spec.dtype)
        terms[:2], operands[:2] = [term], [value]
    gone = [index for index, label in enumerate(terms[0]) if label not in result]
    value, term = operands[0], "".join(label for label in terms[0] if label in result)
    if gone:
        value = reduced(value, gone, "sum", accumulated(value.dtype))
    return _with(node, permuted(value, [term.index(label) for label in result]), None)


def _contract(
    one: str, a: Value, other: str, b: Value, later: set[str], sizes: dict[str, int], dtype: str
) -> tuple[Value, str]:
    """The product of two operands, summed over the labels that nobody asks for later."""
    both = [label for label in one if label in other]
    batch = [label for label in both if label in later]
    summed = [label for label in both if label not in later]
    rows = [label for label in one if label not in other]
    columns = [label for label in other if label not in one]

    def arranged(term: str, value: Value, groups: Sequence[Sequence[str]]) -> Value:
        order = [term.index(label) for group in groups for label in group]
        return viewed(permuted(value, order), [math.prod(sizes[label] for label in group) for group in groups])

    product_ = matrix_product(
        arranged(one, a, (batch, rows, summed)), arranged(other, b, (batch, summed, columns)), dtype
    )
    labels = [*batch, *rows, *columns]
    return viewed(product_, [sizes[label] for label in labels]), "".join(labels)


# ---- convolutions --------------------------------------------------------------------------------------------------


def _listed(value: Any, n: int) -> list[int]:
    return [value] * n if isinstance(value, int) else list(value) * (n if len(value) == 1 else 1)


@rule("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution")
def _convolution(node: Node, given: list[Any], options: dict[str, Any]) -> Value:
    if node.operator.endswith(".padding"):
        return _padded_by_name(node, given)
    n = len(given[0].shape) - 2
    is_turned = "transpose" in node.base
    defaults: list[Any] = [None, None, None, 1, 0, 0, 1, 1] if is_turned else [None, None, None, 1, 0, 1, 1]
    full = list(given) + defaults[len(given) :]
    if node.base == "convolution":
        value, weight, bias, stride, pad, dilation, is_turned, _, groups = full[:9]
    elif is_turned:
        value, weight, bias, stride, pad, _, groups, dilation = full[:8]
    else:
        value, weight, bias, stride, pad, dilation, groups = full[:7]
    if n < 1:
        raise CannotWrite("a convolution without a batch has no rule")
    lists = [_listed(one, n) for one in (stride, pad, dilation)]
    result = convolved(node, value, weight, lists[0], lists[1], lists[2], groups, is_turned)
    channels = viewed(bias, (bias.numel, *(1,) * n)) if bias is not None else None
    return _with(node, result, channels)


def _padded_by_name(node: Node, given: list[Any]) -> Value:
    defaults: list[Any] = [None, None, None, 1, "valid", 1, 1]
    value, weight, bias, stride, pad, spread, groups = [*given, *defaults[len(given) :]]
    n = len(value.shape) - 2
    dilation = _listed(spread, n)
    total_pad = [d * (k - 1) if pad == "same" else 0 for d, k in zip(dilation, weight.shape[2:], strict=True)]
    before = [one // 2 for one in total_pad]
    result = convolved(node, value, weight, _listed(stride, n), before, dilation, groups, False)
    return _with(node, result, viewed(bias, (bias.numel, *(1,) * n)) if bias is not None else None)


class Convolution:
    """Channels of a group by pixels of all images, summed over the group's input channels and the taps."""

    def __init__(
        self,
        node: Node,
        value: Value,
        weight: Value,
        stride: list[int],
        pad: list[int],
        dilation: list[int],
        groups: int,
        is_turned: bool,
    ):
        self.shape, self.work = node.spec.shape, accumulated(node.spec.dtype)
        self.value, self.weight = value, weight
        self.stride, self.pad, self.dilation, self.is_turned = stride, pad, dilation, is_turned
        self.batch, in_channels, *self.extents = value.shape
        self.taps, self.outs, self.groups = weight.shape[2:], self.shape[2:], groups
        self.own_in, self.own_out = in_channels // groups, self.shape[1] // groups
        self.pixels, self.depth = math.prod(self.outs), self.own_in * math.prod(self.taps)

    def value_of(self) -> Value:
        """The result, without a bias."""
        if self.own_out < FEW:
            return self._thin()
        extents = (self.groups, self.own_out, self.batch * self.pixels, self.depth)
        among = (self.value, self.weight)
        return Product(self.shape, self.work, extents, self.weighed, self.seen, self.place, among=among)

    def weighed(self, e: Emitter, z: str, m: str, k: str) -> str:
        """The weight of tap and input channel `k` for output channel `m` of group `z`."""
        channel, *tap = e.dims(e.at_flat((self.own_in, *self.taps), k))
        first, second = self._in_group(e, z, self.own_out, m), channel
        if self.is_turned:  # [in, out of the group, taps]
            first, second = self._in_group(e, z, self.own_in, channel), m
        text = self.weight.load(e, e.at(self.weight.shape, (first, second, *tap)))
        return cast(text, self.weight.dtype, self.work)

    def seen(self, e: Emitter, z: str, k: str, pixel: str) -> str:
        """What lies under tap and input channel `k` at a pixel; 0 outside of the image."""
        channel, *tap = e.dims(e.at_flat((self.own_in, *self.taps), k))
        image, *place = e.dims(e.at_flat((self.batch, *self.outs), pixel))
        conditions, there = [], []
        for index in range(len(self.outs)):
            text, checks = self._reached(e, place[index], tap[index], index)
            there.append(text)
            conditions += checks
        where = Place(self.value.shape, (image, self._in_group(e, z, self.own_in, channel), *there))
        chosen = [(" && ".join(conditions), self.value, where)]
        source = Guarded(self.value.shape, self.value.dtype, lambda e, dims: chosen, "0", (self.value,))
        return cast(source.compute(e, where), self.value.dtype, self.work)

    def _reached(self, e: Emitter, out: str, tap: str, index: int) -> tuple[str, list[str]]:
        """The input pixel under a tap along one dimension, and when there is one."""
        extent, pad, step = self.extents[index], self.pad[index], self.stride[index]
        moved = times(tap, self.dilation[index], extent)
        if self.is_turned:
            offset = e.index(f"{sum_of(out, str(pad))} - ({moved})")
            inner = offset if step == 1 else e.index(f"{offset} / {step}")
            exact = [] if step == 1 else [f"{offset} % {step} == 0"]
            return inner, [f"{offset} >= 0", *exact, f"{inner} < {extent}"]
        start = sum_of(times(out, step, extent), moved)
        inner = e.index(f"{start} - {pad}" if pad else start)
        reach = (self.outs[index] - 1) * step + (self.taps[index] - 1) * self.dilation[index] - pad
        low = [f"{inner} >= 0"] if pad else []
        return inner, [*low, *([f"{inner} < {extent}"] if reach >= extent else [])]

    def place(self, e: Emitter, z: str, m: str, pixel: str) -> Place:
        """Where the result for output channel `m` of group `z` and a pixel of any image goes."""
        image, inner = "0", pixel
        if self.batch > 1:
            image, inner = e.dims(e.at_flat((self.batch, self.pixels), pixel))
        channel, channels = self._in_group(e, z, self.own_out, m), self.shape[1]
        row = e.joined(image, channels, channel, self.batch) if self.batch > 1 else channel
        rows = self.batch * channels
        return e.at_flat(self.shape, e.joined(row, self.pixels, inner, rows) if self.pixels > 1 else row)

    def _in_group(self, e: Emitter, z: str, size: int, index: str) -> str:
        return index if z == "0" else e.joined(z, size, index, self.groups)

    def _thin(self) -> Value:
        """With few channels in a group, such as depthwise: each sum by its own threads."""
        channels = self.shape[1]

        def terms(e: Emitter, dims: tuple[str, ...]) -> str:
            image, channel, pixel, k = dims
            z, m = channel, "0"
            if self.own_out > 1:
                z, m = e.dims(e.at_flat((self.groups, self.own_out), channel))
            z = "0" if self.groups == 1 else z
            whole = e.joined(image, self.pixels, pixel, self.batch) if self.batch > 1 else pixel
            return f"{self.weighed(e, z, m, k)} * {self.seen(e, z, k, whole)}"

        summed = _Terms((self.batch, channels, self.pixels, self.depth), self.work, terms)
        summed.among = (self.value, self.weight)
        return viewed(reduced(summed, [3], "sum"), self.shape)


def convolved(
    node: Node,
    value: Value,
    weight: Value,
    stride: list[int],
    pad: list[int],
    dilation: list[int],
    groups: int,
    is_turned: bool,
) -> Value:
    return Convolution(node, value, weight, stride, pad, dilation, groups, is_turned).value_of()


class _Terms(Positional):
    """Products that are computed of their indices, and read other values."""

    among: tuple[Value, ...] = ()

    @property
    def sources(self) -> Sequence[Value]:
        return self.among


# ---- attention -----------------------------------------------------------------------------------------------------


@rule("scaled_dot_product_attention")
def _attention(node: Node, given: list[Any], options: dict[str, Any]) -> Value:
    query, key, value = given[:3]
    mask = given[3] if len(given) > 3 else options.get("attn_mask")
    chance = given[4] if len(given) > 4 else options.get("dropout_p", 0.0)
    causal = given[5] if len(given) > 5 else options.get("is_causal", False)
    scale = options.get("scale") or 1 / math.sqrt(query.shape[-1])
    if chance:
        raise CannotWrite("attention with dropout draws random numbers")
    if options.get("enable_gqa") and key.shape[-3] != query.shape[-3]:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (_repeated(one, groups) for one in (key, value))
    rank, dtype = len(query.shape), accumulated(node.spec.dtype)
    turned = permuted(key, [*range(rank - 2), rank - 1, rank - 2])
    shape = (*query.shape[:-1], key.shape[-2])
    scores: Value = point("x * y", dtype, shape, viewed(_multiplied(query, turned, dtype), shape), scale)
    scores = _masked(scores, mask, causal, dtype)
    top = total(scores, [rank - 1], "max")
    if mask is not None:  # a row of which nothing is seen has weights of zero
        top = point("isinf(x) ? 0 : x", dtype, top.shape, top)
    exps = point("exp(x - y)", dtype, shape, scores, top)
    sums = total(exps, [rank - 1], "sum")
    weights = point("y > 0 ? x / y : 0" if mask is not None else "x / y", dtype, shape, exps, sums)
    return _with(node, viewed(_multiplied(weights, value, dtype), node.spec.shape), None)


def _masked(scores: Value, mask: Value | None, causal: bool, dtype: str) -> Value:
    shape = scores.shape
    if causal:
        seen = Positional(shape, "bool", lambda e, dims: f"{dims[-1]} <= {dims[-2]}")
        return point("w ? x : y", dtype, shape, scores, -math.inf, seen)
    if mask is None:
        return scores
    if mask.dtype == "bool":
        return point("w ? x : y", dtype, shape, scores, -math.inf, mask)
    return point("x + y", dtype, shape, scores, mask)


def _repeated(value: Value, groups: int) -> Value:
    *lead, heads, length, width = value.shape
    wide = expanded(viewed(value, (*lead, heads, 1, length, width)), (*lead, heads, groups, length, width))
    return viewed(wide, (*lead, heads * groups, length, width))
