"""What a step came to, in numbers, for metrics.jsonl and the terminal."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from dice.train.rl.episode import Episode
from dice.verdict import Verdict, fast_p


def measure(episodes: Sequence[Episode]) -> dict[str, float]:
    """Numbers of a step. Shares are of the answers of the first turn that were judged; nan of none.

    `groups`, `flat_groups`: all, and those whose rewards were all equal, which teach nothing. `trained`: episodes with
    an advantage. `unjudged`: answers whose verdict says nothing about the kernel.
    """
    first = [episode for episode in episodes if not episode.turn]
    groups = defaultdict(list)
    for episode in episodes:
        groups[episode.group, episode.turn].append(episode.advantage)
    tokens = sum(len(episode.trace.response_ids) for episode in episodes)
    return {
        "reward": _mean([episode.reward for episode in first if episode.reward is not None]),
        **shares([episode.verdict for episode in first]),
        "groups": len(groups),
        "flat_groups": sum(all(one is None for one in group) for group in groups.values()),
        "trained": sum(episode.advantage is not None for episode in episodes),
        "unjudged": sum(not episode.verdict.about_kernel for episode in episodes),
        "mended": sum(bool(episode.turn) and episode.verdict.correct for episode in episodes),
        "answer_tokens": tokens,
        "mean_tokens": tokens / max(1, len(episodes)),
        "truncated": sum(episode.trace.stop_reason == "length" for episode in first) / max(1, len(first)),
    }


def shares(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Exec, and the shares of what else happened, of those that were judged; fast1 and fast2 where any was timed."""
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
    }
    if any(verdict.timing for verdict in judged):
        found |= {"fast1": fast_p(judged, 1.0), "fast2": fast_p(judged, 2.0)}
    return found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
