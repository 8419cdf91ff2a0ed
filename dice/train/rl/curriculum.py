"""The problems of both stages, what has been measured on them, and what each step asks (paper section 4.2).

Every choice is a function of its arguments, so a resumed run makes the choices of an uninterrupted one.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dice.data.sources import read_problems
from dice.errors import UserError
from dice.files import JsonObject
from dice.files.tables import SUFFIXES, read_rows
from dice.kernel import KernelParts
from dice.problem import Problem
from dice.train.packing import batch_rows
from dice.train.rl.config import Order, RLConfig, Stage
from dice.train.rl.episode import Episode
from dice.train.rl.requests import KernelRequest, PromptBuilder, Scaffold

SOURCE = "pytorch_code"
PARTS = ("prefix", "middle", "suffix")
COLUMNS = (SOURCE, *PARTS, "name", "level", "difficulty", "score")

SuccessRates = Mapping[str, tuple[int, int]]
"""Problem id -> correct kernels, judged kernels."""

# The adaptive order starts from an expected success rate that weighs as much as this many judged kernels.
PRIOR_KERNELS = 4.0
# From this many judged kernels on, a level's own success rate is what is expected of its problems.
ENOUGH_KERNELS = 16


@dataclass(frozen=True, slots=True)
class Task:
    """A problem to train on. `level` and `score` order tasks easy to hard; `parts` is a kernel for it with its core
    set apart, None where a whole kernel is to be written."""

    problem: Problem
    level: int = 1
    score: float = 0.0
    parts: KernelParts | None = None

    @property
    def rank(self) -> tuple[int, float]:
        return self.level, self.score


class Curriculum:
    """`room`: the most tokens that a prompt may have. `longest_prompt`: the most that one of these has.

    Raises `UserError` for data that nothing can be trained on.
    """

    def __init__(self, config: RLConfig, prompt_builder: PromptBuilder, room: int, say: Callable[[str], None]) -> None:
        self.config, self.prompt_builder, self.room, self.say = config, prompt_builder, room, say
        self.longest_prompt = 0
        self.tasks: dict[Stage, list[Task]] = {
            "infill": self._read(config.infill_data, "infill") if config.infill_steps else [],
            "generate": self._read(config.generate_data, "generate") if config.generate_steps else [],
        }
        self.success: dict[str, tuple[int, int]] = {}

    @property
    def digest(self) -> str:
        """Of all problems, in their order."""
        text = "".join(f"{stage}{task.problem.id}" for stage, tasks in self.tasks.items() for task in tasks)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def problem_ids(self) -> frozenset[str]:
        """What is trained on."""
        return frozenset(task.problem.id for tasks in self.tasks.values() for task in tasks)

    def picks(self, step: int) -> list[int]:
        """The tasks of step `step` of the run, as indices into those of its stage."""
        config, stage = self.config, self.config.stage(step)
        first, steps = (0, config.infill_steps) if stage == "infill" else (config.infill_steps, config.generate_steps)
        return pick(config.order, self.tasks[stage], step - first, steps, config.problems, config.seed, self.success)

    def requests(self, step: int, picks: Sequence[int]) -> list[KernelRequest]:
        """`config.responses` requests for each of the tasks."""
        stage = self.config.stage(step)
        requests = []
        for group, index in enumerate(picks):
            task = self.tasks[stage][index]
            prompt_ids, scaffold = self.prompt_builder.build(task.problem, task.parts)
            requests += [
                KernelRequest(task.problem, prompt_ids, scaffold, group, sample)
                for sample in range(self.config.responses)
            ]
        return requests

    def record(self, episodes: Sequence[Episode]) -> None:
        """Note what was measured."""
        for episode in episodes:
            if episode.verdict.about_kernel:
                right, judged = self.success.get(episode.problem.id, (0, 0))
                if episode.verdict.correct:
                    right += 1
                self.success[episode.problem.id] = right, judged + 1

    def state(self) -> dict[str, object]:
        """What `restore` needs, as JSON."""
        return {"record": self.success}

    def restore(self, state: JsonObject) -> None:
        self.success = {key: (right, judged) for key, (right, judged) in state["record"].items()}

    def _read(self, path: Path | None, stage: Stage) -> list[Task]:
        assert path is not None
        tasks, left_out = [], Counter[str]()
        found = read_tasks(path, infill=stage == "infill")
        for task in found:
            reason = self._unusable(task)
            if reason:
                left_out[reason] += 1
            else:
                tasks.append(task)
        for reason, count in left_out.items():
            self.say(f"{count:,} of {len(found):,} problems of {path} are left out: {reason}.")
        if not tasks:
            raise UserError(f"{path} holds no problem to train on; see above for why they are left out.")
        return tasks

    def _unusable(self, task: Task) -> str:
        """Why the task cannot be asked; "" where it can."""
        if task.parts is not None and self.config.infill_form == "scaffold" and Scaffold.of(task.parts) is None:
            return "their core is not one triple-quoted string, which a scaffold needs"
        length = len(self.prompt_builder.build(task.problem, task.parts)[0])
        self.longest_prompt = max(self.longest_prompt, min(length, self.room))
        if length > self.room:
            return f"their prompt leaves no room for {self.config.max_new_tokens} new tokens"
        return ""


def pick(
    order: Order, tasks: Sequence[Task], step: int, steps: int, count: int, seed: int, success: SuccessRates
) -> list[int]:
    """Indices of the `count` distinct tasks of step `step` of a stage of `steps`; all of them where there are fewer.

    `tasks` are easy to hard. Only the order `adaptive` looks at `success`.
    """
    count = min(count, len(tasks))
    if order == "shuffled":
        # An epoch's border may fall into a step, and the same problem on both sides of it.
        wanted = batch_rows(step, count, len(tasks), seed).tolist()
        return _distinct(wanted, len(tasks))
    if order == "sequential":
        return [(step * count + place) % len(tasks) for place in range(count)]
    rng = np.random.default_rng((seed, step, 1))
    if order == "scheduled":
        return sorted(rng.choice(_window(len(tasks), step, steps, count), count, replace=False).tolist())
    # Gumbel's trick: the greatest keys are draws without replacement, weighted by the square of the variance.
    keys = 2 * np.log(_reward_variance(tasks, success)) + rng.gumbel(size=len(tasks))
    return sorted(np.argsort(-keys, kind="stable")[:count].tolist())


def _window(total: int, step: int, steps: int, count: int) -> np.ndarray:
    """The tasks that a scheduled step draws from: a window that slides from the easiest to the hardest.

    It is as wide as one step's share of the data, or as one step needs. With more steps than the data has problems
    for, windows overlap; hard problems are never followed by easy ones again.
    """
    width = max(count, -(-total // steps))
    start = round(step * (total - width) / max(1, steps - 1))
    return np.arange(start, start + width)


def _reward_variance(tasks: Sequence[Task], success: SuccessRates) -> np.ndarray:
    """The expected variance of a binary reward, p (1 - p), for each task.

    p follows a beta distribution: the task's own kernels on top of a few imagined ones at the success rate of its
    level, or, where that is not known, at one that falls from a half for the easiest task to none for the hardest.
    """
    right, judged = Counter[int](), Counter[int]()
    for task in tasks:
        own = success.get(task.problem.id, (0, 0))
        right[task.level] += own[0]
        judged[task.level] += own[1]
    variances = []
    for index, task in enumerate(tasks):
        known = judged[task.level] >= ENOUGH_KERNELS
        expected = right[task.level] / judged[task.level] if known else 0.5 * (1 - index / len(tasks))
        successes, tries = success.get(task.problem.id, (0, 0))
        a = 0.5 + PRIOR_KERNELS * expected + successes
        b = 0.5 + PRIOR_KERNELS * (1 - expected) + tries - successes
        variances.append(a * b / ((a + b) * (a + b + 1)))
    return np.array(variances)


def _distinct(wanted: Sequence[int], total: int) -> list[int]:
    """`wanted` without repeats, filled up with the next numbers."""
    chosen = dict.fromkeys(wanted)
    following = wanted[-1]
    while len(chosen) < len(wanted):
        following = (following + 1) % total
        chosen.setdefault(following)
    return list(chosen)


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


def _task(row: JsonObject, where: str, number: int, infill: bool) -> Task:
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
