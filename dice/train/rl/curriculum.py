"""`Curriculum`: the problems of both stages, what has been measured on them, and what each step asks."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dice.decode.trace import Trace
from dice.errors import UserError
from dice.train.rl.config import RLConfig, Stage
from dice.train.rl.episode import Episode
from dice.train.rl.order import pick
from dice.train.rl.request import Desk, Example, Request, fault
from dice.train.rl.scaffold import Scaffold
from dice.train.rl.tasks import Task, read_tasks


class Curriculum:
    """`room`: the most tokens that a prompt may have. `longest_prompt`: the most that one of these has.

    Raises `UserError` for data that nothing can be trained on.
    """

    def __init__(self, config: RLConfig, desk: Desk, room: int, say: Callable[[str], None]) -> None:
        self.config, self.desk, self.room, self.say = config, desk, room, say
        self.longest_prompt = room if config.contrast or config.repair_turns else 0
        self.tasks: dict[Stage, list[Task]] = {
            "infill": self._read(config.infill_data, "infill") if config.infill_steps else [],
            "generate": self._read(config.generate_data, "generate") if config.generate_steps else [],
        }
        self.record: dict[str, tuple[int, int]] = {}  # problem id -> correct answers, judged answers
        self.examples: dict[str, tuple[Example, Example]] = {}  # problem id -> a right kernel and a wrong one
        self._half: dict[str, Example] = {}  # problem id -> one of the two, until the other is seen

    @property
    def digest(self) -> str:
        """Of all problems, in their order."""
        text = "".join(f"{stage}{task.problem.id}" for stage, tasks in self.tasks.items() for task in tasks)
        return hashlib.sha256(text.encode()).hexdigest()

    def picks(self, step: int) -> list[int]:
        """The tasks of step `step` of the run, as indices into those of its stage."""
        config, stage = self.config, self.config.stage(step)
        first, steps = (0, config.infill_steps) if stage == "infill" else (config.infill_steps, config.generate_steps)
        return pick(config.order, self.tasks[stage], step - first, steps, config.problems, config.seed, self.record)

    def requests(self, step: int, picks: Sequence[int]) -> list[Request]:
        """`config.responses` requests for each of the tasks."""
        stage = self.config.stage(step)
        requests = []
        for group, index in enumerate(picks):
            task = self.tasks[stage][index]
            prompt_ids, scaffold = self._ask(task, stage)
            requests += [
                Request(task.problem, prompt_ids, scaffold, group, sample) for sample in range(self.config.responses)
            ]
        return requests

    def recall(self, step: int, picks: Sequence[int], traces: Sequence[Trace]) -> list[Request]:
        """The requests that these traces answered."""
        asked = zip(self.requests(step, picks), traces, strict=True)
        return [replace(request, prompt_ids=trace.prompt_ids) for request, trace in asked]

    def mend(self, episodes: Sequence[Episode], requests: Sequence[Request]) -> list[Request]:
        """What to ask again, of answers whose kernel was found wrong."""
        found = []
        for episode, request in zip(episodes, requests, strict=True):
            if episode.kernel is not None and episode.verdict.about_kernel and not episode.verdict.correct:
                again = self.desk.ask_again(request, episode.kernel, episode.verdict)
                if again is not None and len(again.prompt_ids) <= self.room:
                    found.append(again)
        return found

    def learn(self, episodes: Sequence[Episode]) -> None:
        """Note what was measured, first turns only."""
        for episode in episodes:
            if episode.turn or not episode.verdict.about_kernel:
                continue
            key, correct = episode.problem.id, episode.verdict.correct
            right, judged = self.record.get(key, (0, 0))
            self.record[key] = right + correct, judged + 1
            if self.config.contrast and episode.kernel is not None:
                self._keep(key, Example(episode.kernel.source, "" if correct else fault(episode.verdict)))

    def state(self) -> dict[str, Any]:
        """What `restore` needs, as JSON."""
        pairs = {key: [[one.kernel, one.fault] for one in pair] for key, pair in self.examples.items()}
        return {
            "record": self.record,
            "examples": pairs,
            "half": {key: [one.kernel, one.fault] for key, one in self._half.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.record = {key: (right, judged) for key, (right, judged) in state["record"].items()}
        self.examples = {key: (Example(*one), Example(*other)) for key, (one, other) in state["examples"].items()}
        self._half = {key: Example(*one) for key, one in state["half"].items()}

    def _keep(self, key: str, new: Example) -> None:
        if key in self.examples:
            return
        old = self._half.setdefault(key, new)
        if bool(old.fault) != bool(new.fault):
            right, wrong = sorted((old, new), key=lambda one: bool(one.fault))
            self.examples[key] = right, wrong
            del self._half[key]

    def _ask(self, task: Task, stage: Stage) -> tuple[tuple[int, ...], Scaffold | None]:
        asked = self.desk.ask(task, stage, self.examples.get(task.problem.id, ()))
        return asked if len(asked[0]) <= self.room else self.desk.ask(task, stage)

    def _read(self, path: Path | None, stage: Stage) -> list[Task]:
        assert path is not None
        tasks, left_out = [], Counter[str]()
        for task in read_tasks(path, infill=stage == "infill"):
            reason = self._unusable(task, stage)
            left_out[reason] += 1
            if not reason:
                tasks.append(task)
        kept = left_out.pop("", 0)
        for reason, count in left_out.items():
            self.say(f"{count:,} of {kept + left_out.total():,} problems of {path} are left out: {reason}.")
        if not tasks:
            raise UserError(f"{path} holds no problem to train on; see above for why they are left out.")
        return tasks

    def _unusable(self, task: Task, stage: Stage) -> str:
        if task.parts is not None and self.config.infill_form == "scaffold" and Scaffold.of(task.parts) is None:
            return "their core is not one triple-quoted string, which a scaffold needs"
        length = len(self.desk.ask(task, stage)[0])
        self.longest_prompt = max(self.longest_prompt, min(length, self.room))
        if length > self.room:
            return f"their prompt leaves no room for {self.config.max_new_tokens} new tokens"
        return ""
