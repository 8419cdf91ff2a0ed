"""Building for candidates, on the trusted side: looks in the cache, else has a jailed builder compile, and publishes.

A candidate never compiles and never writes to the cache. It asks; what the builder answers decides its verdict.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from dice.verdict import Backend
from dice.verify.build.cache import Cache, builds_shown
from dice.verify.build.compiler_process import PATIENCE
from dice.verify.build.libraries import found, look_up, publish
from dice.verify.build.sources import LIBRARY, MAX_SOURCE_BYTES, Built, Foreign, Headers, Sources
from dice.verify.ipc import untrusted
from dice.verify.ipc.encoding import Raw, claim, is_a, read
from dice.verify.ipc.messages import (
    BuildAnswer,
    Compile,
    Compiled,
    PrepareFailed,
    PrepareShared,
    SharedBuilding,
    SharedPrepared,
)
from dice.verify.options import host_memory
from dice.verify.sandbox.cancel import Starter
from dice.verify.sandbox.jail import Limits
from dice.verify.sandbox.process import Child, ChildEnded, DeadlineExceeded, MachineryError, wait_for
from dice.verify.sandbox.roles import BUILDER, PREPARE
from dice.verify.sandbox.scratch import Scratch

# The builder and its compilers, two of which run side by side: with PyTorch's own headers, the largest honest ones take
# 2.2 GiB each (cc1plus, nvcc's cudafe++).
BUILDER_MEMORY_MB = 6 << 10
LEAST_MEMORY_MB = 5 << 10
BUILDER_FILES_MB = 4 << 10  # what one build may leave on the disk, at any moment
GRACE_S = 10.0  # the builder ends its compilers itself; this much later it is ended
PREPARE_TIMEOUT_S = 3600.0  # for several shared parts in turn, on a machine with other work
MAX_LIBRARY_BYTES = 512 << 20
MAX_FAILURES = 512  # refused sources that are remembered
BUILT_ONCE = {
    "slim": "the headers and libraries that all kernels share",
    "full": "PyTorch's own headers, which a kernel needs",
}
log = logging.getLogger(__name__)
KINDS = ("built", "compile_error", "link_error", "timeout", "unsupported", "machine", "shared_missing")


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a build. `kind`: built | compile_error | link_error | timeout | unsupported.

    `seconds` is the time of the compilers and their process, without waiting for a free core.
    """

    kind: str
    built: Built | None = None
    message: str = ""
    lines: tuple[str, ...] = ()
    log: str = ""
    seconds: float = 0.0

    def told(self, request: int) -> BuildAnswer:
        """What the candidate is told that asked under this number."""
        built = self.built
        if built is None:
            return BuildAnswer(request, self.kind, message=self.message, lines=self.lines, log=self.log)
        return BuildAnswer(
            request,
            self.kind,
            str(built.path),
            built.headers,
            built.seconds,
            built.cached,
            self.message,
            self.lines,
            built.log,
        )


class _Flight:
    """A build under way, which others of the same sources wait for."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.landed = threading.Event()
        self.answer: Answer | None = None


class BuildService:
    """Builds for many jobs at once, on no more than `slots` cores. Thread-safe."""

    def __init__(self, backend: Backend, cache_dir: Path, slots: int | None = None):
        self.backend: Backend = backend
        self.cache_dir = Path(cache_dir)
        self._cache = Cache(self.cache_dir / "extensions")
        count = slots or len(os.sched_getaffinity(0))
        self.memory_mb = builder_memory_mb(count)
        self._slots = threading.BoundedSemaphore(count)
        self._lock = threading.Lock()
        self._preparing = threading.Lock()
        self._prepared: dict[str, SharedPrepared] = {}  # by headers
        self._flights: dict[str, _Flight] = {}
        self._failures: OrderedDict[str, Answer] = OrderedDict()

    def prepare(self, zygote: Starter, headers: str = "slim", again: bool = False) -> None:
        """Make what all builds with these headers share, once; `again`: also where a part has been lost since. Raises
        `MachineryError`."""
        with self._preparing:
            if again or headers not in self._prepared:
                for cache in (self._cache, builds_shown(self.cache_dir)):
                    cache.sweep()
                self._prepared[headers] = self._make_shared(zygote, headers)

    def build(
        self,
        zygote: Starter,
        sources: Sources,
        name: str,
        timeout_s: float,
        others: Iterable[Child] = (),
        sanitize: bool = False,
    ) -> Answer:
        """Build `sources`, or find them built. `name` is the extension's, which must be an identifier and means nothing
        else. The output of `others` is drained meanwhile. Raises `MachineryError`."""
        refusal = _refusal(sources, name)
        if refusal:
            return _failure("compile_error", refusal)
        self.prepare(zygote)
        key = sources.key(self._prepared["slim"].identity, sanitize)
        while True:
            known = self._look_up(key)
            if known is not None:
                return known
            with self._lock:
                flight = self._flights.get(key)
                mine = flight is None
                if flight is None:
                    flight = self._flights[key] = _Flight(timeout_s)
            if mine:
                return self._fly(flight, zygote, key, sources, others, sanitize)
            flight.landed.wait()
            answer = flight.answer
            if answer is not None and (answer.kind != "timeout" or flight.timeout_s >= timeout_s):
                return answer

    def _look_up(self, key: str) -> Answer | None:
        with self._lock:
            failure = self._failures.get(key)
        if failure is not None:
            return replace(failure, seconds=0.0)
        built = look_up(self._cache, key, self.backend)
        return None if built is None else Answer("built", built)

    def _fly(
        self,
        flight: _Flight,
        zygote: Starter,
        key: str,
        sources: Sources,
        others: Iterable[Child],
        sanitize: bool,
    ) -> Answer:
        try:
            flight.answer = self._compile(zygote, key, sources, flight.timeout_s, others, sanitize)
            if flight.answer.kind in ("compile_error", "link_error", "unsupported"):
                self._remember(key, flight.answer)
            return flight.answer
        finally:
            with self._lock:
                del self._flights[key]
            flight.landed.set()

    def _remember(self, key: str, answer: Answer) -> None:
        with self._lock:
            self._failures[key] = answer
            while len(self._failures) > MAX_FAILURES:
                self._failures.popitem(last=False)

    def _compile(
        self,
        zygote: Starter,
        key: str,
        sources: Sources,
        timeout_s: float,
        others: Iterable[Child],
        sanitize: bool,
    ) -> Answer:
        with self._slots, self._cache.scratch() as scratch:
            started = time.monotonic()
            said = self._ask_builder(zygote, scratch, sources, timeout_s, others, sanitize)
            if said.kind == "shared_missing":
                # PyTorch's own headers are made for the first build that wants them. All else was made before, and
                # is made again where somebody emptied the cache.
                self.prepare(zygote, "slim", again=True)
                self.prepare(zygote, "full", again="full" in self._prepared)
                started = time.monotonic()
                said = self._ask_builder(zygote, scratch, sources, timeout_s, others, sanitize)
            if said.kind == "shared_missing":
                raise MachineryError(f"a part that builds share is missing although it was made: {said.message}")
            if said.kind == "machine":
                raise MachineryError(said.message)
            seconds = time.monotonic() - started
            if said.kind != "built":
                return Answer(said.kind, None, said.message, said.lines, said.log, seconds)
            if not _is_library(scratch / LIBRARY):
                return _failure("compile_error", "the compiler left no library, or one that is too large", seconds)
            foreign = Foreign(said.foreign, said.word, said.variable)
            entry = publish(self._cache, key, scratch, said.headers, said.log, foreign)
            return Answer("built", found(entry, started, cached=False, backend=self.backend), seconds=seconds)

    def _ask_builder(
        self,
        zygote: Starter,
        scratch: Path,
        sources: Sources,
        timeout_s: float,
        others: Iterable[Child],
        sanitize: bool,
    ) -> Compiled:
        prepared = self._prepared["slim"]
        limits = Limits(self.memory_mb, str(scratch), visible=prepared.visible, files_mb=BUILDER_FILES_MB)
        order = Compile(
            str(self.cache_dir), sources.to_json(), self.backend, str(scratch), prepared.arch, timeout_s, sanitize
        )
        with zygote.spawn(BUILDER, limits) as child:
            child.send(order)
            try:
                return _read(wait_for(child, others, time.monotonic() + PATIENCE * timeout_s + GRACE_S))
            except DeadlineExceeded:
                return _answer("timeout", "The compiler did not finish in time.")
            except ChildEnded as end:
                if end.ended.reason == "memory":
                    return _answer("compile_error", f"the compiler ran out of memory: it had {self.memory_mb} MiB")
                if end.ended.reason:
                    return _answer("compile_error", f"the compiler was ended: too many {end.ended.reason}")
                said = untrusted.text(child.log.decode(errors="replace").strip()[-500:])
                raise MachineryError(f"the process that compiles was lost ({end.ended}): {said}") from None

    def _make_shared(self, zygote: Starter, headers: str) -> SharedPrepared:
        with Scratch() as scratch:
            limits = Limits(self.memory_mb, str(scratch.root), (str(self.cache_dir),))
            with zygote.spawn(PREPARE, limits) as child:
                child.send(PrepareShared(self.backend, str(self.cache_dir), headers))
                try:
                    answer = _prepared(child, headers, time.monotonic() + PREPARE_TIMEOUT_S)
                except (ChildEnded, DeadlineExceeded) as error:
                    said = child.log.decode(errors="replace").strip()[-2000:]
                    raise MachineryError(f"what builds share could not be made ({error}): {said}") from None
                if is_a(answer, SharedPrepared):
                    return read(answer, SharedPrepared)
                raise MachineryError(f"what builds share could not be made: {claim(answer, PrepareFailed).message}")


def _prepared(child: Child, headers: str, deadline: float) -> Raw:
    """The preparing process's last word. What it builds meanwhile, which makes a first run slow, is logged."""
    said = wait_for(child, (), deadline)
    if is_a(said, SharedBuilding):
        log.info("building %s, once for this machine and PyTorch: up to a minute", BUILT_ONCE[headers])
    while is_a(said, SharedBuilding):
        log.debug("%s", read(said, SharedBuilding).what)
        said = wait_for(child, (), deadline)
    return said


def builder_memory_mb(slots: int) -> int:
    """What one builder may take: an equal share of the machine's memory, no more than the largest honest builds need,
    and no less."""
    machine_mb = host_memory() >> 20
    return max(LEAST_MEMORY_MB, min(BUILDER_MEMORY_MB, machine_mb // slots))


def _read(said: Raw) -> Compiled:
    """A builder's answer, checked and cleaned: its words are the compilers', and so those of hostile sources."""
    answer = claim(said, Compiled)
    if answer.kind not in KINDS or (answer.kind == "built" and answer.headers not in get_args(Headers)):
        raise MachineryError(f"the process that compiles gave no answer: {answer.kind[:100]}")
    return answer


def _refusal(sources: Sources, name: str) -> str:
    if not name.isidentifier():
        return f"the extension's name {name[:80]!r} is no identifier"
    if sources.size > MAX_SOURCE_BYTES:
        return f"the sources are larger than {MAX_SOURCE_BYTES >> 20} MB"
    return ""


def _failure(kind: str, reason: str, seconds: float = 0.0) -> Answer:
    line = f"error: {reason}"
    return Answer(kind, None, f"Error building extension:\n{line}", (line,), "", seconds)


def _answer(kind: str, reason: str) -> Compiled:
    failure = _failure(kind, reason)
    return Compiled(kind, reason if kind == "timeout" else failure.message, failure.lines)


def _is_library(path: Path) -> bool:
    """A plain file of a sane size. A compiler's output may be anything that hostile sources made of it."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size <= MAX_LIBRARY_BYTES
