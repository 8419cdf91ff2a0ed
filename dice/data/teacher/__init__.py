"""Kernels from a teacher: asked for, verified while further ones are written, kept only when they prove faster.

Paper section 3: each candidate is executed up to five times, and only those with a confirmed speed-up stay. Here a
candidate is *confirmed* when every one of its executions (five, unless told otherwise) is correct and has the whole 95%
interval of its speed-up above the threshold; the first that fails ends it. One lucky measurement of five is no proof.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dice.data.sample import Sample, write_samples
from dice.data.teacher.record import Record
from dice.endpoint.client import Endpoint, Replies
from dice.endpoint.request import Reply, Request
from dice.errors import UserError
from dice.files.atomic import write_json
from dice.kernel import Kernel
from dice.problem import Problem
from dice.prompts import NO_KERNEL, PROMPTS, extract_kernel
from dice.verdict import Verdict
from dice.verify import Verifier

Show = Callable[[str, int, int], None]  # what is done, how many, of how many (0: not known yet)


@dataclass(frozen=True, slots=True)
class TeachingSettings:
    """`samples`: candidates for each problem. Without `measure`, they are only asked for."""

    samples: int = 1
    prompt: str = "one-shot"
    measure: bool = True
    executions: int = 5
    min_speedup: float = 1.0

    def __post_init__(self) -> None:
        if self.samples < 1 or self.executions < 1:
            raise UserError("There must be at least one sample and one execution.")
        if self.prompt not in PROMPTS:
            raise UserError(f"There is no prompt {self.prompt!r}: it is one of {', '.join(PROMPTS)}.")


@dataclass(slots=True)
class Candidate:
    """One answer, and what its executions came to."""

    problem: Problem
    number: int  # of the samples of its problem
    reply: Reply
    kernel: Kernel | None
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def key(self) -> str:
        """Equal kernels for one problem have equal keys: they are executed, and kept, once."""
        assert self.kernel is not None
        return f"{self.problem.id} {Problem(self.kernel.source).id}"


def teach(
    problems: Sequence[Problem],
    endpoint: Endpoint,
    teaching: TeachingSettings,
    out: Path,
    *,
    make_verifier: Callable[[], Verifier] = Verifier,
    show: Show = lambda what, done, total: None,
) -> dict[str, Any]:
    """Ask, verify, keep. Returns the report; writes `candidates.parquet` (all, with verdicts), `kept.parquet` and
    `report.json` into `out`, where `verdicts.jsonl` and the endpoint's ledger let a killed run go on.

    Raises `EndpointStopped` when the endpoint can answer nothing, and whatever the verifier raises.
    """
    problems = list({problem.id: problem for problem in problems}.values())
    requests = _requests(problems, teaching)
    total = len(problems) * teaching.samples
    candidates: list[Candidate] = []
    failures: Counter[str] = Counter()

    def answers(replies: Replies) -> Iterator[Candidate]:
        """Candidates as they come in."""
        for reply in replies:
            if reply.answered:
                problem, number = reply.request.tag
                kernel = extract_kernel(reply.text)
                candidates.append(Candidate(problem, number, reply, kernel, [] if kernel else [NO_KERNEL]))
                yield candidates[-1]
            else:
                failures[reply.outcome] += 1
            show("asked", len(candidates) + failures.total(), total)

    with Record(out / "verdicts.jsonl") as record, Replies(endpoint, requests) as replies:
        if not teaching.measure:
            list(answers(replies))
        else:
            with make_verifier() as verifier:
                _execute(verifier, answers(replies), 1, record, show)
                for execution in range(2, teaching.executions + 1):
                    left = (one for one in candidates if _promising(_executions(one, record, verifier), teaching))
                    _execute(verifier, left, execution, record, show)
                for one in candidates:
                    one.verdicts = _executions(one, record, verifier)[: teaching.executions]
    return _finish(candidates, failures, endpoint, teaching, out, total)


def _executions(one: Candidate, record: Record, verifier: Verifier) -> list[Verdict]:
    return record.of(one.key, verifier.backend) if one.kernel is not None else [NO_KERNEL]


def _requests(problems: Sequence[Problem], teaching: TeachingSettings) -> list[Request]:
    prompt = PROMPTS[teaching.prompt]
    return [
        Request(prompt(problem), key=f"{problem.id} {number}", tag=(problem, number))
        for number in range(teaching.samples)
        for problem in problems
    ]


def _execute(verifier: Verifier, source: Iterator[Candidate], execution: int, record: Record, show: Show) -> None:
    """Execute every candidate that has fewer than `execution` executions on record, as they come."""
    under_way: list[Candidate] = []

    def pairs() -> Iterator[tuple[Problem, Kernel]]:
        seen: set[str] = set()
        for one in source:
            known = _executions(one, record, verifier)
            if one.kernel is not None and one.key not in seen and len(known) < execution:
                seen.add(one.key)
                under_way.append(one)
                yield one.problem, one.kernel

    for done, (index, verdict) in enumerate(verifier.verify_many(pairs()), start=1):
        show(f"execution {execution}", done, len(under_way))
        if verdict.about_kernel:  # any other is tried again by the next run
            record.add(under_way[index].key, verdict)


def _promising(verdicts: Sequence[Verdict], teaching: TeachingSettings) -> bool:
    return bool(verdicts) and all(_faster(verdict, teaching.min_speedup) for verdict in verdicts)


def _faster(verdict: Verdict, threshold: float) -> bool:
    return verdict.correct and verdict.timing is not None and verdict.timing.speedup_low > threshold


def decide(verdicts: Sequence[Verdict], teaching: TeachingSettings) -> str:
    """Why a candidate is not kept; empty when its speed-up is confirmed."""
    if not verdicts:
        return "not executed"
    wrong = next((verdict for verdict in verdicts if not verdict.correct), None)
    if wrong is not None:
        return wrong.outcome
    if any(verdict.timing is None for verdict in verdicts):
        return "not timed"
    if not all(_faster(verdict, teaching.min_speedup) for verdict in verdicts):
        return "not faster"
    return "" if len(verdicts) >= teaching.executions else "executed too rarely"


def _finish(
    candidates: list[Candidate],
    failures: Counter[str],
    endpoint: Endpoint,
    teaching: TeachingSettings,
    out: Path,
    total: int,
) -> dict[str, Any]:
    settings = endpoint.settings
    candidates.sort(key=lambda one: (one.problem.name, one.problem.id, one.number))
    reasons: Counter[str] = Counter()
    samples, kept = [], {}
    for one in candidates:
        why = decide(one.verdicts, teaching)
        sample = _sample(one, why, settings.model)
        samples.append(sample)
        if why:
            reasons[why] += 1
        elif one.key in kept:
            reasons["the same kernel again"] += 1
        else:
            kept[one.key] = sample
    notes = {"teacher": settings.model, "executions": teaching.executions, "min_speedup": teaching.min_speedup}
    write_samples(out / "candidates.parquet", samples, notes)
    write_samples(out / "kept.parquet", kept.values(), notes)
    report = {
        "problems": total // teaching.samples,
        "asked": total,
        "answered": len(candidates),
        "cut_short": sum(one.reply.outcome == "length" for one in candidates),
        "failed": dict(sorted(failures.items())),
        "kept": len(kept),
        "dropped": dict(sorted(reasons.items())),
        "problems_with_a_kernel": len({sample.problem for sample in kept.values()}),
        "endpoint": endpoint.account.to_json(),
    }
    write_json(out / "report.json", report)
    return report


def _sample(one: Candidate, why: str, model: str) -> Sample:
    """The verdict that a sample carries is the least favourable of its executions."""
    timings = [verdict.timing for verdict in one.verdicts if verdict.timing]
    worst = min(one.verdicts, key=_lower_bound, default=None)
    source = one.kernel.source if one.kernel else ""
    text = one.reply.text
    sample = Sample(
        problem=one.problem.source,
        kernel=source,
        prompt=one.reply.request.prompt,
        response=text,
        reasoning=_reasoning(text, source),
        name=f"{one.problem.name}#{one.number}",
        source="teacher",
        origin=model,
        difficulty=one.problem.difficulty or "",
        verdict=worst,
    )
    usage = one.reply.usage
    executions = [[timing.speedup, timing.speedup_low, timing.speedup_high] for timing in timings]
    meta = {"finish": one.reply.outcome, "tokens_in": usage.tokens_in, "tokens_out": usage.tokens_out}
    return replace(sample, meta=meta | {"executions": executions, "dropped": why})


def _lower_bound(verdict: Verdict) -> float:
    return verdict.timing.speedup_low if verdict.correct and verdict.timing else -1.0


def _reasoning(text: str, kernel: str) -> str:
    """What the answer says before its kernel."""
    before, found, _ = text.partition(kernel.strip()) if kernel.strip() else (text, "", "")
    return before.rstrip().removesuffix("python").rstrip("`").strip() if found else ""
