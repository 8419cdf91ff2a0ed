"""`Plan`: what a pair computes, apart from how its text is written. Its `composition` is what a split may hold out."""

from __future__ import annotations

from dataclasses import dataclass

from dice.synth.problem.builder import ProblemBuilder


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
        """Every (operator, context), such as `mish` in `linear.post` or `sum` in `reduce.dim=last`."""
        found = {(self.core, f"{self.family}.{feature}") for feature in self.features}
        found |= {(name, f"{self.family}.{slot}") for slot, names in self.chains for name in names}
        return frozenset(found)


@dataclass(frozen=True, slots=True)
class Draft:
    """A rendered plan: the filled builder, the kernel's text, and the kernel style that was chosen."""

    builder: ProblemBuilder
    kernel: str
    style: str
