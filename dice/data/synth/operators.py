"""Every elementwise operator, by name."""

from __future__ import annotations

from dice.data.synth.activations import ACTIVATIONS
from dice.data.synth.functions import FUNCTIONS
from dice.data.synth.operator import SATURATES, Operator, Sign, Spelling, spelling

__all__ = ["OPERATORS", "SATURATES", "Operator", "Sign", "Spelling", "spelling"]

OPERATORS: dict[str, Operator] = {operator.name: operator for operator in (*ACTIVATIONS, *FUNCTIONS)}
