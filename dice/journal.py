"""A file of JSON lines that only grows: what a killed run has done, the next one reads and does not do again.

A line is appended whole and brought to the disk before anyone builds on it. One that a crash tore counts for nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from dice.errors import UserError

Row = dict[str, Any]


@contextmanager
def held(path: Path, message: str) -> Iterator[IO[bytes]]:
    """The file, made where it is missing and open to append, for one process alone.

    Raises `UserError` with `message` while another process holds it.
    """
    with path.open("ab+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(message) from None
        yield file


class Journal:
    """Entered, it holds the file for one process alone; None for a path keeps nothing.

    Entering raises `UserError` while another process holds the file; `what` that process does is said in the message.
    """

    def __init__(self, path: Path | None, what: str = "run"):
        self.path, self._what = path, what
        self._file: IO[bytes] | None = None
        self._open = ExitStack()

    def __enter__(self) -> Journal:
        if self.path is None:
            return self
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._open.enter_context(held(self.path, f"Another {self._what} is writing to {self.path}."))
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def rows(self) -> Iterator[Row]:
        return read_rows(self.path) if self.path is not None else iter(())

    def append(self, row: Row, *, sync: bool = True) -> None:
        """`sync` False: for a line whose loss would do no harm."""
        if self._file is not None:
            _append(self._file, row, sync)


def read_rows(path: Path) -> Iterator[Row]:
    """The whole lines of a file that may be growing; none where there is no file."""
    if not path.exists():
        return
    for line in path.read_bytes().split(b"\n"):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            yield row


def append_row(path: Path, row: Row) -> None:
    """For a file whose one writer is known by other means."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        _append(file, row, sync=True)


def _append(file: IO[bytes], row: Row, sync: bool) -> None:
    size = file.seek(0, os.SEEK_END)
    if size:
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.write(b"\n")  # ends a line that a kill tore
    file.write(json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")
    file.flush()
    if sync:
        os.fsync(file.fileno())
