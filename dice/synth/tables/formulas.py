"""The parts that formulas are made of: expressions with one to three operands, as PyTorch users write them and in CUDA.

A formula is a tree, where a chain of operators is a line: `mix * f(x) + (1 - mix) * g(x)`. Each part stands for the
same operations in both texts, so that one is read off the other.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable
from dataclasses import dataclass

MOST = 60.0  # magnitude of a value: what is larger leaves little of the others


@dataclass(frozen=True, slots=True)
class Part:
    """`operands`: a letter for each, `e` for any expression, `n` for a value that has a name, `i` for an input (it may
    be asked whether it is above zero: of others a rounding would decide). In the texts {0} is an operand as it is, {m0}
    one that is multiplied, {a0} one that is taken as a whole; {k} is a number between 0.1 and `most`, which has the
    `role`. `bound`: the magnitude of the result, by those of the operands."""

    operands: str
    spellings: tuple[str, ...]
    cuda: str
    bound: Callable[..., float]
    role: str = ""
    most: float = 2.5
    weight: float = 1.0


def _function(name: str) -> tuple[str, ...]:
    return f"torch.{name}({{0}})", f"{{a0}}.{name}()"


def _two(name: str) -> tuple[str, ...]:
    return f"torch.{name}({{0}}, {{1}})", f"{{a0}}.{name}({{1}})"


def _same(*sizes: float) -> float:
    return max(sizes)


def _one(*_: float) -> float:
    return 1.0


PARTS: dict[str, Part] = {
    "sum": Part("ee", ("{0} + {m1}", "{0} + {m1}", "torch.add({0}, {1})"), "{0} + {m1}", lambda a, b: a + b, weight=4),
    "difference": Part("ee", ("{0} - {m1}", "torch.sub({0}, {1})"), "{0} - {m1}", lambda a, b: a + b, weight=3),
    "product": Part(
        "ee", ("{m0} * {m1}", "{m0} * {m1}", "torch.mul({0}, {1})"), "{m0} * {a1}", lambda a, b: a * b, weight=4,
    ),
    "sum_of_three": Part("eee", ("{0} + {m1} + {m2}",), "{0} + {m1} + {m2}", lambda a, b, c: a + b + c),
    "quotient_abs": Part(
        "ee", ("{m0} / ({a1}.abs() + {k})", "{m0} / (torch.abs({1}) + {k})", "{m0} / ({k} + torch.abs({1}))"),
        "{m0} / (fabsf({1}) + {k})", lambda a, b: 10 * a, "shift",
    ),
    "quotient_square": Part(
        "en", ("{m0} / ({1} ** 2 + {k})", "{m0} / ({1} * {1} + {k})", "{m0} / ({1}.pow(2) + {k})"),
        "{m0} / ({1} * {1} + {k})", lambda a, b: 10 * a, "shift",
    ),
    "quotient_exponential": Part(
        "en", ("{m0} / (torch.exp({1}) + {k})", "{m0} / ({1}.exp() + {k})"),
        "{m0} / (expf({1}) + {k})", lambda a, b: 10 * a if b <= 10 else 1e9, "shift",
    ),
    "mixed": Part(
        "ee", ("{k} * {m0} + (1 - {k}) * {m1}", "{k} * {m0} + (1.0 - {k}) * {m1}", "(1 - {k}) * {m1} + {k} * {m0}"),
        "{k} * {a0} + (1.0f - {k}) * {a1}", lambda a, b: a + b, "weight", 0.9, 2,
    ),
    "larger": Part("ee", ("torch.maximum({0}, {1})", "torch.max({0}, {1})"), "fmaxf({0}, {1})", _same),
    "smaller": Part("ee", ("torch.minimum({0}, {1})", "torch.min({0}, {1})"), "fminf({0}, {1})", _same),
    "where_positive": Part(
        "iee", ("torch.where({0} > 0, {1}, {2})", "torch.where({0} > 0.0, {1}, {2})"), "({0} > 0.0f ? {1} : {2})",
        lambda a, b, c: max(b, c), weight=1.5,
    ),
    "where_above": Part(
        "iee", ("torch.where({0} > {k}, {1}, {2})",), "({0} > {k} ? {1} : {2})", lambda a, b, c: max(b, c),
        "threshold", 1.2,
    ),
    "where_less": Part(
        "iiee", ("torch.where({0} < {1}, {2}, {3})",), "({0} < {1} ? {2} : {3})", lambda a, b, c, d: max(c, d),
    ),
    "length": Part(
        "nn", ("torch.sqrt({0} ** 2 + {1} ** 2 + {k})", "torch.sqrt({0} * {0} + {1} * {1} + {k})"),
        "sqrtf({0} * {0} + {1} * {1} + {k})", lambda a, b: a + b + 2, "eps",
    ),
    "squared_difference": Part(
        "nn", ("({0} - {1}) ** 2", "torch.square({0} - {1})", "({0} - {1}).pow(2)"), "({0} - {1}) * ({0} - {1})",
        lambda a, b: (a + b) ** 2 / 2, weight=1.5,
    ),
    "absolute_difference": Part(
        "nn", ("torch.abs({0} - {1})", "({0} - {1}).abs()"), "fabsf({0} - {1})", lambda a, b: a + b,
    ),
    "between": Part(
        "nn", ("torch.lerp({0}, {1}, {k})", "{0} + {k} * ({1} - {0})"), "{0} + {k} * ({1} - {0})", _same, "weight", 0.9,
    ),
    "scaled": Part("e", ("{k} * {m0}", "{m0} * {k}"), "{k} * {a0}", lambda a: 2.5 * a, "scale", weight=3),
    "shifted": Part("e", ("{0} + {k}", "{k} + {m0}"), "{0} + {k}", lambda a: a + 2.5, "shift", weight=2),
    "lowered": Part("e", ("{0} - {k}",), "{0} - {k}", lambda a: a + 2.5, "shift"),
    "divided": Part("e", ("{m0} / {k}",), "{m0} / {k}", lambda a: 10 * a, "divisor"),
    "one_minus": Part("e", ("1 - {m0}", "1.0 - {m0}"), "1.0f - {m0}", lambda a: a + 1, weight=2),
    "one_plus": Part("e", ("1 + {m0}", "{0} + 1", "1.0 + {m0}"), "1.0f + {m0}", lambda a: a + 1),
    "negative": Part("e", ("-{a0}", "torch.neg({0})"), "-{a0}", _same),
    "exponential": Part("e", _function("exp"), "expf({0})", lambda a: 2.72**a if a <= 4.6 else 1e9, weight=1.5),
    "decay": Part("e", ("torch.exp(-{a0})", "(-{a0}).exp()"), "expf(-{a0})", lambda a: 2.72**a if a <= 4.6 else 1e9),
    "bell": Part(
        "n", ("torch.exp(-{0} ** 2)", "torch.exp(-{0} * {0})", "torch.exp(-({0} ** 2))"), "expf(-{0} * {0})", _one,
    ),
    "fading": Part("e", ("torch.exp(-torch.abs({0}))", "torch.exp(-{a0}.abs())"), "expf(-fabsf({0}))", _one),
    "absolute": Part("e", _function("abs"), "fabsf({0})", _same),
    "tanh": Part("e", _function("tanh"), "tanhf({0})", _one, weight=2),
    "sigmoid": Part("e", _function("sigmoid"), "1.0f / (1.0f + expf(-{a0}))", _one, weight=2),
    "sine": Part("e", _function("sin"), "sinf({0})", _one),
    "cosine": Part("e", _function("cos"), "cosf({0})", _one),
    "arctangent": Part("e", _function("atan"), "atanf({0})", lambda a: 1.6),
    "error_function": Part("e", _function("erf"), "erff({0})", _one, weight=0.5),
    "bounded_below": Part(
        "e", ("torch.relu({0})", "F.relu({0})", "{a0}.clamp(min=0)", "torch.clamp({0}, min=0.0)"),
        "fmaxf({0}, 0.0f)", _same,
    ),
    "bounded": Part(
        "e", ("torch.clamp({0}, -{k}, {k})", "{a0}.clamp(-{k}, {k})", "torch.clamp({0}, min=-{k}, max={k})"),
        "fminf(fmaxf({0}, -{k}), {k})", lambda a: 2.5, "max_val",
    ),
    "root": Part(
        "e", ("torch.sqrt(torch.abs({0}) + {k})", "({a0}.abs() + {k}).sqrt()"), "sqrtf(fabsf({0}) + {k})",
        lambda a: a**0.5 + 2, "eps",
    ),
    "logarithm": Part(
        "e", ("torch.log(torch.abs({0}) + {k})", "torch.log({a0}.abs() + {k})"), "logf(fabsf({0}) + {k})",
        lambda a: 4.0, "eps",
    ),
    "compressed": Part(
        "e", ("torch.log1p(torch.abs({0}))", "torch.log1p({a0}.abs())"), "log1pf(fabsf({0}))", lambda a: 4.0,
    ),
    "square": Part(
        "n", ("{0} ** 2", "{0} * {0}", "torch.square({0})", "{0}.pow(2)"), "{0} * {0}", lambda a: a * a, weight=2,
    ),
    "cube": Part("n", ("{0} ** 3", "torch.pow({0}, 3)", "{0} * {0} * {0}"), "{0} * {0} * {0}", lambda a: a**3),
}  # fmt: skip
_HOLE, _FIELD = re.compile(r"\{([ma]?)(\d)\}"), re.compile(r"\{\w+\}")


@functools.lru_cache(maxsize=1024)
def rank(text: str) -> int:
    """How strongly an expression or a template binds: 3 a call or name, 2 a product, 1 a sum or sign, -1 a choice."""
    plain = re.sub(r"(\d)f\b", r"\1", _FIELD.sub("x", text))
    try:
        tree = ast.parse(plain, mode="eval").body
    except SyntaxError:
        return 3 if text.startswith("(") and text.endswith(")") else -1
    if isinstance(tree, ast.BinOp):
        return 1 if isinstance(tree.op, ast.Add | ast.Sub) else 2
    return 1 if isinstance(tree, ast.UnaryOp) else 3


def filled(template: str, operands: list[tuple[str, int]], number: str) -> tuple[str, int]:
    """The template with its operands, each a text and how strongly it binds; the same of the result."""

    def put(hole: re.Match[str]) -> str:
        text, own = operands[int(hole[2])]
        return text if own >= {"": 0, "m": 2, "a": 3}[hole[1]] else f"({text})"

    return _HOLE.sub(put, template).replace("{k}", number), rank(template)
