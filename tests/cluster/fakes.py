"""A verifier whose kernels say what becomes of them: it stands on the hosts where no kernel needs to be compiled."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from dice.kernel import Kernel
from dice.problem import Problem
from dice.verdict import Verdict
from dice.verify import Options, Verifier
from dice.verify.sandbox.cancel import Cancellation
from dice.verify.supervisor.job import ProblemFault

STEP_S = 0.02
PROBLEM = Problem("", "fake")


def pair(number: int, problem: Problem = PROBLEM, **does: object) -> tuple[Problem, Kernel]:
    """`does`: sleep (seconds), die (always | a file that is not there yet), outcome."""
    return problem, Kernel(json.dumps({"number": number, **does}))


class FakeVerifier(Verifier):
    """Every job writes a line into `journal`: its number, begun or ended."""

    def __init__(self, journal: Path | None, without: tuple[str, ...] = ()) -> None:
        self.backend = "emulated"
        self.options = Options()
        self._journal, self._without = journal, without

    def lacking(self) -> tuple[str, ...]:
        return self._without

    def verify(
        self,
        problem: Problem,
        kernel: Kernel,
        options: Options | None = None,
        *,
        workers: int = 1,
        cancellation: Cancellation | None = None,
    ) -> Verdict:
        does = json.loads(kernel.source)
        self._note(f"{does['number']} begun")
        die = does.get("die", "")
        if die == "always":
            os.kill(os.getpid(), signal.SIGKILL)
        if die and not Path(die).exists():
            Path(die).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        until = time.monotonic() + does.get("sleep", 0)
        while time.monotonic() < until:
            if cancellation is not None and cancellation.cancelled:
                self._note(f"{does['number']} called off")
                cancellation.check()
            time.sleep(min(STEP_S, max(0.0, until - time.monotonic())))
        self._note(f"{does['number']} ended")
        outcome = does.get("outcome", "correct")
        return Verdict(outcome, "infra" if outcome == "infra_error" else "done", str(does["number"]))

    def find_faults(self, problems, progress=lambda done, total: None):  # type: ignore[no-untyped-def]
        return [ProblemFault(f"{one.name} is unfit", own=True) for one in problems]

    def _note(self, line: str) -> None:
        if self._journal is not None:
            with self._journal.open("a") as file:
                file.write(line + "\n")


@dataclass(frozen=True)
class Fake:
    """Makes the fake verifier of a host."""

    journal: Path | None = None
    without: tuple[str, ...] = ()

    def __call__(self, cores: int) -> Verifier:
        return FakeVerifier(self.journal, self.without)
