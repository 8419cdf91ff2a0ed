"""What should be gone by now: processes, files, descriptors, threads. For those who check the verifier, not for it."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dice.verify.sandbox.scratch import PREFIX
from dice.verify.sandbox.usage import descendants

_PR_SET_CHILD_SUBREAPER = 36
SPARE_DESCRIPTORS = 12  # one reference process more has three, a file that is open at this moment one
_SHARED = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Footprint:
    """Of this process: what it had when nothing was under way."""

    cache_dir: Path
    descriptors: int
    threads: int
    children: frozenset[int]
    folders: frozenset[Path]  # of builds in the cache that nobody holds

    @classmethod
    def now(cls, cache_dir: Path) -> Footprint:
        descriptors, threads = _entries("/proc/self/fd"), _entries("/proc/self/task")
        return cls(cache_dir, descriptors, threads, frozenset(_children()), frozenset(_forsaken(cache_dir)))

    def grown(self, mark: str, zygote: int) -> list[str]:
        """What there is beyond it and a `zygote`, and what is left of processes whose name begins with `mark`."""
        now = Footprint.now(self.cache_dir)
        found = [f"it lives on: process {pid}" for pid in named(mark)]
        found += [f"it escaped: process {pid}" for pid in sorted(now.children - self.children - {zygote})]
        if now.descriptors > self.descriptors + SPARE_DESCRIPTORS:
            found.append(f"{now.descriptors} open descriptors, {self.descriptors} before")
        if now.threads > self.threads:
            found.append(f"{now.threads} threads, {self.threads} before")
        found += [f"left: {path}" for path in self._files()]
        return found

    def forget(self, mark: str) -> None:
        """End and remove what is left, so that it is held against one probe only."""
        for pid in named(mark):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for path in self._files():
            discard(path)

    def _files(self) -> list[Path]:
        return [*_outputs(os.getpid()), *(set(_forsaken(self.cache_dir)) - self.folders)]


def adopt() -> None:
    """From now on, processes below this one whose parents end become its children: none can hide."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def late_descendants(pid: int) -> Callable[[], list[int]]:
    """Afterwards: the processes below `pid` that are not there yet. Those that have ended are reaped, if they are our
    children."""
    before = frozenset(descendants(pid))

    def late() -> list[int]:
        found = []
        for one in descendants(pid):
            if one in before:
                continue
            if _state(one) == "Z" and parent(one) == os.getpid():
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(one, os.WNOHANG)
            elif _state(one) not in ("Z", ""):
                found.append(one)
        return found

    return late


def named(start: str) -> list[int]:
    """The processes of this machine whose name begins so."""
    found = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if path.read_text(errors="replace").startswith(start) and _state(int(path.parent.name)) not in ("Z", ""):
                found.append(int(path.parent.name))
    return found


def name(pid: int) -> str:
    """ "" for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def stored(pid: int, folder: Path) -> list[Path]:
    """Files that a verifier with this process id and this TMPDIR has left."""
    roots = [path for place in (_SHARED, Path(tempfile.gettempdir())) for path in place.glob(f"{PREFIX}{pid}-*")]
    return [*roots, *folder.iterdir()] if folder.is_dir() else roots


def discard(path: Path) -> None:
    """Remove whatever it is; nothing may be as deep, as locked or as oddly named as what is looked for."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "check": False}
    subprocess.run(["chmod", "-R", "u+rwx", "--", str(path)], **quiet)  # type: ignore[call-overload]
    subprocess.run(["rm", "-rf", "--", str(path)], **quiet)  # type: ignore[call-overload]


def _outputs(pid: int) -> Iterator[Path]:
    """Folders that candidates wrote to, of jobs of a verifier."""
    for place in {_SHARED, Path(tempfile.gettempdir())}:
        for folder in place.glob(f"{PREFIX}{pid}-*/job-*/outputs"):
            try:
                if os.listdir(folder):
                    yield folder
            except PermissionError:
                yield folder
            except FileNotFoundError:
                continue


def _forsaken(cache_dir: Path) -> list[Path]:
    """Folders of builds that are ours, or nobody's: another verifier may share the cache."""
    own = {_link(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")}
    return [path for path in cache_dir.glob("*/tmp-*") if str(path) in own or not _is_locked(path)]


def _is_locked(folder: Path) -> bool:
    """Whether a process holds it that is at work."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return True  # it is gone
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _children() -> list[int]:
    return [pid for pid in descendants(os.getpid()) if parent(pid) == os.getpid() and _state(pid) != "Z"]


def _state(pid: int) -> str:
    return _stat(pid)[0]


def parent(pid: int) -> int:
    """0 for a process that is gone."""
    return int(_stat(pid)[1] or 0)


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(") ")[2].split() or ["", ""]
    except OSError:
        return ["", ""]


def _entries(folder: str) -> int:
    return len(os.listdir(folder))
