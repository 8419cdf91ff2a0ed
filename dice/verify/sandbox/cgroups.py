"""Control groups: the kernel's own account of what a child and all it starts take, and its limit on that.

Nothing escapes it: not memory of a process that is gone, of files without a name, of sockets; not threads. Version 2
where it has the memory and pids controllers, else version 1 of these two. Who may make groups is for the machine to
say: root mostly, and users where a part of the tree was delegated to them, as `systemd-run --user --scope -p
Delegate=yes dice ...` does. Where no group can be made, `usage.py` reads /proc instead.

All groups of a zygote are below one, `dice-PID`, which goes with it; that of a killed one goes when the next starts.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import re
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dice.verify.sandbox.usage import descendants

CONTROLLERS = ("memory", "pids")
REMOVAL_S = 2.0  # a group may be removed a moment after its last process has ended
_OURS = re.compile(r"dice-(\d+)")
_MOUNTS = "/proc/self/mounts"
_SYS_CLONE3, _CLONE_INTO_CGROUP = 435, 1 << 33
_libc = ctypes.PyDLL(None)  # which keeps Python's lock: the process that is forked has it, too
_libc.syscall.restype = ctypes.c_long


@dataclass(frozen=True, slots=True)
class Parent:
    """Below which groups are made: one folder in version 2, one for each controller in version 1."""

    version: int
    memory: Path
    pids: Path

    @property
    def folders(self) -> tuple[Path, ...]:
        return (self.memory,) if self.memory == self.pids else (self.memory, self.pids)

    def remove(self) -> None:
        """Kill whatever is left in the groups below, and remove them all."""
        for folder in self.folders:
            for group in _groups(folder):
                _kill_all(group)
                _remove(group)
            _remove(folder)


class Group:
    """One child and all it starts. Made by its warden, which is not in it."""

    def __init__(self, parent: Parent, memory_mb: int, tasks: int):
        """`memory_mb`: what the kernel lets it have, by ending it; `tasks`: processes and threads. Raises `OSError`."""
        name = f"job-{os.getpid()}"
        self.version = parent.version
        self.memory, self.pids = parent.memory / name, parent.pids / name
        self.folders = (self.memory,) if self.memory == self.pids else (self.memory, self.pids)
        try:
            for folder in self.folders:
                folder.mkdir(exist_ok=True)
            size = str(memory_mb << 20)
            if self.version == 2:
                (self.memory / "memory.max").write_text(size)
                _try_to_write(self.memory / "memory.swap.max", "0")
                _try_to_write(self.memory / "memory.oom.group", "1")
            else:
                (self.memory / "memory.limit_in_bytes").write_text(size)
                _try_to_write(self.memory / "memory.memsw.limit_in_bytes", size)
            (self.pids / "pids.max").write_text(str(tasks))
        except OSError:
            self.remove()
            raise

    def fork(self) -> int:
        """`os.fork`, the child in the group. Raises `OSError`.

        While a process is moved into a group, every fork, start and end of a process on this machine waits, for some
        ten milliseconds. In version 2 one can be made in its group instead, for which nobody waits.
        """
        if self.version == 2 and (pid := _clone_into(self.memory)) is not None:
            return pid
        ready, go = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(go)
            os.read(ready, 1)
            os.close(ready)
            return 0
        os.close(ready)
        try:
            self.add(pid)
            return pid
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        finally:
            os.close(go)

    def add(self, pid: int) -> None:
        """Raises `OSError`."""
        for folder in self.folders:
            (folder / "cgroup.procs").write_text(str(pid))

    def memory_bytes(self) -> int:
        """Memory of processes, shared memory and what the kernel holds for them, without cached files of disks."""
        facts = _table(self.memory / "memory.stat")
        if self.version == 2:
            return sum(facts.get(name, 0) for name in ("anon", "shmem", "kernel", "sock"))
        kernel = (self.memory / "memory.kmem.usage_in_bytes").read_text()
        return facts.get("rss", 0) + facts.get("shmem", 0) + int(kernel)

    def tasks(self) -> int:
        return int((self.pids / "pids.current").read_text())

    def processes(self) -> int:
        return (self.memory / "cgroup.procs").read_text().count("\n")

    def was_short(self) -> str:
        """`memory` or `processes`, where the kernel has refused or ended something for the limit; else ""."""
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        if _table(self.memory / name).get("oom_kill", 0):
            return "memory"
        return "processes" if _table(self.pids / "pids.events").get("max", 0) else ""

    def kill(self) -> None:
        for folder in self.folders:
            _kill_all(folder)

    def remove(self) -> None:
        for folder in self.folders:
            _remove(folder)


def _clone_into(group: Path) -> int | None:
    """Fork into a group of version 2 by `clone3`, which glibc has no function for; None where the kernel refuses.

    Python is told of the fork as `os.fork` tells it. For a process of one thread, for glibc is told nothing.
    """
    folder = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        wanted = (ctypes.c_uint64 * 11)(_CLONE_INTO_CGROUP, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, folder)
        python = ctypes.pythonapi
        python.PyOS_BeforeFork()
        pid = int(_libc.syscall(ctypes.c_long(_SYS_CLONE3), wanted, ctypes.c_size_t(ctypes.sizeof(wanted))))
        if pid == 0:
            python.PyOS_AfterFork_Child()
            return 0
        python.PyOS_AfterFork_Parent()
        return pid if pid > 0 else None
    finally:
        os.close(folder)


def open_parent() -> Parent | None:
    """Where this process may make groups for others; None where the machine lets it make none."""
    for version, folders in _places():
        made: list[Path] = []
        try:
            for folder in folders:
                _sweep(folder)
                made.append(folder / f"dice-{os.getpid()}")
                made[-1].mkdir(exist_ok=True)
                if version == 2:
                    (made[-1] / "cgroup.subtree_control").write_text(_enabling())
            parent = Parent(version, made[0], made[-1])
            _try_out(parent)
            return parent
        except (OSError, ValueError):
            for folder in made:
                _remove(folder)
    return None


def _try_out(parent: Parent) -> None:
    """Raises `OSError` or `ValueError` where a group would not be what we need."""
    group = Group(parent, 64, 64)
    try:
        group.memory_bytes(), group.tasks(), group.processes(), group.was_short()
    finally:
        group.remove()


def _places() -> Iterator[tuple[int, tuple[Path, ...]]]:
    """(version, folders) that groups may be made below, the best first."""
    mounts = list(_mounts())
    own = dict(_own_groups())
    for mount in (path for kind, path, _ in mounts if kind == "cgroup2"):
        here = mount / own.get("", "/").lstrip("/")
        for folder in dict.fromkeys((mount, here) if os.geteuid() == 0 else (here,)):
            if set(CONTROLLERS) <= set(_words(folder / "cgroup.controllers")) and _delegates(folder):
                yield 2, (folder,)
    old = {name: path for kind, path, options in mounts if kind == "cgroup" for name in options}
    if all(name in old for name in CONTROLLERS):
        yield 1, tuple(old[name] / own.get(name, "/").lstrip("/") for name in CONTROLLERS)


def _delegates(folder: Path) -> bool:
    """Whether groups below `folder` have the controllers, or get them now.

    A group that has processes of its own gives none to those below. Where all are ours, they move into one below.
    """
    if set(CONTROLLERS) <= set(_words(folder / "cgroup.subtree_control")):
        return True
    with contextlib.suppress(OSError):
        (folder / "cgroup.subtree_control").write_text(_enabling())
        return True
    supervisor = os.getppid()
    ours = {supervisor, *descendants(supervisor)}
    inside = list(map(int, _words(folder / "cgroup.procs")))
    if not inside or not ours.issuperset(inside):
        return False
    with contextlib.suppress(OSError):
        leaf = folder / "supervisor"
        leaf.mkdir(exist_ok=True)
        for pid in inside:
            (leaf / "cgroup.procs").write_text(str(pid))
        (folder / "cgroup.subtree_control").write_text(_enabling())
        return True
    return False


def _enabling() -> str:
    return " ".join(f"+{name}" for name in CONTROLLERS)


def _mounts() -> Iterator[tuple[str, Path, list[str]]]:
    """(kind, folder, options) of what is mounted."""
    with contextlib.suppress(OSError):
        for line in Path(_MOUNTS).read_text().splitlines():
            _, path, kind, options, *_ = line.split()
            yield kind, Path(path.replace("\\040", " ")), options.split(",")


def _own_groups() -> Iterator[tuple[str, str]]:
    """(controller, path) of this process's groups; version 2 has no controller's name."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, names, path = line.split(":", 2)
            yield from ((name, path) for name in names.split(","))


def _sweep(folder: Path) -> None:
    """Remove the groups of zygotes that are gone, where nothing lives in them: one whose number means nothing here may
    live in another container."""
    for path in _groups(folder):
        owner = _OURS.fullmatch(path.name)
        if owner and not Path(f"/proc/{owner[1]}").exists():
            for group in (*_groups(path), path):
                with contextlib.suppress(OSError):
                    group.rmdir()


def _groups(folder: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _kill_all(group: Path) -> None:
    if _try_to_write(group / "cgroup.kill", "1"):
        return
    for _ in itertools.takewhile(lambda _: _signal_all(_words(group / "cgroup.procs")), range(100)):
        time.sleep(0.01)  # what they start meanwhile is killed next


def _signal_all(pids: Iterable[str]) -> int:
    found = list(map(int, pids))
    for pid in found:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    return len(found)


def _remove(group: Path) -> None:
    deadline = time.monotonic() + REMOVAL_S
    while True:
        try:
            group.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > deadline:
                return
        time.sleep(0.005)


def _table(path: Path) -> dict[str, int]:
    """A file of `name number` lines."""
    try:
        rows = (line.split() for line in path.read_text().splitlines())
        return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}
    except OSError:
        return {}


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _try_to_write(path: Path, text: str) -> bool:
    try:
        path.write_text(text)
    except OSError:
        return False
    return True
