"""What a tree of processes takes, read from /proc: for hosts whose kernel keeps no such account (`cgroups.py`).

Nothing here is exact. A page that several processes share counts once where the kernel tells; shared memory counts
whole, for it stays when the process that filled it is gone, and is then in nobody's resident set.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

MOST_LISTED = 5000  # descendants and threads that are listed; more are too many anyway
LOOK_EVERY = 8  # readings; for shared memory that the machine's own sum does not show
_SHARED_DEVICE = "00:01"  # of memory without a file system: memfds, shared anonymous mappings


@dataclass(frozen=True, slots=True)
class Usage:
    """Of all processes together. `tasks`: threads, those of one-threaded processes included."""

    processes: int
    tasks: int
    descriptors: int
    memory_kb: int


class Meter:
    """Measures the descendants of one process again and again. `inherited_kb`: what each held when it was forked."""

    def __init__(self, root: int, inherited_kb: int, memory_mb: int):
        self.root, self.inherited_kb, self.most_kb = root, inherited_kb, memory_mb << 10
        self._least_shared_kb, self._readings = _system_shared_kb(), 0

    def read(self) -> Usage:
        pids = descendants(self.root)
        tasks, rough = 0, 0
        for pid in pids:
            facts = _status(pid)
            tasks += facts["Threads"]
            rough += max(0, facts["RssAnon"] + facts["RssShmem"] - self.inherited_kb)
        return Usage(len(pids), tasks, sum(map(_descriptors, pids)), max(self._memory_kb(pids, rough), 0))

    def _memory_kb(self, pids: Sequence[int], rough: int) -> int:
        """What a fork still shares with its parent counts in both at first: many small children of a large process
        would pass for a large one. Only where that sum is too much, the exact one is taken, which the kernel has to
        walk for. Shared memory is looked for where the machine has more of it than it had, and now and then in any
        case: another program may have freed as much as this one took."""
        system_kb = _system_shared_kb()
        self._least_shared_kb = min(self._least_shared_kb, system_kb)
        grown = 4 * (system_kb - self._least_shared_kb) > self.most_kb
        self._readings += 1
        found = rough
        if rough > self.most_kb:
            found = sum(map(_share_kb, pids)) - self.inherited_kb
        if grown or self._readings % LOOK_EVERY == 0:
            found = max(found, max(0, _anonymous_kb(pids) - self.inherited_kb) + _shared_kb(pids))
        return found


def descendants(pid: int) -> list[int]:
    """Processes below `pid`, as /proc lists them now."""
    found: list[int] = []
    pending = [pid]
    while pending and len(found) < MOST_LISTED:
        below = children(pending.pop())
        found += below
        pending += below
    return found


def children(pid: int) -> list[int]:
    """The processes that any thread of `pid` has started."""
    found: list[int] = []
    for task in _names(f"/proc/{pid}/task")[:MOST_LISTED]:
        with contextlib.suppress(OSError):
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def memory_kb(pid: int) -> int:
    """Private and shared memory that a process has written to, in KiB; file mappings do not count."""
    facts = _status(pid)
    return facts["RssAnon"] + facts["RssShmem"]


def _status(pid: int) -> dict[str, int]:
    """Some lines of a process's status; zeros for one that is gone."""
    facts = {"RssAnon": 0, "RssShmem": 0, "Threads": 0}
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in facts:
                facts[name] = int(value.split()[0])
    return facts


def _share_kb(pid: int) -> int:
    """`memory_kb`, each page divided by the processes that hold it, where the kernel says so."""
    kb = _sum_kb(f"/proc/{pid}/smaps_rollup", ("Pss_Anon:", "Pss_Shmem:"))
    return memory_kb(pid) if kb is None else kb


def _anonymous_kb(pids: Iterable[int]) -> int:
    return sum(_sum_kb(f"/proc/{pid}/smaps_rollup", ("Pss_Anon:",)) or 0 for pid in pids)


def _sum_kb(path: str, names: tuple[str, ...]) -> int | None:
    """Sum of the named lines; None where there are none, as for a process that is gone."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) for line in lines if line.startswith(names)]
    return sum(found) if found else None


def _shared_kb(pids: Iterable[int]) -> int:
    """Memory without a name that the processes map or hold open, once for each piece."""
    sizes: dict[int, int] = {}
    for pid in pids:
        opened = ((status.st_ino, status.st_blocks // 2) for status in _nameless(pid))
        for inode, size in (*opened, *_mapped_memory(pid)):
            sizes[inode] = max(sizes.get(inode, 0), size)
    return sum(sizes.values())


def nameless_kb(pids: Iterable[int], folder: str) -> int:
    """Files that the processes hold open and that have no name any more, on the file system of `folder`, in KiB."""
    device, sizes = os.stat(folder).st_dev, {}
    for pid in pids:
        for status in _nameless(pid):
            if status.st_dev == device:
                sizes[status.st_ino] = status.st_blocks // 2
    return sum(sizes.values())


def _nameless(pid: int) -> Iterable[os.stat_result]:
    """Of the files without a name that a process holds open."""
    for name in _names(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            status = os.stat(f"/proc/{pid}/fd/{name}")
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 0:
                yield status


def _mapped_memory(pid: int) -> Iterable[tuple[int, int]]:
    """(inode, KiB) of shared mappings without a file. How much of one is in use is for root to know; others count all
    of it."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        place, rights, _, device, inode = line.split(maxsplit=5)[:5]
        if rights[3] == "s" and device == _SHARED_DEVICE:
            first, last = (int(part, 16) for part in place.split("-"))
            size = (last - first) >> 10
            with contextlib.suppress(OSError):
                size = os.stat(f"/proc/{pid}/map_files/{place}").st_blocks // 2
            yield int(inode), size


def _system_shared_kb() -> int:
    return _sum_kb("/proc/meminfo", ("Shmem:",)) or 0


def _descriptors(pid: int) -> int:
    return len(_names(f"/proc/{pid}/fd"))


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
