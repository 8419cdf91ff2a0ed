"""The programs that run as children of the zygote, and which of them run only code of ours on trusted input."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Role:
    """`module`: the child runs its `main(link)`. `trusted`: open files that come with its messages are taken."""

    name: str
    module: str
    trusted: bool = False


REFERENCE = Role("reference", "dice.verify.reference.server", trusted=True)
CANDIDATE = Role("candidate", "dice.verify.candidate.kernel_file")
RUNNER = Role("runner", "dice.verify.candidate.runner")
SANITIZED = Role("sanitized", "dice.verify.candidate.sanitized")
BUILDER = Role("builder", "dice.verify.build.builder")
PREPARE = Role("prepare", "dice.verify.build.prepare")
EXAMINER = Role("examiner", "dice.verify.supervisor.examiner")
HEALTH = Role("health", "dice.verify.supervisor.health")
GUARANTEES = Role("guarantees", "dice.verify.supervisor.guarantees")

# Their modules are imported before any fork, and what these have a `warm_up` for is done once.
WARM = (REFERENCE, CANDIDATE, RUNNER, BUILDER, EXAMINER)
