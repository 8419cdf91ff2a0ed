"""What jobs are run with, and what every candidate runs under."""

from __future__ import annotations

import os
from dataclasses import dataclass

from dice.verify.builds import BuildService
from dice.verify.cancel import Spawner
from dice.verify.options import Backend
from dice.verify.oracles import Oracles
from dice.verify.sandbox import Limits

TMP_MB = 256  # a candidate's /tmp and /dev/shm, which count for nothing else


@dataclass(frozen=True)
class Place:
    """What jobs are run with. `view`: the paths that a candidate sees. `threads`: for each process of a job."""

    backend: Backend
    spawner: Spawner
    builds: BuildService
    oracles: Oracles
    view: tuple[str, ...]
    threads: int
    lacking: tuple[str, ...] = ()  # guarantees that the sandbox does not give here


def candidate_limits(memory_mb: int, view: tuple[str, ...], gpu: str = "") -> Limits:
    """What every candidate runs under, but for its folder."""
    return Limits(memory_mb, "", visible=view, tmp_mb=TMP_MB, files_mb=memory_mb, gpu=gpu, own_files=True)


def worker_threads(workers: int) -> int:
    """Threads for each of a job's two processes when `workers` jobs share the machine."""
    return max(1, len(os.sched_getaffinity(0)) // workers)
