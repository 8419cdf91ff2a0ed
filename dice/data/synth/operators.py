"""The elementwise operators: how PyTorch users spell each one, and the one CUDA statement that computes it.

Composition is the point of this table: a chain of operators is the sequence of their statements on one `float v`,
so every context that holds a float (an element, a row's sum, a matmul's accumulator) can hold every operator.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["call", "method", "module", "formula"]
Sign = Literal["any", "nonpos", "nonneg", "positive"]  # known of a value whatever the input; positive: >= a constant > 0
_RANK: dict[Sign, int] = {"any": 0, "nonpos": 0, "nonneg": 1, "positive": 2}

# Values outside these magnitudes make float32 comparisons meaningless, so chains that reach them are not drawn.
MAX_MAGNITUDE = 300.0
# Beyond this, functions that saturate give one and the same value for nearly every input.
SATURATES = 20.0


@dataclass(frozen=True, slots=True)
class Spelling:
    """One way to write an operator in PyTorch; `text` has fields {x}, and {a}, {b} for its scalars."""

    kind: Kind
    text: str
    is_atom: bool  # needs no parentheses inside a larger expression
    uses: int  # how often {x} occurs
    wraps: bool  # {x} stands alone between parentheses or commas


@dataclass(frozen=True, slots=True)
class Operator:
    name: str
    phrase: str
    spellings: tuple[Spelling, ...]
    statement: str  # on `v`, with {a} and {b} for the scalars
    scalars: tuple[str, ...] = ()
    defaults: tuple[float, ...] = ()
    plain: tuple[Spelling, ...] = ()  # spellings that leave the scalars to PyTorch's defaults
    needs: Sign = "any"
    gives: Callable[[Sign], Sign] = field(default=lambda sign: "any")
    bound: Callable[[float], float] = field(default=lambda m: m)  # |v| <= m before  =>  |v| <= bound(m) after
    limit: float = MAX_MAGNITUDE  # largest |v| it is applied to
    jumps: bool = False  # discontinuous: only on values that carry no rounding error
    weight: float = 1.0

    def accepts(self, sign: Sign, magnitude: float, exact: bool) -> bool:
        """Can this operator follow a value of that sign and magnitude without leaving float32's comfort?"""
        if _RANK[sign] < _RANK[self.needs] or magnitude > self.limit or (self.jumps and not exact):
            return False
        return self.bound(magnitude) <= MAX_MAGNITUDE

    def cuda(self, variable: str, scalars: tuple[str, ...]) -> str:
        """The statement on `variable`."""
        text = self.statement.format(**dict(zip("ab", scalars, strict=False)))
        return text if variable == "v" else re.sub(r"\bv\b", variable, text)


def spelling(text: str) -> Spelling:
    """Classify one spelling by its form."""
    sample = ast.parse(re.sub(r"\{(\w)\}", r"\1", text), mode="eval").body
    is_atom = isinstance(sample, ast.Call | ast.Name)
    if text.startswith("nn."):
        kind: Kind = "module"
    elif text.startswith("{x}.") and is_atom:
        kind = "method"
    elif is_atom and text.count("{x}") == 1 and re.match(r"(torch|F)\.\w+\(\{x\}", text):
        kind = "call"
    else:
        kind = "formula"
    wraps = re.search(r"[(, ]\{x\}(?![,)])|(?<![(, ])\{x\}", text) is None and "(" in text
    return Spelling(kind, text, is_atom, max(1, text.count("{x}")), wraps and not re.search(r"[-+*/] \{x\}", text))


_TABLE: dict[str, Operator] = {}


def _add(
    name: str,
    phrase: str,
    spellings: list[str],
    statement: str,
    *,
    scalars: tuple[str, ...] = (),
    defaults: tuple[float, ...] = (),
    plain: list[str] | None = None,
    needs: Sign = "any",
    gives: Sign | Callable[[Sign], Sign] = "any",
    bound: float | Callable[[float], float] | None = None,
    limit: float = MAX_MAGNITUDE,
    jumps: bool = False,
    weight: float = 1.0,
) -> None:
    _TABLE[name] = Operator(
        name,
        phrase,
        tuple(spelling(text) for text in spellings),
        statement,
        scalars,
        defaults,
        tuple(spelling(text) for text in plain or ()),
        needs,
        gives if callable(gives) else lambda sign, out=gives: out,
        bound if callable(bound) else (lambda m, top=bound: m) if bound is None else (lambda m, top=bound: top),
        limit,
        jumps,
        weight,
    )


def _same(sign: Sign) -> Sign:
    return sign


def _at_most_nonneg(sign: Sign) -> Sign:
    return "nonneg" if sign == "positive" else sign


def _nonneg_then_positive(sign: Sign) -> Sign:
    return "positive" if _RANK[sign] else "any"


def _negated(sign: Sign) -> Sign:
    return "any" if sign == "any" else "nonneg" if sign == "nonpos" else "nonpos"


# --- activations -----------------------------------------------------------------------------------------------------
_add("relu", "ReLU",
     ["torch.relu({x})", "F.relu({x})", "{x}.relu()", "nn.ReLU()", "torch.clamp({x}, min=0)", "{x}.clamp(min=0.0)",
      "torch.maximum({x}, torch.zeros_like({x}))", "torch.where({x} > 0, {x}, torch.zeros_like({x}))", "{x} * ({x} > 0)"],
     "v = v < 0.0f ? 0.0f : v;", gives="nonneg", weight=1.6)  # fmt: skip
_add("leaky_relu", "leaky ReLU",
     ["F.leaky_relu({x}, {a})", "F.leaky_relu({x}, negative_slope={a})", "nn.LeakyReLU({a})",
      "nn.LeakyReLU(negative_slope={a})", "torch.where({x} > 0, {x}, {a} * {x})", "torch.where({x} >= 0, {x}, {x} * {a})"],
     "v = v > 0.0f ? v : v * {a};", scalars=("negative_slope",), defaults=(0.01,),
     plain=["F.leaky_relu({x})", "nn.LeakyReLU()"], weight=1.3)  # fmt: skip
_add("elu", "ELU",
     ["F.elu({x}, {a})", "F.elu({x}, alpha={a})", "nn.ELU({a})", "nn.ELU(alpha={a})",
      "torch.where({x} > 0, {x}, {a} * (torch.exp({x}) - 1))"],
     "v = v > 0.0f ? v : {a} * expm1f(v);", scalars=("alpha",), defaults=(1.0,), plain=["F.elu({x})", "nn.ELU()"])  # fmt: skip
_add("selu", "SELU", ["torch.selu({x})", "F.selu({x})", "nn.SELU()"],
     "v = 1.05070099f * (v > 0.0f ? v : 1.67326324f * expm1f(v));", bound=lambda m: 1.06 * m + 2)  # fmt: skip
_add("celu", "CELU", ["F.celu({x}, {a})", "F.celu({x}, alpha={a})", "torch.celu({x}, {a})", "nn.CELU({a})", "nn.CELU(alpha={a})"],
     "v = v > 0.0f ? v : {a} * expm1f(v / {a});", scalars=("alpha",), defaults=(1.0,),
     plain=["F.celu({x})", "nn.CELU()"])  # fmt: skip
_add("gelu", "GELU",
     ["F.gelu({x})", "nn.GELU()", "0.5 * {x} * (1 + torch.erf({x} / math.sqrt(2)))",
      "{x} * 0.5 * (1.0 + torch.erf({x} / math.sqrt(2.0)))", "F.gelu({x}, approximate='none')"],
     "v = 0.5f * v * (1.0f + erff(v * 0.70710678f));", weight=1.5)  # fmt: skip
_add("gelu_tanh", "tanh-approximated GELU",
     ["F.gelu({x}, approximate='tanh')", "nn.GELU(approximate='tanh')", 'F.gelu({x}, approximate="tanh")',
      "0.5 * {x} * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * ({x} + 0.044715 * torch.pow({x}, 3))))",
      "0.5 * {x} * (1 + torch.tanh(math.sqrt(2 / math.pi) * ({x} + 0.044715 * {x} ** 3)))"],
     "v = 0.5f * v * (1.0f + tanhf(0.79788456f * (v + 0.044715f * v * v * v)));", limit=60)  # fmt: skip
_add("silu", "SiLU", ["F.silu({x})", "nn.SiLU()", "{x} * torch.sigmoid({x})", "torch.sigmoid({x}) * {x}", "{x} * {x}.sigmoid()"],
     "v = v / (1.0f + expf(-v));", weight=1.4)  # fmt: skip
_add("swish", "swish with a slope", ["{x} * torch.sigmoid({a} * {x})", "{x} * torch.sigmoid({x} * {a})"],
     "v = v / (1.0f + expf(-{a} * v));", scalars=("beta",), weight=0.7)  # fmt: skip
_add("mish", "Mish", ["F.mish({x})", "nn.Mish()", "{x} * torch.tanh(F.softplus({x}))"],
     "v = v * tanhf(log1pf(expf(v)));")  # fmt: skip
_add("softplus", "softplus", ["F.softplus({x})", "nn.Softplus()", "torch.log1p(torch.exp({x}))", "torch.log(1 + torch.exp({x}))"],
     "v = v > 20.0f ? v : log1pf(expf(v));", gives="nonneg", bound=lambda m: m + 1, limit=20)  # fmt: skip
_add("softplus_beta", "softplus with a slope", ["F.softplus({x}, beta={a})", "nn.Softplus(beta={a})"],
     "v = v * {a} > 20.0f ? v : log1pf(expf(v * {a})) / {a};", scalars=("beta",), gives="nonneg",
     bound=lambda m: m + 2, weight=0.7)  # fmt: skip
_add("softsign", "softsign", ["F.softsign({x})", "nn.Softsign()", "{x} / (1 + torch.abs({x}))", "{x} / (1.0 + {x}.abs())"],
     "v = v / (1.0f + fabsf(v));", gives=_at_most_nonneg, limit=SATURATES, bound=1)  # fmt: skip
_add("hardtanh", "hard tanh", ["F.hardtanh({x}, {a}, {b})", "F.hardtanh({x}, min_val={a}, max_val={b})", "nn.Hardtanh({a}, {b})",
      "nn.Hardtanh(min_val={a}, max_val={b})"],
     "v = fminf(fmaxf(v, {a}), {b});", scalars=("min_val", "max_val"), defaults=(-1.0, 1.0),
     plain=["F.hardtanh({x})", "nn.Hardtanh()"], limit=SATURATES, bound=3)  # fmt: skip
_add("hardsigmoid", "hard sigmoid", ["F.hardsigmoid({x})", "nn.Hardsigmoid()", "F.relu6({x} + 3) / 6", "torch.clamp({x} / 6 + 0.5, 0, 1)"],
     "v = fminf(fmaxf(v / 6.0f + 0.5f, 0.0f), 1.0f);", gives="nonneg", limit=SATURATES, bound=1)  # fmt: skip
_add("hardswish", "hard swish", ["F.hardswish({x})", "nn.Hardswish()", "{x} * F.relu6({x} + 3) / 6", "{x} * F.hardsigmoid({x})"],
     "v = v * fminf(fmaxf(v + 3.0f, 0.0f), 6.0f) / 6.0f;")  # fmt: skip
_add("tanh", "tanh", ["torch.tanh({x})", "{x}.tanh()", "nn.Tanh()", "F.tanh({x})"], "v = tanhf(v);",
     gives=_at_most_nonneg, limit=SATURATES, bound=1, weight=1.4)  # fmt: skip
_add("sigmoid", "sigmoid", ["torch.sigmoid({x})", "{x}.sigmoid()", "nn.Sigmoid()", "F.sigmoid({x})", "1 / (1 + torch.exp(-{x}))",
      "1.0 / (1.0 + torch.exp(-{x}))"],
     "v = 1.0f / (1.0f + expf(-v));", gives="nonneg", limit=SATURATES, bound=1, weight=1.5)  # fmt: skip
_add("logsigmoid", "log-sigmoid", ["F.logsigmoid({x})", "nn.LogSigmoid()", "torch.log(torch.sigmoid({x}))"],
     "v = fminf(v, 0.0f) - log1pf(expf(-fabsf(v)));", gives="nonpos", bound=lambda m: m + 1, limit=20)  # fmt: skip
_add("relu6", "ReLU6", ["F.relu6({x})", "nn.ReLU6()", "torch.clamp({x}, 0, 6)", "{x}.clamp(0.0, 6.0)", "torch.clamp({x}, min=0.0, max=6.0)"],
     "v = fminf(fmaxf(v, 0.0f), 6.0f);", gives="nonneg", limit=SATURATES, bound=6)  # fmt: skip
_add("tanhshrink", "tanh-shrink", ["F.tanhshrink({x})", "nn.Tanhshrink()", "{x} - torch.tanh({x})", "{x} - {x}.tanh()"],
     "v = v - tanhf(v);")  # fmt: skip
_add("softshrink", "soft shrinkage", ["F.softshrink({x}, {a})", "F.softshrink({x}, lambd={a})", "nn.Softshrink({a})", "nn.Softshrink(lambd={a})"],
     "v = v > {a} ? v - {a} : (v < -{a} ? v + {a} : 0.0f);", scalars=("lambd",), defaults=(0.5,),
     plain=["F.softshrink({x})", "nn.Softshrink()"])  # fmt: skip
_add("hardshrink", "hard shrinkage", ["F.hardshrink({x}, {a})", "F.hardshrink({x}, lambd={a})", "nn.Hardshrink({a})", "nn.Hardshrink(lambd={a})",
      "torch.where(torch.abs({x}) > {a}, {x}, torch.zeros_like({x}))"],
     "v = fabsf(v) > {a} ? v : 0.0f;", scalars=("lambd",), defaults=(0.5,), plain=["F.hardshrink({x})", "nn.Hardshrink()"],
     jumps=True, weight=2.0)  # fmt: skip
_add("threshold", "a threshold", ["F.threshold({x}, {a}, {b})", "nn.Threshold({a}, {b})"], "v = v > {a} ? v : {b};",
     scalars=("threshold", "value"), jumps=True, bound=lambda m: m + 2, weight=1.5)  # fmt: skip
# --- arithmetic with a constant -----------------------------------------------------------------------------------------
_add("add", "adding a constant", ["{x} + {a}", "torch.add({x}, {a})", "{x}.add({a})", "{a} + {x}"], "v = v + {a};",
     scalars=("shift",), gives=_nonneg_then_positive, bound=lambda m: m + 3, weight=2.2)  # fmt: skip
_add("sub", "subtracting a constant", ["{x} - {a}", "torch.sub({x}, {a})", "{x}.sub({a})"], "v = v - {a};", scalars=("shift",),
     bound=lambda m: m + 3, weight=1.4)  # fmt: skip
_add("mul", "scaling by a constant", ["{x} * {a}", "torch.mul({x}, {a})", "{x}.mul({a})", "{a} * {x}"], "v = v * {a};",
     scalars=("scale",), gives=_same, bound=lambda m: 3 * m, weight=2.4)  # fmt: skip
_add("div", "dividing by a constant", ["{x} / {a}", "torch.div({x}, {a})", "{x}.div({a})"], "v = v / {a};", scalars=("divisor",),
     gives=_same, bound=lambda m: 2 * m, weight=1.6)  # fmt: skip
_add("rsub", "subtracting from a constant", ["{a} - {x}"], "v = {a} - v;", scalars=("shift",), bound=lambda m: m + 3, weight=0.8)  # fmt: skip
_add("square", "squaring", ["torch.square({x})", "{x} * {x}", "{x} ** 2", "torch.pow({x}, 2)", "{x}.pow(2)", "{x}.square()"],
     "v = v * v;", gives=lambda sign: "positive" if sign == "positive" else "nonneg", bound=lambda m: m * m, weight=1.4)  # fmt: skip
_add("cube", "cubing", ["{x} ** 3", "torch.pow({x}, 3)", "{x}.pow(3)", "{x} * {x} * {x}"], "v = v * v * v;", gives=_same,
     bound=lambda m: m**3)  # fmt: skip
_add("neg", "negation", ["-{x}", "torch.neg({x})", "{x}.neg()", "torch.negative({x})"], "v = -v;", gives=_negated)
_add("abs", "absolute value", ["torch.abs({x})", "{x}.abs()", "torch.absolute({x})"], "v = fabsf(v);",
     gives=lambda sign: "positive" if sign == "positive" else "nonneg", weight=1.5)  # fmt: skip
# --- functions ------------------------------------------------------------------------------------------------------------
_add("exp", "exponential", ["torch.exp({x})", "{x}.exp()"], "v = expf(v);", gives="nonneg", bound=lambda m: math.exp(min(m, 50)), limit=5.5)  # fmt: skip
_add("expm1", "exponential minus one", ["torch.expm1({x})", "{x}.expm1()", "torch.exp({x}) - 1"], "v = expm1f(v);", gives=_same,
     bound=lambda m: math.exp(min(m, 50)), limit=5.5, weight=0.7)  # fmt: skip
_add("exp2", "power of two", ["torch.exp2({x})", "{x}.exp2()"], "v = exp2f(v);", gives="nonneg", bound=lambda m: 2.0 ** min(m, 50), limit=7, weight=0.6)  # fmt: skip
_add("log", "logarithm", ["torch.log({x})", "{x}.log()"], "v = logf(v);", needs="positive", bound=6, weight=5.0)  # fmt: skip
_add("log1p", "log(1 + x)", ["torch.log1p({x})", "{x}.log1p()", "torch.log(1 + {x})", "torch.log({x} + 1)"], "v = log1pf(v);",
     needs="nonneg", gives=_same, bound=6, weight=4.0)  # fmt: skip
_add("log2", "base-two logarithm", ["torch.log2({x})", "{x}.log2()"], "v = log2f(v);", needs="positive", bound=9, weight=2.0)  # fmt: skip
_add("sqrt", "square root", ["torch.sqrt({x})", "{x}.sqrt()", "{x} ** 0.5", "torch.pow({x}, 0.5)"], "v = sqrtf(v);", needs="nonneg",
     gives=_same, bound=lambda m: max(1.0, m**0.5), weight=4.0)  # fmt: skip
_add("rsqrt", "reciprocal square root", ["torch.rsqrt({x})", "{x}.rsqrt()", "1.0 / torch.sqrt({x})"], "v = rsqrtf(v);", needs="positive",
     gives="nonneg", bound=4, weight=4.0)  # fmt: skip
_add("reciprocal", "reciprocal", ["torch.reciprocal({x})", "1.0 / {x}", "{x}.reciprocal()", "1 / {x}"], "v = 1.0f / v;", needs="positive",
     gives="nonneg", bound=10, weight=4.0)  # fmt: skip
_add("sin", "sine", ["torch.sin({x})", "{x}.sin()"], "v = sinf(v);", bound=1, limit=30, weight=1.2)
_add("cos", "cosine", ["torch.cos({x})", "{x}.cos()"], "v = cosf(v);", bound=1, limit=30, weight=1.2)
_add("atan", "arctangent", ["torch.atan({x})", "{x}.atan()", "torch.arctan({x})"], "v = atanf(v);", gives=_at_most_nonneg, limit=SATURATES, bound=1.6, weight=0.7)  # fmt: skip
_add("asinh", "inverse hyperbolic sine", ["torch.asinh({x})", "{x}.asinh()"], "v = asinhf(v);", gives=_at_most_nonneg, bound=7, weight=0.5)  # fmt: skip
_add("erf", "error function", ["torch.erf({x})", "{x}.erf()", "torch.special.erf({x})"], "v = erff(v);", gives=_at_most_nonneg, limit=SATURATES, bound=1)  # fmt: skip
_add("clamp", "clamping", ["torch.clamp({x}, {a}, {b})", "torch.clamp({x}, min={a}, max={b})", "{x}.clamp({a}, {b})",
      "torch.clip({x}, {a}, {b})", "{x}.clamp(min={a}, max={b})"],
     "v = fminf(fmaxf(v, {a}), {b});", scalars=("min_value", "max_value"), limit=SATURATES, bound=3, weight=1.5)  # fmt: skip
_add("clamp_min", "a lower bound", ["torch.clamp({x}, min={a})", "{x}.clamp(min={a})", "torch.clamp_min({x}, {a})"], "v = fmaxf(v, {a});",
     limit=SATURATES, scalars=("min_value",), bound=lambda m: max(m, 2.0))  # fmt: skip
_add("clamp_max", "an upper bound", ["torch.clamp({x}, max={a})", "{x}.clamp(max={a})", "torch.clamp_max({x}, {a})"], "v = fminf(v, {a});",
     limit=SATURATES, scalars=("max_value",))  # fmt: skip
_add("sign", "sign", ["torch.sign({x})", "{x}.sign()"], "v = (v > 0.0f) - (v < 0.0f);", bound=1, jumps=True)
_add("floor", "rounding down", ["torch.floor({x})", "{x}.floor()"], "v = floorf(v);", bound=lambda m: m + 1, jumps=True)
_add("ceil", "rounding up", ["torch.ceil({x})", "{x}.ceil()"], "v = ceilf(v);", bound=lambda m: m + 1, jumps=True)
_add("round", "rounding", ["torch.round({x})", "{x}.round()"], "v = rintf(v);", bound=lambda m: m + 1, jumps=True)

OPERATORS: dict[str, Operator] = dict(_TABLE)
