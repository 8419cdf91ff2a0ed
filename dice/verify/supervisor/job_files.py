"""The files of one job: what its candidate writes, and the libraries that were built for it.

The candidate writes to a file system of its own where the host has namespaces; nobody else sees that, so its warden
hands over the open folder. Elsewhere it is a plain folder. What it wrote goes to the reference's process as open
files, not paths.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from dice.verify.build.cache import builds_shown
from dice.verify.build.sources import Built
from dice.verify.sandbox.process import Child
from dice.verify.sandbox.scratch import Scratch, open_files

SUFFIXES = (".json", ".bin")  # of the two files that hold a value, see `transport.py`


@contextlib.contextmanager
def job_files(cache_dir: Path) -> Iterator[JobFiles]:
    """The files of a job that lasts as long as the context. Raises `OSError`."""
    with Scratch() as scratch, builds_shown(cache_dir).scratch() as builds:
        yield JobFiles(scratch.root, builds)


class JobFiles:
    """`root`: the job's own folder. `builds`: the folder where its candidate finds libraries, all that were `shown`."""

    def __init__(self, root: Path, builds: Path):
        self.root, self.builds = root, builds
        self.shown: list[Built] = []

    @property
    def outputs(self) -> Path:
        """Where the candidate writes, as it sees it."""
        return self.root / "outputs"

    @property
    def authored(self) -> Path:
        """Where the process writes that runs the file without data."""
        return self.root / "authored"

    def show(self, built: Built) -> Built:
        """The library where this job's candidate sees it, and no other does: the cache itself is hidden from all."""
        folder = self.builds / str(len(self.shown))
        folder.mkdir()
        path = folder / built.path.name
        try:
            os.link(built.path, path)
        except OSError:
            shutil.copyfile(built.path, path)
        self.shown.append(replace(built, path=path))
        return self.shown[-1]

    def pass_on(self, child: Child, author: Path, value: str, max_bytes: int) -> None:
        """Copy a value that `child` wrote in `author` to where this job's other processes can read it. Raises
        `OSError`, also for one that is not there or is larger."""
        with self.opened(child, value, folder=author) as files:
            for name in (value + suffix for suffix in SUFFIXES):
                if name not in files or os.fstat(files[name]).st_size > max_bytes:
                    raise OSError(f"{name} is not there, or larger than {max_bytes >> 20} MB")
                with open(os.dup(files[name]), "rb") as source, open(self.builds / name, "wb") as target:
                    source.seek(0)
                    shutil.copyfileobj(source, target)

    @contextlib.contextmanager
    def opened(self, child: Child, *values: str, folder: Path | None = None) -> Iterator[dict[str, int]]:
        """The files of the named values that `child` wrote, open to read, by their names."""
        with contextlib.ExitStack() as stack:
            opened = child.folder
            if opened is None:
                opened = os.open(folder or self.outputs, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                stack.callback(os.close, opened)
            files = open_files(opened, [value + suffix for value in values for suffix in SUFFIXES])
            for descriptor in files.values():
                stack.callback(os.close, descriptor)
            yield files
