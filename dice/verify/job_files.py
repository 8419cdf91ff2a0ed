"""The files of one job: what its candidate writes, and the libraries that were built for it.

The candidate writes to a file system of its own where the host has namespaces; nobody else sees that, so its warden
hands over the open folder. Elsewhere it is a plain folder. What it wrote goes to the oracle as open files, not paths.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from dice.verify.cache import Cache
from dice.verify.process import Child
from dice.verify.scratch import Scratch, open_files
from dice.verify.sources import Built

SUFFIXES = (".json", ".bin")  # of the two files that hold a value, see `wire.py`


class JobFiles:
    """Made when a job starts, gone when its context is left. Raises `OSError`."""

    def __init__(self, cache_dir: Path):
        self._cache = builds_shown(cache_dir)
        self._builds = 0

    def __enter__(self) -> JobFiles:
        with contextlib.ExitStack() as stack:
            self.root = stack.enter_context(Scratch()).root
            self.builds = stack.enter_context(self._cache.scratch())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def outputs(self) -> Path:
        """Where the candidate writes, as it sees it."""
        return self.root / "outputs"

    def show(self, built: Built) -> Built:
        """The library where this job's candidate sees it, and no other does: the cache itself is hidden from all."""
        folder = self.builds / str(self._builds)
        self._builds += 1
        folder.mkdir()
        path = folder / built.path.name
        try:
            os.link(built.path, path)
        except OSError:
            shutil.copyfile(built.path, path)
        return replace(built, path=path)

    @contextlib.contextmanager
    def opened(self, child: Child, *values: str) -> Iterator[dict[str, int]]:
        """The files of the named values that `child` wrote, open to read, by their names."""
        with contextlib.ExitStack() as stack:
            folder = child.folder
            if folder is None:
                folder = os.open(self.outputs, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                stack.callback(os.close, folder)
            files = open_files(folder, [value + suffix for value in values for suffix in SUFFIXES])
            for descriptor in files.values():
                stack.callback(os.close, descriptor)
            yield files


def builds_shown(cache_dir: Path) -> Cache:
    """Folders of jobs under way, on the file system of the built libraries: they are linked there, not copied."""
    return Cache(cache_dir / "shown")
