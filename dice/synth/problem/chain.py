"""Chains of elementwise operators: what may follow what, and with which numbers."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from dice.synth.tables.operators import OPERATORS, Operator, Sign

# Operators that change nothing, or leave nothing, of values with a known sign: drawing them there would teach nothing.
_IDLE: dict[Sign, frozenset[str]] = {
    "any": frozenset(),
    "nonneg": frozenset({"relu", "abs", "leaky_relu", "elu", "celu"}),
    "positive": frozenset({"relu", "abs", "leaky_relu", "elu", "celu", "sign"}),
    "nonpos": frozenset(
        {
            "relu",
            "relu6",
            "clamp_min",
            "clamp_max",
            "hardtanh",
            "clamp",
            "hardshrink",
            "sign",
            "gelu",
            "gelu_tanh",
            "silu",
            "swish",
            "mish",
            "hardswish",
            "hardsigmoid",
            "sigmoid",
            "relu_squared",
            "quick_gelu",
            "squareplus",
        }
    ),
}
# Operators that do something more when they are applied twice.
_REPEATED = frozenset({"tanh", "sigmoid", "silu", "gelu", "mish", "softplus", "sin", "square", "add", "mul"})


@dataclass(frozen=True, slots=True)
class Step:
    """One operator with its scalars in CUDA."""

    operator: Operator
    scalars: tuple[str, ...]

    def cuda(self, variable: str = "v") -> str:
        return self.operator.cuda(variable, self.scalars)


@dataclass(frozen=True, slots=True)
class ChainState:
    """What is known of a value inside a chain: its sign, its magnitude, and whether it is free of rounding error."""

    sign: Sign = "any"
    magnitude: float = 4.5
    exact: bool = True

    def accepts(self, operator: Operator) -> bool:
        return operator.accepts(self.sign, self.magnitude, self.exact)

    def after(self, operator: Operator) -> ChainState:
        return ChainState(operator.gives(self.sign), operator.bound(self.magnitude), False)


def draw_scalars(rng: random.Random, operator: Operator, state: ChainState) -> tuple[float, ...]:
    """Numbers for an operator's scalars, of the size people write."""
    match operator.name:
        case "add":
            return (rounded(rng, 0.1, 3.0),)
        case "sub" | "rsub":
            return (rounded(rng, 0.1, 3.0),)
        case "mul":
            return (rounded(rng, 0.1, 3.0),)
        case "mul_shift":
            return (rounded(rng, 0.2, 3.0), rounded(rng, 0.1, 3.0))
        case "div":
            return (rounded(rng, 0.5, 6.0),)
        case "hardtanh" | "clamp":
            low = -rounded(rng, 0.1, 2.5) if state.sign == "any" or rng.random() < 0.3 else rounded(rng, 0.0, 0.3)
            return (low, rounded(rng, 0.4, 3.0))
        case "clamp_min":
            return (rng.choice((-1, 1)) * rounded(rng, 0.1, 1.0),)
        case "clamp_max":
            return (rounded(rng, 0.2, 2.5),)
        case "threshold":
            return (rounded(rng, 0.1, 1.0), rng.choice((0.0, rounded(rng, 0.1, 2.0), -rounded(rng, 0.1, 2.0))))
        case "swish" | "softplus_beta":
            return (rounded(rng, 0.5, 2.5),)
        case "leaky_relu":
            return (rng.choice((0.01, 0.02, 0.05, 0.1, 0.2, 0.3, rounded(rng, 0.01, 0.5))),)
        case "elu" | "celu":
            return (rng.choice((0.5, 1.0, 1.5, 2.0, rounded(rng, 0.3, 2.0))),)
        case "softshrink" | "hardshrink":
            return (rounded(rng, 0.1, 0.9),)
    return ()


def statements(steps: Sequence[Step], indent: int, variable: str = "v") -> str:
    """The chain's statements, one per line."""
    return "".join(f"{' ' * indent}{step.cuda(variable)}\n" for step in steps)


def rounded(rng: random.Random, low: float, high: float) -> float:
    """A number with one to three decimals."""
    value = round(rng.uniform(low, high), rng.choices((1, 2, 3), (5, 4, 1))[0])
    return value if value != 0 or low <= 0 else round(low, 2)


def python_number(value: float | int, rng: random.Random) -> str:
    """One of the ways to write a number: 2.0, 2., 2; 1e-05, 1e-5, 0.00001; 0.5, .5."""
    text = repr(value)
    if text.endswith(".0"):
        return rng.choices((text, text[:-1], text[:-2]), (6, 1, 3))[0]
    if "e-0" in text:
        return rng.choices((text, text.replace("e-0", "e-"), f"{value:.{int(text[-1])}f}"), (2, 6, 1))[0]
    return text.replace("0.", ".", 1) if text.startswith("0.") and rng.random() < 0.03 else text


_OPERAND = re.compile(r"(?<=[-+*/] )(\d)(\.0)?(?![\w.])|(?<![\w.])(\d)(\.0)?(?= [-+*/] )")


def renumbered(rng: random.Random, text: str) -> str:
    """The formula with its small whole numbers written as 1, 1. or 1.0; seldom done."""
    if rng.random() >= 0.3 or "//" in text:
        return text
    ending = rng.choice(("", ".0", ".0", "."))
    return _OPERAND.sub(lambda match: (match[1] or match[3]) + ending, text)


def cuda_number(value: float | int) -> str:
    return f"{float(value)!r}f"


def draw_chain(rng: random.Random, length: int, state: ChainState | None = None) -> tuple[str, ...]:
    """Names of `length` operators that can follow one another from `state` on."""
    state = state or ChainState()
    names: list[str] = []
    for _ in range(length):
        repeats = rng.random() < 0.3
        idle = _IDLE[state.sign]
        choices = [
            operator
            for operator in OPERATORS.values()
            if state.accepts(operator)
            and operator.name not in idle
            and (operator.name not in names[-1:] or (repeats and operator.name in _REPEATED))
        ]
        operator = rng.choices(choices, [operator.weight for operator in choices])[0]
        names.append(operator.name)
        state = state.after(operator)
    return tuple(names)


def state_after(names: Sequence[str], state: ChainState | None = None) -> ChainState:
    state = state or ChainState()
    for name in names:
        state = state.after(OPERATORS[name])
    return state


def chains(**slots: tuple[str, ...]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple((slot, names) for slot, names in slots.items() if names)


def chain_length(rng: random.Random, weights: Sequence[float] = (5, 3, 1)) -> int:
    """0, 1, 2, ... with those weights."""
    return rng.choices(range(len(weights)), weights)[0]
