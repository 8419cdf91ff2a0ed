"""Operators that work element by element, as C++ expressions. Each line of the tables is one operator of PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dice.optimize.graph import Named, Node
from dice.optimize.templates.emitter import CannotWrite, computed, is_float
from dice.optimize.templates.text import NAN_KEEPING
from dice.optimize.templates.values import Keywords, Pointwise, Value, literal

# Function of C's mathematics by operator; its float form ends in f.
_FUNCTIONS = {
    "exp": "exp", "exp2": "exp2", "expm1": "expm1", "log": "log", "log2": "log2", "log10": "log10", "log1p": "log1p",
    "sqrt": "sqrt", "rsqrt": "rsqrt", "sin": "sin", "cos": "cos", "tan": "tan", "asin": "asin", "acos": "acos",
    "atan": "atan", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh", "asinh": "asinh", "acosh": "acosh",
    "atanh": "atanh", "erf": "erf", "erfc": "erfc", "lgamma": "lgamma",
    "floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "rint",
}  # fmt: skip
# Expressions of an element `x`; numbers and functions in them are of the type that is computed in: see `written`. What
# is not a number stays that, as PyTorch has it: comparisons are turned so that NaN takes the branch that keeps `x`.
_UNARY = {
    "neg": "-x",
    "reciprocal": "1 / x",
    "square": "x * x",
    "relu": "x <= 0 ? 0 : x",
    "relu6": "min(max(x, 0), 6)",
    "sigmoid": "1 / (1 + exp(-x))",
    "silu": "x / (1 + exp(-x))",
    "mish": "x * tanh(x > 20 ? x : log1p(exp(x)))",
    "softsign": "x / (1 + abs(x))",
    "tanhshrink": "x - tanh(x)",
    "log_sigmoid": "min(x, 0) - log1p(exp(-abs(x)))",
    "hardsigmoid": "min(max(x + 3, 0), 6) / 6",
    "hardswish": "x * min(max(x + 3, 0), 6) / 6",
    "selu": "1.0507009873554805 * (x > 0 ? x : 1.6732632423543772 * expm1(x))",
    "abs": "abs(x)",
    "sign": "x > 0 ? 1 : (x < 0 ? -1 : 0)",
    "sgn": "x > 0 ? 1 : (x < 0 ? -1 : 0)",
    "frac": "x - trunc(x)",
}
_GELU = "0.5 * x * (1 + erf(x * 0.7071067811865476))"
_GELU_TANH = "0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))"
# With constants: names of the arguments after the first, their defaults, the expression.
_WITH_NUMBERS: dict[str, tuple[dict[str, float], str]] = {
    "leaky_relu": ({"s": 0.01}, "x > 0 ? x : s * x"),
    "elu": ({"a": 1.0, "b": 1.0, "c": 1.0}, "b * (x > 0 ? x : a * expm1(c * x))"),
    "celu": ({"a": 1.0}, "max(x, 0) + min(a * expm1(x / a), 0)"),
    "hardtanh": ({"a": -1.0, "b": 1.0}, "min(max(x, a), b)"),
    "softplus": ({"a": 1.0, "t": 20.0}, "x * a > t ? x : log1p(exp(x * a)) / a"),
    "threshold": ({"t": 0.0, "a": 0.0}, "x <= t ? a : x"),
    "hardshrink": ({"t": 0.5}, "x >= -t && x <= t ? 0 : x"),
    "softshrink": ({"t": 0.5}, "x > t ? x - t : (x < -t ? x + t : x * 0)"),
}
_BINARY = {
    "maximum": "max(x, y)",
    "minimum": "min(x, y)",
    "fmax": "fmax(x, y)",
    "fmin": "fmin(x, y)",
    "atan2": "atan2(x, y)",
    "hypot": "hypot(x, y)",
    "fmod": "fmod(x, y)",
    "logaddexp": "max(x, y) + log1p(exp(-abs(x - y)))",
    "prelu": "x > 0 ? x : y * x",
}
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_LOGIC = {
    "logical_and": "x && y", "logical_or": "x || y", "logical_xor": "x != y",
    "bitwise_and": "x & y", "bitwise_or": "x | y", "bitwise_xor": "x ^ y",
    "__and__": "x & y", "__or__": "x | y", "__xor__": "x ^ y",
    "__lshift__": "x << y", "__rshift__": "x >> y", "bitwise_left_shift": "x << y", "bitwise_right_shift": "x >> y",
}  # fmt: skip

Rule = Callable[[Node, list[Any], Keywords], Value]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    def add(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return add


def written(template: str, dtype: str, **parts: str) -> str:
    """The template with its letters replaced, and its functions and numbers of the type that `dtype` is computed in."""
    import re

    ctype = computed(dtype)
    known = {
        **_FUNCTIONS,
        "abs": "fabs",
        "fmax": "fmax",
        "fmin": "fmin",
        "atan2": "atan2",
        "hypot": "hypot",
        "fmod": "fmod",
    }
    end = "f" if ctype == "float" else ""

    def swap(match: re.Match[str]) -> str:
        word = match[0]
        if word in parts:
            return parts[word]
        if word in known and is_float(dtype):
            return known[word] + end
        if word in NAN_KEEPING and is_float(dtype):
            return NAN_KEEPING[word]
        if word[0].isdigit():
            return literal(float(word), dtype) if is_float(dtype) else literal(int(word), dtype)
        return word

    return re.sub(r"(?<![\w.])(\d+\.?\d*|[A-Za-z_]\w*)", swap, template)


def apply(node: Node, template: str, *arguments: Any, math: str = "") -> Pointwise:
    """One value per element: letters x, y, w stand for the arguments."""
    spec = node.spec
    dtype = math or spec.dtype

    def write(*texts: str) -> str:
        return written(template, dtype, **dict(zip("xyw", texts, strict=False)))

    return Pointwise(spec.shape, spec.dtype, arguments, write, dtype)


def common(arguments: list[Any]) -> str:
    """The dtype that several arguments are compared in."""
    dtypes = [argument.dtype for argument in arguments if isinstance(argument, Value)]
    floats = [dtype for dtype in dtypes if is_float(dtype)]
    if floats:
        return "float64" if "float64" in floats else "float32"
    if any(isinstance(argument, float) for argument in arguments):
        return "float32"
    return "int64" if dtypes and set(dtypes) != {"bool"} else "bool" if dtypes else "int64"


@rule(*_FUNCTIONS, *_UNARY)
def _unary(node: Node, given: list[Any], options: Keywords) -> Value:
    if node.base == "round" and len(given) + len(options) > 1:
        raise CannotWrite("rounding to decimals has no rule")
    if not is_float(node.spec.dtype) and node.base in _FUNCTIONS:
        return apply(node, "x", given[0])
    if node.base == "abs" and not is_float(node.spec.dtype):
        return apply(node, "x < 0 ? -x : x", given[0])
    return apply(node, _UNARY.get(node.base) or f"{node.base}(x)", given[0])


@rule("gelu")
def _gelu(node: Node, given: list[Any], options: Keywords) -> Value:
    return apply(node, _GELU_TANH if options.get("approximate") == "tanh" else _GELU, given[0])


@rule(*_WITH_NUMBERS)
def _with_numbers(node: Node, given: list[Any], options: Keywords) -> Value:
    defaults, template = _WITH_NUMBERS[node.base]
    named = dict(zip(defaults, given[1:], strict=False))
    renamed = {"negative_slope": "s", "alpha": "a", "beta": "a", "threshold": "t", "lambd": "t", "value": "a"}
    named |= {renamed.get(key, key): value for key, value in options.items()}
    numbers = defaults | named
    spec = node.spec

    def write(text: str) -> str:
        parts = {key: literal(value, spec.dtype) for key, value in numbers.items()}
        return written(template, spec.dtype, x=text, **parts)

    return Pointwise(spec.shape, spec.dtype, (given[0],), write, spec.dtype)


@rule(*_BINARY)
def _binary(node: Node, given: list[Any], options: Keywords) -> Value:
    first, second = given[:2]
    if node.base == "prelu" and isinstance(second, Value) and second.numel > 1:
        from dice.optimize.templates.shapes import viewed

        second = viewed(second, (1, second.numel, *(1,) * (len(node.spec.shape) - 2)))
    template = _BINARY[node.base]
    if not is_float(node.spec.dtype):
        larger, smaller = "x > y ? x : y", "x < y ? x : y"
        template = {"maximum": larger, "fmax": larger, "minimum": smaller, "fmin": smaller, "fmod": "x % y"}.get(
            node.base, template
        )
    return apply(node, template, first, second)


@rule("add", "sub", "rsub")
def _sum(node: Node, given: list[Any], options: Keywords) -> Value:
    alpha = options.get("alpha", given[2] if len(given) > 2 else 1)
    first, second = (given[1], given[0]) if node.base == "rsub" else given[:2]
    sign = "+" if node.base == "add" else "-"
    if node.spec.dtype == "bool":
        return apply(node, "x || y", first, second)
    if alpha == 1:
        return apply(node, f"x {sign} y", first, second)
    return apply(node, f"x {sign} w * y" if node.base != "rsub" else "w * x - y", first, second, alpha)


@rule("mul")
def _mul(node: Node, given: list[Any], options: Keywords) -> Value:
    return apply(node, "x && y" if node.spec.dtype == "bool" else "x * y", *given[:2])


@rule("div", "true_divide", "floor_divide")
def _div(node: Node, given: list[Any], options: Keywords) -> Value:
    mode = options.get("rounding_mode") or ("floor" if node.base == "floor_divide" else None)
    if mode is None:
        return apply(node, "x / y", *given[:2])
    if is_float(node.spec.dtype):
        return apply(node, f"{mode}(x / y)", *given[:2])
    return apply(node, "x / y" if mode == "trunc" else "x / y - (x % y != 0 && (x < 0) != (y < 0) ? 1 : 0)", *given[:2])


@rule("remainder")
def _remainder(node: Node, given: list[Any], options: Keywords) -> Value:
    if is_float(node.spec.dtype):
        return apply(node, "x - y * floor(x / y)", *given[:2])
    return apply(node, "(x % y + y) % y", *given[:2])


@rule("pow")
def _pow(node: Node, given: list[Any], options: Keywords) -> Value:
    base, power = given[:2]
    small = {2: "x * x", 3: "x * x * x", 4: "x * x * x * x", 1: "x", 0.5: "sqrt(x)", -0.5: "rsqrt(x)", -1: "1 / x"}
    if isinstance(power, int | float) and power in small and isinstance(base, Value):
        template = small[power]
        if is_float(node.spec.dtype) or "(" not in template:
            return apply(node, template, base)
    if not is_float(node.spec.dtype):
        raise CannotWrite("a power of whole numbers has no rule")
    name = "powf" if computed(node.spec.dtype) == "float" else "pow"
    return apply(node, f"{name}(x, y)", base, power)


@rule(*_COMPARE)
def _compare(node: Node, given: list[Any], options: Keywords) -> Value:
    return apply(node, f"x {_COMPARE[node.base]} y", *given[:2], math=common(given[:2]))


@rule(*_LOGIC)
def _logic(node: Node, given: list[Any], options: Keywords) -> Value:
    return apply(
        node, _LOGIC[node.base], *given[:2], math="bool" if node.base.startswith("logical") else node.spec.dtype
    )


@rule("logical_not", "bitwise_not")
def _not(node: Node, given: list[Any], options: Keywords) -> Value:
    if node.spec.dtype == "bool":
        return apply(node, "!x", given[0], math="bool")
    return apply(node, "~x", given[0])


@rule("isnan", "isinf", "isfinite")
def _is(node: Node, given: list[Any], options: Keywords) -> Value:
    return apply(node, f"{node.base}(x)", given[0], math=given[0].dtype)


@rule("where")
def _where(node: Node, given: list[Any], options: Keywords) -> Value:
    if len(given) < 3:
        raise CannotWrite("what where(condition) gives depends on values")
    return where(node, given[0], given[1], given[2])


@rule("masked_fill")
def _masked_fill(node: Node, given: list[Any], options: Keywords) -> Value:
    return where(node, given[1], given[2], given[0])


def where(node: Node, condition: Value, one: Any, other: Any) -> Value:
    spec = node.spec
    as_bool = Pointwise(condition.shape, "bool", (condition,), lambda text: text, "bool")
    texts = [_as(one, spec.dtype), _as(other, spec.dtype)]
    write = lambda c, a, b: f"{c} ? {a} : {b}"  # noqa: E731
    return Pointwise(spec.shape, spec.dtype, (as_bool, *texts), write)


def _as(value: Any, dtype: str) -> Any:
    """A number or a value of another dtype in this one."""
    if isinstance(value, Value):
        return value if value.dtype == dtype else Pointwise(value.shape, dtype, (value,), lambda text: text, dtype)
    return Pointwise((), dtype, (value,), lambda text: text, dtype)


@rule("clamp", "clamp_min", "clamp_max", "clip")
def _clamp(node: Node, given: list[Any], options: Keywords) -> Value:
    low = options.get("min", given[1] if len(given) > 1 and node.base != "clamp_max" else None)
    high = options.get("max", given[2] if len(given) > 2 else None)
    if node.base == "clamp_max":
        high = given[1]
    value: Any = given[0]
    whole = not is_float(node.spec.dtype)
    if low is not None:
        value = apply(node, "x > y ? x : y" if whole else "max(x, y)", value, low)
    if high is not None:
        value = apply(node, "x < y ? x : y" if whole else "min(x, y)", value, high)
    return value


@rule("lerp")
def _lerp(node: Node, given: list[Any], options: Keywords) -> Value:
    return apply(node, "x + w * (y - x)", *given[:3])


@rule("addcmul", "addcdiv")
def _addc(node: Node, given: list[Any], options: Keywords) -> Value:
    value = options.get("value", given[3] if len(given) > 3 else 1)
    scaled = apply(node, "x * y" if node.base == "addcmul" else "x / y", *given[1:3])
    return apply(node, "x + w * y", given[0], scaled, value)


@rule("to", "_to_copy", "type_as", "clone", "contiguous", "detach", "alias", "lift_fresh_copy", "positive")
@rule("dropout", "feature_dropout", "alpha_dropout")
def _same(node: Node, given: list[Any], options: Keywords) -> Value:
    if node.base == "to" and isinstance(options.get("device"), Named) and options["device"].name == "cpu":
        raise CannotWrite("a tensor is moved to the host")
    value = given[0]
    if node.spec.dtype == value.dtype:
        return value
    return apply(node, "x", value)


@rule("nan_to_num")
def _nan_to_num(node: Node, given: list[Any], options: Keywords) -> Value:
    if len(given) > 2 or options.get("posinf") is not None:
        raise CannotWrite("nan_to_num with bounds has no rule")
    number = given[1] if len(given) > 1 and given[1] is not None else options.get("nan") or 0.0
    largest = {"float64": 1.7976931348623157e308, "float16": 65504.0, "bfloat16": 3.3895313892515355e38}
    top = largest.get(node.spec.dtype, 3.4028234663852886e38)
    inside = apply(node, "min(max(x, w), y)", given[0], top, -top)
    return apply(node, "isnan(x) ? w : y", given[0], inside, number)


def constant(node: Node, number: Any) -> Value:
    """The same number everywhere."""
    return Pointwise(node.spec.shape, node.spec.dtype, (number,), lambda text: text, node.spec.dtype)


@rule("zeros", "zeros_like", "new_zeros", "empty", "empty_like", "empty_permuted", "new_empty")
def _zeros(node: Node, given: list[Any], options: Keywords) -> Value:
    return constant(node, 0)


@rule("ones", "ones_like", "new_ones")
def _ones(node: Node, given: list[Any], options: Keywords) -> Value:
    return constant(node, 1)


@rule("full", "full_like", "scalar_tensor", "new_full")
def _full(node: Node, given: list[Any], options: Keywords) -> Value:
    return constant(node, given[0] if node.base == "scalar_tensor" else given[2 if node.base == "new_full" else 1])


__all__ = ["RULES", "apply", "common", "constant", "rule", "where", "written"]
