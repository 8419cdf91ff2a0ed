"""Every elementwise operator, by name."""

from __future__ import annotations

from dice.synth.tables.activations import ACTIVATIONS
from dice.synth.tables.functions import FUNCTIONS
from dice.synth.tables.operator import SATURATES, Operator, Sign, Spelling, spelling

__all__ = ["OPERATORS", "SATURATES", "Operator", "Sign", "Spelling", "spelling"]

OPERATORS: dict[str, Operator] = {operator.name: operator for operator in (*ACTIVATIONS, *FUNCTIONS)}
