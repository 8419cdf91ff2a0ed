"""Starting hosts: on each node one process that verifies and, after a while, one more that can stand in for it.

A process takes seconds to start where a machine is busy, and the node's places are empty meanwhile. So a run that lasts
has a spare beside each host, which has its verifier ready and nothing to do. The cores and GPUs of a node are held by a
placement group of Ray's and not by the process, so that nobody else gets them between the end of one and the next.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Container, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from dice.cluster.connect import NODE_LABEL, Node
from dice.cluster.host import Host, MakeVerifier
from dice.cluster.job import Member
from dice.cluster.peer import CONTROL, kill_actor
from dice.errors import MachineError
from dice.verify.supervisor.devices import MAX_CONCURRENT

log = logging.getLogger(__name__)

SPARE_S = 5.0  # seconds from the start of a host to that of its first spare: short runs need none
PLACE_S = 60.0  # seconds for Ray to give us the cores and GPUs of a node
START_S = 600.0  # and for a process to be ready then, which may be one of many on a busy machine
LATE_S = 15.0  # seconds from the first host to begin with to the last one that is waited for
LOOK_S = 0.5  # seconds between two looks at who is late
AGAIN_S = 30.0  # seconds from a spare that does not start to the next try
STEP_IN_S = 5.0  # seconds for a spare to say that it is there


class Hiring:
    """Hosts of a cluster, on nodes of which `gpus` says how many GPUs are ours. Thread-safe; nodes do not wait for each
    other."""

    def __init__(self, make: MakeVerifier, gpus: Callable[[Node], int]) -> None:
        self._make, self._gpus = make, gpus
        self._lock = threading.Lock()
        self._groups: dict[str, Any] = {}  # by node
        self._spares: dict[str, Member] = {}
        self._spare_due: dict[str, float] = {}
        self._actors: set[Any] = set()  # those that have not told of their hosts yet
        self._closed = False

    def hire(self, node: Node) -> Member | str:
        """A host on a node: the spare where there is one, else a new process. A sentence where it cannot verify."""
        with self._lock:
            spare = self._spares.pop(node.id, None)
            self._spare_due[node.id] = time.monotonic() + (SPARE_S if spare is None else 0)
        if spare is not None and _is_there(spare.actor):
            return Member(node, spare.actor, spare.facts, spare.places)
        if spare is not None:
            kill_actor(spare.actor)
        return self._start(node, {"num_cpus": node.cpus, "num_gpus": self._gpus(node)}, None)

    def hire_first(self, fresh: Sequence[Node]) -> tuple[list[Member], dict[Future[Member | str], Node]]:
        """Hosts to begin with, and nodes that are still waited for. Raises `MachineError` where there is no host."""
        pool = ThreadPoolExecutor(max(1, len(fresh)))
        asked = {pool.submit(self.hire, node): node for node in fresh}
        pool.shutdown(wait=False)
        late, deadline = set(asked), float("inf")
        answers: list[Member | str] = []
        while late and time.monotonic() < deadline:
            ready, late = wait(late, timeout=LOOK_S, return_when=FIRST_COMPLETED)
            answers += [one.result() for one in ready]
            if deadline == float("inf") and any(isinstance(one, Member) for one in answers):
                deadline = time.monotonic() + LATE_S
        hired = [one for one in answers if isinstance(one, Member)]
        troubles = [one for one in answers if isinstance(one, str)]
        for trouble in troubles:
            log.warning("no host: %s", trouble)
        if not hired:
            self.close()
            why = troubles[0] if troubles else "it has no node with what is needed to give."
            raise MachineError(f"No host of the cluster can verify: {why}")
        return hired, {one: asked[one] for one in late}

    def keep_spare(self, host: Member) -> None:
        """Start a process that may stand in for a host, beside it. It has no cores or GPUs of its own: it gets those of
        the host, which it is told of."""
        spare = self._start(host.node, {"num_cpus": 0, "num_gpus": 0}, host.facts.devices)
        if not isinstance(spare, Member):
            log.info("no spare yet: %s", spare)
            self._spare_due[host.node.id] = time.monotonic() + AGAIN_S
            return
        with self._lock:
            if not self._closed:
                self._spares[host.node.id] = spare
                return
        kill_actor(spare.actor)

    def wants_spare(self, node: Node) -> bool:
        """Whether a node, whose host is at work, should get a spare now."""
        return node.id not in self._spares and time.monotonic() >= self._spare_due[node.id]

    def forget_all_but(self, alive: Container[str]) -> None:
        """Nothing is kept for nodes that are gone."""
        with self._lock:
            spares = [self._spares.pop(node).actor for node in list(self._spares) if node not in alive]
            groups = [self._groups.pop(node) for node in list(self._groups) if node not in alive]
        _end(spares, groups)

    def close(self) -> None:
        """End whatever starts and all spares. Hosts are their owner's to end."""
        with self._lock:
            self._closed = True
            actors = [*self._actors, *(spare.actor for spare in self._spares.values())]
            groups = list(self._groups.values())
            self._spares.clear()
            self._groups.clear()
        _end(actors, groups)

    def _start(self, node: Node, share: dict[str, int], devices: str | None) -> Member | str:
        places = node.cpus + MAX_CONCURRENT * self._gpus(node)
        actor_class: Any = ray.remote
        with self._lock:
            if self._closed:  # who asked Ray for anything later would start a cluster of its own
                return f"{node}: it is not needed any more."
            there = actor_class(
                **share, scheduling_strategy=PlacementGroupSchedulingStrategy(self._group(node)), max_restarts=0,
                max_task_retries=0, max_concurrency=places, concurrency_groups={CONTROL: 1},
            )(Host)  # fmt: skip
            actor, group = there.remote(self._make, node.cpus, places, devices), self._group(node)
            self._actors.add(actor)
        try:
            if not group.wait(PLACE_S):
                kill_actor(actor)
                return f"{node}: other work of the cluster has its cores or GPUs, or it is not reached."
            facts = ray.get(actor.facts.options(concurrency_group=CONTROL).remote(), timeout=START_S)
        except Exception as error:  # whatever it is, it is that node's
            kill_actor(actor)
            return f"{node}: {_trouble(error)}"
        finally:
            with self._lock:
                self._actors.discard(actor)
        return Member(node, actor, facts, places)

    def _group(self, node: Node) -> Any:
        """What holds the cores and GPUs of a node for us, until it is removed or this process ends."""
        if node.id not in self._groups:
            share = {"CPU": float(node.cpus)}
            if gpus := self._gpus(node):
                share["GPU"] = float(gpus)
            self._groups[node.id] = placement_group([share], bundle_label_selector=[{NODE_LABEL: node.id}])
        return self._groups[node.id]


def _is_there(actor: Any) -> bool:
    try:
        ray.get(actor.pulse.options(concurrency_group=CONTROL).remote(), timeout=STEP_IN_S)
    except (RayError, GetTimeoutError):
        return False
    return True


def _end(actors: list[Any], groups: list[Any]) -> None:
    for actor in actors:
        kill_actor(actor)
    for group in groups:
        with contextlib.suppress(RayError):
            remove_placement_group(group)


def _trouble(error: Exception) -> str:
    if isinstance(error, GetTimeoutError):
        return f"its process does not start within {START_S:.0f} s."
    cause = getattr(error, "cause", None) or error
    return (str(cause).strip().splitlines() or [type(cause).__name__])[-1].rstrip(".") + "."
