"""What a job learns on its way to the verdict, and how it ends."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dice.verdict import Outcome, Stage, Verdict
from dice.verify.honesty import Honesty


class Stop(Exception):
    """The verdict is known."""

    def __init__(self, outcome: Outcome, stage: Stage, message: str, errors: tuple[str, ...] = ()):
        super().__init__(message)
        self.outcome, self.stage, self.message, self.errors = outcome, stage, message, errors


class ReferenceBroken(Exception):
    """The reference failed, on inputs of a family that the problem did not ask for when `varied`."""

    def __init__(self, message: str, varied: bool):
        super().__init__(message)
        self.message, self.varied = message, varied


@dataclass
class Record:
    """What a job has learnt so far; becomes the verdict."""

    stage: Stage = "load"  # that the job has reached
    was_killed: bool = False  # the candidate, by nobody of ours: by itself, or a system that is short of memory
    values: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    launches: dict[str, int] = field(default_factory=dict)
    ran_trials: int = 0
    idle_trials: int = 0  # trials in which no kernel of the candidate's ran
    build_failed: bool = False
    failed_builds: dict[int, Stop] = field(default_factory=dict)  # by the number of the request
    honesty: Honesty = field(default_factory=Honesty)
    build_wall: float = 0.0  # spent on builds, waiting for a free core included

    def note_launches(self, counts: Mapping[str, int], core: bool, sizes: Sequence[int]) -> None:
        """The candidate's kernels that ran in a trial, by name. `sizes`: elements of the reference's output tensors."""
        if not counts and list(sizes) == [0]:  # there is nothing that they could write
            return
        self.idle_trials += not counts
        self.ran_trials += 1
        for name, count in counts.items() if core else ():
            self.launches[name] = self.launches.get(name, 0) + count

    @contextlib.contextmanager
    def clock(self, stage: str) -> Iterator[None]:
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
        known = self.values.get("labels", ())
        self.values["labels"] = (*known, *(label for label in labels if label and label not in known))

    def verdict(self, stop: Stop) -> Verdict:
        self.add_labels(*self.honesty.labels())
        seconds = {stage: round(value, 4) for stage, value in self.seconds.items()}
        values = self.values | {"launches": self.launches, "seconds": seconds, "evidence": self.honesty.to_json()}
        return Verdict(stop.outcome, stop.stage, stop.message, errors=stop.errors, **values)
