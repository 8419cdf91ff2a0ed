"""Training over hosts of a cluster: Ray says where, and each process is `dice train` as torchrun would have started it.

On every host an actor stands for torchrun's agent: it has the GPUs, starts a process for each, hands on what they
print, and ends them when it ends itself. The processes find each other by torch.distributed and know nothing of Ray.
Where one of them is lost the others are ended, and all are started again, which go on from the last checkpoint; on
fewer hosts where no other is left, since the result of a run does not depend on their number.
"""

from __future__ import annotations

import json
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
from ray.exceptions import GetTimeoutError, RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from dice.cluster.connect import connect, nodes
from dice.cluster.host import end_with_parent
from dice.cluster.job import kill_actor
from dice.errors import MachineError
from dice.launch import leave_working_directory, python_command

if TYPE_CHECKING:
    from dice.train.session import StopSignal

TAKEN = "DICE_TRAINERS_GPUS"  # environment variable of a process that trains: GPUs of each node that trainers have
READY_S = 300.0  # seconds for the hosts' processes to start
PLACE_S = 60.0  # seconds for Ray to find room for them
FELLOWS_S = 60.0  # seconds that the other processes have to end, once one has failed
POLL_S = 0.2  # seconds between two looks at whether we are asked to stop
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

    def where(self) -> tuple[str, str, int]:
        """The node's id, its address, and a port that is free there."""
        with socket.socket() as one:
            one.bind(("", 0))
            port = one.getsockname()[1]
        return str(ray.get_runtime_context().get_node_id()), ray.util.get_node_ip_address(), port

    def run(self, command: Sequence[str], folder: str, environments: Sequence[dict[str, str]]) -> Iterator[Line | End]:
        """A process for each of `environments`, in `folder`: what they print, as it comes, and how they end. Raises
        `OSError` where there is no such folder."""
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

    trainers: list[Any]
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
            with _placed(hosts, per_host, device, fewer=attempt > 0) as placed:
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
    heard: list[Any] = [
        trainer.run.options(num_returns="streaming").remote(command, folder, placed.environments(host))
        for host, trainer in enumerate(placed.trainers)
    ]
    while heard and time.monotonic() < deadline:
        if stopped.is_set() and not told:
            told = True
            number = signal.SIGTERM if stopped.reason == TERMINATED else signal.SIGINT
            for trainer in placed.trainers:
                trainer.signal.options(concurrency_group="control").remote(number)
        ready: list[Any] = ray.wait(heard, num_returns=1, timeout=POLL_S)[0]
        for answers in ready:
            try:
                one: Any = ray.get(next(answers))
            except StopIteration:
                heard.remove(answers)
            except ray.exceptions.RayTaskError as error:
                raise MachineError(f"A host cannot start to train: {error.cause}.") from None
            except RayError:  # its host is gone
                heard.remove(answers)
                codes[-1] = LOST
            else:
                _take(one, codes)
        if deadline == float("inf") and any(codes.values()):
            deadline = time.monotonic() + FELLOWS_S
    return _verdict(codes, placed.size, stopped)


def _take(one: Line | End, codes: dict[int, int]) -> None:
    if isinstance(one, End):
        codes[one.rank] = one.code
    else:
        print(one.text, end="", flush=True, file=sys.stdout if one.stream == "out" else sys.stderr)


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
def _placed(hosts: int, per_host: int, device: str, fewer: bool) -> Iterator[Placed]:
    """A group on so many hosts, or where `fewer` is allowed on those that there are. Ended with the block."""
    able = sorted(nodes(), key=lambda node: -node.gpus)[:hosts]
    if len(able) < (1 if fewer else hosts):
        raise MachineError(f"{hosts} hosts are to train, and the cluster has {len(able)}.")
    most = 0 if device == "cpu" else able[-1].gpus
    if most < per_host and (device.startswith("cuda") or most > 0):
        raise MachineError(f"{hosts} hosts with {per_host} GPUs each are to train; some have {most}.")
    count = per_host or most or 1
    # Without a GPU a process takes nothing that Ray counts: verifiers have the cores. A megabyte says: on this host.
    share = {"GPU": float(count)} if most else {"memory": float(1 << 20)}
    group = placement_group([share] * len(able), strategy="STRICT_SPREAD")
    trainers: list[Any] = []
    try:
        if not group.wait(PLACE_S):
            if fewer and len(nodes()) < len(able):  # Ray had not known yet that a node was lost
                with _placed(hosts, per_host, device, fewer) as placed:
                    yield placed
                return
            raise MachineError(f"No room for {len(able)} hosts that train: other work of the cluster has their GPUs.")
        for number in range(len(able)):
            there = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number)
            actor_class: Any = ray.remote
            trainers.append(
                actor_class(
                    num_cpus=0, num_gpus=count if most else 0, scheduling_strategy=there, max_restarts=0,
                    max_task_retries=0, concurrency_groups={"control": 1},
                )(Trainer).remote()
            )  # fmt: skip
        try:
            places = ray.get([one.where.remote() for one in trainers], timeout=READY_S)
        except (RayError, GetTimeoutError) as error:
            raise MachineError(f"A host does not start to train: {str(error).partition(chr(10))[0]}") from None
        yield Placed(trainers, count, bool(most), places)
    finally:
        for trainer in trainers:
            kill_actor(trainer)
        remove_placement_group(group)
