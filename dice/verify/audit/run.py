"""The supervisor's side: each problem in a jailed child of its own, several at once, resumed where it stopped."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from dice.errors import MachineError, UserError
from dice.files import JsonObject
from dice.files.journal import Journal
from dice.problem import Problem, ProblemError
from dice.verify.audit.findings import Audit, Finding
from dice.verify.audit.messages import AuditProblem, Done, Facts, Found, Passes, Stage
from dice.verify.ipc.encoding import Raw, claim, is_a
from dice.verify.options import default_cache_dir, resolve_backend
from dice.verify.sandbox.cancel import Cancellation, Spawner
from dice.verify.sandbox.jail import OWN_FAULT, Limits
from dice.verify.sandbox.process import (
    Cancelled,
    ChildEnded,
    DeadlineExceeded,
    MachineryError,
    Zygote,
    wait_for,
)
from dice.verify.sandbox.roles import Role
from dice.verify.sandbox.scratch import Scratch
from dice.verify.sandbox.visible_paths import candidate_view

AUDIT = Role("audit", "dice.verify.audit.probe")
WARM = (
    "torch._dynamo",
    AUDIT.module,
)  # PyTorch imports its compiler at the first operator on tensors without data: a second
RULES = 1  # goes up when findings change their meaning, so that older records are not resumed from
TMP_MB = 256
ATTEMPTS = 2
MIN_MEMORY_MB = 256


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """How problems are audited. `protocol` is what they will be judged by; it decides what is a `reject`.

    `depth`: `full`; `quick`, without looks at inputs and parameters one by one; `census`, only what they are made of.
    """

    backend: str = "emulated"  # cuda, or emulated: references run on the CPU
    protocol: str = "dice"
    limit_s: float = 60.0  # for one problem
    memory_mb: int = 4096  # for one problem
    seed: int = 0
    depth: Literal["full", "quick", "census"] = "full"

    def __post_init__(self) -> None:
        if self.limit_s <= 0:
            raise UserError(f"The time limit must be positive, not {self.limit_s:g} s.")
        if self.memory_mb < MIN_MEMORY_MB:
            raise UserError(f"The memory limit must be at least {MIN_MEMORY_MB} MiB, not {self.memory_mb}.")

    @property
    def digest(self) -> str:
        text = json.dumps([RULES, asdict(self)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def audit_backend(wanted: str) -> str:
    """What `auto`, `cuda` or `emulated` is here. To run a reference takes no compiler, so that a machine without one
    can audit on its CPU. Raises `MachineError` where there is no GPU to audit on."""
    if wanted == "emulated":
        return wanted
    try:
        return resolve_backend(wanted)
    except MachineError:
        if wanted == "cuda":
            raise
        return "emulated"


def audit_all(
    problems: Sequence[Problem],
    settings: AuditSettings,
    *,
    workers: int = 1,
    record: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Audit]:
    """The audit of every problem, in their order. Equal problems are audited once.

    `record`: a JSON Lines file to which each audit is appended when it is done, and from which those of equal settings
    are taken. Raises `MachineError` when our own processes are lost again and again.
    """
    with _Record(record, settings.digest) as known:
        first: dict[str, Problem] = {}
        for problem in problems:
            first.setdefault(problem.id, problem)
        missing = [problem for id_, problem in first.items() if id_ not in known.audits]
        progress(len(first) - len(missing), len(first))
        for audit in _audit_many(missing, settings, workers):
            known.add(audit)
            progress(len(known.audits.keys() & first.keys()), len(first))
        return [_for(problem, known.audits[problem.id], first[problem.id]) for problem in problems]


def _for(problem: Problem, audit: Audit, first: Problem) -> Audit:
    audit = replace(audit, name=problem.name, level=problem.level)
    if problem is first:
        return audit
    found = Finding("duplicate", "warn", f"The same source as {first.name}.")
    return replace(audit, findings=(*audit.findings, found))


def _audit_many(problems: Sequence[Problem], settings: AuditSettings, workers: int) -> Iterator[Audit]:
    """Audits as they finish. Leaving early, for whatever reason, kills what runs."""
    if not problems:
        return
    auditor = _Auditor(settings)
    pool = ThreadPoolExecutor(workers)
    running: set[Future[Audit]] = {pool.submit(auditor.audit, problem) for problem in problems}
    try:
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)
    finally:
        auditor.cancel()
        pool.shutdown(cancel_futures=True)
        auditor.close()


class _Auditor:
    """Audits one problem per call. Thread-safe."""

    def __init__(self, settings: AuditSettings):
        self.settings = settings
        self._view = candidate_view(default_cache_dir())
        self._cancellation = Cancellation()
        self._lock = threading.Lock()
        self._zygote: Zygote | None = None

    def audit(self, problem: Problem) -> Audit:
        started = time.monotonic()
        try:
            problem.check()
        except ProblemError as error:
            message = str(error).removeprefix(problem.name).strip()
            return Audit(problem.name, problem.id, problem.level, (Finding("broken", "reject", f"It {message}"),))
        found = self._run(problem)
        seconds = round(time.monotonic() - started, 2)
        return Audit(problem.name, problem.id, problem.level, tuple(found.findings), found.passes, found.facts, seconds)

    def cancel(self) -> None:
        self._cancellation.cancel()

    def close(self) -> None:
        with self._lock:
            if self._zygote is not None:
                self._zygote.close()

    def _run(self, problem: Problem) -> _Found:
        failure = ""
        for _ in range(ATTEMPTS):
            zygote = self._get_zygote()
            try:
                return self._run_in(Spawner(zygote, self._cancellation), problem)
            except Cancelled:
                raise
            except MachineryError as error:
                failure = str(error)
                zygote.settle()
        raise MachineError(f"The audit's own processes failed: {failure}.")

    def _get_zygote(self) -> Zygote:
        with self._lock:
            self._cancellation.check()
            if self._zygote is None or not self._zygote.alive:
                if self._zygote is not None:
                    self._zygote.close()
                self._zygote = Zygote(WARM)
            return self._zygote

    def _run_in(self, spawner: Spawner, problem: Problem) -> _Found:
        settings, found = self.settings, _Found()
        with Scratch() as scratch:
            own = str(scratch.root / "reference")
            limits = Limits(
                settings.memory_mb,
                own,
                visible=self._view,
                tmp_mb=TMP_MB,
                files_mb=TMP_MB,
                one_queue=True,
                own_files=True,
            )  # nothing is timed here
            with spawner.spawn(AUDIT, limits) as child:
                child.send(AuditProblem(source=problem.source, **asdict(settings)))
                deadline = time.monotonic() + settings.limit_s
                try:
                    while not found.done:
                        found.note(wait_for(child, (), deadline))
                except DeadlineExceeded:
                    found.add("too_slow", "warn", f"It had not ended after {settings.limit_s:g} s, in: {found.stage}.")
                except ChildEnded as end:
                    found.end(end, child.log, settings.memory_mb)
        return found


def _update(known: JsonObject, said: object) -> None:
    if isinstance(said, dict):
        known.update(said)


@dataclass
class _Found:
    """What a child has said so far; a problem's own code could say the same, so nothing of it is trusted."""

    findings: list[Finding] = field(default_factory=list)
    passes: JsonObject = field(default_factory=dict)
    facts: JsonObject = field(default_factory=dict)
    stage: str = "starting"
    done: bool = False

    def note(self, raw: Raw) -> None:
        if is_a(raw, Found):
            found = claim(raw, Found)
            with contextlib.suppress(ValueError, KeyError):
                self.add(found.kind, found.severity, found.message[:1000])
        elif is_a(raw, Facts):
            _update(self.facts, claim(raw, Facts).facts)
        elif is_a(raw, Passes):
            _update(self.passes, claim(raw, Passes).passes)
        elif is_a(raw, Stage):
            self.stage = claim(raw, Stage).stage[:100]
        elif is_a(raw, Done):
            self.done = True

    def add(self, kind: str, severity: Any, message: str) -> None:
        self.findings.append(Finding(kind, severity, message))

    def end(self, end: ChildEnded, log: bytes, memory_mb: int) -> None:
        if end.ended.reason == "memory":
            self.add("too_large", "warn", f"It took over {memory_mb} MiB of memory, in: {self.stage}.")
            return
        lines = log.decode(errors="replace").strip().splitlines()
        if end.ended.code == OWN_FAULT:
            self.add("audit_failed", "warn", f"The audit failed, in: {self.stage}: {lines[-1][:300] if lines else ''}.")
            return
        what = end.ended.reason or end.ended.describe()
        last = f": {lines[-1][:300]}" if lines else ""
        self.add("broken", "reject", f"Its process ended by itself ({what}), in: {self.stage}{last}.")


class _Record:
    """Audits that are done under these settings, in a journal."""

    def __init__(self, path: Path | None, digest: str):
        self.digest = digest
        self.audits: dict[str, Audit] = {}
        self._journal = Journal(path, "audit")

    def __enter__(self) -> _Record:
        for row in self._journal.__enter__().rows():
            with contextlib.suppress(ValueError, TypeError, KeyError):  # of another version
                if row["settings"] == self.digest:
                    self.audits[row["problem"]] = Audit.from_json(row)
        return self

    def __exit__(self, *_: object) -> None:
        self._journal.__exit__()

    def add(self, audit: Audit) -> None:
        self.audits[audit.problem] = audit
        self._journal.append(audit.to_json() | {"settings": self.digest})
