"""Processes of references that are kept: a few trusted ones per device, each serving many jobs of many problems.

A CUDA context costs a fifth of a second that the driver gives to one process at a time, so a verdict may cost the
candidate's alone. Jobs of one problem under one secret form a *group*: its inputs are drawn, and its reference run,
once. What a candidate sees of a group is one folder of input files, which it can only read; expected outputs never
leave the process's memory. A group's secret serves a limited number of jobs and the jobs of one caller only.

A process answers one request at a time, so whose request it died in is known; jobs of other groups are run once more.
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
from typing import Any, TypeVar

from dice.problem import Problem
from dice.verdict import Backend
from dice.verify.ipc import messages as m
from dice.verify.ipc.encoding import Malformed, is_a, read, to_json
from dice.verify.options import Options
from dice.verify.sandbox.cancel import Cancellation, Spawner
from dice.verify.sandbox.jail import Limits
from dice.verify.sandbox.process import (
    Cancelled,
    Child,
    ChildEnded,
    DeadlineExceeded,
    MachineryError,
    Zygote,
    wait_for,
)
from dice.verify.sandbox.roles import REFERENCE
from dice.verify.sandbox.scratch import Scratch
from dice.verify.supervisor.gpu_lock import CONTEXTS

NEVER = 1 << 62  # bytes
JOBS_PER_SECRET = 64
GROUPS_PER_PROCESS = 300  # then it is replaced: problems leave traces in a process
KEPT_GROUPS = 8  # without a job, per process
KEPT_BYTES = 1 << 30  # of inputs and outputs of groups without a job, per process
REFERENCE_TMP_MB = 1024  # its /tmp and /dev/shm, each: compilers of PyTorch's write there
CONTEXT_S = 60.0  # for a process's context, which few others are made beside
CLOSE_S = 30.0  # for freeing what a group holds
SECRET_BITS, SEED_BITS = 63, 31


M = TypeVar("M")
# The settings of a group that its process is told.
OPENED_WITH = ("source", "protocol", "scale", "trials", "vary", "limit_s", "threads", "seed", "large_bytes", "shares")


class ReferenceLost(MachineryError):
    """The process was lost in somebody else's request."""


class ReferenceUnusable(Exception):
    """The problem's own reference does not work; the message says how. `lacks_gpu_memory`: it needs more memory of the
    GPU than was left. `own`: by its own code, on any machine."""

    def __init__(self, message: str, lacks_gpu_memory: bool = False, own: bool = False):
        super().__init__(message)
        self.lacks_gpu_memory, self.own = lacks_gpu_memory, own


@dataclass
class _Group:
    """One problem under one secret in one process."""

    number: int
    settings: ReferenceSettings
    caller: Cancellation | None  # whose secret it is; None for a secret that is no secret
    folder: Path
    secret: int
    seeds: tuple[int, int]  # of the reference's parameters, and of its second set
    answers: dict[type[Any], Any] = field(default_factory=dict)  # to commands that are the same for all its jobs
    owner: Session | None = None  # whose it is alone, where it cannot be shared
    users: int = 0
    jobs: int = 0
    held_bytes: int = 0
    spoiled: bool = False  # by a lack of memory: of no use to more jobs


class _ReferenceProcess:
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
        own = str(self.scratch.root / "reference")
        limits = Limits(memory_mb, own, (str(inputs),), view, tmp_mb=REFERENCE_TMP_MB, secret=True, gpu=gpu)
        self.backend, self.memory_mb = backend, memory_mb
        self.zygote = spawner.zygote
        # Not the caller's to kill: others use it too. A request is, while it lasts.
        self.child: Child = spawner.zygote.spawn(REFERENCE, limits)
        self.ready = False

    def get_ready(self, others: Iterable[Child]) -> None:
        """Wait for its context, if that is still to be made: no problem's time. Raises `ChildEnded`."""
        if self.ready:
            return
        with CONTEXTS:
            self.child.send(m.OpenDeviceAs(self.backend))
            try:
                wait_for(self.child, others, time.monotonic() + CONTEXT_S)
            except DeadlineExceeded:
                raise MachineryError(f"the CUDA context of the reference's process took over {CONTEXT_S:g} s") from None
        self.ready = True

    @property
    def users(self) -> int:
        return sum(group.users for group in self.groups.values())

    @property
    def open_to_new(self) -> bool:
        return not (self.lost or self.retired or self.child.lost or self.served >= GROUPS_PER_PROCESS)

    def note(self, answer: m.Answer) -> None:
        """Retire it in time: memory grows."""
        self.retired = self.retired or answer.memory_mb > self.memory_mb // 2

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
class ReferenceSettings:
    """What a group is opened with; two jobs share one only where all of it is equal."""

    problem: str  # id
    source: str
    protocol: str
    scale: float | None
    trials: int
    vary: bool
    limit_s: float
    threads: int
    seed: int | None
    large_bytes: int  # of a trial: so much crosses no file
    shares: bool  # the GPU's memory with other jobs: what it lacks, they may have

    @classmethod
    def of(
        cls, problem: Problem, options: Options, vary: bool, threads: int, lends: bool, shares: bool
    ) -> ReferenceSettings:
        return cls(
            problem=problem.id,
            source=problem.source,
            protocol=options.protocol,
            scale=options.scale,
            trials=options.trials,
            vary=vary,
            limit_s=options.run_timeout_s,
            threads=threads,
            seed=options.seed,
            large_bytes=options.large_bytes if lends else NEVER,
            shares=shares,
        )


class Session:
    """One job's use of a group, until `close`. For one thread."""

    def __init__(
        self,
        pool: ReferencePool,
        process: _ReferenceProcess,
        group: _Group,
        settings: ReferenceSettings,
        spawner: Spawner,
    ):
        self._pool, self._process, self._group, self._settings = pool, process, group, settings
        self._cancellation = spawner.cancellation

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.give_back(self._process, self._group)

    @property
    def inputs(self) -> Path:
        """The folder for the candidate to read, and only to read."""
        return self._group.folder

    @property
    def constructor(self) -> Path:
        """The folder for a process that may see no inputs."""
        return self._group.folder / m.CONSTRUCTOR

    @property
    def seeds(self) -> tuple[int, int]:
        """Of the parameters, and of the second set of parameters."""
        return self._group.seeds

    def open(self, others: Iterable[Child] = ()) -> m.GroupOpened:
        """How large the problem is, and how much memory of the GPU it needs; takes none of it. See `ask`."""
        told = {name: value for name, value in asdict(self._settings).items() if name in OPENED_WITH}
        group = self._group
        command = m.OpenGroup(
            inputs=str(group.folder), secret=group.secret, **told | {"seed": group.seeds[0]}, fresh_seed=group.seeds[1]
        )
        return self._ask_once(command, m.GroupOpened, others)

    def construct(self, others: Iterable[Child] = ()) -> m.ReferenceConstructed:
        """Construct the reference, or find it constructed; see `ask`."""
        constructed = self._ask_once(m.ConstructReference(), m.ReferenceConstructed, others)
        self._pool.parameter_bytes[self._settings.problem] = constructed.state_bytes
        return constructed

    def plan(self, others: Iterable[Child] = ()) -> m.Planned:
        """The trials; see `ask`."""
        return self._ask_once(m.PlanTrials(), m.Planned, others)

    def draw(self, command: m.DrawTrial, candidate: Child) -> m.Drawn:
        """Inputs and outputs of one trial, or find them drawn; see `ask`. What is lent for them is sent on."""
        with self._process.lock:
            drawn, descriptors = self._exchange(command, m.Drawn, (candidate,), {})
        if drawn.lent:
            candidate.send(m.MapMemory(command.inputs, drawn.lent), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        if not drawn.shareable:
            self._pool.do_not_share(self._settings)
        return drawn

    def draw_for_nobody(self, command: m.DrawTrial) -> None:
        """Have a trial drawn that no candidate will see; see `ask`."""
        with self._process.lock:
            _, descriptors = self._exchange(command, m.Drawn, (), {})
        for descriptor in descriptors:
            os.close(descriptor)

    def check_kept(self) -> None:
        """Raise `ReferenceLost` when the inputs may be gone: what a candidate missed then was not its fault."""
        if self._process.lost:
            raise ReferenceLost("the reference's process was lost")
        if self._group.owner not in (None, self):
            raise ReferenceLost("the problem is too large to share its inputs")

    def ask(
        self, command: Any, answer: type[M], others: Iterable[Child] = (), files: Mapping[str, int] | None = None
    ) -> M:
        """The reference's answer. `files`: open files of the candidate's, by name.

        Raises `ReferenceUnusable` when the problem is at fault, `MachineryError` when we are. What `others` print
        meanwhile is drained. Of large trials one is kept, so whoever drew the first owns the group: whatever another
        asks for could take the owner's trial away.
        """
        with self._process.lock:
            return self._exchange(command, answer, others, files or {})[0]

    def _ask_once(self, command: Any, answer: type[M], others: Iterable[Child]) -> M:
        """The answer that any job of the group got to the same command, or gets now."""
        group = self._group
        with self._process.lock:
            self._cancellation.check()
            known: M | ReferenceUnusable | None = group.answers.get(type(command))
            if known is None:
                try:
                    known = self._exchange(command, answer, others, {})[0]
                except ReferenceUnusable as failure:
                    known = failure
                if not group.spoiled and not self._process.lost:
                    group.answers[type(command)] = known
        if isinstance(known, ReferenceUnusable):
            raise ReferenceUnusable(str(known), known.lacks_gpu_memory, known.own)
        return known

    def _exchange(
        self, command: Any, kind: type[M], others: Iterable[Child], files: Mapping[str, int]
    ) -> tuple[M, list[int]]:
        """One command and its answer, with the open files that came with it. The lock is held."""
        process, group = self._process, self._group
        self._cancellation.check()
        self.check_kept()
        request = m.Request(group.number, tuple(files), to_json(command))
        envelope = self._request(request, others, tuple(files.values()))
        said: Any = envelope.answer
        if is_a(said, m.ReferenceFault):
            raise self._failure(read(said, m.ReferenceFault), envelope)
        answer = read(said, kind)
        descriptors: list[int] = []
        if isinstance(answer, m.Drawn):
            descriptors = [process.child.descriptors_sent.popleft() for _ in answer.lent]
            if not answer.shareable:
                group.owner = self
        group.held_bytes = envelope.held_bytes
        process.note(envelope)
        return answer, descriptors

    def _failure(self, fault: m.ReferenceFault, envelope: m.Answer) -> Exception:
        if fault.machine:
            return MachineryError(fault.message)
        if fault.broken:
            self._pool.note_fragile(self._settings)
            return ReferenceUnusable(fault.message)
        self._group.held_bytes = envelope.held_bytes
        self._process.note(envelope)
        self._group.spoiled = self._group.spoiled or fault.spoiled
        return ReferenceUnusable(fault.message, fault.lacks_memory, fault.own)

    def _request(self, request: m.Request, others: Iterable[Child], descriptors: tuple[int, ...]) -> m.Answer:
        process, limit_s = self._process, self._settings.limit_s
        answered = False
        try:
            self._cancellation.watch(process.child)
            process.get_ready(others)
            started = time.monotonic()
            process.child.send(request, descriptors)
            answer = read(wait_for(process.child, others, started + limit_s), m.Answer)
            # After an error on the GPU its process can do nothing there any more.
            answered = not (is_a(answer.answer, m.ReferenceFault) and read(answer.answer, m.ReferenceFault).broken)
            return answer
        except DeadlineExceeded:
            raise ReferenceUnusable(f"it took over {limit_s:g} s") from None
        except Malformed as error:  # the problem's own code may write to that channel
            raise ReferenceUnusable(f"its process gave no proper answer: {error}") from None
        except Cancelled:
            self._cancellation.check()  # or else it was meant for the request before this one
            raise ReferenceLost("the reference's process was killed with a job that was called off") from None
        except ChildEnded as end:
            if end.ended.ours:
                raise MachineryError(f"the reference's process was lost: {process.how_it_ended(end)}") from None
            self._pool.note_fragile(self._settings)
            raise ReferenceUnusable(process.how_it_ended(end)) from None
        finally:
            process.lost = process.lost or not answered
            self._cancellation.forget(process.child)


class ReferencePool:
    """The processes of one device: at most `count` that take new groups. Thread-safe."""

    def __init__(self, backend: Backend, gpu: str, count: int):
        self._backend: Backend = backend
        self.gpu, self._count = gpu, count
        self._lock = threading.Lock()
        self._processes: list[_ReferenceProcess] = []
        self._numbers = itertools.count()
        self._large: set[ReferenceSettings] = set()  # problems whose inputs are too large to keep
        self._fragile: set[str] = set()  # problems that ended a process
        self.parameter_bytes: dict[str, int] = {}  # of a problem's parameters and buffers, once they were made
        self._unlendable: set[str] = set()  # problems with a trial whose memory a candidate could not map
        self.share = True  # whether jobs may share a group: not where nothing keeps candidates from writing to it

    def open(self, spawner: Spawner, settings: ReferenceSettings, memory_mb: int, view: tuple[str, ...]) -> Session:
        """Join the group that fits, or start one, in a process that sees `view`. Raises `MachineryError`."""
        caller = spawner.cancellation if settings.seed is None else None
        with self._lock:
            self._bury_lost(spawner.zygote)
            process, group = self._find(settings, caller) or self._start(spawner, settings, caller, memory_mb, view)
            group.users += 1
            group.jobs += 1
        return Session(self, process, group, settings, spawner)

    def do_not_share(self, settings: ReferenceSettings) -> None:
        """Give each job of these settings a group of its own from now on."""
        with self._lock:
            self._large.add(settings)

    def note_fragile(self, settings: ReferenceSettings) -> None:
        """The reference ended its process, or what that can do on the GPU: by values that its problem does not draw,
        most likely. It meets no others from now on, so that no other jobs of a process are lost to it again."""
        with self._lock:
            self._fragile.add(settings.problem)

    def do_not_lend(self, problem: Problem) -> None:
        """Its large trials go by file from now on."""
        self._unlendable.add(problem.id)

    def lends(self, problem: Problem) -> bool:
        return problem.id not in self._unlendable

    def is_fragile(self, problem: Problem) -> bool:
        return problem.id in self._fragile

    def give_back(self, process: _ReferenceProcess, group: _Group) -> None:
        """A job is done with a group; those that nobody uses are forgotten when there are too many."""
        with self._lock:
            group.users -= 1
            doomed = self._superfluous(process)
            for one in doomed:
                del process.groups[one.number]
            self._bury_lost()
        for one in doomed:
            _forget(process, one)

    def close(self) -> None:
        with self._lock:
            for process in self._processes:
                process.close()
            self._processes.clear()

    def _find(
        self, settings: ReferenceSettings, caller: Cancellation | None
    ) -> tuple[_ReferenceProcess, _Group] | None:
        if not self.share or settings in self._large:
            return None
        for process in self._processes:
            for group in process.groups.values():
                fits = group.settings == settings and group.caller is caller and not group.spoiled
                if fits and group.jobs < JOBS_PER_SECRET and not process.lost:
                    return process, group
        return None

    def _start(
        self,
        spawner: Spawner,
        settings: ReferenceSettings,
        caller: Cancellation | None,
        memory_mb: int,
        view: tuple[str, ...],
    ) -> tuple[_ReferenceProcess, _Group]:
        ready = [process for process in self._processes if process.open_to_new and process.memory_mb >= memory_mb]
        process = min(ready, key=lambda one: one.users, default=None)
        if process is None or (process.users and len(ready) < self._count):
            process = _ReferenceProcess(spawner, self._backend, self.gpu, memory_mb, view)
            self._processes.append(process)
        number = next(self._numbers)
        folder = process.scratch.root / "inputs" / str(number)
        (folder / m.CONSTRUCTOR).mkdir(parents=True)
        seed = settings.seed
        secret = secrets.randbits(SECRET_BITS) if seed is None else seed
        seeds = (
            (secrets.randbits(SEED_BITS), secrets.randbits(SEED_BITS))
            if seed is None
            else (seed, (seed + 1) % (1 << SEED_BITS))
        )
        group = process.groups[number] = _Group(number, settings, caller, folder, secret, seeds)
        process.served += 1
        return process, group

    def _superfluous(self, process: _ReferenceProcess) -> list[_Group]:
        """Groups without a job, the oldest first, beyond what is worth keeping."""
        idle = [group for group in process.groups.values() if not group.users]
        kept: list[_Group] = []
        size = 0
        for group in reversed(idle):
            size += group.held_bytes
            if self._is_useful(process, group) and len(kept) < KEPT_GROUPS and size <= KEPT_BYTES:
                kept.append(group)
        return [group for group in idle if group not in kept]

    def _is_useful(self, process: _ReferenceProcess, group: _Group) -> bool:
        """Whether another job may come for it."""
        caller = group.caller
        more = caller is None or not (caller.single or caller.cancelled)
        return (
            more
            and self.share
            and not (group.owner or group.spoiled)
            and group.jobs < JOBS_PER_SECRET
            and process.open_to_new
        )

    def _bury_lost(self, zygote: Zygote | None = None) -> None:
        """End the processes that serve nobody and will not, and those of a zygote before this one."""
        for process in list(self._processes):
            if (
                process.lost
                or (zygote is not None and process.zygote is not zygote)
                or (not process.open_to_new and not process.users)
            ):
                self._processes.remove(process)
                with process.lock:
                    process.close()


def _forget(process: _ReferenceProcess, group: _Group) -> None:
    with process.lock:
        if process.lost:
            return
        process.child.send(m.Request(group.number, (), to_json(m.CloseGroup())))
        try:  # others are let in when its memory is free, not before
            wait_for(process.child, (), time.monotonic() + CLOSE_S)
        except (ChildEnded, DeadlineExceeded, Cancelled):
            process.lost = True
