"""What a step came to, in numbers, and Exec on held-out problems, for metrics.jsonl and the terminal."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from dice.train.rl.config import RLConfig
from dice.train.rl.curriculum import Task, read_tasks
from dice.train.rl.episode import Episode
from dice.train.rl.requests import KernelRequest, PromptBuilder
from dice.train.rl.rollout import Rollouts
from dice.verdict import Verdict, fast_p


def measure(episodes: Sequence[Episode]) -> dict[str, float]:
    """Numbers of a step. Shares are of the answers that were judged; nan of none.

    `groups`, `flat_groups`: all, and those whose rewards were all equal, which teach nothing. `trained`: episodes with
    an advantage. `unjudged`: answers whose verdict says nothing about the kernel.
    """
    groups = defaultdict(list)
    for episode in episodes:
        groups[episode.group].append(episode.advantage)
    tokens = sum(len(episode.trace.response_ids) for episode in episodes)
    return {
        "reward": _mean([episode.reward for episode in episodes if episode.reward is not None]),
        **shares([episode.verdict for episode in episodes]),
        "groups": len(groups),
        "flat_groups": sum(all(one is None for one in group) for group in groups.values()),
        "trained": sum(episode.advantage is not None for episode in episodes),
        "unjudged": sum(not episode.verdict.about_kernel for episode in episodes),
        "answer_tokens": tokens,
        "mean_tokens": tokens / max(1, len(episodes)),
        "truncated": sum(episode.trace.stop_reason == "length" for episode in episodes) / max(1, len(episodes)),
    }


def shares(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Exec, and the shares of what else happened, of those that were judged; fast1 and fast2 where any was timed.

    `shown_deceptive`: those on which a deception was noted, whatever the outcome. Under a protocol that does not refuse
    deception, as the paper's reward, these kernels may count as correct.
    """
    judged = [verdict for verdict in verdicts if verdict.about_kernel]
    counts = Counter(verdict.failure_class or "correct" for verdict in judged)

    def share(name: str) -> float:
        return counts[name] / len(judged) if judged else float("nan")

    found = {
        "exec": share("correct"),
        "deceptive": share("deceptive"),
        "incorrect": share("functional incorrectness"),
        "failed": share("execution failure"),
        "no_kernel": share("generation failure"),
        "shown_deceptive": _mean([float(bool(verdict.deceptions)) for verdict in judged]),
    }
    if any(verdict.timing for verdict in judged):
        found |= {"fast1": fast_p(judged, 1.0), "fast2": fast_p(judged, 2.0)}
    return found


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Problems as requests for whole kernels, one answer each, and the level of each. `trained_on`: so many of them are
    trained on as well, and say nothing of what the model has learnt beyond them."""

    requests: Sequence[KernelRequest]
    levels: Sequence[int]
    temperature: float
    trained_on: int = 0

    @classmethod
    def read(
        cls,
        config: RLConfig,
        prompt_builder: PromptBuilder,
        room: int,
        say: Callable[[str], None],
        training: Collection[str] = (),
    ) -> HeldOut | None:
        """Up to `config.eval_problems`, evenly from easy to hard. A prompt of more than `room` tokens is left out.
        `training`: ids of the problems that are trained on."""
        if config.eval_data is None:
            return None
        tasks = read_tasks(config.eval_data, infill=False)
        count = min(len(tasks), config.eval_problems)
        chosen: list[Task] = [tasks[index * len(tasks) // count] for index in range(count)]
        asked = [(task, prompt_builder.build(task.problem)[0]) for task in chosen]
        fitting = [(task, ids) for task, ids in asked if len(ids) <= room]
        if len(fitting) < len(asked):
            say(f"{len(asked) - len(fitting)} of {len(asked)} problems of eval_data are too long for the model.")
        requests = [KernelRequest(task.problem, ids, None, group, 0) for group, (task, ids) in enumerate(fitting)]
        trained_on = [task for task, _ in fitting if task.problem.id in training]
        return cls(requests, [task.level for task, _ in fitting], config.eval_temperature, len(trained_on))

    @property
    def described(self) -> str:
        """How many problems of what kind."""
        if not self.trained_on:
            return f"{len(self.requests)} held-out problems"
        return f"{len(self.requests)} problems, {self.trained_on} of them also trained on"

    def measure(self, rollouts: Rollouts, seeds: Sequence[int]) -> dict[str, float]:
        """Shares by name, `eval_exec` and so on; Exec also of each level: `eval_exec_1`."""
        batch = rollouts.decode(self.requests, seeds, temperature=self.temperature)
        verdicts = list(rollouts.verdicts(batch).values())
        found = {f"eval_{name}": value for name, value in shares(verdicts).items()}
        found["eval_trained_on"] = self.trained_on
        for level in sorted(set(self.levels)):
            own = [verdict for verdict, of in zip(verdicts, self.levels, strict=True) if of == level]
            found[f"eval_exec_{level}"] = shares(own)["exec"]
        return found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
