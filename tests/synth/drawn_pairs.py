"""A sample of the plain corpus that several files of tests look at, since to draw it takes a while."""

from __future__ import annotations

import functools

from dice import synth
from dice.synth import Pair

SEED = 5
MOST = 2000


@functools.cache
def sample() -> tuple[Pair, ...]:
    return tuple(synth.generate(SEED, index) for index in range(MOST))
