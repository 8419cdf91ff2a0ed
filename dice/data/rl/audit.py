"""Audits of problems: taken from a report that `dice data inspect` wrote, or run here where it lacks them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dice.data.sample import Sample
from dice.verify.audit.findings import Audit
from dice.verify.audit.report import read_audits
from dice.verify.audit.run import AuditSettings, audit_all, audit_backend


@dataclass
class Audits:
    """Callable: the audit of every sample's problem. What runs here is kept in `record` and not run again."""

    known: dict[str, Audit]  # by the problem's id
    record: Path
    settings: AuditSettings
    workers: int
    progress: Callable[[int, int], None]
    counts: dict[str, int] = field(default_factory=lambda: {"given": 0, "run": 0})

    @classmethod
    def open(
        cls,
        given: Path | None,
        record: Path,
        backend: str,
        limit_s: float,
        workers: int,
        progress: Callable[[int, int], None],
    ) -> Audits:
        """`given`: the JSON report to take audits from. Raises `UserError` when it is none."""
        settings = AuditSettings(backend=audit_backend(backend), limit_s=limit_s)
        return cls(read_audits(given) if given else {}, record, settings, workers, progress)

    def __call__(self, samples: Sequence[Sample]) -> list[Audit]:
        missing = [sample.as_problem() for sample in samples if sample.as_problem().id not in self.known]
        self.counts["given"] += len(samples) - len(missing)
        self.counts["run"] += len(missing)
        if missing:
            found = audit_all(missing, self.settings, workers=self.workers, record=self.record, progress=self.progress)
            self.known |= {audit.problem: audit for audit in found}
        return [self.known[sample.as_problem().id] for sample in samples]
