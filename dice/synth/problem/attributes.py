"""`Attributes`: layers and parameters, which `__init__` makes and `forward` uses as `self.<name>`."""

from __future__ import annotations

import random

from dice.synth.problem.constructor import Constructor
from dice.synth.problem.layers import written
from dice.synth.problem.names import Names
from dice.synth.problem.style import Style
from dice.synth.tables.names import after_class
from dice.synth.tables.phrasing import ATTRIBUTE_NAMES


class Attributes:
    """The attributes of one problem's module."""

    def __init__(self, rng: random.Random, style: Style, names: Names, constructor: Constructor) -> None:
        self.rng = rng
        self.style = style
        self.names = names
        self.constructor = constructor
        self._without_parameters: dict[str, str] = {}  # expression -> attribute, of layers that may be used again

    def add(self, role: str, expression: str, *, shared: bool, name: str = "") -> str:
        """`self.<name> = expression` in `__init__`; shared ones (parameters) are repeated in ModelNew."""
        known = self._without_parameters.get(expression, "") if not shared else ""
        if known and self.rng.random() < 0.8:
            return known
        called = after_class(self.rng, expression) if self.rng.random() < self.style.after_class_rate else ""
        called = name or called
        name = self.names.fresh([called] if called and called not in self.names.taken else ATTRIBUTE_NAMES[role])
        line = f"self.{name} = {written(self.rng, self.style, self.constructor.setting, expression)}"
        if shared:
            self.constructor.shared_lines.append(line)
        else:
            self.constructor.lines.append(line)
            self._without_parameters[expression] = f"self.{name}"
        return f"self.{name}"

    def never_again(self, attribute: str) -> None:
        """Later uses of the same expression make a layer of their own."""
        kept = {text: name for text, name in self._without_parameters.items() if name != attribute}
        self._without_parameters = kept

    def parameter(self, role: str, sizes: str) -> str:
        """A parameter of those sizes, `a, b` or `(a, b)`, with random or constant values."""
        factor = self.rng.choice(("0.1", "0.02", "0.5", "1e-2"))
        made = self.rng.choices(
            (
                f"torch.randn({sizes})",
                f"torch.rand({sizes})",
                f"torch.randn({sizes}) * {factor}",
                f"{factor} * torch.ones({sizes})",
                f"torch.ones({sizes})",
                f"torch.empty({sizes}).uniform_(-1, 1)",
                f"torch.empty({sizes})",
            ),
            (8, 4, 2, 1, 1, 0.7, 1.5),
        )[0]
        attribute = self.add(role, f"nn.Parameter({made})", shared=True)
        if made == f"torch.empty({sizes})":
            start = self.rng.choice(
                ("normal_({})", "normal_({}, std=0.5)", "uniform_({})", "normal_({}, mean=0.0, std=1.0)")
            )
            self.constructor.shared_lines.append(f"nn.init.{start.format(attribute)}")
        return attribute
