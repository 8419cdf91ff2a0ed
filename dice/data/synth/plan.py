"""`Plan`: what a pair computes, apart from how its text is written. Its `composition` is what a split may hold out."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from dice.data.synth.operators import OPERATORS, Sign
from dice.data.synth.script import ChainState, Script

# Operators that change nothing, or leave nothing, of values with a known sign: drawing them there would teach nothing.
_IDLE: dict[Sign, frozenset[str]] = {
    "any": frozenset(),
    "nonneg": frozenset({"relu", "abs", "leaky_relu", "elu", "celu"}),
    "positive": frozenset({"relu", "abs", "leaky_relu", "elu", "celu", "sign"}),
    "nonpos": frozenset(
        {"relu", "relu6", "clamp_min", "clamp_max", "hardtanh", "clamp", "hardshrink", "sign", "gelu", "gelu_tanh",
         "silu", "swish", "mish", "hardswish", "hardsigmoid", "sigmoid"}
    ),  # fmt: skip
}


@dataclass(frozen=True, slots=True)
class Plan:
    """One composition: a family, its own operator, elementwise chains in named slots, structural features."""

    family: str
    core: str
    chains: tuple[tuple[str, tuple[str, ...]], ...] = ()
    features: tuple[str, ...] = ()

    def chain(self, slot: str) -> tuple[str, ...]:
        return dict(self.chains).get(slot, ())

    def has(self, feature: str) -> bool:
        return feature in self.features

    @property
    def composition(self) -> str:
        """Canonical signature; equal signatures differ in text, shapes and constants only."""
        chains = " ".join(f"{slot}({'>'.join(names)})" for slot, names in self.chains if names)
        return f"{self.family}:{self.core}[{','.join(self.features)}] {chains}".strip()

    @property
    def operators(self) -> tuple[str, ...]:
        return (self.core, *(name for _, names in self.chains for name in names))

    @property
    def cells(self) -> frozenset[tuple[str, str]]:
        """Every (operator, context): `mish` in `linear.post`, `relu` in `elementwise.alone`, `sum` in `reduce.dim=last`."""
        found = {(self.core, f"{self.family}.{feature}") for feature in self.features}
        found |= {(name, f"{self.family}.{slot}") for slot, names in self.chains for name in names}
        return frozenset(found)


@dataclass(frozen=True, slots=True)
class Draft:
    """A rendered plan: the filled script, the kernel's text, and the kernel style that was chosen."""

    script: Script
    kernel: str
    style: str


def draw_chain(rng: random.Random, length: int, state: ChainState | None = None) -> tuple[str, ...]:
    """Names of `length` operators that can follow one another from `state` on."""
    state = state or ChainState()
    names: list[str] = []
    for _ in range(length):
        idle = _IDLE[state.sign]
        choices = [
            operator
            for operator in OPERATORS.values()
            if state.accepts(operator) and operator.name not in idle and operator.name not in names[-1:]
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
