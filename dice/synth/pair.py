"""`Pair`: one training or test example."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dice.kernel import Kernel
from dice.problem import Problem

Split = Literal["train", "heldout"]
HeldOutBy = Literal["", "composition", "operator"]


@dataclass(frozen=True, slots=True)
class Pair:
    """A problem, a kernel that solves it, and where it belongs.

    `check_source` is the problem with small shapes when the printed ones are too large to verify quickly: verify the
    kernel against `check_problem`.
    """

    problem: Problem
    kernel: Kernel
    family: str
    style: str
    operators: tuple[str, ...]
    composition: str
    split: Split
    heldout_by: HeldOutBy = ""
    check_source: str | None = None
    written: tuple[str, ...] = ()  # the styles of `dice/synth/wide` that its texts have

    @property
    def check_problem(self) -> Problem:
        if self.check_source is None:
            return self.problem
        return Problem(self.check_source, self.problem.name, self.problem.level)
