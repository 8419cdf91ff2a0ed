"""The hosts of a cluster that verify: who takes the next job, what is under way, what happens when a host is lost.

A job goes to the host with the smallest share of its places taken. A host is never given more than it takes at once, so
that nothing waits where it could run elsewhere, and what a lost host had to do is little. When a host is lost its
process is ended and each of its jobs is asked anew; while it is only silent, each is asked of another one, too. The
first answer to a job is the answer, and one that comes later is nobody's.

A job may be what ends hosts. All jobs of a lost host are suspects. A host has few of them at a time and is lost over
nobody else, so that a second loss leaves few, of which a host then has one at a time. A job that ended a host as its
only suspect twice is set aside. Were it one at a time from the first loss on, places would be empty meanwhile.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

import ray

from dice.cluster.connect import Node, nodes
from dice.cluster.hiring import Hiring
from dice.cluster.host import HostFacts, MakeVerifier
from dice.cluster.job import Answer, Asking, Job, Lost, Member, leave
from dice.cluster.peer import kill_actor
from dice.cluster.pulse import Pulses
from dice.verify.sandbox.process import Cancelled

log = logging.getLogger(__name__)

STRIKES = 2  # hosts lost over a job as their only suspect, before it is set aside
LOOK_S = 2.0  # seconds between two looks at which nodes there are
NOBODY_S = 120.0  # seconds without any host, after which jobs fail
FAULTS_IN_A_ROW = 3  # verdicts of a host that say its machinery failed, before it rests
REST_S = 30.0
FIRST = 8  # of the jobs that wait, those that fresh ones make way for
NOTICE_S = 1.0  # a waiting job looks again so often, whatever it was told

Check = Callable[[list[HostFacts]], Callable[[HostFacts], bool]]
"""From all hosts that there are at first to whether another one may join later; may raise."""


class Poisonous(Exception):
    """A job that ended its host again and again; the message is one sentence."""


class NoHost(Exception):
    """There was no host for so long that jobs are given up; the message is one sentence."""


class Hosts:
    """Hires a host on every node, and again where one was lost or joins later. Thread-safe.

    `wanted` says on which nodes, `gpus` with how many of their GPUs; `check` is given all hosts that there are at
    first, and says which may join later. So may a node that does not answer now: it may be cut off.
    """

    def __init__(
        self,
        make: MakeVerifier,
        wanted: Callable[[Node], bool],
        gpus: Callable[[Node], int],
        check: Check,
    ) -> None:
        """Raises `MachineError` where no node can verify, and what `check` raises."""
        self.lost, self.hedged = 0, 0
        self._wanted, self._hiring = wanted, Hiring(make, gpus)
        self._changed = threading.Condition()
        self._members: dict[str, Member] = {}
        self._refused: set[str] = set()
        self._large: set[str] = set()
        self._nobody_since = time.monotonic()
        self._welcome: Callable[[HostFacts], bool] = lambda facts: True
        self._closed = threading.Event()
        self._look = threading.Event()
        self._busy: set[str] = set()  # nodes on which a process starts
        self._hirers: list[threading.Thread] = []
        self._late: set[Future[Member | str]] = set()
        self._waiting: dict[Job, None] = {}  # those to which some places are no good, in order
        self._admit(self._first(check, [node for node in nodes() if wanted(node)]))
        self._watcher = threading.Thread(target=self._watch, name="cluster-watch", daemon=True)
        self._watcher.start()
        self._pulses = Pulses(lambda: self.members, self._doubt, self._lose)

    @property
    def members(self) -> list[Member]:
        with self._changed:
            return list(self._members.values())

    def run(self, job: Job) -> tuple[Any, Member]:
        """The answer to a job, and who gave it. Raises `Poisonous`, `NoHost`, `Cancelled`, and what a host raised."""
        try:
            while True:
                if job.wants_host and (asking := self._place(job)) is not None:
                    job.ask(asking)
                heard = job.wait()
                if isinstance(heard, Answer):
                    self._give_back(job, heard.asking)
                    if heard.error is not None:
                        raise heard.error
                    return heard.value, heard.asking.member
                if isinstance(heard, Lost):
                    self._lose(heard.asking.member, heard.why)
                    self._give_back(job, heard.asking)
                    if job.strikes >= STRIKES:
                        raise Poisonous(f"The host that this pair was verified on was lost {job.losses} times")
        finally:
            for asking in list(job.asked):  # another one was first, or nobody is waited for any more
                leave(asking)
                self._give_back(job, asking)

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
        self._pulses.close()
        self._hiring.close()
        for member in self.members:
            kill_actor(member.actor)
        for hirer in self._hirers:
            hirer.join()
        wait(self._late)
        with self._changed:
            self._members.clear()
            self._changed.notify_all()

    def _place(self, job: Job) -> Asking | None:
        """A place on a host, waited for; none where the job needs it no longer."""
        with self._changed:
            particular = job.is_particular or job.group in self._large
            try:
                while (member := self._choose(job)) is None or not (particular or self._has_nobody_first()):
                    if job.called_off or self._closed.is_set():
                        raise Cancelled
                    if not job.wants_host:
                        return None
                    if not self._members and time.monotonic() - self._nobody_since > NOBODY_S:
                        raise NoHost(f"The cluster has had no host for {NOBODY_S:.0f} s")
                    if particular:
                        self._waiting[job] = None
                    self._changed.wait(NOTICE_S)
            finally:
                if self._waiting.pop(job, job) is None:
                    self._changed.notify_all()  # others may have made way for it
            self.hedged += bool(job.asked)
            asking = Asking(member)
            member.jobs.add(job)
            job.asked.append(asking)
            return asking

    def _give_back(self, job: Job, asking: Asking) -> None:
        with self._changed:
            asking.member.jobs.discard(job)
            job.asked.remove(asking)
            # Whoever is told of a place alone must be one who can take it.
            if self._waiting:
                self._changed.notify_all()
            else:
                self._changed.notify()

    def _has_nobody_first(self) -> bool:
        """Whether no job that waits already could begin now: one that is asked for the first time makes way for those
        of lost and silent hosts, which else would wait for as long as there are fresh ones."""
        return all(self._choose(job) is None for job in itertools.islice(self._waiting, FIRST))

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

    def _doubt(self, member: Member) -> None:
        """A host says nothing: its jobs look for another one."""
        with self._changed:
            member.silent = True
            log.info("%s says nothing; others are given its %d pairs, too", member.node, len(member.jobs))
            for job in member.jobs:
                job.hear(member)

    def _lose(self, member: Member, why: str) -> None:
        """A host is gone: told by whoever hears of it first. Its jobs, where they do not know yet."""
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
            for job in member.jobs:
                job.hear(member, why)
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
            self._hiring.forget_all_but(alive)
            self._staff(list(alive.values()))

    def _staff(self, alive: list[Node]) -> None:
        """Start what is missing on nodes: hosts and, beside those that have been at work for a while, spares."""
        members = {member.node.id: member for member in self.members}
        for node in alive:
            if node.id in self._refused | self._busy or not self._wanted(node) or self._closed.is_set():
                continue
            member = members.get(node.id)
            if member is not None and not self._hiring.wants_spare(node):
                continue
            self._busy.add(node.id)
            hirer = threading.Thread(target=self._start, args=(node, member), name="cluster-hire", daemon=True)
            self._hirers = [one for one in self._hirers if one.is_alive()] + [hirer]
            hirer.start()

    def _start(self, node: Node, host: Member | None) -> None:
        """A spare beside a host or, where there is none, a host."""
        if host is not None:
            self._hiring.keep_spare(host)
            self._look.set()  # the host may have been lost meanwhile
            self._busy.discard(node.id)
        else:
            self._join(node, self._hiring.hire(node))

    def _join(self, node: Node, hired: Member | str) -> None:
        """What came of hiring a host."""
        if isinstance(hired, Member):
            self._admit([hired])
        else:
            log.info("no host yet: %s", hired)
        self._busy.discard(node.id)

    def _first(self, check: Check, fresh: list[Node]) -> list[Member]:
        """The hosts to begin with. Those that are late join when they are there."""
        hired, late = self._hiring.hire_first(fresh)
        try:
            self._welcome = check([member.facts for member in hired])
        except BaseException:
            self._hiring.close()
            for member in hired:
                kill_actor(member.actor)
            raise
        for one, node in late.items():
            log.warning("%s does not answer yet; the others begin", node)
            self._busy.add(node.id)
            one.add_done_callback(lambda done: self._join(late[done], done.result()))
        self._late = set(late)
        return hired

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
