"""Easy to hard: what a problem's level is, and the order that follows (data scheduling, paper 4.2)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dice.data.sample import Sample
from dice.problem import Problem

LEVELS = ("single", "fusion", "model")  # 1, 2 and 3 of the released files
UNKNOWN = ""  # sorts behind all of them
Labeller = Callable[[Sequence[Problem]], Sequence[Any]]  # for each problem something with `.level` and `.score`


@dataclass(frozen=True, slots=True)
class Ranked:
    """A sample and how hard it is. `score` orders within a level."""

    sample: Sample
    level: str
    score: float

    @property
    def number(self) -> int:
        """1, 2, 3; 4 where the level is not known."""
        return LEVELS.index(self.level) + 1 if self.level in LEVELS else len(LEVELS) + 1

    @property
    def key(self) -> tuple[int, float, str]:
        return self.number, self.score, self.sample.id


@dataclass
class Ranker:
    """Ranks samples: by the `difficulty` they carry, else by the labeller's, where this installation has one.

    The score is the labeller's; without one, longer problems are harder.
    """

    labeller: Labeller | None
    counts: dict[str, int] = field(default_factory=lambda: {"stated": 0, "labelled": 0, "unknown": 0})

    def rank(self, samples: Iterable[Sample]) -> list[Ranked]:
        """Easy to hard."""
        given = list(samples)
        labels = self.labeller([sample.as_problem() for sample in given]) if self.labeller else [None] * len(given)
        return sorted(map(self._ranked, given, labels), key=lambda one: one.key)

    def _ranked(self, sample: Sample, label: Any) -> Ranked:
        self.counts["stated" if sample.difficulty else "labelled" if label else "unknown"] += 1
        level = sample.difficulty or (label.level if label else UNKNOWN)
        return Ranked(sample, level, float(label.score) if label else float(len(sample.problem)))


def offline_labeller(workers: int, record: Path, progress: Callable[[int, int], None]) -> Labeller | None:
    """`dice.data.difficulty.label_all`, which goes on where `record` ends; None where it is not installed."""
    try:
        difficulty = importlib.import_module("dice.data.difficulty")
    except ModuleNotFoundError:
        return None

    def label(problems: Sequence[Problem]) -> Sequence[Any]:
        found: Sequence[Any] = difficulty.label_all(problems, workers=workers, record=record, progress=progress)
        return found

    return label
