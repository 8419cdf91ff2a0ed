"""The paper's own numbers, as rows to stand beside a run's. The one place that reads the table of presets.

They are of KernelBench, so they stand beside runs over KernelBench's own problems alone: `kernelbench_problems.txt`
has the 250 names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dice.evaluate.paper_rows import ROWS
from dice.evaluate.run_folder import Task

PROTOCOL = "the paper's protocol: tolerance 1e-2, 5 trials, robust check, one-shot prompt"
Shares = tuple[float, float, float]
Levels = dict[int, Shares]
LEVEL_SIZES = {1: 100, 2: 100, 3: 50}  # KernelBench's
PROBLEMS = frozenset((Path(__file__).parent / "kernelbench_problems.txt").read_text(encoding="utf-8").split())


@dataclass(frozen=True, slots=True)
class Published:
    """One row of Tables 1 to 3. `levels`: {level: (Exec, fast_1, fast_2)} as shares, 0 to 1. `without_check`: the same
    of Table 8, without the paper's robust check; empty where it gives none."""

    name: str
    table: int
    size: str
    levels: Levels
    without_check: Levels

    @property
    def total(self) -> Shares:
        """Over all problems of the levels that the paper gives."""
        return over_all(self.levels)


def are_kernelbench(tasks: Iterable[Task]) -> bool:
    """Whether all of these are problems of KernelBench's, by level and name. Some of them are enough."""
    return all(task.key in PROBLEMS for task in tasks)


def over_all(levels: Levels) -> Shares:
    """Levels weighted by their numbers of problems."""
    count = sum(LEVEL_SIZES[level] for level in levels)
    exec_, fast1, fast2 = (sum(LEVEL_SIZES[level] * levels[level][i] for level in levels) / count for i in range(3))
    return exec_, fast1, fast2


def published() -> list[Published]:
    """The rows of Tables 1 to 3 that have numbers, in the paper's order."""
    found = []
    for row in ROWS:
        if row.table in (1, 2, 3) and row.published:
            levels = _shares(row.published)
            found.append(Published(row.name, row.table, row.size, levels, _shares(row.without_check)))
    return found


def _shares(percent: Levels) -> Levels:
    return {level: (one / 100, two / 100, three / 100) for level, (one, two, three) in sorted(percent.items())}


def size_of(row_name: str) -> str:
    """The parameters of a row's model, "8B"; "" for no such row."""
    return next((row.size for row in ROWS if row.name == row_name), "")
