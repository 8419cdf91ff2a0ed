"""Training over hosts of a cluster: Ray says where, and each process is `dice train` as torchrun would have started it.

On every host an actor stands for torchrun's agent: it has the GPUs, starts a process for each, hands on what they
print, and ends them when it ends itself. The processes find each other by torch.distributed and know nothing of Ray.
Where one of them is lost, or nothing is heard of a host any more, the others are ended, and all are started again,
which go on from the last checkpoint; on fewer hosts where no other is left, since the result of a run does not depend
on their number.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from dice.cluster import pulse
from dice.cluster.connect import NODE_LABEL, Node, connect, first_line, nodes, silent_nodes
from dice.cluster.host import end_with_parent
from dice.cluster.peer import CONTROL, Peer, kill_actor
from dice.cluster.pulse import Pulses
from dice.errors import MachineError
from dice.launch import leave_working_directory, python_command

if TYPE_CHECKING:
    from dice.train.session import StopSignal

log = logging.getLogger(__name__)

TAKEN = "DICE_TRAINERS_GPUS"  # environment variable of a process that trains: GPUs of each node that trainers have
READY_S = 300.0  # seconds for the hosts' processes to start
PLACE_S = 60.0  # seconds for Ray to find room for them
FELLOWS_S = 60.0  # seconds that the other processes have to end, once one has failed
POLL_S = 0.2  # seconds between two looks at whether we are asked to stop
LEASE = 2 / 3  # of the time after which a silent host is given up, before it ends itself
RESTARTS = 8  # times that a run starts again after losses, in one call
LOST, USAGE, MACHINE = -signal.SIGKILL, 2, 3  # of the exit codes


@dataclass(frozen=True, slots=True)
class Line:
    """What a process printed."""

    text: str
    stream: Literal["out", "err"]


@dataclass(frozen=True, slots=True)
class End:
    """How a process ended; negative: by which signal."""

    rank: int
    code: int


class Trainer:
    """One host's part of a run."""

    def __init__(self) -> None:
        leave_working_directory()
        threading.Thread(target=end_with_parent, args=(os.getppid(),), name="parent", daemon=True).start()
        self._processes: list[subprocess.Popen[str]] = []
        self._asked = time.monotonic()  # when the driver last wanted a sign of life

    def where(self) -> tuple[str, str, int]:
        """The node's id, its address, and a port that is free there."""
        with socket.socket() as one:
            one.bind(("", 0))
            port = one.getsockname()[1]
        return str(ray.get_runtime_context().get_node_id()), ray.util.get_node_ip_address(), port

    def pulse(self) -> None:
        """A sign of life."""
        self._asked = time.monotonic()

    def run(
        self, command: Sequence[str], folder: str, environments: Sequence[dict[str, str]], lease_s: float
    ) -> Iterator[Line | End]:
        """A process for each of `environments`, in `folder`: what they print, as it comes, and how they end. Raises
        `OSError` where there is no such folder. All end where no sign of life is asked for during `lease_s`."""
        self._asked = time.monotonic()
        threading.Thread(target=self._end_with_lease, args=(lease_s,), name="lease", daemon=True).start()
        said: queue.SimpleQueue[Line | End] = queue.SimpleQueue()
        for environment in environments:
            process = subprocess.Popen(
                [sys.executable, *python_command("dice.cluster.rank", str(os.getpid()), *command)[1:]],
                cwd=folder, env=os.environ | environment, text=True, errors="replace", stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
            self._processes.append(process)
            threading.Thread(target=_hear, args=(process, int(environment["RANK"]), said), daemon=True).start()
        left = len(environments)
        while left:
            one = said.get()
            left -= isinstance(one, End)
            yield one

    def _end_with_lease(self, lease_s: float) -> None:
        """A host that the driver does not reach is given up, and others go on in its place: it must have ended by then,
        since two must not write to one run folder."""
        while time.monotonic() - self._asked < lease_s:
            time.sleep(POLL_S)
        os._exit(1)

    def signal(self, number: int) -> None:
        """To all processes here."""
        for process in self._processes:
            process.send_signal(number)


def _hear(process: subprocess.Popen[str], rank: int, said: queue.SimpleQueue[Line | End]) -> None:
    """Everything that a process prints, then its end."""

    def errors() -> None:
        for line in process.stderr or ():
            said.put(Line(line, "err"))

    other = threading.Thread(target=errors, daemon=True)
    other.start()
    for line in process.stdout or ():
        said.put(Line(line, "out"))
    other.join()
    said.put(End(rank, process.wait()))


@dataclass(frozen=True, slots=True)
class Placed:
    """The group of a run: an actor for each host, `per_host` processes on each, with a GPU each if `gpus`."""

    trainers: list[Peer]
    per_host: int
    gpus: bool
    places: list[tuple[str, str, int]]

    @property
    def size(self) -> int:
        return len(self.trainers) * self.per_host

    def environments(self, host: int) -> list[dict[str, str]]:
        """As torchrun sets them, for the processes of one host."""
        _, address, port = self.places[0]
        taken = {node: self.per_host if self.gpus else 0 for node, _, _ in self.places}
        shared = {
            "MASTER_ADDR": address, "MASTER_PORT": str(port), "WORLD_SIZE": str(self.size),
            "LOCAL_WORLD_SIZE": str(self.per_host), "GROUP_RANK": str(host), TAKEN: json.dumps(taken),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        }  # fmt: skip
        return [
            shared | {"RANK": str(host * self.per_host + local), "LOCAL_RANK": str(local)}
            for local in range(self.per_host)
        ]


def train_on_hosts(address: str, command: Sequence[str], hosts: int, per_host: int, device: str) -> int:
    """Have `dice COMMAND...` train on so many `hosts` of the cluster at `address`; its exit code.

    `per_host`: processes on each; 0: as many as each host has GPUs, one where it has none or `device` is cpu. The
    working directory, data and run folder must be the same on all hosts. Ctrl-C and SIGTERM are passed on.

    Raises `MachineError` where hosts or GPUs are lacking, and where processes are lost again and again.
    """
    from dice.train.session import (
        stop_signals,
    )  # not above: it brings PyTorch, which the hosts' own processes never need

    connect(address)
    with stop_signals() as stopped:
        for attempt in range(RESTARTS + 1):
            silent = silent_nodes() if attempt else []
            with _placed(hosts, per_host, device, fewer=attempt > 0, but=silent) as placed:
                code = _run(placed, command, stopped)
            if code != LOST:
                return code
            print(f"A process of {placed.size} was lost; starting again from the last checkpoint.", flush=True)
    raise MachineError(f"Processes that train were lost {RESTARTS + 1} times; the same command goes on.")


def _run(placed: Placed, command: Sequence[str], stopped: StopSignal) -> int:
    """The exit code of the run; `LOST` where it should start again."""
    from dice.train.session import TERMINATED

    folder, told, deadline = os.getcwd(), False, float("inf")
    codes: dict[int, int] = {}
    lease_s = LEASE * pulse.GIVEN_UP_S
    heard: dict[Any, Peer] = {
        one.actor.run.options(num_returns="streaming").remote(command, folder, placed.environments(host), lease_s): one
        for host, one in enumerate(placed.trainers)
    }
    pulses = Pulses(lambda: placed.trainers, _doubt, _lose)
    try:
        while heard and time.monotonic() < deadline:
            if stopped.is_set() and not told:
                told = True
                number = signal.SIGTERM if stopped.reason == TERMINATED else signal.SIGINT
                for one in placed.trainers:
                    one.actor.signal.options(concurrency_group=CONTROL).remote(number)
            for answers in ray.wait(list(heard), num_returns=1, timeout=POLL_S)[0]:
                if not _take(answers, heard[answers], codes):
                    del heard[answers]
            if any(one.lost for one in heard.values()):  # its fellows may wait for it for ever
                codes[-1] = LOST
                break
            if deadline == float("inf") and any(codes.values()):
                deadline = time.monotonic() + FELLOWS_S
    finally:
        pulses.close()
    return _verdict(codes, placed.size, stopped)


def _take(answers: Any, host: Peer, codes: dict[int, int]) -> bool:
    """What a host says next; False where that was all."""
    try:
        one: Line | End = ray.get(next(answers))
    except StopIteration:
        return False
    except RayTaskError as error:
        raise MachineError(f"A host cannot start to train: {error.cause}.") from None
    except RayError as error:
        _lose(host, first_line(error))
        return True
    if isinstance(one, End):  # which is no sign of life: those are asked for all the time, as the host's lease
        codes[one.rank] = one.code
    else:
        print(one.text, end="", flush=True, file=sys.stdout if one.stream == "out" else sys.stderr)
    return True


def _doubt(host: Peer) -> None:
    host.silent = True
    log.info("nothing is heard of %s, which trains", host.node)


def _lose(host: Peer, why: str) -> None:
    host.lost = True
    log.warning("%s, which trains, is lost: %s", host.node, why)


def _verdict(codes: dict[int, int], size: int, stopped: StopSignal) -> int:
    """What came of a run, from how its processes ended. One that did not end is lost, unless another says why: after
    a fault of ours its fellows may wait for it for ever."""
    ended = set(codes.values())
    if stopped.is_set():
        return max(ended, default=MACHINE) if min(ended, default=-1) >= 0 else MACHINE
    if USAGE in ended:  # a setting or data that starting again would not change
        return USAGE
    if min(ended, default=-1) < 0:  # its fellows end with all kinds of errors
        return LOST
    worst = max(ended)
    return LOST if len(codes) < size and worst in (0, MACHINE) else worst


@contextmanager
def _placed(hosts: int, per_host: int, device: str, fewer: bool, but: Sequence[Node] = ()) -> Iterator[Placed]:
    """A group on so many hosts, or where `fewer` is allowed on those that there are; on none of `but`. Ended with the
    block."""
    present = [node for node in nodes() if node not in but]
    able = sorted(present, key=lambda node: -node.gpus)[:hosts]
    if len(able) < (1 if fewer else hosts):
        raise MachineError(f"{hosts} hosts are to train, and the cluster has {len(able)}.")
    most = 0 if device == "cpu" else able[-1].gpus
    if most < per_host and (device.startswith("cuda") or most > 0):
        raise MachineError(f"{hosts} hosts with {per_host} GPUs each are to train; some have {most}.")
    count = per_host or most or 1
    # Without a GPU a process takes nothing that Ray counts: verifiers have the cores. A megabyte says: on this host.
    share = {"GPU": float(count)} if most else {"memory": float(1 << 20)}
    there = {NODE_LABEL: f"in({','.join(node.id for node in present)})"}  # a head without cores has memory, too
    group = placement_group([share] * len(able), strategy="STRICT_SPREAD", bundle_label_selector=[there] * len(able))
    trainers: list[Peer] = []
    try:
        if not group.wait(PLACE_S):
            if fewer and len(nodes()) < len(able) + len(but):  # Ray had not known yet that a node was lost
                with _placed(hosts, per_host, device, fewer, but) as placed:
                    yield placed
                return
            raise MachineError(f"No room for {len(able)} hosts that train: other work of the cluster has their GPUs.")
        for number in range(len(able)):
            place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number)
            actor_class: Any = ray.remote
            actor = actor_class(
                num_cpus=0, num_gpus=count if most else 0, scheduling_strategy=place, max_restarts=0,
                max_task_retries=0, concurrency_groups={CONTROL: 1},
            )(Trainer).remote()  # fmt: skip
            trainers.append(Peer(None, actor))
        try:
            places = ray.get([one.actor.where.remote() for one in trainers], timeout=READY_S)
        except (RayError, GetTimeoutError) as error:
            raise MachineError(f"A host does not start to train: {first_line(error)}") from None
        by_id = {node.id: node for node in nodes()}
        for one, (node_id, _, _) in zip(trainers, places, strict=True):
            one.node = by_id.get(node_id)
            one.is_heard()
        yield Placed(trainers, count, bool(most), places)
    finally:
        for one in trainers:
            kill_actor(one.actor)
        remove_placement_group(group)
