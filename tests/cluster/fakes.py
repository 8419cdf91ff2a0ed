"""A verifier whose kernels say what becomes of them: it stands on the hosts where no kernel needs to be compiled."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dice.kernel import Kernel
from dice.problem import Problem
from dice.verdict import Verdict
from dice.verify import Options, Verifier
from dice.verify.sandbox.cancel import Cancellation
from dice.verify.supervisor.job import ProblemFault

STEP_S = 0.02
PATIENCE_S = 600
PROBLEM = Problem("", "fake")


def pair(number: int, problem: Problem = PROBLEM, **does: object) -> tuple[Problem, Kernel]:
    """`does`: sleep (seconds), die ("always", or a file that is not there yet), outcome, only (a word for a node: the
    outcome is that of this node alone)."""
    return problem, Kernel(json.dumps({"number": number, **does}))


@dataclass(frozen=True)
class Fake:
    """Makes the fake verifier of a host.

    Every job writes lines into `journal`: its number and what became of it, and the node. `odd`: a node that is said to
    be unlike the others, in what `oddity` names (toolchain, code, memory, sandbox).
    """

    journal: Path | None = None
    odd: str = ""
    oddity: str = ""

    def __call__(self, cores: int) -> Verifier:
        import ray

        node = ray.get_runtime_context().get_node_id()
        if node == self.odd:
            _differ(self.oddity)
        lacking = ("network",) if node == self.odd and self.oddity == "sandbox" else ()
        return FakeVerifier(self.journal, "odd" if node == self.odd else "usual", lacking)


class FakeVerifier(Verifier):
    """Decides by what the kernel says."""

    def __init__(self, journal: Path | None, node: str, lacking: tuple[str, ...]) -> None:
        self.backend = "emulated"
        self.options = Options()
        self._journal, self._node, self._lacks = journal, node, lacking

    def lacking(self) -> tuple[str, ...]:
        return self._lacks

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
        self._note(does["number"], "begun")
        die = does.get("die", "")
        if die == "always":
            os.kill(os.getpid(), signal.SIGKILL)
        if die and not Path(die).exists():
            Path(die).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        until = time.monotonic() + does.get("sleep", 0)
        while time.monotonic() < until:
            if cancellation is not None and cancellation.cancelled:
                self._note(does["number"], "called_off")
                cancellation.check()
            time.sleep(min(STEP_S, max(0.0, until - time.monotonic())))
        self._note(does["number"], "ended")
        outcome = does.get("outcome", "correct") if does.get("only", self._node) == self._node else "correct"
        return Verdict(outcome, "infra" if outcome == "infra_error" else "done", f"{does['number']} {self._node}")

    def find_faults(self, problems, progress=lambda done, total: None):  # type: ignore[no-untyped-def]
        return [ProblemFault(f"{one.name} is unfit", own=True) for one in problems]

    def _note(self, number: int, what: str) -> None:
        if self._journal is not None:
            with self._journal.open("a") as file:
                file.write(f"{number} {what} {self._node}\n")


def lines(journal: Path, what: str) -> list[int]:
    text = journal.read_text() if journal.exists() else ""
    return [int(line.split()[0]) for line in text.splitlines() if line.split()[1:2] == [what]]


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def numbers(found: list[tuple[int, Verdict]]) -> dict[int, int]:
    """By index, the number of the pair that the verdict is on. Fails where an index comes twice."""
    assert max(Counter(index for index, _ in found).values()) == 1
    return {index: int(verdict.message.split()[0]) for index, verdict in found}


def _differ(oddity: str) -> None:
    """Have this process say something else of its machine."""
    from dice.cluster import host

    if oddity == "toolchain":
        host.toolchain = lambda backend: "g++ 9"
    elif oddity == "code":
        host.harness_version = lambda: "another"
    elif oddity == "memory":
        memory = host.host_memory()
        host.host_memory = lambda: 2 * memory
