"""`Page`: what every section of a printed file needs: the problem, its sizes, and the author's layout."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from dice.synth.problem.builder import ProblemBuilder
from dice.synth.problem.constructor import Argument
from dice.synth.problem.tensors import Input

MAX_LINE = 84  # characters that an author leaves on one line


@dataclass(frozen=True, slots=True)
class Page:
    """One problem on its way into a file.

    Each section draws from `dice` of its own name, never from sizes: the small and the large problem are one text
    with other numbers. The order of the draws within a section is part of the corpus, as in `Style.draw`.
    """

    problem: ProblemBuilder
    large: bool  # print the large sizes
    hints: bool  # annotate types
    stored: bool  # self.name = name for every constructor argument
    tensor: str  # how a hint calls a tensor
    docs: str  # form of docstrings
    gap: str  # between two sections

    @classmethod
    def of(cls, problem: ProblemBuilder, large: bool) -> Page:
        rng = _dice(problem, "file")
        return cls(
            problem,
            large,
            hints=rng.random() < 0.45,
            stored=rng.random() < 0.15,
            tensor=rng.choices(("torch.Tensor", "Tensor"), (9, 1))[0],
            docs=rng.choice(("google", "google", "google", "numpy", "sphinx", "plain")),
            gap=rng.choice(("\n\n", "\n\n\n")),
        )

    def dice(self, section: str) -> random.Random:
        return _dice(self.problem, section)

    def fill(self, text: str) -> str:
        """`text` with names or numbers in place of the dimensions' marks."""
        return self.problem.tensors.fill(text, self.large)

    def input(self, item: Input) -> str:
        """An input in the signature of `forward`."""
        return f"{item.name}: {self.tensor if item.shape else 'float'}" if self.hints else item.name

    def argument(self, item: Argument) -> str:
        """A constructor argument in the signature of `__init__`."""
        hint = f": {item.hint}" if self.hints else ""
        if not self.problem.constructor.has_default(item):
            return item.name + hint
        return f"{item.name}{hint}{' = ' if hint else '='}{item.default}"

    def init_signature(self) -> str:
        return ", ".join(["self", *map(self.argument, self.problem.constructor.arguments)])

    def forward_signature(self) -> str:
        return ", ".join(map(self.input, self.problem.tensors.inputs))

    def result_hint(self) -> str:
        return f" -> {self.tensor}" if self.hints else ""


def _dice(problem: ProblemBuilder, section: str) -> random.Random:
    return random.Random(f"{problem.style.printing}:{section}")


def names(items: Sequence[Input] | Sequence[Argument]) -> str:
    return ", ".join(item.name for item in items)
