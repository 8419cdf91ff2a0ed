"""What the supervisor of an audit and the process that runs one problem say to each other."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AuditProblem:
    """The fields of `AuditSettings`, and the problem's source."""

    source: str
    backend: str
    protocol: str
    limit_s: float
    memory_mb: int
    seed: int
    depth: str


@dataclass(frozen=True, slots=True)
class Found:
    """One finding, as `Finding` has it."""

    kind: str
    severity: str
    message: str


@dataclass(frozen=True, slots=True)
class Facts:
    facts: object


@dataclass(frozen=True, slots=True)
class Passes:
    """Which answers pass that do none of the work, by protocol."""

    passes: object


@dataclass(frozen=True, slots=True)
class Stage:
    """What is about to be done, for the message should it never end."""

    stage: str


@dataclass(frozen=True, slots=True)
class Done:
    pass
