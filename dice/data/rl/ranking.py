"""Easy to hard: what a problem's level is, and the order that follows (data scheduling, paper 4.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from dice.data.difficulty import LEVELS, Difficulty, label_all
from dice.data.sample import Sample
from dice.problem import Problem

Labeller = Callable[[Sequence[Problem]], Sequence[Difficulty]]


@dataclass(frozen=True, slots=True)
class Ranked:
    """A sample and how hard it is. `score` orders within a level."""

    sample: Sample
    level: str
    score: float

    @property
    def number(self) -> int:
        """1, 2, 3, as in the released files; 4 for a level that is not one of `LEVELS`."""
        return LEVELS.index(self.level) + 1 if self.level in LEVELS else len(LEVELS) + 1

    @property
    def key(self) -> tuple[int, float, str]:
        return self.number, self.score, self.sample.id


@dataclass
class Ranker:
    """Ranks samples: by the `difficulty` they carry, else by the labeller's; within a level by its score."""

    labeller: Labeller
    counts: dict[str, int] = field(default_factory=lambda: {"stated": 0, "labelled": 0})

    def rank(self, samples: Iterable[Sample]) -> list[Ranked]:
        """Easy to hard."""
        given = list(samples)
        labels = self.labeller([sample.as_problem() for sample in given])
        return sorted(map(self._ranked, given, labels), key=lambda one: one.key)

    def _ranked(self, sample: Sample, label: Difficulty) -> Ranked:
        self.counts["stated" if sample.difficulty else "labelled"] += 1
        return Ranked(sample, sample.difficulty or label.level, label.score)


def offline_labeller(workers: int, record: Path, progress: Callable[[int, int], None]) -> Labeller:
    """`difficulty.label_all`, which goes on where `record` ends."""
    return partial(label_all, workers=workers, record=record, progress=progress)
