"""The devices of one machine and what belongs to each: its oracles, who runs on it when, its health."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence

from dice.verify.health import DeviceLost, Health
from dice.verify.options import Backend, probe_cuda
from dice.verify.oracles import Oracles
from dice.verify.turns import Turns

RESIDENTS = 8  # candidates on one GPU at once, each with a context of half a gigabyte or more
ORACLES = 4  # per GPU
# Of a GPU's memory, not the jobs': contexts of the oracles, what they keep of groups without a job and do not give back
# yet; and a margin. On a small GPU, at most half of it.
ORACLE_BYTES, MARGIN_BYTES = 2 << 30, 2 << 30
HOST_SHARE = 0.65  # of the memory of a machine that emulates


class Device:
    """One GPU, or the CPU. `gpu` is as CUDA_VISIBLE_DEVICES has it; "" for the CPU, or the machine's only GPU."""

    def __init__(self, backend: Backend, gpu: str, residents: int, probe: Callable[[str], bool] | None):
        self.gpu = gpu
        self.jobs = 0
        self.turns = Turns(residents, _memory(backend))
        self.oracles = Oracles(backend, gpu, ORACLES if backend == "cuda" else residents)
        self.health = Health(gpu, functools.partial(probe, gpu) if probe else None)


def _memory(backend: Backend) -> int:
    """Bytes for jobs."""
    if backend == "cuda":
        total = int(probe_cuda()["memory"])
        return max(total // 2, total - ORACLES * ORACLE_BYTES - MARGIN_BYTES)
    return int(HOST_SHARE * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


class Fleet:
    """All devices. Jobs go where the fewest are. Thread-safe."""

    def __init__(
        self,
        backend: Backend,
        gpus: Sequence[str] = (),
        residents: int | None = None,
        probe: Callable[[str], bool] | None = None,
    ):
        if residents is None:
            residents = RESIDENTS if backend == "cuda" else len(os.sched_getaffinity(0))
        self.residents = residents
        self.devices = [Device(backend, gpu, residents, probe) for gpu in gpus or ("",)]
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

    def close(self) -> None:
        for device in self.devices:
            device.oracles.close()
