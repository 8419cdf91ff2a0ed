"""Several Ray nodes on one machine, for tests and measurements: real processes, nothing listens but on loopback.

with RayNodes(4, cpus=2) as cluster: ...connect(cluster.address)
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

LOOPBACK = "127.0.0.1"
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray's word for: this machine's address is the loopback one
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_AUTH_MODE": "disabled",  # else a head asks for tokens as soon as it finds one in the home folder
    # On a busy machine all takes long: nodes that start or do not answer for a while are no faults, and a process is
    # not to be ended since others take the memory.
    "RAY_gcs_server_port_wait_time_s": "60",
    "RAY_health_check_timeout_ms": "60000",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE": "1",  # where /dev/shm is small, as in containers
}
RAYS = ("ray::", "/ray/", "dice.cluster.rank")  # in the command of each of its processes and of what trains there
START_S = 600.0  # seconds for a node to be known of
TRIES = 8  # times that a node is started which does not in Ray's 30 s
END_S = 120.0  # and for all of them to end

T = TypeVar("T")


class RayNodes:
    """A cluster of `count` nodes of `cpus` cores each, as they say; all its files are in one folder that goes with it.

    `environment`: further variables of the nodes' processes. `gpus`: each node has one of this machine's, from the
    `first_gpu` on. `store`: megabytes of each one's object store. One for each process at a time.
    """

    def __init__(
        self,
        count: int,
        cpus: int = 2,
        environment: dict[str, str] | None = None,
        *,
        gpus: bool = False,
        first_gpu: int = 0,
        store: int = 80,
    ) -> None:
        self._first_gpu = first_gpu
        self._count, self._cpus, self._gpus, self._store = count, cpus, gpus, store
        self.folder = Path(tempfile.mkdtemp(prefix="ray_", dir="/tmp"))  # sockets have short names
        self._environment = ENVIRONMENT | (environment or {}) | {"RAY_TMPDIR": str(self.folder)}
        self._before: dict[str, str | None] = {}
        self._cluster: Any = None
        self.nodes: list[Any] = []

    def __enter__(self) -> RayNodes:
        self._begin()
        from ray._private import ray_constants
        from ray.cluster_utils import Cluster

        ray_constants.ENABLE_RAY_CLUSTER = False  # where Ray was imported before
        self._cluster = Cluster()
        for _ in range(self._count):
            self.add()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import ray

        ray.shutdown()
        self._cluster.shutdown()
        self._end(error)

    def _begin(self) -> None:
        import ray

        ray.shutdown()  # a process joins one cluster, and this one may have joined another before
        (self.folder / "ray").mkdir()
        self._before = {name: os.environ.get(name) for name in self._environment}
        os.environ.update(self._environment)

    def _end(self, error: BaseException | None) -> None:
        left = self._wait_for_the_end()
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        shutil.rmtree(self.folder, ignore_errors=True)
        if left and error is None:
            raise AssertionError(f"Ray left processes behind: {left}")

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(self) -> Any:
        """One more node."""
        own = (
            {"num_gpus": 1, "env_vars": {"CUDA_VISIBLE_DEVICES": str(self._first_gpu + len(self.nodes))}}
            if self._gpus
            else {}
        )

        def start() -> Any:
            return self._cluster.add_node(
                num_cpus=self._cpus, node_ip_address=LOOPBACK, include_dashboard=False,
                object_store_memory=self._store << 20, wait=False, **own,
            )  # fmt: skip

        node = self._patiently(start)
        self._cluster._wait_for_node(node, START_S)
        self.nodes.append(node)
        return node

    def raylet(self, place: int) -> int:
        """The process that a node is: its workers end with it."""
        ((_, processes),) = [one for one in self.nodes[place].all_processes.items() if one[0] == "raylet"]
        return int(processes[0].process.pid)

    def workers(self, place: int) -> list[int]:
        """The processes that a node has started."""
        return [pid for pid in self.processes() if _parent(pid) == self.raylet(place)]

    def kill_node(self, place: int) -> None:
        """As a power cut would."""
        os.kill(self.raylet(place), signal.SIGKILL)

    def actors(self) -> list[int]:
        """The processes of our hosts, and of those that stand by."""
        return self.titled("ray::Host")

    def titled(self, beginning: str) -> list[int]:
        """The processes whose title begins so."""
        return [pid for pid in self.processes() if _title(pid).startswith(beginning)]

    def processes(self) -> list[int]:
        """All that the cluster consists of: what of Ray's was started with its folder in the environment."""
        mark = f"RAY_TMPDIR={self.folder}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    own = mark in (entry / "environ").read_bytes().split(b"\0") and not _is_zombie(int(entry.name))
                    if own and any(part in _title(int(entry.name)) for part in RAYS):
                        found.append(int(entry.name))
        return found

    def _patiently(self, start: Callable[[], T]) -> T:
        """What `start` gives. Ray has a node start in 30 s, whatever else its machine does: what has not is ended, and
        tried again."""
        for left in reversed(range(TRIES)):
            before = set(self.processes())
            try:
                return start()
            except Exception as error:  # Ray's is of no class of its own
                if "timed out during startup" not in str(error) or not left:
                    raise
            self._kill(set(self.processes()) - before)
        raise AssertionError

    def _kill(self, pids: Iterable[int]) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _wait_for_the_end(self) -> list[str]:
        deadline = time.monotonic() + END_S
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        titles = [_title(pid) for pid in left]
        self._kill(left)
        return titles


def at_work(hosts: Any) -> list[int]:
    """The processes of those hosts of a `ClusterVerifier` that verify."""
    import ray

    asked = [
        member.actor.__ray_call__.options(concurrency_group="control").remote(lambda actor: os.getpid())
        for member in hosts._hosts.members
        if not member.silent
    ]
    return list(ray.get(asked))


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
