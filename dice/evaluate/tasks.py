"""Which problems a run is about: KernelBench's folders, by level and number, or any other folder or table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from dice.data.difficulty.levels import LEVELS
from dice.data.sources import read_problems
from dice.errors import UserError
from dice.evaluate.run_folder import Task
from dice.files.bounded import read_text
from dice.problem import Problem

_NUMBERED = re.compile(r"(\d{1,9})_")
_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")


def load_tasks(path: Path, levels: Sequence[int] = (), ids: str = "", subset: Path | None = None) -> list[Task]:
    """The tasks of a folder or table, in order: by level, then number.

    `levels`: these alone. `ids`: numbers and ranges, "1-20,33", within each level. `subset`: a file with one task a
    line, by key (`level1/19_ReLU`), name, or number within the levels; `#` begins a remark. A problem without a
    KernelBench level has that of its difficulty label (single 1, fusion 2, model 3), or 0. Raises `UserError` in one
    sentence, also where nothing is left.
    """
    tasks = _number(read_problems([path]))
    if levels:
        missing = set(levels) - {task.level for task in tasks}
        if missing:
            raise UserError(f"{path} has no problem of level {', '.join(map(str, sorted(missing)))}.")
        tasks = [task for task in tasks if task.level in levels]
    if ids:
        wanted = parse_ids(ids)
        tasks = [task for task in tasks if task.number in wanted]
    if subset is not None:
        tasks = _subset(tasks, subset)
    if not tasks:
        raise UserError(f"No problem of {path} was chosen.")
    for task in tasks:
        task.as_problem().check()
    return sorted(tasks, key=lambda task: (task.level, task.number, task.key))


def parse_ids(text: str) -> frozenset[int]:
    """The numbers in "1-20,33". Raises `UserError`."""
    found: set[int] = set()
    for part in text.replace(" ", "").split(","):
        match = _RANGE.fullmatch(part)
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise UserError(f"{part!r} is no number and no range such as 1-20.")
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(found)


def _number(problems: Sequence[Problem]) -> list[Task]:
    """Tasks with keys of their own: a problem without a number of its own gets its place, from 1."""
    tasks: list[Task] = []
    used: dict[str, Problem] = {}
    for place, problem in enumerate(problems, start=1):
        level = problem.level or _level_of(problem.difficulty)
        match = _NUMBERED.match(problem.name)
        key = f"level{level}/{problem.name}" if level else problem.name
        if key in used:
            if used[key].source == problem.source:
                continue
            key = f"{key}#{place}"
        used[key] = problem
        tasks.append(Task(key, level, int(match[1]) if match else place, problem.name, problem.source))
    return tasks


def _level_of(difficulty: str | None) -> int:
    """KernelBench's level of problems of that kind; 0 for none of `dice data difficulty`'s labels."""
    return LEVELS.index(difficulty) + 1 if difficulty in LEVELS else 0


def _subset(tasks: Sequence[Task], path: Path) -> list[Task]:
    try:
        text = read_text(path)
    except OSError as error:
        raise UserError(f"Cannot read the subset {path}: {error.strerror}.") from None
    lines = [line.partition("#")[0].strip().removesuffix(".py") for line in text.splitlines()]
    wanted = {line for line in lines if line}
    names = {task.key: {task.key, task.name, str(task.number)} for task in tasks}
    unknown = wanted - set().union(*names.values())
    if unknown:
        raise UserError(f"{path} names {min(unknown)!r}, and there is no such problem.")
    return [task for task in tasks if names[task.key] & wanted]
