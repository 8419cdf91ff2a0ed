"""Verdicts of executions, in a journal: a killed run executes nothing twice."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from pathlib import Path

from dice.files.journal import Journal
from dice.verdict import Verdict


class Record:
    """One row for each execution."""

    def __init__(self, path: Path):
        self._journal = Journal(path)
        self._verdicts: dict[str, list[Verdict]] = {}

    def __enter__(self) -> Record:
        for row in self._journal.__enter__().rows():
            with contextlib.suppress(ValueError, TypeError, KeyError):  # a row of another version
                self._verdicts.setdefault(row["candidate"], []).append(Verdict.from_json(row["verdict"]))
        return self

    def __exit__(self, *_: object) -> None:
        self._journal.__exit__()

    def of(self, candidate: str, backend: str) -> list[Verdict]:
        """Its executions on that backend so far, in order: a GPU can time what a CPU could not."""
        return [verdict for verdict in self._verdicts.get(candidate, ()) if verdict.backend == backend]

    def add(self, candidate: str, verdict: Verdict) -> None:
        self._verdicts.setdefault(candidate, []).append(verdict)
        self._journal.append({"candidate": candidate, "verdict": asdict(verdict)})
