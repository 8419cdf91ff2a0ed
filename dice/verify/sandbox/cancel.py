"""Calling work off: told once, from any thread, and every process that the work then has is killed."""

from __future__ import annotations

import threading
import weakref
from typing import Protocol

from dice.verify.sandbox.jail import Limits
from dice.verify.sandbox.process import Cancelled, Child, Zygote
from dice.verify.sandbox.roles import Role


class Killable(Protocol):
    """Work under way: a child of this machine, or a job on another one."""

    def kill(self) -> None: ...


class Cancellation:
    """What the jobs of one caller share; `single`: there is but one. Thread-safe."""

    def __init__(self, single: bool = False) -> None:
        self.single = single
        self._lock = threading.Lock()
        self._children: weakref.WeakSet[Killable] = weakref.WeakSet()
        self.cancelled = False

    def cancel(self) -> None:
        """Kill the children that are watched, and any that will be."""
        with self._lock:
            self.cancelled = True
            children = list(self._children)
        for child in children:
            child.kill()

    kill = cancel  # so that one may be watched by another

    def single_job(self) -> Cancellation:
        """That of one job, which is called off with all the others. Raises `Cancelled` when they already were."""
        return self._of(Cancellation(single=True))

    def several_jobs(self) -> Cancellation:
        """That of jobs which have something in common, called off with all the others. Who made it calls it off after
        the last of them, so that nothing is kept for more. Raises `Cancelled` when the others already were."""
        return self._of(Cancellation())

    def _of(self, own: Cancellation) -> Cancellation:
        self.watch(own)
        return own

    def watch(self, child: Killable) -> None:
        """Have `child` killed when the work is called off. Raises `Cancelled` when it already was."""
        with self._lock:
            if not self.cancelled:
                self._children.add(child)
                return
        child.kill()
        raise Cancelled

    def forget(self, child: Killable) -> None:
        with self._lock:
            self._children.discard(child)

    def check(self) -> None:
        """Raises `Cancelled` when the work was called off."""
        if self.cancelled:
            raise Cancelled


class Spawner:
    """A zygote as the jobs of one caller use it: what they start dies when they are called off."""

    def __init__(self, zygote: Zygote, cancellation: Cancellation):
        self.zygote = zygote
        self.cancellation = cancellation

    def spawn(self, role: Role, limits: Limits) -> Child:
        """Start a jailed child. Raises `MachineryError`, `Cancelled`."""
        self.cancellation.check()
        child = self.zygote.spawn(role, limits)
        try:
            self.cancellation.watch(child)
        except Cancelled:
            with child:
                raise
        return child


Starter = Zygote | Spawner  # whatever starts children
