"""`Names`: which names a problem uses already, and which it takes next."""

from __future__ import annotations

import random
from collections.abc import Sequence

from dice.synth.problem.style import Style
from dice.synth.tables.names import RESERVED, composed


class Names:
    """The names of one problem; none is given twice."""

    def __init__(self, rng: random.Random, style: Style) -> None:
        self.rng = rng
        self.style = style
        self.taken: set[str] = set()

    def fresh(self, pool: Sequence[str], *, passed: bool = False, upper: bool = False) -> str:
        """A name that is not in use: of the pool, with a number when all are; now and then one of no pool.

        `passed`: to the kernel, where some names have a meaning. `upper`: in capital letters.
        """
        pool = [name.upper() for name in pool] if upper else pool
        if passed:
            pool = [name for name in pool if name not in RESERVED] or pool
        name = self._of_pool(pool)
        if self.rng.random() < self.style.invention_rate:
            made = composed(self.rng).upper() if upper else composed(self.rng)
            too_short = passed and len(made) < 4
            name = name if made in self.taken or made in RESERVED or too_short else made
        name = name or self._numbered(pool[0])
        self.taken.add(name)
        return name

    def _of_pool(self, pool: Sequence[str]) -> str:
        """A free name of the pool; empty where all are in use."""
        free = [name for name in pool if name not in self.taken]
        if self.style.conventional and pool[0] not in self.taken:
            return pool[0]
        return self.rng.choice(free) if free else ""

    def _numbered(self, name: str) -> str:
        number = 2
        while f"{name}{number}" in self.taken:
            number += 1
        return f"{name}{number}"
