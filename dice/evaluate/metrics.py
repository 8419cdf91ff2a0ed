"""What a run came to: pure functions over (tasks, generations, judgements).

Shares are 0 to 1: the mean over problems of the mean over their samples. What says nothing about a kernel
(`unsupported`, or not judged yet) is in no denominator; but under a protocol that counts as published (`dice-paper`,
`kernelbench-v0`) every problem is, and what was not judged is not solved, as in the paper's Eq. 3. Solved is what is
right with any part of the reference replaced, as KernelBench counts; or (`replaced="all"`) with all of its operators;
every score says that share beside the other. Times are in seconds, cost is in USD, speed-ups are quotients.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from dice.evaluate.run_folder import Generation, Judgement, RunFolder, Task
from dice.evaluate.statistics import Bootstrap, Estimate, pass_at, sign_test
from dice.verdict import FAILURE_CLASS, ReplacedWork, Verdict
from dice.verify.protocols import counts_as_published

FAST_P = (*(quarter / 4 for quarter in range(21)), 10.0)  # speed-ups at which the curve of fast_p is drawn
PASS_AT = (1, 2, 4, 5, 8, 10, 16, 32, 64, 100)  # the k of pass@k, as far as there are k samples
RESAMPLES = 1000  # of the bootstrap behind every interval
Verdicts = Mapping[str, Sequence[Verdict]]  # of a task, by its key


@dataclass(frozen=True, slots=True)
class Score:
    """One group of tasks: a level, or all of them."""

    tasks: int
    judged: int  # answers with a verdict about their kernel
    unjudged: int  # not generated or not judged yet, or `unsupported`
    exec: Estimate  # share solved: fast_0
    exec_all: Estimate  # the same with all operators replaced; None where a verdict does not say how many were
    fast1_all: Estimate
    fast1: Estimate  # share correct and faster than the reference; None where no correct kernel was timed
    fast2: Estimate
    speedup_correct: Estimate  # geometric mean over the correct ones that were timed
    speedup_faster: Estimate  # and over those of them that are faster than the reference
    deception: Estimate  # share `deceptive`
    fast_p: tuple[tuple[float, float], ...]  # (p, share); empty where no correct kernel was timed
    pass_at: dict[int, Estimate]  # over problems with at least k judged samples; empty for one sample a problem


@dataclass(frozen=True, slots=True)
class Cost:
    """What generating took, over the stored answers. None where no answer says."""

    generations: int
    errors: int
    tokens: float | None  # mean of an answer
    seconds: float | None  # mean of an answer
    tokens_per_forward: float | None
    tokens_per_second: float | None
    usd: float  # sum


@dataclass(frozen=True, slots=True)
class Summary:
    """A run under one protocol. `levels`: in order; 0 is what has no level."""

    run: str
    model: str
    row: str  # of the paper's tables, "" for none
    protocol: str
    replaced: ReplacedWork  # of the reference, by what counts as solved here
    backend: str  # of the verdicts: "cuda" | "emulated" | "mixed" | ""
    devices: tuple[str, ...]
    samples: int  # asked for each problem
    total: Score
    levels: dict[int, Score]
    outcomes: dict[str, int]
    failures: dict[str, int]  # by the classes of the paper's Fig. 6, all of them
    deceptions: dict[str, int]  # by kind, of the `deceptive`
    provenance: dict[str, int]  # of the correct: "construction", "evidence"
    cost: Cost

    def to_json(self) -> dict[str, object]:
        data = asdict(self)
        for score in (data["total"], *data["levels"].values()):
            score["pass_at"] = {str(k): estimate for k, estimate in score["pass_at"].items()}
        return data | {"levels": {str(level): score for level, score in data["levels"].items()}}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Run B against run A on the problems that both judged: differences are B - A."""

    protocol: str
    problems: int
    exec: Estimate
    fast1: Estimate  # None unless both runs were timed
    fast2: Estimate
    better: int  # problems of which B solves a larger share of samples
    worse: int
    p_value: float  # exact two-sided sign test; ties are left out

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def summarise(
    folder: RunFolder, protocol: str, *, replaced: ReplacedWork = "any", seed: int = 0, resamples: int = RESAMPLES
) -> Summary:
    """`replaced`: of the reference, by what counts as solved. Raises `UserError` where the folder is no run."""
    config, tasks = folder.config, folder.tasks()
    judgements = folder.judgements(protocol)
    verdicts = [one.verdict for one in judgements]
    about = [verdict for verdict in verdicts if verdict.about_kernel]
    backends = {verdict.backend for verdict in verdicts if verdict.backend}
    samples = int(config.get("samples", 1))
    by_level: dict[int, list[Task]] = defaultdict(list)
    for task in tasks:
        by_level[task.level].append(task)

    def scored(group: Sequence[Task]) -> Score:
        every = counts_as_published(protocol)
        return score(group, judgements, samples, every=every, replaced=replaced, seed=seed, resamples=resamples)

    return Summary(
        run=folder.path.name,
        model=str(config.get("model", "")),
        row=str(config.get("row", "")),
        protocol=protocol,
        replaced=replaced,
        backend="mixed" if len(backends) > 1 else next(iter(backends), ""),
        devices=tuple(sorted({verdict.device for verdict in verdicts if verdict.device})),
        samples=samples,
        total=scored(tasks),
        levels={level: scored(by_level[level]) for level in sorted(by_level)},
        outcomes=_counts(verdict.outcome for verdict in verdicts),
        failures=dict.fromkeys(FAILURE_CLASS.values(), 0)
        | _counts(verdict.failure_class for verdict in about if verdict.failure_class),
        deceptions=_counts(kind for verdict in about if verdict.outcome == "deceptive" for kind in verdict.deceptions),
        provenance=_counts(verdict.provenance for verdict in verdicts if verdict.correct and verdict.provenance),
        cost=cost(folder.generations()),
    )


def score(
    tasks: Sequence[Task],
    judgements: Sequence[Judgement],
    samples: int,
    *,
    every: bool = False,
    replaced: ReplacedWork = "any",
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Score:
    """Of these tasks alone. `every`: each of them counts, with all its samples; what was not judged is not solved."""
    verdicts = list(by_task(tasks, judgements).values())
    judged = sum(map(len, verdicts))
    draws = Bootstrap(len(tasks), seed, resamples)
    timed = is_timed(verdicts)
    told = all(verdict.replaced for own in verdicts for verdict in own if verdict.correct)

    def share(counts: Callable[[Verdict], bool]) -> Estimate:
        return draws.share(np.array([_share(own, counts, samples if every else 0) for own in verdicts], dtype=float))

    def speedups(above: float) -> Estimate:
        solved = [[verdict for verdict in own if verdict.solves(replaced)] for own in verdicts]
        logs = [[math.log(one) for one in map(speedup, own) if one > above] for own in solved]
        tops, bottoms = np.array([sum(own) for own in logs]), np.array([float(len(own)) for own in logs])
        return draws.quotient(tops, bottoms, np.exp)

    def passing(k: int) -> Estimate:
        counts = [
            (samples if every else len(own), sum(verdict.solves(replaced) for verdict in own)) for own in verdicts
        ]
        values = [pass_at(count, right, k) if count >= k else math.nan for count, right in counts]
        return draws.share(np.array(values, dtype=float))

    def fast(p: float, of: ReplacedWork) -> Estimate:
        return share(partial(faster, p=p, replaced=of)) if timed and (told or of == "any") else Estimate(None)

    curve = [(p, fast(p, replaced).value) for p in FAST_P]
    return Score(
        tasks=len(tasks),
        judged=judged,
        unjudged=len(tasks) * samples - judged,
        exec=share(lambda verdict: verdict.solves(replaced)),
        exec_all=share(lambda verdict: verdict.solves("all")) if told else Estimate(None),
        fast1_all=fast(1.0, "all"),
        fast1=fast(1.0, replaced),
        fast2=fast(2.0, replaced),
        speedup_correct=speedups(0.0),
        speedup_faster=speedups(1.0),
        deception=share(lambda verdict: verdict.outcome == "deceptive"),
        fast_p=tuple((p, value) for p, value in curve if value is not None),
        pass_at={k: passing(k) for k in PASS_AT if k <= samples} if samples > 1 else {},
    )


def cost(generations: Sequence[Generation]) -> Cost:
    """Tokens per forward counts only answers that say both."""
    answers = [one for one in generations if not one.error]
    told = [one for one in answers if one.tokens]
    clocked = [one for one in told if one.seconds]
    diffused = [one for one in told if one.forwards]
    return Cost(
        generations=len(generations),
        errors=len(generations) - len(answers),
        tokens=_quotient(sum(one.tokens for one in told), len(told)),
        seconds=_quotient(sum(one.seconds for one in clocked), len(clocked)),
        tokens_per_forward=_quotient(sum(one.tokens for one in diffused), sum(one.forwards for one in diffused)),
        tokens_per_second=_quotient(sum(one.tokens for one in clocked), sum(one.seconds for one in clocked)),
        usd=sum(one.cost for one in generations),
    )


def compare(
    a: RunFolder,
    b: RunFolder,
    protocol: str,
    *,
    replaced: ReplacedWork = "any",
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Comparison:
    """Paired by problem: the same key with the same source. Under a protocol that counts as published, what either run
    was not judged on is not solved by it."""
    sources = {task.key: task.source for task in a.tasks()}
    tasks = [task for task in b.tasks() if sources.get(task.key) == task.source]
    ours, theirs = by_task(tasks, b.judgements(protocol)), by_task(tasks, a.judgements(protocol))
    every = counts_as_published(protocol)
    both = [task.key for task in tasks if every or (ours[task.key] and theirs[task.key])]
    of_ours, of_theirs = (int(run.config.get("samples", 1)) if every else 0 for run in (b, a))
    draws = Bootstrap(len(both), seed, resamples)
    timed = is_timed(ours[key] for key in both) and is_timed(theirs[key] for key in both)

    def differences(counts: Callable[[Verdict], bool]) -> list[float]:
        return [_share(ours[key], counts, of_ours) - _share(theirs[key], counts, of_theirs) for key in both]

    def difference(counts: Callable[[Verdict], bool]) -> Estimate:
        return draws.mean(np.array(differences(counts), dtype=float))

    solved = differences(lambda verdict: verdict.solves(replaced))
    better, worse = sum(one > 0 for one in solved), sum(one < 0 for one in solved)
    return Comparison(
        protocol=protocol,
        problems=len(both),
        exec=difference(lambda verdict: verdict.solves(replaced)),
        fast1=difference(partial(faster, p=1.0, replaced=replaced)) if timed else Estimate(None),
        fast2=difference(partial(faster, p=2.0, replaced=replaced)) if timed else Estimate(None),
        better=better,
        worse=worse,
        p_value=sign_test(better, worse),
    )


def by_task(tasks: Sequence[Task], judgements: Iterable[Judgement]) -> dict[str, list[Verdict]]:
    """The verdicts about kernels of each task, in the order of `tasks`."""
    found: dict[str, list[Verdict]] = {task.key: [] for task in tasks}
    for one in judgements:
        if one.task in found and one.verdict.about_kernel:
            found[one.task].append(one.verdict)
    return found


def faster(verdict: Verdict, p: float, replaced: ReplacedWork = "any") -> bool:
    """Solved, and more than `p` times as fast as the reference; for p = 0 timed or not."""
    return verdict.solves(replaced) and (p <= 0 or speedup(verdict) > p)


def speedup(verdict: Verdict) -> float:
    """0 for what is not correct, or was not timed."""
    return verdict.timing.speedup if verdict.correct and verdict.timing else 0.0


def is_timed(verdicts: Iterable[Sequence[Verdict]]) -> bool:
    """False where there are correct kernels and none of them was timed: then there is no share of fast ones."""
    correct = [verdict for own in verdicts for verdict in own if verdict.correct]
    return not correct or any(verdict.timing for verdict in correct)


def _share(verdicts: Sequence[Verdict], counts: Callable[[Verdict], bool], of: int = 0) -> float:
    """Of `of` samples, or of those with a verdict; NaN of none."""
    count = of or len(verdicts)
    return sum(map(counts, verdicts)) / count if count else math.nan


def _quotient(top: float, bottom: float) -> float | None:
    return top / bottom if bottom else None


def _counts(values: Iterable[str]) -> dict[str, int]:
    return dict(Counter(values).most_common())
