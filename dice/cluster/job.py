"""Hosts at work and what they are asked, with the waiting for answers: from the driver's side.

A question may be asked of several hosts: where one falls silent another is asked too, and the first answer wins. Each
is the answer to the same question, so that it does not matter whose it is, and it counts once.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from ray.exceptions import RayError, RayTaskError

from dice.cluster.connect import Node, first_line
from dice.cluster.host import HostFacts
from dice.cluster.peer import CONTROL, Peer
from dice.verify.sandbox.process import Cancelled

Ask = Callable[[Any, int], Any]
"""From a host's actor and the job's number to the reference of the answer."""

COPIES = 2  # hosts that are asked at a time: a pair that silences hosts must not go from one to the next
SUSPECTS = 1 / 4  # of a host's places, for jobs of which each may be what ended a host
_numbers = itertools.count()


@dataclass(eq=False)
class Member(Peer):
    """A host at work. `jobs`: what it has under way. While it is silent it gets none."""

    node: Node
    facts: HostFacts
    places: int
    jobs: set[Job] = field(default_factory=set)
    faults: int = 0
    rests_until: float = 0.0

    @property
    def load(self) -> float:
        return len(self.jobs) / self.places

    @property
    def suspects(self) -> list[Job]:
        """Its jobs that may be what ends hosts."""
        return [job for job in self.jobs if job.losses]

    def may_have(self, job: Job) -> bool:
        """Whether there is a place for it, among suspects where it is one."""
        if self.silent or job in self.jobs or len(self.jobs) >= self.places:
            return False
        others = self.suspects if job.losses else []
        if any(job.losses > 1 or other.losses > 1 for other in others):
            return False
        return len(others) < max(1, int(SUSPECTS * self.places))


@dataclass(frozen=True, slots=True)
class Asking:
    """One asking of one host; `number` is that of all askings of this process."""

    member: Member
    number: int = field(default_factory=lambda: next(_numbers))


@dataclass(frozen=True, slots=True)
class Answer:
    """What a host answered or, where that is an `error`, raised."""

    asking: Asking
    value: Any = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Lost:
    """The host's process, or the whole host, ended before it answered; `why` is one line."""

    asking: Asking
    why: str


@dataclass(frozen=True, slots=True)
class Silent:
    """A host says nothing any more, neither to this asking nor to others."""

    asking: Asking


class Job:
    """A question that is asked until a host answers it.

    `losses`: hosts that were lost while it was under way there and may have been why; `strikes`: those of them that
    were lost over nothing else, as far as it can be told.
    `large`: a host said that it has no room for it. `avoids`: the host whose machinery failed on it last.
    `asked`: the hosts that have it under way. What comes from any other asking is nobody's.
    """

    def __init__(self, ask: Ask, group: str = "") -> None:
        self.group = group
        self.losses = 0
        self.strikes = 0
        self.large = False
        self.avoids = ""
        self.asked: list[Asking] = []
        self.called_off = False
        self._ask = ask
        self._heard: queue.SimpleQueue[Answer | Lost | Silent | None] = queue.SimpleQueue()

    @property
    def wants_host(self) -> bool:
        """Whether nobody who is heard of works on it."""
        return self._heard.empty() and len(self.asked) < COPIES and all(one.member.silent for one in self.asked)

    @property
    def is_particular(self) -> bool:
        """Whether there are free places that it may not have."""
        return bool(self.losses or self.large or self.avoids or self.asked)

    def ask(self, asking: Asking) -> None:
        """Have a host begin with it."""
        try:
            answer = self._ask(asking.member.actor, asking.number).future()
            answer.add_done_callback(lambda done: self._take(asking, done))
        except RayError as error:
            self._heard.put(Lost(asking, first_line(error)))

    def hear(self, member: Member, loss: str = "") -> None:
        """A host fell silent or, where it is said why, is lost."""
        for asking in list(self.asked):
            if asking.member is member:
                self._heard.put(Lost(asking, loss) if loss else Silent(asking))

    def wait(self) -> Answer | Lost | Silent | None:
        """What happens next; None where it is of an asking that nobody waits for any more. Raises `Cancelled`."""
        heard = None if self.called_off else self._heard.get()
        if self.called_off:
            raise Cancelled
        return heard if heard is not None and heard.asking in self.asked else None

    def kill(self) -> None:
        """Wait no longer, and have the hosts end what they do."""
        self.called_off = True
        self._heard.put(None)
        for asking in list(self.asked):
            leave(asking)

    def _take(self, asking: Asking, done: Future[Any]) -> None:
        error = done.exception()
        if isinstance(error, RayError) and not isinstance(error, RayTaskError):
            self._heard.put(Lost(asking, first_line(error)))
            return
        asking.member.is_heard()
        if error is None:
            self._heard.put(Answer(asking, done.result()))
        else:
            self._heard.put(Answer(asking, error=error.cause if isinstance(error, RayTaskError) else error))


def leave(asking: Asking) -> None:
    """Have a host end what it was asked; one that is silent, when it is heard of again."""
    with contextlib.suppress(RayError):
        asking.member.actor.cancel.options(concurrency_group=CONTROL).remote(asking.number)
