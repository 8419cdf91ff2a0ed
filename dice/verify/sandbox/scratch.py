"""Folders that live as long as a job or a verifier, in memory where there is room, and that no kill -9 leaves behind.

All of a process's are below one root that it holds a lock on. Whoever makes a root, and a zygote whose verifier died,
removes the roots that nobody holds any more.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import functools
import itertools
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

PREFIX = "dice-scratch-"  # nobody else's: what begins with it and is not locked is removed
ROOM_BYTES = 4 << 30
FULL_BYTES = 32 << 20  # less is left on a full disk: a compiler that failed on it removes what it wrote
OWN_BYTES = 64 << 20  # who stored more than this on a full disk has helped to fill it
MAX_FILES = 20_000  # more of them count as too much
TOO_MUCH_KB = 1 << 60
NAMES_AT_ONCE = 4096
READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOVED = "dice-moved-"  # a folder that is moved up on its way out
_ROOT = re.compile(PREFIX + r"\d+-\w{8}")
_locks: list[int] = []  # held open for the life of this process


class Scratch:
    """A private folder, gone when its context is left: a reference process writes `inputs`, a candidate `outputs`, and
    `authored` while it sees no data."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="job-", dir=_root(os.getpid())))
        for name in ("reference", "inputs", "outputs", "authored"):
            (self.root / name).mkdir()

    def __enter__(self) -> Scratch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def remove(self) -> None:
        remove(self.root, "job-")


@functools.cache
def _root(pid: int) -> Path:
    """This process's root. `pid` is only there so that a fork makes one of its own."""
    sweep()
    root, lock = make_owned(next(_places()), f"{PREFIX}{pid}-")
    _locks.append(lock)
    atexit.register(_remove_own, root, pid)
    return root


def _remove_own(root: Path, pid: int) -> None:
    if os.getpid() == pid:
        remove(root, PREFIX)


def _places() -> Iterator[Path]:
    """Where roots may be, the best first."""
    shared = Path("/dev/shm")
    if shared.is_dir() and os.access(shared, os.W_OK) and shutil.disk_usage(shared).free > ROOM_BYTES:
        yield shared
    yield Path(os.path.realpath(tempfile.gettempdir()))


def sweep() -> None:
    """Remove the roots of processes that are gone."""
    for place in {Path("/dev/shm"), Path(tempfile.gettempdir())}:
        with contextlib.suppress(OSError):
            for name in os.listdir(place):
                if _ROOT.fullmatch(name):
                    remove_if_orphan(place / name, PREFIX)


def stored_kb(folders: Iterable[str]) -> int:
    """What the folders hold, in KiB. Too many files count as too much, and so does what is hidden from us."""
    total, count = 0, 0
    pending = list(folders)
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    count += 1
                    if count > MAX_FILES:
                        return TOO_MUCH_KB
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    with contextlib.suppress(FileNotFoundError):
                        total += entry.stat(follow_symlinks=False).st_blocks
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:  # a folder without permissions, or one so deep that its path is too long
            return TOO_MUCH_KB
    return total // 2


def open_files(folder: int, names: Sequence[str]) -> dict[str, int]:
    """Those of the named files that are in an open folder, opened for somebody who does not see it."""
    opened: dict[str, int] = {}
    for name in names:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            try:
                opened[name] = os.open(name, READING, dir_fd=folder)
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.ENXIO):  # a link, or a socket
                    raise
    return opened


def is_crowded_out(folder: Path) -> bool:
    """Whether the disk is full, and not of what is in `folder`."""
    return shutil.disk_usage(folder).free < FULL_BYTES and stored_kb([str(folder)]) << 10 < OWN_BYTES


def make_owned(place: Path, prefix: str) -> tuple[Path, int]:
    """A new folder, and a descriptor that owns it until it is closed, or its process is gone."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        with contextlib.suppress(OSError):  # somebody may sweep between the two lines
            return folder, _lock(folder)


def remove_if_orphan(folder: Path, prefix: str) -> None:
    """Remove a folder of `make_owned` unless its process lives. Raises as `remove` does."""
    _check_removable(folder, prefix)
    with contextlib.suppress(OSError):
        lock = _lock(folder)  # raises where it does
        try:
            remove(folder, prefix)
        finally:
            os.close(lock)


def remove(folder: Path, prefix: str) -> None:
    """Remove a folder that we made, and all in it: the only way in which the verifier removes folders.

    Raises `ValueError` for a path that is not absolute (an empty one is the current directory) or whose name does not
    begin with `prefix`, and nothing else: what cannot be removed stays. What is no folder, or another user's, is left
    alone.
    """
    _check_removable(folder, prefix)
    with contextlib.suppress(OSError):
        status = os.lstat(folder)
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
            _empty(folder)
            os.rmdir(folder)


def _empty(folder: Path) -> None:
    """Remove all that is in a folder, however deep, many or forbidden: a candidate chose what it is.

    No path and no stack grows with the depth: the folders inside a folder are moved up beside it before it goes. Links
    are not followed, for every name is looked up below an open folder. Ends when nothing goes any more.
    """
    _allow(str(folder), None)
    top = os.open(folder, _FOLDER)
    free = itertools.count()
    try:
        while names := _some_names(top):
            if not sum(_unlink(name, top) or _flatten(name, top, free) for name in names):
                return
    finally:
        os.close(top)


def _flatten(name: str, top: int, free: Iterator[int]) -> int:
    """Remove the folder `name` below `top`, having moved the folders in it to `top`. How many entries went or moved."""
    went = 0
    with contextlib.suppress(OSError):
        _allow(name, top)
        inner = os.open(name, _FOLDER, dir_fd=top)
        try:
            while names := _some_names(inner):
                before = went
                went += sum(_unlink(child, inner) or _move(child, inner, top, next(free)) for child in names)
                if went == before:
                    break
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=top)
        went += 1
    return went


def _some_names(folder: int) -> list[str]:
    """The first names in an open folder: there may be more than our memory should hold."""
    with os.scandir(folder) as entries:
        return [entry.name for entry in itertools.islice(entries, NAMES_AT_ONCE)]


def _unlink(name: str, parent: int) -> bool:
    """Remove what is no folder, or an empty one. Whether it is gone."""
    for remove_entry in (os.unlink, os.rmdir):
        with contextlib.suppress(OSError):
            remove_entry(name, dir_fd=parent)
            return True
    return False


def _move(name: str, parent: int, top: int, number: int) -> bool:
    """Move a folder to `top` under a name that is most likely free. Whether it moved."""
    with contextlib.suppress(OSError):
        _allow(name, parent)  # it must be writable to be moved, for its `..` changes
        os.rename(name, f"{_MOVED}{number}", src_dir_fd=parent, dst_dir_fd=top)
        return True
    return False


def _allow(name: str, parent: int | None) -> None:
    """Give its owner all rights to the folder `name`, which is not followed if it is a link."""
    descriptor = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{descriptor}", 0o700)
    finally:
        os.close(descriptor)


def _check_removable(folder: Path, prefix: str) -> None:
    if not prefix or not folder.is_absolute() or ".." in folder.parts or not folder.name.startswith(prefix):
        raise ValueError(f"{str(folder)!r} is not to be removed: it is no absolute path to a folder {prefix}*")


def _lock(folder: Path) -> int:
    """Lock the folder itself. Raises `OSError` when somebody else has it, or removed it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.stat(folder).st_ino == os.fstat(descriptor).st_ino:
            return descriptor
        raise FileNotFoundError(folder)
    except BaseException:
        os.close(descriptor)
        raise
