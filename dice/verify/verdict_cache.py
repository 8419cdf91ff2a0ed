"""Verdicts that are kept on disk, so that a stream that was killed goes on where it was, and nothing is verified twice.

An entry is found by all that a verdict depends on: the pair, the options that matter, the machine's compiler and GPU,
PyTorch, and the verifier's own source. Verdicts that say nothing about the kernel are not kept. The database is SQLite
with a write-ahead log: many processes may use it at once, and a kill -9 loses no more than the verdict being written.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import logging
import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dice.errors import MachineError
from dice.kernel import Kernel
from dice.problem import Problem
from dice.verdict import Verdict
from dice.verify.options import Options

BUSY_S = 30.0
FILE = "verdicts.sqlite"
log = logging.getLogger(__name__)
_HERE = Path(__file__).parent
_TABLE = "CREATE TABLE IF NOT EXISTS verdicts (key TEXT PRIMARY KEY, verdict TEXT NOT NULL, made REAL NOT NULL)"
_NO_MATTER = ("audit", "probes", "verdict_cache.py", "stream.py")  # files and folders of the verifier


class VerdictCacheUnavailable(MachineError):
    """The file for verdicts cannot be used; the message is one sentence."""


class VerdictCache:
    """Thread-safe; also across processes. Raises `VerdictCacheUnavailable` when made where nothing can be written.

    A damaged file is put aside and begun anew: what it held is verified again. Verdicts that the disk has no room for
    are not kept, which is logged once.
    """

    def __init__(self, path: Path):
        self.path = path
        self._lock = threading.Lock()
        self._complained = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._database = self._open()
        except (OSError, sqlite3.Error) as error:
            raise VerdictCacheUnavailable(f"Verdicts cannot be kept in {path}: {error}.") from None

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def find(self, key: str) -> Verdict | None:
        row = self._execute("SELECT verdict FROM verdicts WHERE key = ?", key)
        try:
            return Verdict.from_json(json.loads(row[0])) if row else None
        except (ValueError, TypeError, KeyError):
            return None

    def keep(self, key: str, verdict: Verdict) -> None:
        """Store a verdict, if it is one on the kernel."""
        if verdict.about_kernel:
            text = json.dumps(verdict.to_json())
            self._execute("INSERT OR REPLACE INTO verdicts VALUES (?, ?, ?)", key, text, time.time())

    def __len__(self) -> int:
        row = self._execute("SELECT COUNT(*) FROM verdicts")
        return int(row[0]) if row else 0

    def _open(self) -> sqlite3.Connection:
        try:
            return self._connect()
        except sqlite3.OperationalError:  # it may be in order, but not for us
            raise
        except sqlite3.DatabaseError as error:
            self._put_aside(error)
            return self._connect()

    def _connect(self) -> sqlite3.Connection:
        database = sqlite3.connect(self.path, timeout=BUSY_S, check_same_thread=False, isolation_level=None)
        try:
            _use_write_ahead_log(database)
            database.execute("PRAGMA synchronous=NORMAL")
            database.execute(_TABLE)
        except sqlite3.Error:
            database.close()
            raise
        return database

    def _put_aside(self, error: sqlite3.DatabaseError) -> None:
        log.warning("%s is damaged (%s): it is kept as %s.damaged and begun anew", self.path, error, self.path.name)
        for suffix in ("-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        self.path.replace(self.path.with_name(f"{self.path.name}.damaged"))

    def _execute(self, statement: str, *values: object) -> tuple[Any, ...] | None:
        """The first row of the answer. Trouble with the file is logged once, and costs no more than the cache."""
        with self._lock:
            try:
                row: tuple[Any, ...] | None = self._database.execute(statement, values).fetchone()
                return row
            except sqlite3.OperationalError as error:
                if not self._complained:
                    log.warning("verdicts are not kept in %s: %s", self.path, error)
                self._complained = True
            except sqlite3.DatabaseError as error:
                self._database.close()
                self._put_aside(error)
                self._database = self._connect()
        return None


def _use_write_ahead_log(database: sqlite3.Connection) -> None:
    """SQLite does not wait by itself while another process makes the same change to a new file."""
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            database.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def cache_key(problem: Problem, kernel: Kernel, options: Options, backend: str, device: str, toolchain: str) -> str:
    """Hash of all that the verdict depends on. The folder of the build cache is not among it."""
    asked = {name: value for name, value in asdict(options).items() if name != "cache_dir"}
    parts = [
        problem.id,
        kernel.id,
        json.dumps(asked, sort_keys=True),
        backend,
        device,
        toolchain,
        importlib.metadata.version("torch"),
        harness_version(),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@functools.cache
def harness_version() -> str:
    """Hash of the verifier's sources: a verdict of other code is another verdict."""
    digest = hashlib.sha256()
    for path in sorted(_sources()):
        digest.update(
            path.relative_to(_HERE.parent).as_posix().encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest()
        )
    return digest.hexdigest()[:16]


def _sources() -> Iterator[Path]:
    files = (path for path in _HERE.rglob("*") if path.is_file() and path.suffix != ".pyc")
    yield from (path for path in files if path.relative_to(_HERE).parts[0] not in _NO_MATTER)
    with contextlib.suppress(FileNotFoundError):
        yield from (_HERE.parent / name for name in ("kernel.py", "problem.py", "verdict.py"))
