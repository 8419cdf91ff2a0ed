"""The supervisor's side of a candidate's run under compute-sanitizer (`sanitized`), for the cuda backend."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from dice.errors import MachineError
from dice.verdict import Finding
from dice.verify.build import compute_sanitizer
from dice.verify.build.sources import Sources
from dice.verify.ipc.encoding import claim
from dice.verify.ipc.messages import (
    BuildAnswer,
    Construct,
    ReplayedBuild,
    RunFile,
    RunTrial,
    Sanitize,
    Sanitized,
    Target,
)
from dice.verify.options import Options
from dice.verify.sandbox.cancel import Starter
from dice.verify.sandbox.jail import Limits
from dice.verify.sandbox.process import Child, ChildEnded, DeadlineExceeded, wait_for
from dice.verify.sandbox.roles import SANITIZED
from dice.verify.supervisor import feedback

MEMORY = 4  # times the candidate's: the tools keep records of each access on the host
LIMIT = 6  # times the candidate's run may take, for all tools together, each with an interpreter's start
GRACE_S = 20.0
OUTCOMES = ("correct", "wrong", "runtime_error")  # to which the tools may have something to add


class SanitizerMissing(MachineError):
    """This machine has no compute-sanitizer."""


def require() -> Path:
    """The program. Raises `SanitizerMissing`."""
    program = compute_sanitizer.find_program()
    if program is None:
        raise SanitizerMissing(
            "compute-sanitizer was not found: install that part of the CUDA toolkit (cuda-sanitizer), put it on the "
            "PATH, or leave out --sanitize."
        )
    return program


def applies(options: Options, backend: str, outcome: str) -> bool:
    """Whether a verdict of this outcome waits for the tools. The emulator looks while it runs the trials."""
    return options.sanitize and backend == "cuda" and outcome in OUTCOMES


@dataclass
class Replay:
    """What a candidate was told, to be told once more under a tool."""

    file: RunFile | None = None
    construct: Construct | None = None
    trial: RunTrial | None = None
    builds: list[ReplayedBuild] = field(default_factory=list)

    def note_build(self, sources: Sources, answer: BuildAnswer) -> None:
        self.builds.append(ReplayedBuild(sources.to_json(), answer))

    def target(self, outputs: Path) -> Target | None:
        """None when the candidate never got to a trial."""
        if self.file is None or self.construct is None or self.trial is None:
            return None
        trial = replace(self.trial, repeat=False)
        return Target(replace(self.file, outputs=str(outputs)), self.construct, trial, tuple(self.builds))


@dataclass(frozen=True, slots=True)
class SanitizerReport:
    findings: tuple[tuple[Finding, str], ...] = ()
    labels: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()  # why tools came to no end


def examine(
    spawner: Starter,
    limits: Limits,
    replay: Replay,
    folder: Path,
    kernels: Iterable[str],
    run_timeout_s: float,
    others: Iterable[Child] = (),
) -> SanitizerReport:
    """One construction and one trial under every tool. `limits`: the candidate's; `folder`: new, for this run.

    A tool that came to no end is a label. Raises `MachineryError` when our own processes were lost.
    """
    outputs = folder / "outputs"
    outputs.mkdir(parents=True)
    target = replay.target(outputs)
    if target is None:
        return SanitizerReport()
    program = require()
    limit_s = LIMIT * run_timeout_s
    widened = replace(
        limits,
        scratch=str(folder),
        memory_mb=MEMORY * limits.memory_mb,
        visible=(*limits.visible, str(program.resolve().parent.parent)),
        loopback=True,  # the tools talk to their target over it
    )
    order = Sanitize(str(program), str(folder), target, tuple(kernels), limit_s)
    with spawner.spawn(SANITIZED, widened) as child:
        child.send(order)
        try:
            said = claim(wait_for(child, others, time.monotonic() + limit_s + GRACE_S), Sanitized)
        except (ChildEnded, DeadlineExceeded):
            return SanitizerReport(labels=("sanitizer_failed",))
    items = said.findings if isinstance(said.findings, list) else ()
    findings = tuple(feedback.read(item) for item in items)
    failed = said.failed
    names = [name for name in compute_sanitizer.TOOLS if name in failed]
    troubles = tuple(f"compute-sanitizer's {name} came to no end: {str(failed[name])[:500]}" for name in names)
    return SanitizerReport(findings, tuple(f"sanitizer_failed:{name}" for name in names), troubles)
