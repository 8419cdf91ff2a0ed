"""Data scheduling: which problems a step trains on (paper section 4.2).

Every choice is a function of its arguments, so a resumed run makes the choices of an uninterrupted one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from dice.train.rl.config import Order
from dice.train.rl.tasks import Task
from dice.train.rows import batch_rows

Record = Mapping[str, tuple[int, int]]  # problem id -> correct answers, judged answers
PRIOR = 4.0  # answers that what is known beforehand is worth
ENOUGH = 16  # answers after which a level's own success rate is known


def pick(
    order: Order, tasks: Sequence[Task], step: int, steps: int, count: int, seed: int, record: Record
) -> list[int]:
    """Indices of the `count` distinct tasks of step `step` of a stage of `steps`; all of them where there are fewer.

    `tasks` are easy to hard. `record` is what was measured before; only `adaptive` looks at it.
    """
    count = min(count, len(tasks))
    if order == "shuffled":
        # An epoch's border may fall into a step, and the same problem on both sides of it.
        wanted = batch_rows(step, count, len(tasks), seed).tolist()
        return _distinct(wanted, len(tasks))
    rng = np.random.default_rng((seed, step, 1))
    if order == "scheduled":
        return sorted(rng.choice(_window(len(tasks), step, steps, count), count, replace=False).tolist())
    # Gumbel's trick: the greatest keys are draws without replacement, weighted by the square of the promise.
    keys = 2 * np.log(_promise(tasks, record)) + rng.gumbel(size=len(tasks))
    return sorted(np.argsort(-keys, kind="stable")[:count].tolist())


def _window(total: int, step: int, steps: int, count: int) -> np.ndarray:
    """The tasks that a scheduled step draws from: a window that slides from the easiest to the hardest.

    It is as wide as one step's share of the data, or as one step needs. With more steps than the data has problems
    for, windows overlap; hard problems are never followed by easy ones again.
    """
    width = max(count, -(-total // steps))
    start = round(step * (total - width) / max(1, steps - 1))
    return np.arange(start, start + width)


def _promise(tasks: Sequence[Task], record: Record) -> np.ndarray:
    """The expected variance of a binary reward, p (1 - p), for each task.

    p follows a beta distribution: the task's own answers on top of a few imagined ones at the success rate of its
    level, or, where that is not known, at one that falls from a half for the easiest task to none for the hardest.
    """
    right, judged = Counter[int](), Counter[int]()
    for task in tasks:
        own = record.get(task.problem.id, (0, 0))
        right[task.level] += own[0]
        judged[task.level] += own[1]
    promises = []
    for index, task in enumerate(tasks):
        known = judged[task.level] >= ENOUGH
        expected = right[task.level] / judged[task.level] if known else 0.5 * (1 - index / len(tasks))
        successes, tries = record.get(task.problem.id, (0, 0))
        a, b = 0.5 + PRIOR * expected + successes, 0.5 + PRIOR * (1 - expected) + tries - successes
        promises.append(a * b / ((a + b) * (a + b + 1)))
    return np.array(promises)


def _distinct(wanted: Sequence[int], total: int) -> list[int]:
    """`wanted` without repeats, filled up with the next numbers."""
    chosen = dict.fromkeys(wanted)
    following = wanted[-1]
    while len(chosen) < len(wanted):
        following = (following + 1) % total
        chosen.setdefault(following)
    return list(chosen)
