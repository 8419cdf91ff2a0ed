"""Files and texts that somebody else made: opened without waiting for anyone, read and parsed within bounds.

Only regular files are read, because reading a named pipe, a device or a socket may never begin, or never end. A pipe
that the shell hands to this process as /dev/stdin or /dev/fd/N, as `<(command)` does, is the user's own and is read.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from dice.errors import UserError

LONGEST_SOURCE = 4 << 20  # bytes of one problem or kernel; the longest that are published have some 100 KB
LONGEST_DOCUMENT = 256 << 20  # bytes of a file that is held whole: JSON, a tokenizer, a list of names
LONGEST_LINE = (
    64 << 20
)  # bytes of one line, or of one row of JSON; the longest that `dice eval` writes have a tenth of it
CHUNK = 1 << 20  # bytes read at once

_KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def opened(path: Path) -> IO[bytes]:
    """The file, open to be read. Raises `UserError` for what is no regular file, `OSError` where it cannot be read."""
    _check(path, os.stat(path))  # before it is opened: a device may act on that alone
    # What it is may have changed since then; without O_NONBLOCK, opening a named pipe waits for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _check(path, os.fstat(descriptor))
        os.set_blocking(descriptor, True)
        return os.fdopen(descriptor, "rb", CHUNK)
    except BaseException:
        os.close(descriptor)
        raise


def check_file(path: Path) -> None:
    """Raises `UserError` for what is no regular file: some readers open by themselves, and would wait at a pipe."""
    try:
        _check(path, os.stat(path))
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"There is no file {path}.") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder, and a file is needed.") from None
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}.") from None


def check_size(path: Path, longest: int = LONGEST_DOCUMENT) -> None:
    """Raises `UserError` for a file of more than `longest` bytes, for readers that open it by themselves."""
    if path.stat().st_size > longest:
        raise _too_long(path, longest)


def read_bytes(path: Path, longest: int = LONGEST_DOCUMENT) -> bytes:
    """The whole file. Raises as `opened` does, and `UserError` for more than `longest` bytes."""
    with opened(path) as file:
        data = file.read(longest + 1)
    if len(data) > longest:
        raise _too_long(path, longest)
    return data


def read_text(path: Path, longest: int = LONGEST_DOCUMENT) -> str:
    """The whole file as UTF-8, less a byte order mark. Raises as `read_bytes` does, and `UserError` for other bytes."""
    try:
        return read_bytes(path, longest).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text.") from None


def parse_json(text: str | bytes) -> Any:
    """`json.loads`, but text that is nested too deeply raises `ValueError`, like all that is no JSON, and not Python's
    `RecursionError`."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def lines(file: IO[bytes], longest: int = LONGEST_LINE) -> Iterator[bytes | None]:
    """The lines of a file, which end at \\n alone; None for one of more than `longest` bytes, which is never held."""
    while line := file.readline(longest + 1):
        if len(line) <= longest:
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(CHUNK)
        yield None


def _too_long(path: Path, longest: int) -> UserError:
    return UserError(f"{path} is longer than {longest / 2**20:g} MiB, the most that is read of such a file.")


def _check(path: Path, found: os.stat_result) -> None:
    kind = stat.S_IFMT(found.st_mode)
    if kind == stat.S_IFREG or (kind == stat.S_IFIFO and _handed_over(path)):
        return
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise UserError(f"{path} is {_KINDS.get(kind, 'of a strange kind')}, and a file is needed.")


def _handed_over(path: Path) -> bool:
    """Whether the path names one of this process's own descriptors."""
    return os.path.realpath(path).startswith((f"/proc/{os.getpid()}/fd/", "/proc/self/fd/"))
