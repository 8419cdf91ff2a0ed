"""A file of JSON lines that only grows: what a killed run has done, the next one reads and does not do again.

A line is appended whole and brought to the disk before anyone builds on it. One that a crash tore counts for nothing,
and is cut off by the next writer, so that any program can read the file.
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
from dice.files.bounded import CHUNK, LONGEST_LINE, lines, opened, parse_json

Entry = dict[str, Any]


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
    """A journal that one process writes; entering it takes hold of the file. With None for a path nothing is kept.

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
        _mend(self._file)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def rows(self) -> Iterator[Entry]:
        return read_rows(self.path) if self.path is not None else iter(())

    def append(self, row: Entry, *, sync: bool = True) -> None:
        """`sync` False: for a line whose loss would do no harm."""
        if self._file is not None:
            _append(self._file, row, sync)


def read_rows(path: Path) -> Iterator[Entry]:
    """The whole lines of a file that may be growing, read as they are asked for; none where there is no file.

    A line that holds no JSON object is passed over, and so is one of more than `LONGEST_LINE` bytes, which this module
    never writes.
    Raises `UserError` where the path leads to no file.
    """
    try:
        file = opened(path)
    except FileNotFoundError:
        return
    with file:
        for line in lines(file):
            row = _row(line)
            if row is not None:
                yield row


def append_row(path: Path, row: Entry) -> None:
    """Append to a file that the caller knows to have no other writer."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        _append(file, row, sync=True)


def _row(line: bytes | None) -> Entry | None:
    try:
        row = None if line is None else parse_json(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _append(file: IO[bytes], row: Entry, sync: bool) -> None:
    _mend(file)  # a full disk may have cut off the line that this process wrote last
    file.write(json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")
    file.flush()
    if sync:
        os.fsync(file.fileno())


def _mend(file: IO[bytes]) -> None:
    """Have the file end in a whole line: half a row, which a kill left, is cut off; a whole row without its line break
    is given one."""
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - 1))
    if file.read(1) in (b"", b"\n"):
        return
    start = _after_last_line(file, end)
    file.seek(start)
    if _row(file.read(LONGEST_LINE)) is not None and end - start <= LONGEST_LINE:
        file.write(b"\n")  # opened to append, it writes at the end
    else:
        file.truncate(start)
    file.flush()


def _after_last_line(file: IO[bytes], end: int) -> int:
    """Where the last line that is ended ends."""
    while end:
        begin = max(0, end - CHUNK)
        file.seek(begin)
        found = file.read(end - begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0
