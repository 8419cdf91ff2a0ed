"""How hard a problem is: by a look at what it runs, without any model, or by asking a teacher.

label(source)  ->  Difficulty(level="fusion", score=0.31, ...)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dice.data.difficulty import levels
from dice.data.difficulty.levels import LEVELS, Difficulty
from dice.problem import Problem
from dice.verify.audit.findings import Audit
from dice.verify.audit.run import AuditSettings, audit_all
from dice.verify.audit.torch_calls import Census

__all__ = ["LEVELS", "Difficulty", "from_audit", "label", "label_all"]

LIMIT_S = 5.0  # seconds that one problem may run while its operators are counted
MEMORY_MB = 4096  # MiB that it may take meanwhile


def label(source: str) -> Difficulty:
    """The difficulty of one problem, run in a jailed process; by its text alone where it cannot be run."""
    return label_all([Problem(source)])[0]


def label_all(
    problems: Sequence[Problem],
    *,
    workers: int = 1,
    record: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Difficulty]:
    """The difficulty of every problem, in their order. `record` and `progress` as in `audit_all`."""
    settings = AuditSettings(limit_s=LIMIT_S, memory_mb=MEMORY_MB, depth="census")
    audits = audit_all(problems, settings, workers=workers, record=record, progress=progress)
    return [from_audit(problem.source, audit) for problem, audit in zip(problems, audits, strict=True)]


def from_audit(source: str, audit: Audit) -> Difficulty:
    """The difficulty by the census that an audit of any depth takes; by the text where it could not."""
    census = _census(audit.facts.get("census"))
    if census is not None:
        return levels.judge(census, source)
    return levels.judge(levels.read(source), source, by="text")


def _census(told: Any) -> Census | None:
    """What a problem's own process said, if it makes sense."""
    try:
        return Census.from_json(told)
    except (TypeError, ValueError, KeyError):
        return None
