"""Built libraries as entries of the cache: a folder with the library, what we say of it, and the sum of both.

A file that was cut short (by a power failure, a full disk elsewhere) or damaged must not be loaded: what it would do
counts as the candidate's deed.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

from dice.verdict import Backend
from dice.verify.build.cache import Cache
from dice.verify.build.sources import LIBRARY, Built, Foreign, Headers

SUM = "sum"
FOREIGN = ("foreign", "word", "variable")  # the files of what it is to programs that call it
_HEADERS: dict[str, Headers] = {"split": "split", "slim": "slim", "full": "full"}


def look_up(cache: Cache, key: str, backend: Backend) -> Built | None:
    """The library that was built under `key`; a damaged one is removed and not found."""
    started = time.monotonic()
    entry = cache.find(key)
    if entry is None:
        return None
    try:
        intact = (entry / SUM).read_text() == _sum(entry)
    except (OSError, UnicodeDecodeError):
        intact = False
    if not intact:
        cache.discard(key)
        return None
    return found(entry, started, cached=True, backend=backend)


def found(entry: Path, started: float, *, cached: bool, backend: Backend) -> Built:
    """The cache's `entry`; `started` is when the search for it began, on the monotonic clock."""
    headers = _HEADERS.get((entry / "headers").read_text(), "slim")
    log = (entry / "log").read_text(encoding="utf-8")
    foreign = Foreign(*((entry / name).read_text(encoding="utf-8") for name in FOREIGN))
    return Built(entry / LIBRARY, headers, time.monotonic() - started, cached, backend, log, foreign)


def publish(cache: Cache, key: str, scratch: Path, headers: str, log: str, foreign: Foreign) -> Path:
    """Make the library in `scratch` (on the cache's file system) the entry `key`. Nothing else in `scratch` counts."""
    with cache.scratch() as folder:
        entry = folder / "entry"
        entry.mkdir()
        os.rename(scratch / LIBRARY, entry / LIBRARY)
        (entry / "headers").write_text(headers)
        (entry / "log").write_text(log, encoding="utf-8", errors="replace")
        for name, text in zip(FOREIGN, (foreign.reason, foreign.word, foreign.variable), strict=True):
            (entry / name).write_text(text, encoding="utf-8", errors="replace")
        (entry / SUM).write_text(_sum(entry))
        return cache.publish(key, entry)


def _sum(entry: Path) -> str:
    digest = hashlib.sha256()
    for name in (LIBRARY, "headers", "log", *FOREIGN):
        digest.update(hashlib.sha256((entry / name).read_bytes()).digest())
    return digest.hexdigest()
