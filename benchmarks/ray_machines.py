"""Several Ray nodes on one machine, each with a network of its own that can be cut and healed: for root on Linux.

with RayMachines(2, cpus=2) as cluster: ...connect(cluster.address); cluster.cut(0); cluster.heal(0)

A node is a network namespace with one cable to the machine, where the head of the cluster and the driver are. A cut
drops every packet without a word, as a broken switch does: both ends go on, and neither is told.
"""

from __future__ import annotations

import functools
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from ray_nodes import RayNodes

FIRST_NET, NETS = 100, 150  # 10.100 to 10.249 are tried
START_S = 120.0  # seconds for a node to start, before it is ended and tried again
TOOLS = ("ip", "iptables")


def why_not() -> str:
    """Why nodes cannot have networks of their own here; empty where they can."""
    if os.geteuid() != 0:
        return "only root makes network namespaces"
    if missing := [name for name in TOOLS if shutil.which(name) is None]:
        return f"{missing[0]} is not installed"
    name = f"dice{os.getpid()}-try"
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        done = subprocess.run(
            ["ip", "netns", "exec", name, "iptables", "-S"], capture_output=True, text=True, check=False
        )
        _call("ip", "netns", "del", name)
    return done.stderr.strip()


class RayMachines(RayNodes):
    """A cluster of `count` nodes of `cpus` cores each, besides the head, which has none to give."""

    def __init__(self, count: int, cpus: int = 2, environment: dict[str, str] | None = None) -> None:
        super().__init__(count, cpus, environment)
        self._port = 0
        self._environment |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}  # they have addresses of their own

    def __enter__(self) -> RayMachines:
        self._begin()
        try:
            for number in range(self._count):
                self._lay(number)
            self._port = _free_port(_here(0))
            self._ray([], "--head", f"--node-ip-address={_here(0)}", f"--port={self._port}", "--num-cpus=0",
                      "--include-dashboard=false")  # fmt: skip
            for _ in range(self._count):
                self.add()
        except BaseException:
            self._clear()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import ray

        ray.shutdown()
        self._clear()
        self._end(error)

    @property
    def address(self) -> str:
        return f"{_here(0)}:{self._port}"

    def add(self) -> None:
        """One more of the nodes."""
        number = len(self.nodes)
        self._ray(["ip", "netns", "exec", _name(number)], f"--address={self.address}",
                  f"--node-ip-address={_there(number)}", f"--num-cpus={self._cpus}")  # fmt: skip
        self.nodes.append(_name(number))

    def cut(self, number: int) -> None:
        """No packet leaves a node or reaches it, in this order: from now on nothing is heard of what it has to do."""
        for chain, way in (("OUTPUT", "-o"), ("INPUT", "-i")):
            _call("ip", "netns", "exec", _name(number), "iptables", "-A", chain, way, "eth0", "-j", "DROP")

    def heal(self, number: int) -> None:
        for chain in ("INPUT", "OUTPUT"):
            _call("ip", "netns", "exec", _name(number), "iptables", "-F", chain)

    def place_of(self, pid: int) -> int:
        """The node that a process is on."""
        return next(number for number, name in enumerate(self.nodes) if pid in _inside(name))

    def raylet(self, place: int) -> int:
        inside = _inside(self.nodes[place])
        return next(pid for pid in self.processes() if pid in inside and _is_raylet(pid))

    def _clear(self) -> None:
        """End all processes and take the cables away."""
        self._kill(self.processes())
        for number in range(self._count):
            # Both, since what is left of a namespace goes some time later.
            for what in ("link", "netns"):
                subprocess.run(["ip", what, "del", _name(number)], capture_output=True, check=False)

    def _lay(self, number: int) -> None:
        """The cable to a node that is to be."""
        name = cable = _name(number)
        _call("ip", "netns", "add", name)
        _call("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name)
        _call("ip", "addr", "add", f"{_here(number)}/24", "dev", cable)
        _call("ip", "link", "set", cable, "up")
        inside = ("ip", "-n", name)
        _call(*inside, "addr", "add", f"{_there(number)}/24", "dev", "eth0")
        _call(*inside, "link", "set", "lo", "up")
        _call(*inside, "link", "set", "eth0", "up")
        _call(*inside, "route", "add", "default", "via", _here(number))

    def _ray(self, where: list[str], *arguments: str) -> None:
        ray = str(Path(sys.executable).with_name("ray"))
        command = [*where, ray, "start", *arguments, "--object-store-memory", str(80 << 20), "--disable-usage-stats",
                   "--min-worker-port=0", "--max-worker-port=0"]  # fmt: skip

        def start() -> None:
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False)
            except subprocess.TimeoutExpired:
                raise RuntimeError(f"A node timed out during startup, {START_S:.0f} s") from None
            if done.returncode != 0:
                raise RuntimeError(f"A node does not start: {done.stdout[-2000:]}{done.stderr[-2000:]}")

        self._patiently(start)


def _name(number: int) -> str:
    """Of a node's namespace and cable: those of another process have other names."""
    return f"dice{os.getpid()}-{number}"


@functools.cache
def _net() -> str:
    """The beginning of addresses that nobody has here."""
    taken = subprocess.run(["ip", "-4", "route"], check=True, capture_output=True, text=True).stdout
    names = [f"10.{FIRST_NET + (os.getpid() + number) % NETS}" for number in range(NETS)]
    return next(name for name in names if f"{name}." not in taken)


def _here(number: int) -> str:
    """This machine's end of a node's cable."""
    return f"{_net()}.{number}.1"


def _there(number: int) -> str:
    return f"{_net()}.{number}.2"


def _free_port(address: str) -> int:
    with socket.create_server((address, 0)) as one:
        return int(one.getsockname()[1])


def _inside(name: str) -> set[int]:
    done = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=True)
    return set(map(int, done.stdout.split()))


def _is_raylet(pid: int) -> bool:
    return Path(f"/proc/{pid}/comm").read_text().strip() == "raylet"


def _call(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
