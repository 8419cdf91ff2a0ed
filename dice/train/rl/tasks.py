"""`Task`: a problem to train on, how hard it is and, for infilling, a kernel for it in three parts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dice.data.rows import SUFFIXES, read_rows
from dice.data.sources import read_problems
from dice.errors import UserError
from dice.kernel import KernelParts
from dice.problem import Problem

SOURCE = "pytorch_code"
PARTS = ("prefix", "middle", "suffix")
COLUMNS = (SOURCE, *PARTS, "name", "level", "difficulty", "score")


@dataclass(frozen=True, slots=True)
class Task:
    """`level` and `score` order tasks easy to hard; `parts` is None where a whole kernel is to be written."""

    problem: Problem
    level: int = 1
    score: float = 0.0
    parts: KernelParts | None = None

    @property
    def rank(self) -> tuple[int, float]:
        return self.level, self.score


def read_tasks(path: Path, *, infill: bool) -> list[Task]:
    """The tasks of a file that `dice data rl` wrote, easy to hard; for whole kernels also of any other problems.

    Those are task files or tables of problems, see `read_problems`; their level is KernelBench's. Equals keep the order
    that they are in. Raises `UserError` in one sentence.
    """
    if infill or _is_ours(path):
        tasks = [_task(row.values, row.where, row.number, infill) for row in read_rows(path, COLUMNS)]
    else:
        tasks = [Task(problem, problem.level or 1) for problem in read_problems([path])]
    if not tasks:
        raise UserError(f"{path} holds no problems: there is nothing to train on.")
    return sorted(tasks, key=lambda task: task.rank)


def _is_ours(path: Path) -> bool:
    """By its first row; a file without any is as good as ours."""
    if path.suffix not in SUFFIXES or not path.is_file():
        return False
    first = next(read_rows(path, COLUMNS), None)
    return first is None or SOURCE in first.values


def _task(row: dict[str, Any], where: str, number: int, infill: bool) -> Task:
    for column in (SOURCE, *(PARTS if infill else ())):
        if not isinstance(row.get(column), str):
            raise UserError(f"{where}, has no text in its column `{column}`; `dice data rl` writes such files.")
    try:
        level, score = int(row.get("level") or 1), float(row.get("score") or 0.0)
    except (TypeError, ValueError, OverflowError):
        said = f"{str(row.get('level'))[:80]!r} and {str(row.get('score'))[:80]!r}"
        raise UserError(f"{where}, has a level or a score that is no number: {said}.") from None
    problem = Problem(row[SOURCE], row.get("name") or f"problem {number}", difficulty=row.get("difficulty") or None)
    parts = KernelParts(row["prefix"], row["middle"], row["suffix"]) if infill else None
    return Task(problem, level, score, parts)
