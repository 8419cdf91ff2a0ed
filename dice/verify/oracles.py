"""Oracles that are kept: a few trusted processes per device, each serving many jobs of many problems.

A CUDA context costs a fifth of a second that the driver gives to one process at a time, so a verdict may cost the
candidate's alone. Jobs of one problem under one secret form a *group*: its inputs are drawn, and its reference run,
once. What a candidate sees of a group is one folder of input files, which it can only read; expected outputs never
leave the oracle's memory. A group's secret serves a limited number of jobs and the jobs of one caller only.

An oracle answers one request at a time, so whose request it died in is known; jobs of other groups are run once more.
"""

from __future__ import annotations

import itertools
import os
import secrets
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dice.problem import Problem
from dice.verify.cancel import Cancellation, Spawner
from dice.verify.endings import NO_MEMORY
from dice.verify.options import Backend, Options
from dice.verify.process import (
    Cancelled,
    Child,
    ChildEnded,
    DeadlineExceeded,
    MachineryError,
    Message,
    Zygote,
    wait_for,
)
from dice.verify.sandbox import Limits
from dice.verify.scratch import Scratch
from dice.verify.turns import CONTEXTS

NEVER = 1 << 62  # bytes
JOBS_PER_SECRET = 64
GROUPS_PER_ORACLE = 300  # then it is replaced: problems leave traces in a process
KEPT_GROUPS = 8  # without a job, per oracle
KEPT_BYTES = 1 << 30  # of inputs and outputs of groups without a job, per oracle
ORACLE_TMP_MB = 1024  # its /tmp and /dev/shm, each: compilers of PyTorch's write there
CONTEXT_S = 60.0  # for an oracle's context, which few others are made beside
CLOSE_S = 30.0  # for freeing what a group holds
SECRET_BITS, SEED_BITS = 63, 31


class OracleLost(MachineryError):
    """The process was lost in somebody else's request."""


class ReferenceFailed(Exception):
    """The problem's own reference does not work; the message says how."""


@dataclass
class _Group:
    """One problem under one secret in one oracle."""

    number: int
    settings: Settings
    caller: Cancellation | None  # whose secret it is; None for a secret that is no secret
    folder: Path
    secret: int
    seeds: tuple[int, int]  # of the reference's parameters, and of its second set
    answers: dict[str, Message] = field(default_factory=dict)
    owner: Session | None = None  # whose it is alone, where it cannot be shared
    users: int = 0
    jobs: int = 0
    held_bytes: int = 0
    spoiled: bool = False  # by a lack of memory: of no use to more jobs


class _Oracle:
    """One process and the groups in it. `lock` is held during a request."""

    def __init__(self, spawner: Spawner, backend: Backend, gpu: str, memory_mb: int, view: tuple[str, ...]):
        self.lock = threading.Lock()
        self.scratch = Scratch()
        self.groups: dict[int, _Group] = {}
        self.served = 0
        self.lost = False
        self.retired = False
        inputs = self.scratch.root / "inputs"
        # A problem's file is no more trusted than a kernel's with what else is on this machine.
        own = str(self.scratch.root / "oracle")
        limits = Limits(memory_mb, own, (str(inputs),), view, tmp_mb=ORACLE_TMP_MB, secret=True, gpu=gpu)
        self.backend, self.memory_mb = backend, memory_mb
        self.zygote = spawner.zygote
        # Not the caller's to kill: others use it too. A request is, while it lasts.
        self.child: Child = spawner.zygote.spawn("oracle", asdict(limits))
        self.ready = False

    def get_ready(self, others: Iterable[Child]) -> None:
        """Wait for its context, if that is still to be made: no problem's time. Raises `ChildEnded`."""
        if self.ready:
            return
        with CONTEXTS:
            self.child.send({"backend": self.backend})
            try:
                wait_for(self.child, others, time.monotonic() + CONTEXT_S)
            except DeadlineExceeded:
                raise MachineryError(f"the oracle's CUDA context took over {CONTEXT_S:g} s") from None
        self.ready = True

    @property
    def users(self) -> int:
        return sum(group.users for group in self.groups.values())

    @property
    def open_to_new(self) -> bool:
        return not (self.lost or self.retired or self.child.lost or self.served >= GROUPS_PER_ORACLE)

    def note(self, answer: Message) -> None:
        """Retire it in time: memory grows."""
        self.retired |= answer["memory_mb"] > self.memory_mb // 2

    def how_it_ended(self, end: ChildEnded) -> str:
        if end.ended.reason == "memory":
            return f"it needs over {self.memory_mb} MiB of memory"
        lines = self.child.log.decode(errors="replace").strip().splitlines()
        last = f": {lines[-1][:500]}" if lines else ""
        return f"its process died ({end.ended.describe()}){last}"

    def close(self) -> None:
        self.lost = True
        self.child.__exit__(None, None, None)
        self.scratch.remove()


@dataclass(frozen=True, slots=True)
class Settings:
    """What a group is opened with; two jobs share one only where all of it is equal."""

    problem: str  # id
    source: str
    protocol: str
    scale: float | None
    trials: int
    vary: bool
    families: tuple[str, ...]
    limit_s: float
    threads: int
    seed: int | None
    large_bytes: int  # of a trial: so much crosses no file
    shares: bool  # the GPU's memory with other jobs: what it lacks, they may have

    @classmethod
    def of(cls, problem: Problem, options: Options, vary: bool, threads: int, lends: bool, shares: bool) -> Settings:
        return cls(
            problem=problem.id,
            source=problem.source,
            protocol=options.protocol,
            scale=options.scale,
            trials=options.trials,
            vary=vary,
            families=tuple(options.families),
            limit_s=options.run_timeout_s,
            threads=threads,
            seed=options.seed,
            large_bytes=options.large_bytes if lends else NEVER,
            shares=shares,
        )


class Session:
    """One job's use of a group, until `close`. For one thread."""

    def __init__(self, pool: Oracles, oracle: _Oracle, group: _Group, settings: Settings, spawner: Spawner):
        self._pool, self._oracle, self._group, self._settings = pool, oracle, group, settings
        self._cancellation = spawner.cancellation

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.give_back(self._oracle, self._group)

    @property
    def inputs(self) -> Path:
        """The folder for the candidate to read, and only to read."""
        return self._group.folder

    @property
    def seeds(self) -> tuple[int, int]:
        """Of the parameters, and of the second set of parameters."""
        return self._group.seeds

    def open(self, others: Iterable[Child] = ()) -> Message:
        """How large the problem is, and how much memory of the GPU it needs; takes none of it. See `ask`."""
        settings, group = self._settings, self._group
        told = asdict(settings) | {"do": "open", "inputs": str(group.folder), "secret": group.secret}
        return self.ask(told | {"seed": group.seeds[0], "fresh_seed": group.seeds[1]}, others, keep="open")

    def construct(self, others: Iterable[Child] = ()) -> Message:
        """Construct the reference, or find it constructed; see `ask`."""
        return self.ask({"do": "construct"}, others, keep="construct")

    def plan(self, others: Iterable[Child] = ()) -> Message:
        """The trials; see `ask`."""
        return self.ask({"do": "plan"}, others, keep="plan")

    def draw(self, command: Message, candidate: Child) -> Message:
        """Inputs and outputs of one trial, or find them drawn; see `ask`. What the oracle lends for them is sent on."""
        drawn = self.ask(command, (candidate,))
        if drawn.get("lent"):
            told = {"do": "borrow", "inputs": command["inputs"], "sizes": drawn["lent"]}
            candidate.send(told, drawn["descriptors"])
            for descriptor in drawn["descriptors"]:
                os.close(descriptor)
        if not drawn["shareable"]:
            self._pool.do_not_share(self._settings)
        return drawn

    def check_kept(self) -> None:
        """Raise `OracleLost` when the inputs may be gone: what a candidate missed then was not its fault."""
        if self._oracle.lost:
            raise OracleLost("the oracle's process was lost")
        if self._group.owner not in (None, self):
            raise OracleLost("the problem is too large to share its inputs")

    def ask(
        self, command: Message, others: Iterable[Child] = (), keep: str = "", files: Mapping[str, int] | None = None
    ) -> Message:
        """The oracle's answer; where `keep` is given, the one that any job of the group got to the same. `files`: open
        files of the candidate's, by name.

        Raises `ReferenceFailed` when the problem is at fault, `MachineryError` when we are. What `others` print
        meanwhile is drained. Of large trials the oracle keeps one, so whoever drew the first owns the group: whatever
        another asks for could take the owner's trial away.
        """
        oracle, group = self._oracle, self._group
        with oracle.lock:
            self._cancellation.check()
            answer = group.answers.get(keep)
            if answer is None:
                self.check_kept()
                answer = self._request(command | {"group": group.number}, others, files or {})
                sent = oracle.child.descriptors_sent
                answer["descriptors"] = [sent.popleft() for _ in answer.get("lent", ())]
                if answer.get("machine"):
                    raise MachineryError(answer["message"])
                if answer.get("broken"):
                    self._pool.note_fragile(self._settings)
                    raise ReferenceFailed(answer["message"])
                group.held_bytes = answer["held_bytes"]
                if not answer.get("shareable", True):
                    group.owner = self
                oracle.note(answer)
            group.spoiled |= answer.get("message") == NO_MEMORY
            if keep and not group.spoiled:
                group.answers[keep] = answer
        if answer["event"] == "failed":
            raise ReferenceFailed(answer["message"])
        return answer

    def _request(self, command: Message, others: Iterable[Child], files: Mapping[str, int]) -> Message:
        oracle, limit_s = self._oracle, self._settings.limit_s
        answered = False
        try:
            self._cancellation.watch(oracle.child)
            oracle.get_ready(others)
            started = time.monotonic()
            oracle.child.send(command | {"files": list(files)}, tuple(files.values()))
            answer = wait_for(oracle.child, others, started + limit_s)
            answered = not answer.get("broken")  # by an error on the GPU, which ends what its process can do there
            return answer
        except DeadlineExceeded:
            raise ReferenceFailed(f"it took over {limit_s:g} s") from None
        except Cancelled:
            self._cancellation.check()  # or else it was meant for the request before this one
            raise OracleLost("the oracle was killed with a job that was called off") from None
        except ChildEnded as end:
            if end.ended.ours:
                raise MachineryError(f"the oracle was lost: {oracle.how_it_ended(end)}") from None
            self._pool.note_fragile(self._settings)
            raise ReferenceFailed(oracle.how_it_ended(end)) from None
        finally:
            oracle.lost |= not answered
            self._cancellation.forget(oracle.child)


class Oracles:
    """The oracles of one device: at most `count` that take new groups. Thread-safe."""

    def __init__(self, backend: Backend, gpu: str, count: int):
        self._backend: Backend = backend
        self.gpu, self._count = gpu, count
        self._lock = threading.Lock()
        self._oracles: list[_Oracle] = []
        self._numbers = itertools.count()
        self._large: set[Settings] = set()  # problems whose inputs are too large to keep
        self._fragile: set[str] = set()  # problems that ended an oracle
        self._unlendable: set[str] = set()  # problems with a trial whose memory a candidate could not map
        self.share = True  # whether jobs may share a group: not where nothing keeps candidates from writing to it

    def open(self, spawner: Spawner, settings: Settings, memory_mb: int, view: tuple[str, ...]) -> Session:
        """Join the group that fits, or start one, in a process that sees `view`. Raises `MachineryError`."""
        caller = spawner.cancellation if settings.seed is None else None
        with self._lock:
            self._bury_lost(spawner.zygote)
            oracle, group = self._find(settings, caller) or self._start(spawner, settings, caller, memory_mb, view)
            group.users += 1
            group.jobs += 1
        return Session(self, oracle, group, settings, spawner)

    def do_not_share(self, settings: Settings) -> None:
        """Give each job of these settings a group of its own from now on."""
        with self._lock:
            self._large.add(settings)

    def note_fragile(self, settings: Settings) -> None:
        """The reference ended its process, or what that can do on the GPU: by values that its problem does not draw,
        most likely. It meets no others from now on, so that no other jobs of an oracle are lost to it again."""
        with self._lock:
            self._fragile.add(settings.problem)

    def do_not_lend(self, problem: Problem) -> None:
        """Its large trials go by file from now on."""
        self._unlendable.add(problem.id)

    def lends(self, problem: Problem) -> bool:
        return problem.id not in self._unlendable

    def is_fragile(self, problem: Problem) -> bool:
        return problem.id in self._fragile

    def give_back(self, oracle: _Oracle, group: _Group) -> None:
        """A job is done with a group; those that nobody uses are forgotten when there are too many."""
        with self._lock:
            group.users -= 1
            doomed = self._superfluous(oracle)
            for one in doomed:
                del oracle.groups[one.number]
            self._bury_lost()
        for one in doomed:
            _forget(oracle, one)

    def close(self) -> None:
        with self._lock:
            for oracle in self._oracles:
                oracle.close()
            self._oracles.clear()

    def _find(self, settings: Settings, caller: Cancellation | None) -> tuple[_Oracle, _Group] | None:
        if not self.share or settings in self._large:
            return None
        for oracle in self._oracles:
            for group in oracle.groups.values():
                fits = group.settings == settings and group.caller is caller and not group.spoiled
                if fits and group.jobs < JOBS_PER_SECRET and not oracle.lost:
                    return oracle, group
        return None

    def _start(
        self, spawner: Spawner, settings: Settings, caller: Cancellation | None, memory_mb: int, view: tuple[str, ...]
    ) -> tuple[_Oracle, _Group]:
        ready = [oracle for oracle in self._oracles if oracle.open_to_new and oracle.memory_mb >= memory_mb]
        oracle = min(ready, key=lambda one: one.users, default=None)
        if oracle is None or (oracle.users and len(ready) < self._count):
            oracle = _Oracle(spawner, self._backend, self.gpu, memory_mb, view)
            self._oracles.append(oracle)
        number = next(self._numbers)
        folder = oracle.scratch.root / "inputs" / str(number)
        folder.mkdir()
        seed = settings.seed
        secret = secrets.randbits(SECRET_BITS) if seed is None else seed
        seeds = (
            (secrets.randbits(SEED_BITS), secrets.randbits(SEED_BITS))
            if seed is None
            else (seed, (seed + 1) % (1 << SEED_BITS))
        )
        group = oracle.groups[number] = _Group(number, settings, caller, folder, secret, seeds)
        oracle.served += 1
        return oracle, group

    def _superfluous(self, oracle: _Oracle) -> list[_Group]:
        """Groups without a job, the oldest first, beyond what is worth keeping."""
        idle = [group for group in oracle.groups.values() if not group.users]
        kept: list[_Group] = []
        size = 0
        for group in reversed(idle):
            size += group.held_bytes
            if self._is_useful(oracle, group) and len(kept) < KEPT_GROUPS and size <= KEPT_BYTES:
                kept.append(group)
        return [group for group in idle if group not in kept]

    def _is_useful(self, oracle: _Oracle, group: _Group) -> bool:
        """Whether another job may come for it."""
        caller = group.caller
        more = caller is None or not (caller.single or caller.cancelled)
        return (
            more
            and self.share
            and not (group.owner or group.spoiled)
            and group.jobs < JOBS_PER_SECRET
            and oracle.open_to_new
        )

    def _bury_lost(self, zygote: Zygote | None = None) -> None:
        """End the processes that serve nobody and will not, and those of a zygote before this one."""
        for oracle in list(self._oracles):
            if (
                oracle.lost
                or (zygote is not None and oracle.zygote is not zygote)
                or (not oracle.open_to_new and not oracle.users)
            ):
                self._oracles.remove(oracle)
                with oracle.lock:
                    oracle.close()


def _forget(oracle: _Oracle, group: _Group) -> None:
    with oracle.lock:
        if oracle.lost:
            return
        oracle.child.send({"do": "close", "group": group.number})
        try:  # others are let in when its memory is free, not before
            wait_for(oracle.child, (), time.monotonic() + CLOSE_S)
        except (ChildEnded, DeadlineExceeded, Cancelled):
            oracle.lost = True
