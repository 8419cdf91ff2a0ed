"""The devices of one machine and what belongs to each: its reference processes, who runs on it when, its health."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence

from dice.verdict import Backend
from dice.verify.options import host_memory, probe_cuda
from dice.verify.supervisor.gpu_lock import GpuLock
from dice.verify.supervisor.health import DeviceLost, Health
from dice.verify.supervisor.reference_pool import ReferencePool

MAX_CONCURRENT = 8  # candidates on one GPU at once, each with a context of half a gigabyte or more
REFERENCE_PROCESSES = 4  # per GPU
# Of a GPU's memory, not the jobs': contexts of the reference processes, and what they keep of groups without a job and
# do not give back yet; and a margin. On a small GPU, at most half of it.
REFERENCE_BYTES, MARGIN_BYTES = 2 << 30, 2 << 30
HOST_SHARE = 0.65  # of the memory of a machine that emulates


class Device:
    """One GPU, or the CPU. `gpu` is as CUDA_VISIBLE_DEVICES has it; "" for the CPU, or the machine's only GPU."""

    def __init__(self, backend: Backend, gpu: str, max_concurrent: int, probe: Callable[[str], bool] | None):
        self.gpu = gpu
        self.jobs = 0
        self.gpu_lock = GpuLock(max_concurrent, _memory(backend))
        self.references = ReferencePool(backend, gpu, REFERENCE_PROCESSES if backend == "cuda" else max_concurrent)
        self.health = Health(gpu, functools.partial(probe, gpu) if probe else None)


def _memory(backend: Backend) -> int:
    """Bytes for jobs."""
    if backend == "cuda":
        total = int(probe_cuda()["memory"])
        return max(total // 2, total - REFERENCE_PROCESSES * REFERENCE_BYTES - MARGIN_BYTES)
    return int(HOST_SHARE * host_memory())


class Devices:
    """All devices. Jobs go where the fewest are. Thread-safe."""

    def __init__(
        self,
        backend: Backend,
        gpus: Sequence[str] = (),
        max_concurrent: int | None = None,
        probe: Callable[[str], bool] | None = None,
    ):
        if max_concurrent is None:
            max_concurrent = MAX_CONCURRENT if backend == "cuda" else len(os.sched_getaffinity(0))
        self.max_concurrent = max_concurrent
        self.devices = [Device(backend, gpu, max_concurrent, probe) for gpu in gpus or ("",)]
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def device(self) -> Iterator[Device]:
        """A healthy device for one job. Raises `DeviceLost` when there is none left."""
        with self._lock:
            healthy = [device for device in self.devices if not device.health.quarantined]
            if not healthy:
                raise DeviceLost("no GPU works any more")
            device = min(healthy, key=lambda one: one.jobs)
            device.jobs += 1
        try:
            yield device
        finally:
            with self._lock:
                device.jobs -= 1

    @contextlib.contextmanager
    def all_memory(self) -> Iterator[str]:
        """One device, by its name, with all of the memory that its jobs share, to the end of the block: for work beside
        the jobs that found too little. Raises `DeviceLost` as `device` does."""
        with self.device() as device, device.gpu_lock.reserve_memory(device.gpu_lock.memory):
            yield device.gpu

    def close(self) -> None:
        for device in self.devices:
            device.references.close()
