"""`Forward`: the statements of a problem's `forward`."""

from __future__ import annotations

import functools
import random

from dice.synth.problem.names import Names
from dice.synth.problem.style import Flow, Style
from dice.synth.problem.tensors import Tensors, Value
from dice.synth.tables.operators import Spelling, spelling
from dice.synth.tables.phrasing import TEMPORARIES

LONGEST_NESTED = 52  # characters of an expression that a nested style leaves without a name
_COPIES = ("identity", "residual", "original", "shortcut", "skip", "x_orig", "before", "saved")


class Forward:
    """The body of one problem's `forward`, one statement a line."""

    def __init__(self, rng: random.Random, style: Style, names: Names, tensors: Tensors) -> None:
        self.rng = rng
        self.style = style
        self.names = names
        self.tensors = tensors
        self.lines: list[str] = []
        self.flow: Flow = style.flow
        self.in_place = style.in_place

    def bind(self, value: Value, comment: str = "") -> Value:
        """Give the expression a name, unless it has one: the flow decides whether a new one."""
        if value.is_name:
            return value
        if self.flow != "reassign":
            return self.name(value.text, comment)
        return self._assign(self.tensors.inputs[0].name, value.text, comment)

    def name(self, text: str, comment: str = "") -> Value:
        """Give the expression a name of its own, whatever the flow."""
        return self._assign(self.names.fresh(TEMPORARIES), text, comment)

    def _assign(self, name: str, text: str, comment: str) -> Value:
        if self.style.comments == "before" and comment:
            self.lines.append(f"# {comment}")
        after = f"  # {comment}" if self.style.comments == "after" and comment else ""
        self.lines.append(f"{name} = {text}{after}")
        return Value(name)

    def apply(self, text: str | Spelling, value: Value, comment: str = "", **fields: str) -> Value:
        """Put `value` into the field {x} of a template, and name the result where the flow asks for it."""
        form = text if isinstance(text, Spelling) else parsed(text)
        if form.uses > 1:
            value = self.bind(value)
        inner = value.text if value.is_atom or form.wraps else f"({value.text})"
        result = Value(form.text.format(x=inner, **fields), form.is_atom, False)
        if self.flow != "nested" or len(result.text) > LONGEST_NESTED:
            result = self.bind(result, comment)
        return result

    def kept(self, value: Value) -> Value:
        """The value under a second name, for later."""
        name = self.names.fresh(_COPIES)
        copy = self.rng.choice(("", "", ".clone()", ".clone().detach()", ".detach()"))
        self.in_place = self.in_place and copy.startswith(".clone")
        self.lines.append(f"{name} = {value.text}{copy}")
        return Value(name)

    def finish(self, value: Value) -> None:
        """`return`, either of the expression or of a named result."""
        last = self.lines[-1] if self.lines else ""
        if not value.is_name and self.rng.random() < 0.2:
            value = self.bind(value)
        elif value.is_name and last.startswith(f"{value.text} = ") and "  #" not in last and self.rng.random() < 0.5:
            value = Value(self.lines.pop().removeprefix(f"{value.text} = "), False, False)
        self.lines.append(f"return {value.text}")


@functools.lru_cache(maxsize=4096)
def parsed(text: str) -> Spelling:
    """A family's template, classified."""
    return spelling(text)
