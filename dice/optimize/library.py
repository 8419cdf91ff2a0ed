"""The library of proven kernels: what was once verified for a region of any module is asked first.

One SQLite file below the cache folder. A region's key is a hash of its graph, shapes, types and constants, so that the
same work anywhere has the same entry. Several kernels may be kept for one region, each with the verdicts and times that
it got on each device; what was proven on another device is a candidate here, and verified again.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from dice.errors import MachineError
from dice.kernel import Kernel
from dice.problem import Problem
from dice.verdict import Verdict
from dice.verify.options import default_cache_dir

FILE = "library.sqlite"
BUSY_S = 30.0
_TABLES = """
CREATE TABLE IF NOT EXISTS regions (key TEXT PRIMARY KEY, title TEXT, problem TEXT, paths TEXT);
CREATE TABLE IF NOT EXISTS kernels (
    key TEXT, kernel TEXT, source TEXT, writer TEXT, backend TEXT, device TEXT, verdict TEXT, added REAL,
    PRIMARY KEY (key, kernel, backend, device)
);
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One kernel of a region, with its verdict on one device."""

    key: str
    title: str
    kernel: Kernel
    writer: str
    verdict: Verdict
    added: float

    @property
    def speedup(self) -> float | None:
        return self.verdict.timing.speedup if self.verdict.timing else None


class Library:
    """`path`: the file; by default the one below the cache folder. Raises `MachineError` where it cannot be used."""

    def __init__(self, path: Path | None = None):
        self.path = path or default_cache_dir() / FILE
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(self._open()) as database:
                database.executescript(_TABLES)
        except (sqlite3.Error, OSError) as error:
            raise MachineError(f"The library of kernels {self.path} cannot be used: {error}.") from None

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None)

    def keep(
        self,
        key: str,
        title: str,
        problem: Problem,
        paths: tuple[str, ...],
        kernel: Kernel,
        writer: str,
        verdict: Verdict,
    ) -> None:
        """A kernel that was verified. Only what is right by construction is kept: others will not look at it again."""
        if not verdict.correct or verdict.provenance != "construction":
            return
        with closing(self._open()) as database:
            database.execute(
                "INSERT OR REPLACE INTO regions VALUES (?, ?, ?, ?)", (key, title, problem.source, json.dumps(paths))
            )
            row = (
                key,
                kernel.id,
                kernel.source,
                writer,
                verdict.backend,
                verdict.device,
                json.dumps(verdict.to_json()),
                time.time(),
            )
            database.execute("INSERT OR REPLACE INTO kernels VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)

    def find(self, key: str, backend: str, device: str) -> list[Entry]:
        """The region's kernels: those proven on this device first, the fastest first."""
        found = [entry for entry in self.entries() if entry.key == key]

        def order(entry: Entry) -> tuple[bool, float]:
            is_here = (entry.verdict.backend, entry.verdict.device) == (backend, device)
            return not is_here, -(entry.speedup or 0.0)

        return sorted(found, key=order)

    def entries(self) -> Iterator[Entry]:
        with closing(self._open()) as database:
            rows = database.execute(
                "SELECT k.key, r.title, k.source, k.writer, k.verdict, k.added"
                " FROM kernels k JOIN regions r ON r.key = k.key ORDER BY k.added"
            ).fetchall()
        for key, title, source, writer, verdict, added in rows:
            yield Entry(
                key, title, Kernel(source, name=f"region_{key}"), writer, Verdict.from_json(json.loads(verdict)), added
            )

    def problem(self, key: str) -> Problem | None:
        with closing(self._open()) as database:
            row = database.execute("SELECT problem FROM regions WHERE key = ?", (key,)).fetchone()
        return Problem(row[0], name=f"region_{key}") if row else None

    def forget(self, prefix: str) -> int:
        """Drop the kernels of all regions whose key begins so; how many went."""
        with closing(self._open()) as database:
            gone = database.execute("DELETE FROM kernels WHERE substr(key, 1, ?) = ?", (len(prefix), prefix)).rowcount
            database.execute("DELETE FROM regions WHERE substr(key, 1, ?) = ?", (len(prefix), prefix))
        return int(gone)


def proven_here(entry: Entry, backend: str, device: str) -> bool:
    return (entry.verdict.backend, entry.verdict.device) == (backend, device)
