"""Verdicts of executions, in a file that only grows: a killed run executes nothing twice."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from dice.errors import UserError
from dice.verdict import Verdict


class Record:
    """One JSON line for each execution. A line cut short by a crash counts for nothing."""

    def __init__(self, path: Path):
        self.path = path
        self._verdicts: dict[str, list[Verdict]] = {}

    def __enter__(self) -> Record:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = open(self.path, "a+", encoding="utf-8")  # noqa: SIM115 - open until the run ends
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise UserError(f"Another run is writing to {self.path}.") from None
        self._file.seek(0)
        text = self._file.read()
        for line in text.splitlines():
            with contextlib.suppress(ValueError, TypeError, KeyError):
                row = json.loads(line)
                self._verdicts.setdefault(row["candidate"], []).append(Verdict.from_json(row["verdict"]))
        if text and not text.endswith("\n"):
            self._file.write("\n")
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def of(self, candidate: str, backend: str) -> list[Verdict]:
        """Its executions on that backend so far, in order: one that was not timed on a CPU may yet be on a GPU."""
        return [verdict for verdict in self._verdicts.get(candidate, ()) if verdict.backend == backend]

    def add(self, candidate: str, verdict: Verdict) -> None:
        self._verdicts.setdefault(candidate, []).append(verdict)
        self._file.write(json.dumps({"candidate": candidate, "verdict": asdict(verdict)}) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())
