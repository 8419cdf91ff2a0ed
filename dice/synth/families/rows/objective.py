"""Losses that are rarer, or of probabilities and rates, beside those of `loss`."""

from __future__ import annotations

import random

from dice.synth.families.rows import loss
from dice.synth.kernel.objectives import OBJECTIVES
from dice.synth.problem.plan import Draft, Plan

NAME = "objective"


def sample(rng: random.Random) -> Plan:
    return loss.drawn(rng, NAME, OBJECTIVES)


def render(plan: Plan, rng: random.Random) -> Draft:
    return loss.written(plan, rng, OBJECTIVES)
