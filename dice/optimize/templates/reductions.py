"""Operators that make one number of many: sums and their kin, norms, softmax, losses, running sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dice.optimize.graph import Node, Spec
from dice.optimize.templates.emitter import CannotWrite, Emitter, Place, is_float
from dice.optimize.templates.indexing import Chosen
from dice.optimize.templates.layout import in_parts, reduced, whole
from dice.optimize.templates.pointwise import RULES, apply, rule, where
from dice.optimize.templates.shapes import expanded, sliced, viewed
from dice.optimize.templates.values import (
    Keywords,
    Moments,
    Moved,
    Pointwise,
    Positional,
    Reduced,
    Scanned,
    Softmax,
    Together,
    Value,
)


def as_node(node: Node, shape: Sequence[int], dtype: str = "") -> Node:
    """The node with another output, for a step inside an operator."""
    return replace(node, output=Spec(tuple(shape), dtype or node.spec.dtype))


def point(template: str, dtype: str, shape: Sequence[int], *arguments: Any) -> Pointwise:
    """A step inside an operator, element by element."""
    node = Node("step", "aten.step.default", (), {}, Spec(tuple(shape), dtype))
    return apply(node, template, *arguments)


def kept(value: Value, source: Value, over: Sequence[int]) -> Value:
    """What was reduced with the dimensions in place, as ones."""
    rank = len(source.shape)
    dims = {index % rank for index in over}
    return viewed(value, [1 if index in dims else extent for index, extent in enumerate(source.shape)])


def total(value: Value, over: Sequence[int], kind: str = "sum", dtype: str = "") -> Value:
    """Reduced, with the dimensions in place."""
    return kept(reduced(value, over, kind, dtype), value, over)


def accumulated(dtype: str) -> str:
    """The dtype that sums of this one are kept in within a kernel."""
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def _dims(given: Any, rank: int) -> list[int]:
    if given is None or given == []:
        return list(range(rank))
    return [given % rank] if isinstance(given, int) else [index % rank for index in given]


def mean_of(value: Value, over: Sequence[int], dtype: str = "") -> Value:
    """The mean with the dimensions in place."""
    dtype = accumulated(dtype or value.dtype)
    count = math.prod(value.shape[index] for index in over)
    summed = total(value, over, "sum", dtype)
    return point("x / y", dtype, summed.shape, summed, float(count))


def moments(value: Value, over: Sequence[int], correction: float = 0.0) -> tuple[Value, Value]:
    """Mean and variance with the dimensions in place. What is summed is how far elements are from the first one, and
    then the squared distances from the mean: near-equal numbers keep their digits, and equal ones have no variance."""
    average, squares, _ = statistics(value, over)
    count = math.prod(value.shape[index] for index in over)
    return average, point("x / y", squares.dtype, squares.shape, squares, max(count - correction, 0.0))


def statistics(value: Value, over: Sequence[int]) -> tuple[Value, Value, Value]:
    """The mean, the sum of squared distances from it, and the mean by a plain sum, with the dimensions in place."""
    known = value.statistics.get(tuple(over))
    if known is not None:
        return known
    dtype, count = accumulated(value.dtype), float(math.prod(value.shape[index] for index in over))
    cut = in_parts(value, over)
    first = _first(value, over)
    sums = _of_rows(value, first, over, dtype) if cut is None else _of_parts(*cut, dtype)
    summed, squares, plain = (kept(one, value, over) for one in sums)
    mean = point("x + y / w", dtype, first.shape, first, summed, count)
    value.statistics[tuple(over)] = known = mean, squares, point("x / y", dtype, plain.shape, plain, count)
    return known


def _first(value: Value, over: Sequence[int]) -> Value:
    for index in over:
        value = sliced(value, index % len(value.shape), 0, 1)
    return value


def _of_rows(value: Value, first: Value, over: Sequence[int], dtype: str) -> tuple[Reduced, Reduced, Reduced]:
    """Of each row: the sum of its distances from `first`, the sum of squared distances from its mean, the plain sum."""
    apart = point("x - y", dtype, value.shape, value, first)
    summed = whole(apart, over, "sum", dtype)
    total_again = kept(summed, value, over)
    mean = point("x / y", dtype, total_again.shape, total_again, float(summed.length))
    centred = point("x - y", dtype, value.shape, apart, mean)
    squares = whole(point("x * x", dtype, value.shape, centred), over, "sum", dtype)
    plain = whole(value, over, "sum", dtype)
    summed.together = squares.together = plain.together = Moments((summed, squares, plain), apart, value)
    return summed, squares, plain


def _of_parts(long: Value, dim: int, dtype: str) -> tuple[Reduced, Reduced, Reduced]:
    """The same of rows in parts: a part's squared distances are from its own mean, whose distance from the row's is
    added, as Chan, Golub and LeVeque have it (Updating Formulae, 1979)."""
    parts = [dim - 1]
    sums, squares, plain = _of_rows(long, _first(long, [dim - 1, dim]), [dim], dtype)
    length = float(long.shape[dim])
    summed = whole(sums, parts)
    total_again = kept(summed, sums, parts)
    mean = point("x / y", dtype, total_again.shape, total_again, length * long.shape[dim - 1])
    gap = point("x / y - w", dtype, sums.shape, sums, length, mean)
    spread = whole(point("x + y * w * w", dtype, sums.shape, squares, length, gap), parts)
    in_all = whole(plain, parts)
    summed.together = spread.together = in_all.together = Together((summed, spread, in_all))
    return summed, spread, in_all


def _arguments(node: Node, given: list[Any], options: Keywords) -> tuple[Value, list[int], bool]:
    """Value, dimensions, and whether they stay."""
    value = given[0]
    dims = given[1] if len(given) > 1 else options.get("dim")
    keep = given[2] if len(given) > 2 else options.get("keepdim", False)
    if isinstance(dims, bool):
        raise CannotWrite(f"this form of {node.base} has no rule")
    return value, _dims(dims, len(value.shape)), bool(keep)


@rule("sum", "mean", "prod", "amax", "amin", "any", "all", "nansum")
def _reduce(node: Node, given: list[Any], options: Keywords) -> Value:
    value, over, _ = _arguments(node, given, options)
    if node.base == "nansum":
        raise CannotWrite("nansum has no rule")
    if not value.shape:
        return apply(node, "x", value)
    if node.base == "mean":
        mean = mean_of(value, over, node.spec.dtype)
        return viewed(apply(as_node(node, mean.shape), "x", mean), node.spec.shape)
    if node.base in ("any", "all"):
        value = Pointwise(value.shape, "bool", (value,), lambda text: text, "bool")
    kind = {"amax": "max", "amin": "min"}.get(node.base, node.base)
    dtype = node.spec.dtype if kind in ("any", "all") else accumulated(node.spec.dtype)
    result = viewed(reduced(value, over, kind, dtype), node.spec.shape)
    return apply(node, "x", result) if result.dtype != node.spec.dtype else result


@rule("max", "min")
def _extreme(node: Node, given: list[Any], options: Keywords) -> Any:
    value = given[0]
    if len(given) > 1 and isinstance(given[1], Value):
        return RULES["maximum" if node.base == "max" else "minimum"](
            replace(node, operator=f"aten.{node.base}imum.default"), given[:2], options
        )
    if not isinstance(node.output, tuple):
        return viewed(reduced(value, range(len(value.shape)), node.base), node.spec.shape)
    over = [given[1] % len(value.shape)]
    first, second = node.output
    assert first is not None and second is not None
    index = viewed(reduced(value, over, f"arg{node.base}", "int64"), second.shape)
    return viewed(reduced(value, over, node.base), first.shape), index


@rule("argmax", "argmin")
def _arg(node: Node, given: list[Any], options: Keywords) -> Value:
    value, over, _ = _arguments(node, given, options)
    return viewed(reduced(value, over, node.base, "int64"), node.spec.shape)


@rule("var", "std", "var_mean", "std_mean")
def _variance(node: Node, given: list[Any], options: Keywords) -> Any:
    value = given[0]
    dims, correction = None, 1.0
    if node.operator.endswith((".correction", ".dim", ".correction_names")):
        dims = given[1] if len(given) > 1 else options.get("dim")
    if node.operator.endswith(".dim"):
        correction = float(bool(given[2] if len(given) > 2 else options.get("unbiased", True)))
    elif options.get("correction") is not None:
        correction = float(options["correction"])
    elif node.operator.endswith(".default"):
        correction = float(bool(given[1] if len(given) > 1 else options.get("unbiased", True)))
    over = _dims(dims, len(value.shape))
    _, var = moments(value, over, correction)
    outputs = node.output if isinstance(node.output, tuple) else (node.spec,)
    first = outputs[0]
    assert first is not None
    spread = point("sqrt(x)" if node.base.startswith("std") else "x", first.dtype, var.shape, var)
    results = [viewed(spread, first.shape)]
    if isinstance(node.output, tuple):
        # A mean near zero has its digits from a plain sum: a distance from the first element has only that one's.
        mean = statistics(value, over)[2]
        results.append(viewed(point("x", first.dtype, mean.shape, mean), first.shape))
        return tuple(results)
    return results[0]


@rule("linalg_vector_norm", "norm", "frobenius_norm")
def _norm(node: Node, given: list[Any], options: Keywords) -> Value:
    value = given[0]
    order = (given[1] if len(given) > 1 else 2) if node.base != "frobenius_norm" else 2
    at = 1 if node.base == "frobenius_norm" else 2
    dims = given[at] if len(given) > at else options.get("dim")
    over = _dims(dims, len(value.shape))
    order = 2 if order is None or order == "fro" else order
    dtype, shape = accumulated(node.spec.dtype), value.shape
    if order in (math.inf, -math.inf):
        kind = "max" if order > 0 else "min"
        result: Value = reduced(point("abs(x)", dtype, shape, value), over, kind)
    elif order == 1:
        result = reduced(point("abs(x)", dtype, shape, value), over, "sum")
    elif order == 2:
        squares = reduced(point("x * x", dtype, shape, value), over, "sum")
        result = point("sqrt(x)", dtype, squares.shape, squares)
    elif order == 0:
        result = reduced(point("x == 0 ? 0 : 1", dtype, shape, value), over, "sum")
    else:
        power = "powf(x, y)" if dtype == "float32" else "pow(x, y)"
        powers = point(power, dtype, shape, point("abs(x)", dtype, shape, value), float(order))
        summed = reduced(powers, over, "sum")
        result = point(power, dtype, summed.shape, summed, 1.0 / order)
    return viewed(point("x", node.spec.dtype, result.shape, result), node.spec.shape)


# ---- softmax and normalisations ------------------------------------------------------------------------------------


@rule("softmax", "_softmax", "log_softmax", "_log_softmax", "softmin")
def _softmax(node: Node, given: list[Any], options: Keywords) -> Value:
    value = given[0]
    over = [given[1] % len(value.shape)]
    dtype = accumulated(node.spec.dtype)
    if node.base == "softmin":
        value = point("-x", dtype, value.shape, value)
    highest = reduced(value, over, "max")
    top = kept(highest, value, over)
    shifted = point("x - y", dtype, value.shape, value, top)
    exponents = point("exp(x)", dtype, value.shape, shifted)
    in_all = reduced(exponents, over, "sum", dtype)
    if highest.source is value and in_all.source is exponents:
        highest.together = in_all.together = Softmax((highest, in_all), value)
    summed = kept(in_all, value, over)
    if "log" in node.base:
        return apply(node, "x - log(y)", shifted, summed)
    return apply(node, "exp(x) / y", shifted, summed)


@rule("logsumexp")
def _logsumexp(node: Node, given: list[Any], options: Keywords) -> Value:
    value, over, _ = _arguments(node, given, options)
    dtype = accumulated(node.spec.dtype)
    highest = total(value, over, "max")
    top = point("isinf(x) ? 0 : x", dtype, highest.shape, highest)
    shifted = point("exp(x - y)", dtype, value.shape, value, top)
    summed = total(shifted, over, "sum", dtype)
    return viewed(apply(as_node(node, summed.shape), "log(x) + y", summed, top), node.spec.shape)


def normalised(node: Node, value: Value, over: Sequence[int], eps: float) -> Value:
    """Minus the mean, over the root of the variance."""
    dtype = accumulated(value.dtype)
    mean, var = moments(value, over)
    scale = point("rsqrt(x + y)", dtype, var.shape, var, eps)
    return point("(x - y) * w", dtype, value.shape, value, mean, scale)


def affine(node: Node, value: Value, weight: Value | None, bias: Value | None) -> Value:
    dtype, shape = value.dtype, value.shape
    if weight is not None:
        value = point("x * y", dtype, shape, value, weight)
    if bias is not None:
        value = point("x + y", dtype, shape, value, bias)
    return point("x", node.spec.dtype, shape, value) if dtype != node.spec.dtype else value


@rule("layer_norm", "native_layer_norm")
def _layer_norm(node: Node, given: list[Any], options: Keywords) -> Value:
    value, shape = given[:2]
    weight, bias = ((*given[2:4], None, None))[:2]
    eps = given[4] if len(given) > 4 else 1e-5
    rank = len(value.shape)
    over = range(rank - len(shape), rank)
    return affine(node, normalised(node, value, over, eps), weight, bias)


@rule("rms_norm")
def _rms_norm(node: Node, given: list[Any], options: Keywords) -> Value:
    value, shape = given[:2]
    weight = given[2] if len(given) > 2 else None
    eps = given[3] if len(given) > 3 and given[3] is not None else 1.1920928955078125e-07
    rank, dtype = len(value.shape), accumulated(value.dtype)
    over = range(rank - len(shape), rank)
    mean = mean_of(point("x * x", dtype, value.shape, value), over)
    scale = point("rsqrt(x + y)", dtype, mean.shape, mean, eps)
    return affine(node, point("x * y", dtype, value.shape, value, scale), weight, None)


def per_channel(value: Value | None, rank: int) -> Value | None:
    return None if value is None else viewed(value, (value.numel, *(1,) * (rank - 2)))


@rule("group_norm")
def _group_norm(node: Node, given: list[Any], options: Keywords) -> Value:
    value, groups = given[:2]
    weight, bias = ((*given[2:4], None, None))[:2]
    eps = given[4] if len(given) > 4 else 1e-5
    shape = value.shape
    grouped = viewed(value, (shape[0], groups, math.prod(shape[1:]) // groups))
    result = viewed(normalised(node, grouped, [2], eps), shape)
    return affine(node, result, per_channel(weight, len(shape)), per_channel(bias, len(shape)))


@rule("instance_norm")
def _instance_norm(node: Node, given: list[Any], options: Keywords) -> Value:
    value, weight, bias, mean, var, use_input, _, eps = given[:8]
    if mean is not None or var is not None or not use_input:
        raise CannotWrite("an instance normalisation with kept statistics has no rule")
    rank = len(value.shape)
    result = normalised(node, value, range(2, rank), eps)
    return affine(node, result, per_channel(weight, rank), per_channel(bias, rank))


@rule("batch_norm")
def _batch_norm(node: Node, given: list[Any], options: Keywords) -> Value:
    value, weight, bias, mean, var, training, _, eps = given[:8]
    rank, dtype = len(value.shape), accumulated(value.dtype)
    if training:
        result = normalised(node, value, [0, *range(2, rank)], eps)
    else:
        spread = per_channel(var, rank)
        assert spread is not None
        scale = point("rsqrt(x + y)", dtype, spread.shape, spread, eps)
        result = point("(x - y) * w", dtype, value.shape, value, per_channel(mean, rank), scale)
    return affine(node, result, per_channel(weight, rank), per_channel(bias, rank))


@rule("cosine_similarity")
def _cosine_similarity(node: Node, given: list[Any], options: Keywords) -> Value:
    shape = tuple(max(pair) for pair in zip(given[0].shape, given[1].shape, strict=True))
    one, other = (expanded(value, shape) for value in given[:2])
    dim = given[2] if len(given) > 2 else options.get("dim", 1)
    eps = given[3] if len(given) > 3 else options.get("eps", 1e-8)
    over, dtype = [dim % len(shape)], accumulated(node.spec.dtype)

    def along(a: Value, b: Value) -> Value:
        return reduced(point("x * y", dtype, shape, a, b), over, "sum")

    lengths = [point("max(sqrt(x), y)", dtype, node.spec.shape, along(a, a), eps) for a in (one, other)]
    return apply(node, "x / (y * w)", along(one, other), *lengths)


# ---- losses --------------------------------------------------------------------------------------------------------


def _averaged(node: Node, value: Value, reduction: Any, counted: Value | None = None) -> Value:
    """0: as it is, 1: the mean, 2: the sum. `counted`: 1 for each element that the mean is over, if not for all."""
    if reduction == 0:
        return apply(node, "x", value)
    over = range(len(value.shape))
    summed = reduced(value, over, "sum")
    if reduction != 1:
        return apply(node, "x", summed)
    return apply(node, "x / y", summed, float(value.numel) if counted is None else reduced(counted, over, "sum"))


@rule("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss", "kl_div", "binary_cross_entropy",
      "binary_cross_entropy_with_logits")  # fmt: skip
def _loss(node: Node, given: list[Any], options: Keywords) -> Value:
    one, other = given[:2]
    dtype = accumulated(node.spec.dtype)
    at = {"binary_cross_entropy": 3, "binary_cross_entropy_with_logits": 4}.get(node.base, 2)
    if any(item is not None for item in given[2:at]):
        raise CannotWrite("a weighted loss has no rule")
    reduction = given[at] if len(given) > at else options.get("reduction", 1)
    limit = given[3] if len(given) > 3 else options.get("beta", options.get("delta", 1.0))
    shape = one.shape
    forms = {
        "mse_loss": ("(x - y) * (x - y)", ()),
        "l1_loss": ("abs(x - y)", ()),
        "smooth_l1_loss": ("abs(x - y) < w ? 0.5 * (x - y) * (x - y) / w : abs(x - y) - 0.5 * w", (limit,)),
        "huber_loss": ("abs(x - y) < w ? 0.5 * (x - y) * (x - y) : w * (abs(x - y) - 0.5 * w)", (limit,)),
        "soft_margin_loss": ("log1p(exp(-x * y))", ()),
        "binary_cross_entropy": ("-(y * max(log(x), -100) + (1 - y) * max(log1p(-x), -100))", ()),
        "binary_cross_entropy_with_logits": ("max(x, 0) - x * y + log1p(exp(-abs(x)))", ()),
        "kl_div": ("y == 0 ? 0 : y * (log(y) - x)", ()),
    }
    template, more = forms[node.base]
    if node.base == "kl_div" and (options.get("log_target") or (len(given) > 3 and given[3])):
        template = "exp(y) * (y - x)"
    if other.shape != shape:
        raise CannotWrite("a loss of two shapes has no rule")
    return _averaged(node, point(template, dtype, shape, one, other, *more), reduction)


@rule("cross_entropy_loss", "nll_loss", "nll_loss_nd")
def _cross_entropy(node: Node, given: list[Any], options: Keywords) -> Value:
    scores, target = given[:2]
    weight = given[2] if len(given) > 2 else options.get("weight")
    reduction = given[3] if len(given) > 3 else options.get("reduction", 1)
    smoothing = given[5] if len(given) > 5 else options.get("label_smoothing", 0.0)
    if smoothing or is_float(target.dtype) or len(scores.shape) < 2:
        raise CannotWrite("this form of cross entropy has no rule")
    ignored = given[4] if len(given) > 4 else options.get("ignore_index", -100)
    dtype = accumulated(node.spec.dtype)

    def label_at(e: Emitter, place: Place) -> str:
        label = e.let("int", f"static_cast<int>({target.load(e, place)})", "i")
        return e.let("int", f"{label} == {ignored} ? 0 : {label}", "i")  # which need not be a class

    def move(e: Emitter, place: Place) -> Place:
        dims = e.dims(place)
        return Place(scores.shape, (dims[0], label_at(e, place), *dims[1:]))

    chosen: Value = Chosen(target.shape, scores.dtype, scores, move, (target,))
    if node.base == "cross_entropy_loss":
        top = total(scores, [1], "max")
        summed = reduced(point("exp(x - y)", dtype, scores.shape, scores, top), [1], "sum")
        chosen = point("x - y - log(w)", dtype, target.shape, chosen, viewed(top, target.shape), summed)
    counts = apply(as_node(node, target.shape, "bool"), "x != y", target, ignored, math="int64")
    of_each = as_node(node, target.shape, dtype)
    share: Value = point("x", dtype, target.shape, counts)
    if weight is not None:
        own = Chosen(target.shape, weight.dtype, weight, lambda e, p: e.at(weight.shape, (label_at(e, p),)), (target,))
        share = where(of_each, counts, own, 0.0)
    loss = where(of_each, counts, point("-x", dtype, target.shape, chosen), 0.0)
    loss = loss if weight is None else point("x * y", dtype, target.shape, loss, share)
    return _averaged(node, loss, reduction, share)


@rule("cumsum", "cumprod", "logcumsumexp")
def _cumulative(node: Node, given: list[Any], options: Keywords) -> Value:
    value, spec = given[0], node.spec
    kind = {"cumsum": "sum", "cumprod": "prod", "logcumsumexp": "logsumexp"}[node.base]
    if not spec.shape:
        return apply(node, "x", value)
    dtype = accumulated(spec.dtype)
    found = Scanned(spec.shape, dtype, value, given[1] % len(spec.shape), kind)
    return found if dtype == spec.dtype else apply(node, "x", found)


@rule("cummax", "cummin")
def _running_extreme(node: Node, given: list[Any], options: Keywords) -> Any:
    """And where it is: the last place until here whose element was as large when it came."""
    value, dim = given[0], given[1] % len(given[0].shape)
    shape = value.shape
    best = Scanned(shape, value.dtype, value, dim, node.base.removeprefix("cum"))
    place = Positional(shape, "int64", lambda e, dims: f"static_cast<int64_t>({dims[dim]})")
    is_best = apply(as_node(node, shape, "bool"), "x == y", value, best, math=value.dtype)
    return best, Scanned(shape, "int64", where(as_node(node, shape, "int64"), is_best, place, 0), dim, "max")


@rule("glu")
def _glu(node: Node, given: list[Any], options: Keywords) -> Value:
    value = given[0]
    dim = (given[1] if len(given) > 1 else -1) % len(value.shape)
    half = value.shape[dim] // 2
    one, other = sliced(value, dim, 0, half), sliced(value, dim, half, half)
    return apply(node, "x / (1 + exp(-y))", one, other)


__all__ = ["Moved", "accumulated", "moments", "point", "reduced", "total"]
