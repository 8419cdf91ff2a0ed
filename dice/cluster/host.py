"""What runs on each host of a cluster: the verifier of that machine, which owns its cores and GPUs.

One process a host, an actor of Ray's. It is trusted: kernels run in the jailed processes of its verifier, as on one
machine.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from dice.kernel import Kernel
from dice.launch import leave_working_directory
from dice.problem import Problem
from dice.verdict import Backend, Verdict
from dice.verify import Options, Verifier
from dice.verify.options import default_cache_dir, host_memory, probe_cuda, toolchain, visible_gpus
from dice.verify.sandbox.cancel import Cancellation
from dice.verify.supervisor.devices import MAX_CONCURRENT
from dice.verify.supervisor.job import ProblemFault
from dice.verify.verdict_cache import harness_version

DEVICES = "CUDA_VISIBLE_DEVICES"  # Ray sets it to what it gives a process
PARENT_S = 0.2  # seconds between two looks at whether the node's own process is there
REMEMBERED = 4096  # jobs that were called off before they came
WITHIN_REACH = {"network", "local sockets"}  # guarantees without which a kernel reaches Ray, which runs anything

MakeVerifier = Callable[[int], Verifier]
"""From the cores that Ray gives a host to the verifier there."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What a verdict depends on besides the pair and its options: hosts of one kind give the same verdicts."""

    backend: str
    device: str
    toolchain: str
    torch: str
    verifier: str  # hash of the verifier's source

    def __str__(self) -> str:
        return f"{self.device}, {self.toolchain}, torch {self.torch}, verifier {self.verifier}"


def kind_of(backend: Backend) -> Kind:
    """Of this machine."""
    device = "CPU" if backend == "emulated" else str(probe_cuda()["device"])
    return Kind(backend, device, toolchain(backend), importlib.metadata.version("torch"), harness_version())


def why_apart(kinds: Mapping[str, Kind]) -> str:
    """Why verdicts of these hosts must not stand side by side, in a sentence; empty where they may."""
    groups: dict[Kind, list[str]] = {}
    for name, kind in kinds.items():
        groups.setdefault(kind, []).append(name)
    if len(groups) < 2:
        return ""
    told = "; ".join(f"{', '.join(sorted(names))}: {kind}" for kind, names in sorted(groups.items(), key=str))
    return f"The hosts differ, so their verdicts and times do too ({told})."


def exposure(name: str, lacking: Iterable[str]) -> str:
    """Why kernels must not run on a host with Ray, in a sentence; empty where they may."""
    if not WITHIN_REACH & set(lacking) or os.environ.get("RAY_AUTH_MODE", "").lower() == "token":
        return ""
    return (
        f"Kernels on {name} could reach Ray and run anything on the cluster, since its sandbox does not keep them from "
        f"the network: switch on Ray's tokens (RAY_AUTH_MODE=token), or see `dice doctor` there."
    )


@dataclass(frozen=True, slots=True)
class HostFacts:
    """`lacking`: guarantees that its sandbox does not give. `devices`: its GPUs as CUDA_VISIBLE_DEVICES names them."""

    name: str
    kind: Kind
    memory: int  # bytes of one GPU, or of the host where it emulates
    lacking: tuple[str, ...]
    devices: str | None = None


@dataclass(frozen=True, slots=True)
class LocalVerifier:
    """Makes the verifier of a host: all cores and GPUs that Ray gave to the process."""

    backend: str
    options: Options

    def __call__(self, cores: int) -> Verifier:
        gpus = visible_gpus() if self.backend == "cuda" else ()
        return Verifier(
            backend=self.backend,
            options=replace(self.options, cache_dir=default_cache_dir()),
            devices=gpus,
            max_concurrent=MAX_CONCURRENT if gpus else cores,
            builds=cores,
        )


def end_with_parent(parent: int) -> None:
    """Ray's own process of this node started us. When it is gone nobody hears us, and another may use the GPUs."""
    while os.getppid() == parent:
        time.sleep(PARENT_S)
    os._exit(1)


class Host:
    """Verifies for drivers elsewhere, `jobs` at once, each in a thread of Ray's. `job` is the driver's number for what
    it asks, by which it may call it off. `devices`: GPUs that it has besides those that Ray gave it."""

    def __init__(self, make: MakeVerifier, cores: int, jobs: int, devices: str | None = None) -> None:
        leave_working_directory()
        if devices is not None:
            os.environ[DEVICES] = devices
        threading.Thread(target=end_with_parent, args=(os.getppid(),), name="parent", daemon=True).start()
        self._make, self._cores, self._jobs = make, cores, jobs
        self._name = socket.gethostname()
        self._lock = threading.Lock()
        self._under_way: dict[int, Cancellation] = {}
        self._called_off: dict[int, None] = {}  # jobs that were called off and are not under way, in this order

    @cached_property
    def _verifier(self) -> Verifier:
        return self._make(self._cores)

    def facts(self) -> HostFacts:
        """Starts the verifier. Raises `BackendUnavailable`, `MachineryError`."""
        verifier = self._verifier
        lacking = verifier.lacking()
        on_gpu = verifier.backend == "cuda"
        memory = int(probe_cuda()["memory"]) if on_gpu else host_memory()
        return HostFacts(self._name, kind_of(verifier.backend), memory, lacking, os.environ.get(DEVICES))

    def pulse(self) -> None:
        """A sign of life."""

    def verify(self, job: int, problem: Problem, kernel: Kernel, options: Options | None) -> Verdict:
        """As `Verifier.verify`; the verdict says where it was reached. `options` None: those of the host."""
        own = options and replace(options, cache_dir=self._verifier.options.cache_dir)
        with self._cancellable(job) as cancellation:
            verdict = self._verifier.verify(problem, kernel, own, workers=self._jobs, cancellation=cancellation)
        return replace(verdict, host=self._name)

    def find_fault(self, job: int, problem: Problem) -> ProblemFault | None:
        with self._cancellable(job):
            return self._verifier.find_faults([problem])[0]

    def cancel(self, job: int) -> None:
        """Kill what a job has running. This may come before the job does, which then ends at once; a job that has ended
        already never comes again, and is forgotten after many others."""
        with self._lock:
            cancellation = self._under_way.get(job)
            if cancellation is None:
                self._called_off[job] = None
                while len(self._called_off) > REMEMBERED:
                    del self._called_off[next(iter(self._called_off))]
        if cancellation is not None:
            cancellation.cancel()

    @contextlib.contextmanager
    def _cancellable(self, job: int) -> Iterator[Cancellation]:
        cancellation = Cancellation()
        with self._lock:
            self._under_way[job] = cancellation
            if job in self._called_off:
                del self._called_off[job]
                cancellation.cancel()
        try:
            yield cancellation
        finally:
            with self._lock:
                del self._under_way[job]
