"""The hosts of a cluster that verify: who takes the next job, what is under way, what happens when a host is lost.

A job goes to the host with the smallest share of its places taken. A host is never given more than it takes at once, so
that nothing waits where it could run elsewhere, and what a lost host had to do is little. Answers belong to one asking:
when a host is lost its process is ended, each of its jobs is asked anew, and an answer that comes late is nobody's.

A job may be what ends hosts. All jobs of a lost host are suspects. A host has few of them at a time and is lost over
nobody else, so that a second loss leaves few, of which a host then has one at a time. A job that ended a host as its
only suspect twice is set aside. Were it one at a time from the first loss on, places would be empty meanwhile.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import ray

from dice.cluster.connect import ASK_S, Node, nodes, pinned
from dice.cluster.host import Host, HostFacts, MakeVerifier
from dice.cluster.job import CONTROL, HostLost, Job, kill_actor
from dice.errors import MachineError
from dice.verify.sandbox.process import Cancelled
from dice.verify.supervisor.devices import MAX_CONCURRENT

log = logging.getLogger(__name__)

STRIKES = 2  # hosts lost over a job as their only suspect, before it is set aside
SUSPECTS = 1 / 4  # of a host's places, for jobs of which each may be what ended a host
LOOK_S = 2.0  # seconds between two looks at which nodes there are
NOBODY_S = 120.0  # seconds without any host, after which jobs fail
FAULTS_IN_A_ROW = 3  # verdicts of a host that say its machinery failed, before it rests
REST_S = 30.0
NOTICE_S = 1.0  # a waiting job looks again so often, whatever it was told


class Poisonous(Exception):
    """A job that ended its host again and again; the message is one sentence."""


class NoHost(Exception):
    """There was no host for so long that jobs are given up; the message is one sentence."""


@dataclass(eq=False)
class Member:
    """A host at work. `jobs`: what it has under way."""

    node: Node
    actor: Any
    facts: HostFacts
    places: int
    jobs: set[Job] = field(default_factory=set)
    faults: int = 0
    rests_until: float = 0.0
    lost: bool = False

    @property
    def load(self) -> float:
        return len(self.jobs) / self.places

    @property
    def suspects(self) -> list[Job]:
        """Its jobs that may be what ends hosts."""
        return [job for job in self.jobs if job.losses]

    def may_have(self, job: Job) -> bool:
        """Whether there is a place for it, among suspects where it is one."""
        if len(self.jobs) >= self.places:
            return False
        others = self.suspects if job.losses else []
        if any(job.losses > 1 or other.losses > 1 for other in others):
            return False
        return len(others) < max(1, int(SUSPECTS * self.places))


class Hosts:
    """Hires a host on every node, and again where one was lost or joins later. Thread-safe.

    `wanted` says on which nodes, `gpus` with how many of their GPUs; `check` is given all hosts that there are at
    first, and says which may join later.
    """

    def __init__(
        self,
        make: MakeVerifier,
        wanted: Callable[[Node], bool],
        gpus: Callable[[Node], int],
        check: Callable[[list[HostFacts]], Callable[[HostFacts], bool]],
    ) -> None:
        """Raises `MachineError` where no node can verify, and what `check` raises."""
        self.lost = 0
        self._make, self._wanted, self._gpus = make, wanted, gpus
        self._changed = threading.Condition()
        self._members: dict[str, Member] = {}
        self._refused: set[str] = set()
        self._large: set[str] = set()
        self._nobody_since = time.monotonic()
        self._welcome: Callable[[HostFacts], bool] = lambda facts: True
        self._closed = threading.Event()
        self._look = threading.Event()
        self._hiring: set[str] = set()
        self._starting: list[Any] = []  # actors that have not told of their hosts yet
        self._hirers: list[threading.Thread] = []
        self._admit(self._first(check, [node for node in nodes() if wanted(node)]))
        self._watcher = threading.Thread(target=self._watch, name="cluster-watch", daemon=True)
        self._watcher.start()

    @property
    def members(self) -> list[Member]:
        with self._changed:
            return list(self._members.values())

    def run(self, job: Job) -> tuple[Any, Member]:
        """The answer to a job, and who gave it. Raises `Poisonous`, `NoHost`, `Cancelled`, and what a host raised."""
        while True:
            with self._taken(job) as member:
                try:
                    return job.ask(member.actor), member
                except HostLost as error:
                    self._lose(member, str(error))
            if job.strikes >= STRIKES:
                raise Poisonous(f"The host that this pair was verified on was lost {job.losses} times")

    def report(self, member: Member, fault: bool) -> None:
        """Whether the machinery of a host failed: one where it fails again and again gets no jobs for a while, lest it
        fails all of them, being the first to be free."""
        with self._changed:
            member.faults = member.faults + 1 if fault else 0
            if member.faults >= FAULTS_IN_A_ROW:
                member.faults, member.rests_until = 0, time.monotonic() + REST_S
                log.warning("%s failed on %d pairs and rests", member.node, FAULTS_IN_A_ROW)

    def has_more_room(self, member: Member) -> bool:
        """Whether another host has more memory than this one."""
        return any(other.facts.memory > member.facts.memory for other in self.members)

    def needs_room(self, job: Job) -> None:
        """From now on, jobs of this one's group go to hosts with the most memory alone."""
        job.large = True
        with self._changed:
            self._large.add(job.group)

    def close(self) -> None:
        """End all hosts."""
        self._closed.set()
        self._look.set()
        self._watcher.join()
        for actor in [*self._starting, *(member.actor for member in self.members)]:
            kill_actor(actor)
        for hirer in self._hirers:  # who asked Ray for anything later would start a cluster of its own
            hirer.join()
        with self._changed:
            self._members.clear()
            self._changed.notify_all()

    @contextmanager
    def _taken(self, job: Job) -> Iterator[Member]:
        """A place on a host, waited for."""
        with self._changed:
            while (member := self._choose(job)) is None:
                if job.called_off or self._closed.is_set():
                    raise Cancelled
                if not self._members and time.monotonic() - self._nobody_since > NOBODY_S:
                    raise NoHost(f"The cluster has had no host for {NOBODY_S:.0f} s")
                self._changed.wait(NOTICE_S)
            member.jobs.add(job)
        try:
            yield member
        finally:
            with self._changed:
                member.jobs.discard(job)
                self._changed.notify()

    def _choose(self, job: Job) -> Member | None:
        """The host with the smallest share of its places taken, of those that may have the job."""
        now = time.monotonic()
        able = list(self._members.values())
        able = [one for one in able if one.rests_until <= now] or able
        able = [one for one in able if one.node.id != job.avoids] or able
        if job.large or job.group in self._large:
            most = max((one.facts.memory for one in able), default=0)
            able = [one for one in able if one.facts.memory == most]
        free = [one for one in able if one.may_have(job)]
        return min(free, key=lambda one: one.load, default=None)

    def _lose(self, member: Member, why: str) -> None:
        """A host is gone: told by the first of its jobs that hears of it."""
        with self._changed:
            if member.lost:
                return
            member.lost = True
            self.lost += 1
            self._members.pop(member.node.id, None)
            if not self._members:
                self._nobody_since = time.monotonic()
            suspects = member.suspects
            for job in suspects or member.jobs:
                job.losses += 1
                job.strikes += len(suspects) == 1
            self._changed.notify_all()
        log.info("lost %s with %d pairs under way: %s", member.node, len(member.jobs), why)
        kill_actor(member.actor)  # it may live on where only the way to it is broken
        self._look.set()

    def _watch(self) -> None:
        """Hire where a node has no host: after a loss, and when nodes join. Nodes do not wait for each other."""
        while not self._closed.is_set():
            self._look.wait(LOOK_S)
            self._look.clear()
            try:
                alive = {node.id: node for node in nodes()}
            except ray.exceptions.RayError as error:  # the head is away
                log.info("the cluster does not say which nodes it has: %s", error)
                continue
            for member in self.members:
                if member.node.id not in alive:
                    self._lose(member, "its node is gone")
            present = {member.node.id for member in self.members} | self._refused | self._hiring
            for node in alive.values():
                if node.id not in present and self._wanted(node) and not self._closed.is_set():
                    self._hiring.add(node.id)
                    hirer = threading.Thread(target=self._replace, args=(node,), name="cluster-hire", daemon=True)
                    self._hirers = [one for one in self._hirers if one.is_alive()] + [hirer]
                    hirer.start()

    def _replace(self, node: Node) -> None:
        member = self._hire(node)
        if isinstance(member, Member):
            self._admit([member])
        else:
            log.info("no host yet: %s", member)
        self._hiring.discard(node.id)

    def _first(
        self, check: Callable[[list[HostFacts]], Callable[[HostFacts], bool]], fresh: list[Node]
    ) -> list[Member]:
        """The hosts to begin with."""
        with ThreadPoolExecutor(max(1, len(fresh))) as pool:
            answers = list(pool.map(self._hire, fresh))
        hired = [one for one in answers if isinstance(one, Member)]
        troubles = [one for one in answers if isinstance(one, str)]
        for trouble in troubles:
            log.warning("no host: %s", trouble)
        if not hired:
            why = troubles[0] if troubles else "it has no node with what is needed to give."
            raise MachineError(f"No host of the cluster can verify: {why}")
        try:
            self._welcome = check([member.facts for member in hired])
        except BaseException:
            for member in hired:
                kill_actor(member.actor)
            raise
        return hired

    def _hire(self, node: Node) -> Member | str:
        """Start a host on a node; a sentence where it cannot verify."""
        gpus = self._gpus(node)
        places = node.cpus + MAX_CONCURRENT * gpus
        actor_class: Any = ray.remote
        there = actor_class(
            num_cpus=node.cpus, num_gpus=gpus, scheduling_strategy=pinned(node), max_restarts=0, max_task_retries=0,
            max_concurrency=places, concurrency_groups={CONTROL: 1},
        )(Host)  # fmt: skip
        actor = there.remote(self._make, node.cpus, places)
        self._starting.append(actor)
        try:
            facts = ray.get(actor.facts.options(concurrency_group=CONTROL).remote(), timeout=ASK_S)
        except Exception as error:  # whatever it is, it is that node's
            kill_actor(actor)
            return f"{node}: {_trouble(error)}"
        finally:
            self._starting.remove(actor)
        return Member(node, actor, facts, places)

    def _admit(self, hired: list[Member]) -> None:
        with self._changed:
            for member in hired:
                if self._closed.is_set() or not self._welcome(member.facts):
                    self._refused.add(member.node.id)
                    log.info("%s is left out (%s)", member.node, member.facts.kind)
                    kill_actor(member.actor)
                else:
                    self._members[member.node.id] = member
            self._changed.notify_all()


def _trouble(error: Exception) -> str:
    if isinstance(error, ray.exceptions.GetTimeoutError):
        return f"no answer within {ASK_S:.0f} s; its cores or GPUs may be taken by other work of the cluster."
    cause = getattr(error, "cause", None) or error
    return (str(cause).strip().splitlines() or [type(cause).__name__])[-1].rstrip(".") + "."
