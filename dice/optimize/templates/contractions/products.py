"""Operators that are sums of products: matrix products of every kind, attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dice.optimize.graph import Node
from dice.optimize.templates.contractions.division import division
from dice.optimize.templates.emitter import CannotWrite, Emitter, Place
from dice.optimize.templates.pointwise import apply, rule
from dice.optimize.templates.reductions import accumulated, point, reduced, total
from dice.optimize.templates.shapes import expanded, permuted, viewed
from dice.optimize.templates.values import Keywords, Moved, Positional, Product, Value, runs_along

FEW = 8  # rows or columns of a product up to which threads share each sum instead of a tile


def matrix_product(a: Value, b: Value, dtype: str) -> Value:
    """[z, m, k] times [z, k, n] as [z, m, n]."""
    z, m, k = a.shape
    n = b.shape[2]
    work = accumulated(dtype)
    if k == 1:
        return point("x * y", work, (z, m, n), a, b)
    if min(m, n) < FEW or k < FEW:
        return _shared_sum(a, b, work)

    def place(e: Emitter, iz: str, im: str, in_: str) -> Place:
        row = e.joined(iz, m, im, z) if z > 1 else im
        return e.at_flat((z, m, n), e.joined(row, n, in_, z * m) if n > 1 else row)

    product = Product(
        (z, m, n),
        work,
        (z, m, n, k),
        lambda e, iz, im, ik: (a, e.at(a.shape, (iz, im, ik))),
        lambda e, iz, ik, in_: (b, e.at(b.shape, (iz, ik, in_))),
        place,
        lambda: ("mk"[runs_along(a) - 1], "kn"[runs_along(b) - 1]),
        in_pairs=n % 2 == 0,
        among=(a, b),
    )
    return in_parts(product)


def in_parts(of: Product) -> Value:
    """The product, where too few blocks would sum it with the terms of its sums dealt out, and then the parts added."""
    parts = division(of.extents).parts
    return of if parts == 1 else reduced(replace(of, shape=(parts, *of.shape), parts=parts), [0], "sum")


def _shared_sum(a: Value, b: Value, work: str) -> Value:
    """The same where a tile would be nearly empty: a reduction over the products."""
    z, m, k = a.shape
    n = b.shape[2]
    shape = (z, m, n, k)
    left = Moved(shape, a.dtype, a, lambda e, p: e.at(a.shape, [e.dims(p)[i] for i in (0, 1, 3)]))
    right = Moved(shape, b.dtype, b, lambda e, p: e.at(b.shape, [e.dims(p)[i] for i in (0, 3, 2)]))
    return reduced(point("x * y", work, shape, left, right), [3], "sum")


def with_bias(node: Node, value: Value, bias: Value | None) -> Value:
    if bias is not None:
        return apply(node, "x + y", value, bias)
    return apply(node, "x", value) if value.dtype != node.spec.dtype else value


@rule("linear")
def _linear(node: Node, given: list[Any], options: Keywords) -> Value:
    bias = given[2] if len(given) > 2 else options.get("bias")
    return linear(node, given[0], given[1], bias)


def linear(node: Node, value: Value, weight: Value, bias: Value | None) -> Value:
    """`F.linear`, of the shape and type that the node has."""
    features = value.shape[-1]
    rows = viewed(value, (1, value.numel // features, features))
    turned = permuted(viewed(weight, (1, *weight.shape)), (0, 2, 1))
    return with_bias(node, viewed(matrix_product(rows, turned, node.spec.dtype), node.spec.shape), bias)


@rule("mm", "bmm", "matmul", "mv", "dot", "vdot", "inner")
def _matmul(node: Node, given: list[Any], options: Keywords) -> Value:
    result = _multiplied(given[0], given[1], node.spec.dtype)
    return with_bias(node, viewed(result, node.spec.shape), None)


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
def _addmm(node: Node, given: list[Any], options: Keywords) -> Value:
    bias, a, b = given[:3]
    beta, alpha = options.get("beta", 1), options.get("alpha", 1)
    if node.base == "addbmm":
        raise CannotWrite("addbmm has no rule")
    result: Value = viewed(_multiplied(a, b, node.spec.dtype), node.spec.shape)
    if alpha != 1:
        result = point("x * y", result.dtype, result.shape, result, float(alpha))
    if beta != 1:
        bias = point("x * y", accumulated(bias.dtype), bias.shape, bias, float(beta))
    return with_bias(node, result, bias)


@rule("einsum")
def _einsum(node: Node, given: list[Any], options: Keywords) -> Value:
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
    return with_bias(node, permuted(value, [term.index(label) for label in result]), None)


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


# ---- attention -----------------------------------------------------------------------------------------------------


@rule("scaled_dot_product_attention")
def _attention(node: Node, given: list[Any], options: Keywords) -> Value:
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
    return with_bias(node, viewed(_multiplied(weights, value, dtype), node.spec.shape), None)


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
