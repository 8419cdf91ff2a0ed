"""Joining a cluster that somebody started, and what its nodes are."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from dice.errors import MachineError, UserError

T = TypeVar("T")

REACH_S = 10.0  # seconds for the head to answer
ANSWER_S = 20.0  # seconds for a node to answer a question that takes no time; a process starts for it
ASK_S = 180.0  # seconds for a node to answer a question that may start compilers and sandboxes
NODE_LABEL = "ray.io/node-id"  # Ray's own label of each node
# How a gRPC client begins, and the kind of the first frame that a server answers with: it says its settings, too.
HELLO, SETTINGS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)), 4
LOOPBACK = ("127.0.0.1", "localhost", "::1")
# Ray takes the driver's working directory among the folders that its workers import from, where files of other people
# may lie. The root folder is nobody's.
EMPTY_FOLDER = "/"


@dataclass(frozen=True, slots=True)
class Node:
    """A machine as Ray knows it. `cpus` and `gpus` are what Ray may hand out of it."""

    id: str
    name: str
    cpus: int
    gpus: int

    def __str__(self) -> str:
        return f"{self.name} ({self.id[:8]})"


def connect(address: str) -> None:
    """Join the cluster at `address`, HOST:PORT of its head, or "auto" for the one that runs on this machine.

    A process joins one cluster; joining again does nothing. Raises `MachineError` without Ray, without a cluster, and
    where Ray or Python there are of another version; `UserError` for what is no address.
    """
    if importlib.util.find_spec("ray") is None:
        raise MachineError("--cluster needs Ray, which is not installed: pip install 'dice-kernels[cluster]'.")
    if address != "auto":
        _check_address(address)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing is sent to anybody
    import ray

    from dice.cluster import unofficial

    if ray.is_initialized():
        return
    address = _running(address)
    if address.rpartition(":")[0] in LOOPBACK:
        unofficial.stay_on_loopback()
    unofficial.print_nothing()  # verdicts and our logs say it
    try:
        with contextlib.chdir(EMPTY_FOLDER):
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
    except (ConnectionError, TimeoutError, ValueError) as error:
        raise MachineError(f"The cluster at {address} cannot be joined: {first_line(error)}.") from None
    except RuntimeError as error:
        if "ersion mismatch" in str(error):
            raise MachineError(f"The cluster at {address} runs other versions: {_mismatch(error)}.") from None
        raise MachineError(f"The cluster at {address} cannot be joined: {first_line(error)}.") from None


def nodes() -> list[Node]:
    """The nodes that are alive and have cores to give, in a lasting order."""
    import ray

    found = [
        Node(
            one["NodeID"],
            one.get("NodeManagerHostname") or one["NodeManagerAddress"],
            int(one["Resources"].get("CPU", 0)),
            int(one["Resources"].get("GPU", 0)),
        )
        for one in ray.nodes()
        if one["Alive"]
    ]
    return sorted((one for one in found if one.cpus), key=lambda one: (one.name, one.id))


def on_every_node(question: Callable[[], T]) -> Iterator[tuple[Node, T | Exception]]:
    """What `question` answers in a process on each node, or why it did not. It takes none of the node's cores."""
    import ray

    asked = []
    for node in nodes():
        there: Any = ray.remote(num_cpus=0, max_retries=0)(question)
        asked.append((node, there.options(scheduling_strategy=pinned(node)).remote()))
    for node, answer in asked:
        try:
            yield node, ray.get(answer, timeout=ASK_S)
        except ray.exceptions.RayTaskError as error:
            yield node, error.cause
        except ray.exceptions.RayError as error:
            yield node, error


def silent_nodes() -> list[Node]:
    """The nodes that do not answer, of those that Ray believes to be alive: it takes a minute to know of one that is
    cut off."""
    import ray

    there: Any = ray.remote(num_cpus=0, max_retries=0)(_answer)
    asked = {there.options(scheduling_strategy=pinned(node)).remote(): node for node in nodes()}
    if not asked:
        return []
    late = ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_S)[1]
    for one in late:
        ray.cancel(one)
    return [asked[one] for one in late]


def _answer() -> None:
    """What a node does to show that it is there."""


def pinned(node: Node) -> Any:
    """Ray's word for: on this node or nowhere."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node.id, soft=False)


def _check_address(address: str) -> None:
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdecimal()) or "/" in address:
        raise UserError(f"--cluster takes auto or HOST:PORT of the cluster's head, not {address!r}.")


def _running(address: str) -> str:
    """The address of a head that answers. Ray itself would try for minutes."""
    from dice.cluster.unofficial import address_of_this_machine

    if address == "auto":
        try:
            address = address_of_this_machine()
        except ConnectionError:
            raise MachineError(
                "No Ray cluster runs on this machine: start one (ray start --head) or give HOST:PORT."
            ) from None
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), REACH_S) as head:
            if "RAY_USE_TLS" in os.environ:  # it is asked in cipher, which is Ray's to do
                return address
            head.sendall(HELLO)
            said = head.recv(len(HELLO))
    except (OSError, OverflowError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error) or "no answer"
        raise MachineError(f"No Ray cluster answers at {address}: {reason}.") from None
    if said[3:4] != bytes((SETTINGS,)):
        raise MachineError(f"What answers at {address} is no head of a Ray cluster, whose port is 6379 unless chosen.")
    return address


def _mismatch(error: Exception) -> str:
    """The two lines of Ray's message that name versions, as one."""
    lines = [line.strip() for line in str(error).splitlines() if "Ray:" in line or "Python:" in line]
    return "; ".join(dict.fromkeys(lines)) or first_line(error)


def first_line(error: BaseException) -> str:
    """What went wrong, without a traceback; of what another process raised, its own words, not Ray's about it."""
    own = getattr(error, "cause", None) or error
    return (str(own).strip().splitlines() or [type(own).__name__])[0].rstrip(".")[:300]
