"""A folder of built files, each under the hash of everything it was made from.

An entry is a folder that appears by one rename, so a reader sees all of it or nothing, whoever was killed meanwhile.
Two builders of the same entry do the same work twice; the first rename wins and both results are equal.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from dice.verify.sandbox.scratch import make_owned, remove, remove_if_orphan

DEFAULT_LIMIT_BYTES = 4 << 30
TRIM_INTERVAL_S = 60.0
_KEY = re.compile(r"[0-9a-f]{32}")  # of `content_key`
_OURS = re.compile(r"tmp-(\w{8}|[0-9a-f]{32}-\d+)")  # of `Cache.scratch` and `Cache._discard`


def content_key(parts: Iterable[str | bytes]) -> str:
    """Hash of a sequence of parts; their boundaries count."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:32]


class Cache:
    """Entries by `content_key`. What else lies in `folder` is left alone. Any other key is a `ValueError`."""

    def __init__(self, folder: Path, limit_bytes: int = DEFAULT_LIMIT_BYTES, trim_interval_s: float = TRIM_INTERVAL_S):
        self.folder = Path(os.path.realpath(folder))
        self.limit_bytes = limit_bytes
        self.trim_interval_s = trim_interval_s

    def find(self, key: str) -> Path | None:
        """Folder of the entry, which counts as used now; None when there is none."""
        entry = self._entry(key)
        try:
            os.utime(entry)
        except FileNotFoundError:
            return None
        except OSError:  # a jailed process sees the cache read-only
            return entry if entry.is_dir() else None
        return entry

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A private folder on the cache's file system, gone afterwards unless `publish`ed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path, lock = make_owned(self.folder, "tmp-")
        try:
            yield path
        finally:
            remove(path, "tmp-")
            os.close(lock)

    def sweep(self) -> None:
        """Remove the scratch folders of processes that were killed."""
        for path in self.folder.glob("tmp-*"):
            if _OURS.fullmatch(path.name):
                remove_if_orphan(path, "tmp-")

    def discard(self, key: str) -> None:
        """Remove an entry that turned out to be damaged."""
        self._discard(self._entry(key))

    def publish(self, key: str, folder: Path) -> Path:
        """Make `folder` (on the same file system) the entry `key`; returns the entry, ours or an earlier equal one."""
        entry = self._entry(key)
        try:
            os.rename(folder, entry)
        except OSError:
            if not entry.is_dir():
                raise
            return entry
        self._trim_now_and_then(entry)
        return entry

    def _trim_now_and_then(self, keep: Path) -> None:
        """A trim reads the whole folder, so that only the first of many builders does it, once an interval."""
        stamp = self.folder / ".trimmed"
        with contextlib.suppress(FileNotFoundError):
            if time.time() - stamp.stat().st_mtime < self.trim_interval_s:
                return
        stamp.touch()
        self.trim(keep)

    def trim(self, keep: Path | None = None) -> None:
        """Remove the entries that were used longest ago until the rest fits, and what killed builders left."""
        self.sweep()
        entries: list[tuple[float, int, Path]] = []
        for path in self._folders():
            with contextlib.suppress(FileNotFoundError):
                entries.append((path.stat().st_mtime, _size(path), path))
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= self.limit_bytes:
                return
            if path == keep:
                continue
            self._discard(path)
            total -= size

    def _discard(self, path: Path) -> None:
        # Renamed first: nobody may find an entry that is half gone.
        doomed = path.with_name(f"tmp-{path.name}-{os.getpid()}")
        with contextlib.suppress(OSError):
            os.rename(path, doomed)
            remove(doomed, "tmp-")

    def _entry(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise ValueError(f"{key!r} is no key of the cache")
        return self.folder / key

    def _folders(self) -> list[Path]:
        try:
            entries = [path for path in self.folder.iterdir() if _KEY.fullmatch(path.name)]
            return [path for path in entries if path.is_dir() and not path.is_symlink()]
        except FileNotFoundError:
            return []


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def builds_shown(cache_dir: Path) -> Cache:
    """Folders of jobs under way, on the file system of the built libraries: they are linked there, not copied."""
    return Cache(cache_dir / "shown")
