"""Two to four inputs combined by the rarer operators: bounds and weights that are tensors, angles, steps."""

from __future__ import annotations

import random

from dice.synth.families.elements import pointwise
from dice.synth.kernel.lanes import spread
from dice.synth.problem.plan import Draft, Plan
from dice.synth.tables.combinations import COMBINATIONS

NAME = "combine"


def sample(rng: random.Random) -> Plan:
    return pointwise.drawn(rng, NAME, COMBINATIONS)


def render(plan: Plan, rng: random.Random) -> Draft:
    return pointwise.written(plan, rng, COMBINATIONS, spread)
