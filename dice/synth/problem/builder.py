"""`ProblemBuilder`: one PyTorch file in KernelBench's form, in one of very many ways of writing it.

A family fills its parts (tensors, constructor, attributes, statements of `forward`); they remember, next to the text,
what the kernel needs to know. All randomness is drawn meanwhile, or follows from the number `style.printing`, so that
`printing.printed` is a pure function of a filled builder.
"""

from __future__ import annotations

import random

from dice.synth.problem.attributes import Attributes
from dice.synth.problem.constructor import Constructor
from dice.synth.problem.forward import Forward
from dice.synth.problem.names import Names
from dice.synth.problem.operators import Operators
from dice.synth.problem.style import Style
from dice.synth.problem.tensors import Tensors, Value


class ProblemBuilder:
    """One problem being written. All its parts draw from one stream of random numbers, in the order of the calls."""

    def __init__(self, rng: random.Random, *, keep_inputs: bool = False, literal_numbers: bool = False) -> None:
        """`keep_inputs`: no input's name is given to another value; `literal_numbers`: no number gets a name."""
        self.rng = rng
        self.title = ""
        style = Style.draw(rng, keep_inputs=keep_inputs)
        self.style = style = style.with_literal_numbers() if literal_numbers else style
        self.names = names = Names(rng, style)
        self.tensors = tensors = Tensors(rng, style, names)
        self.constructor = constructor = Constructor(rng, style, names, tensors)
        self.attributes = attributes = Attributes(rng, style, names, constructor)
        self.forward = forward = Forward(rng, style, names, tensors)
        self.operators = Operators(rng, style, names, tensors, constructor, attributes, forward)

    def finish(self, value: Value) -> None:
        """The last statement of `forward`; sizes and arguments are final from here on."""
        self.constructor.settle()
        self.forward.finish(value)

    @property
    def text(self) -> str:
        """Whatever may mention a dimension."""
        shapes = [text for item in self.tensors.inputs for text in (*item.shape, item.make)]
        values = [item.value for item in self.constructor.arguments]
        return "\n".join(
            [*shapes, *values, *self.forward.lines, *self.constructor.lines, *self.constructor.shared_lines]
        )
