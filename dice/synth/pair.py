"""`Pair`: one training or test example."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from dice.kernel import Kernel
from dice.problem import Problem

CANONICAL = "canonical"  # the style of what is asked as the optimiser asks
Split = Literal["train", "heldout"]
HeldOutBy = Literal["", "composition", "operator"]


@dataclass(frozen=True, slots=True)
class Pair:
    """A problem, a kernel that solves it, and where it belongs.

    `check_source` is the problem with small shapes when the printed ones are too large to verify quickly: verify
    `check_kernel` against `check_problem`. The kernel is the same for both, unless it has sizes written into it.
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
    check_kernel_source: str | None = None
    written: tuple[str, ...] = ()  # the styles of `dice/synth/wide` that its texts have
    not_canonical: str = field(default="", compare=False)  # why it is not, where that form was asked for

    @property
    def is_canonical(self) -> bool:
        return CANONICAL in self.written

    @property
    def check_problem(self) -> Problem:
        if self.check_source is None:
            return self.problem
        return Problem(self.check_source, self.problem.name, self.problem.level)

    @property
    def check_kernel(self) -> Kernel:
        if self.check_kernel_source is None:
            return self.kernel
        return Kernel(self.check_kernel_source, self.kernel.name)
