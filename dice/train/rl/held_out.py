"""Exec on held-out problems while training goes on: one answer each, decoded greedily unless asked otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dice.train.rl.config import RLConfig
from dice.train.rl.measures import shares
from dice.train.rl.request import Desk, Request
from dice.train.rl.rollout import Rollouts
from dice.train.rl.tasks import Task, read_tasks


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The problems, as requests for whole kernels, and the level of each."""

    requests: Sequence[Request]
    levels: Sequence[int]
    temperature: float

    @classmethod
    def read(cls, config: RLConfig, desk: Desk, room: int, say: Callable[[str], None]) -> HeldOut | None:
        """Up to `config.eval_problems`, evenly from easy to hard. A prompt of more than `room` tokens is left out."""
        if config.eval_data is None:
            return None
        tasks = read_tasks(config.eval_data, infill=False)
        count = min(len(tasks), config.eval_problems)
        chosen: list[Task] = [tasks[index * len(tasks) // count] for index in range(count)]
        asked = [(task, desk.ask(task, "generate")[0]) for task in chosen]
        fitting = [(task, ids) for task, ids in asked if len(ids) <= room]
        if len(fitting) < len(asked):
            say(f"{len(asked) - len(fitting)} of {len(asked)} held-out problems are too long for the model.")
        requests = [Request(task.problem, ids, None, group, 0) for group, (task, ids) in enumerate(fitting)]
        return cls(requests, [task.level for task, _ in fitting], config.eval_temperature)

    def measure(self, rollouts: Rollouts, seeds: Sequence[int]) -> dict[str, float]:
        """Shares by name, `eval_exec` and so on; Exec also of each level: `eval_exec_1`."""
        verdicts = rollouts.verdicts(rollouts.decode(self.requests, seeds, temperature=self.temperature))
        found = {f"eval_{name}": value for name, value in shares(verdicts).items()}
        for level in sorted(set(self.levels)):
            own = [verdict for verdict, of in zip(verdicts, self.levels, strict=True) if of == level]
            found[f"eval_exec_{level}"] = shares(own)["exec"]
        return found
