"""What a job learns on its way to the verdict, and how it ends."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dice.verdict import Backend, Finding, Outcome, Replaced, Stage, Timing, Verdict
from dice.verify.ipc import replaced
from dice.verify.ipc.messages import Drawn, Judged, Ran
from dice.verify.ipc.operator_counts import OperatorCounts, taken_apart
from dice.verify.supervisor.deception import DeceptionEvidence


class VerdictReached(Exception):
    """The verdict is known."""

    def __init__(
        self, outcome: Outcome, stage: Stage, message: str, errors: tuple[str, ...] = (), lacks_gpu_memory: bool = False
    ):
        super().__init__(message)
        self.outcome, self.stage, self.message, self.errors = outcome, stage, message, errors
        self.lacks_gpu_memory = lacks_gpu_memory  # which other jobs may have had


class ReferenceBroken(Exception):
    """The reference failed, on inputs of a family that the problem did not ask for when `varied`."""

    def __init__(self, message: str, varied: bool, lacks_gpu_memory: bool):
        super().__init__(message)
        self.message, self.varied, self.lacks_gpu_memory = message, varied, lacks_gpu_memory

    def as_verdict_reached(self) -> VerdictReached:
        message = f"the problem's own reference failed: {self.message}"
        return VerdictReached("unsupported", "run", message, lacks_gpu_memory=self.lacks_gpu_memory)


@dataclass
class Record:
    """What a job has learnt so far; becomes the verdict."""

    backend: Backend
    protocol: str
    lacking: tuple[str, ...]
    on_stage: Callable[[str], None] = lambda stage: None  # told of each clock that begins
    stage: Stage = "load"  # that the job has reached
    was_killed: bool = False  # the candidate, by nobody of ours: by itself, or a system that is short of memory
    seconds: dict[str, float] = field(default_factory=dict)
    launches: dict[str, int] = field(default_factory=dict)
    ran_trials: int = 0
    idle_trials: int = 0  # trials in which no kernel of the candidate's ran
    failed_builds: dict[int, VerdictReached] = field(default_factory=dict)  # by the number of the request
    evidence: DeceptionEvidence = field(default_factory=DeceptionEvidence)
    work: tuple[OperatorCounts, OperatorCounts] | None = None  # PyTorch's for reference and candidate, in a trial
    operator_ms: Mapping[str, Sequence[float]] = field(default_factory=dict)  # of the reference, where measured
    not_captured: str = ""  # why there is no program
    build_wall: float = 0.0  # spent on builds, waiting for a free core included
    # What is passed on to the verdict as it is.
    provenance: str = ""
    deceptions: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    trials: int = 0
    trials_passed: int = 0
    determinism: bool | None = None
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    tolerance: str = ""
    scale: dict[str, Any] = field(default_factory=dict)
    sandbox: str = ""
    headers: str = ""
    timing: Timing | None = None
    no_timing: str = ""
    profile: dict[str, Any] = field(default_factory=dict)

    def begin(self, trials: int) -> None:
        """Forget what an earlier process of this job showed."""
        self.launches, self.idle_trials, self.ran_trials = {}, 0, 0
        self.provenance, self.determinism, self.work = "", None, None
        self.trials, self.trials_passed = trials, 0

    def note_errors(self, judged: Judged) -> None:
        """Keep the largest errors over all trials."""
        self.max_abs_error = _largest(self.max_abs_error, judged.max_abs_error)
        self.max_rel_error = _largest(self.max_rel_error, judged.max_rel_error)

    def note_trial(self, drawn: Drawn, ran: Ran, core: bool, static_families: tuple[str, ...], *, ours: bool) -> None:
        """Who computed what in a trial; see the three."""
        self.note_launches(ran.launches, core, drawn.sizes)
        self.note_work(drawn, ran, static_families)
        if ours:
            self.evidence.note_trial(drawn, ran, static_families)

    def note_launches(self, counts: Mapping[str, int], core: bool, sizes: Sequence[int]) -> None:
        """The candidate's kernels that ran in a trial, by name. `sizes`: elements of the reference's output tensors."""
        if not counts and list(sizes) == [0]:  # there is nothing that they could write
            return
        self.ran_trials += 1
        if not counts:
            self.idle_trials += 1
        for name, count in counts.items() if core else ():
            self.launches[name] = self.launches.get(name, 0) + count

    def note_work(self, drawn: Drawn, ran: Ran, static_families: Sequence[str]) -> None:
        """What PyTorch computed in a trial. `static_families`: what libraries compute that the text calls directly."""
        reference, candidate = OperatorCounts.from_json(drawn.work), OperatorCounts.from_json(ran.work)
        for name in static_families:
            candidate.elements[name] = max(candidate.elements[name], reference.elements[name])
            candidate.costs[name] = [*reference.costs.get(name, ())]
        self.work = reference, taken_apart(candidate, reference)

    @property
    def replaced(self) -> Replaced | None:
        """How much of the reference the file's kernels took over, by its last trial; None before any."""
        if self.work is None:
            return None
        known_by = "program" if self.provenance == "construction" else "census"
        return replaced.of(*self.work, known_by, self.operator_ms)

    @contextlib.contextmanager
    def clock(self, stage: str) -> Iterator[None]:
        self.on_stage(stage)
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.monotonic() - started

    @contextlib.contextmanager
    def after(self, turn: contextlib.AbstractContextManager[None]) -> Iterator[None]:
        """`turn`, the wait for which is on a clock of its own."""
        with contextlib.ExitStack() as stack:
            with self.clock("wait"):
                stack.enter_context(turn)
            yield

    def add_labels(self, *labels: str) -> None:
        self.labels = (*self.labels, *(label for label in labels if label and label not in self.labels))

    def verdict(self, stop: VerdictReached) -> Verdict:
        self.add_labels(*self.evidence.labels())
        return Verdict(
            stop.outcome,
            stop.stage,
            stop.message,
            provenance=self.provenance,
            deceptions=self.deceptions,
            errors=stop.errors,
            max_abs_error=self.max_abs_error,
            max_rel_error=self.max_rel_error,
            tolerance=self.tolerance,
            trials=self.trials,
            trials_passed=self.trials_passed,
            launches=self.launches,
            timing=self.timing,
            no_timing=self.no_timing,
            backend=self.backend,
            sandbox=self.sandbox,
            lacking=self.lacking,
            headers=self.headers,
            scale=self.scale,
            seconds={stage: round(value, 4) for stage, value in self.seconds.items()},
            protocol=self.protocol,
            determinism=self.determinism,
            evidence=self.evidence.to_json() | ({"not_captured": self.not_captured} if self.not_captured else {}),
            replaced=self.replaced,
            labels=self.labels,
            findings=self.findings,
            profile=self.profile,
        )


def _largest(*values: float | None) -> float | None:
    return max((value for value in values if value is not None), default=None)
