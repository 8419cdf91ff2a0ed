"""`Tensors`: the arguments of a problem's `forward`, and the sizes they are made of.

Texts mention a size by its mark: `@k@` is the k-th dimension, and becomes its name or its number when the file is
printed, so that the same text can be printed with large or with small shapes.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from dice.synth.problem.names import Names
from dice.synth.problem.style import Style
from dice.synth.tables.phrasing import DIMENSION_NAMES, INPUT_NAMES

# Elements of the largest tensor of a large problem: 1 GiB in float32, so that several fit on one GPU.
MAX_LARGE_ELEMENTS = 2**28
MARK = re.compile(r"@(\d+)@")


@dataclass(frozen=True, slots=True)
class Value:
    """A Python expression of the problem's `forward`."""

    text: str
    is_atom: bool = True
    is_name: bool = True


@dataclass(slots=True)
class Dimension:
    name: str | None  # None: printed as a literal
    small: int
    large: int
    step: int = 1  # must divide both


@dataclass(slots=True)
class Input:
    name: str
    shape: list[str]  # empty for a number
    make: str  # expression with a {shape} field


def as_tuple(items: Sequence[object]) -> str:
    """The text of a Python tuple: `(a, b)`, and `(a,)` for a single item."""
    return f"({', '.join(map(str, items))}{',' if len(items) == 1 else ''})"


class Tensors:
    """Dimensions and inputs of one problem."""

    def __init__(self, rng: random.Random, style: Style, names: Names) -> None:
        self.rng = rng
        self.style = style
        self.names = names
        self.dimensions: list[Dimension] = []
        self.inputs: list[Input] = []
        self.results: list[list[str]] = []  # shapes of tensors that may be larger than the inputs
        self.sampler = style.sampler

    def dimension(self, role: str, small: int, large: int, step: int = 1) -> str:
        """A new size; returns its mark."""
        is_named = self.style.named_dimensions and self.rng.random() < 0.95
        name = self.names.fresh(DIMENSION_NAMES[role], upper=self.style.upper_case) if is_named else None
        self.dimensions.append(Dimension(name, small, large, step))
        return f"@{len(self.dimensions) - 1}@"

    def size(self, mark: str) -> Dimension:
        """The dimension of that mark."""
        return self.dimensions[int(mark.strip("@"))]

    def input(self, role: str, shape: list[str], make: str | None = None) -> Value:
        """A tensor argument of `forward`; `make` is an expression with {shape}."""
        name = self.names.fresh(INPUT_NAMES[role])
        self.inputs.append(Input(name, shape, make or self.sampler))
        return Value(name)

    def limit_large(self) -> None:
        """Halve the longest dimensions of tensors that would not fit a GPU's memory several times over."""
        for shape in (*(item.shape for item in self.inputs), *self.results):
            used = [self.dimensions[int(match)] for text in shape for match in MARK.findall(text)]
            while math.prod(dimension.large for dimension in used) > MAX_LARGE_ELEMENTS:
                longest = max(used, key=lambda dimension: dimension.large)
                longest.large = max(1, longest.large // 2 // longest.step) * longest.step

    def fill(self, text: str, large: bool) -> str:
        """Replace marks by names or numbers."""
        return MARK.sub(lambda match: self._size_text(int(match[1]), large), text)

    def _size_text(self, index: int, large: bool) -> str:
        dimension = self.dimensions[index]
        return dimension.name or str(dimension.large if large else dimension.small)
