"""What a job is to do, and with what: one pair, its options, and the services of the verifier."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from dice.kernel import Kernel
from dice.problem import Problem
from dice.verdict import Backend
from dice.verify.build.service import BuildService
from dice.verify.options import Options, host_memory
from dice.verify.protocols import Protocol, protocol_named
from dice.verify.sandbox.cancel import Spawner
from dice.verify.sandbox.jail import Limits
from dice.verify.supervisor.examiner import Examinations
from dice.verify.supervisor.reference_pool import ReferencePool

# Of host memory for a model's parameters, beside what the options allow: they are made there, copied and handed over.
COPIES = 4
MANY = 8  # parameters count as many from this part of what the options allow
TMP_MB = 256  # a candidate's /tmp and /dev/shm, which count for nothing else


@dataclass(frozen=True)
class Services:
    """What jobs are run with. `view`: the paths that a candidate sees. `threads`: for each process of a job.
    `lacking`: guarantees that the sandbox does not give here. `step_aside`: other jobs are under way instead, for the
    length of a block in which this one only waits."""

    backend: Backend
    spawner: Spawner
    builds: BuildService
    examinations: Examinations
    references: ReferencePool
    view: tuple[str, ...]
    threads: int
    lacking: tuple[str, ...] = ()
    step_aside: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext


@dataclass(frozen=True)
class Assignment:
    """One pair to verify. `whole`: with the GPU's memory to itself."""

    services: Services
    problem: Problem
    kernel: Kernel
    options: Options
    whole: bool = False

    @property
    def backend(self) -> Backend:
        return self.services.backend

    @property
    def shares(self) -> bool:
        """Whether other jobs use the GPU's memory at the same time."""
        return self.backend == "cuda" and not self.whole

    def with_room(self) -> Assignment:
        """With host memory for the model's parameters, where they are known to be many, up to half of the machine's."""
        size = self.services.references.parameter_bytes.get(self.problem.id, 0) >> 20
        allowed = self.options.memory_mb
        if size * MANY <= allowed:
            return self
        machine_mb = host_memory() >> 20
        room = max(allowed, min(allowed + COPIES * size, machine_mb // 2))
        return replace(self, options=replace(self.options, memory_mb=room))

    @cached_property
    def protocol(self) -> Protocol:
        return protocol_named(self.options.protocol)


def candidate_limits(memory_mb: int, view: tuple[str, ...], gpu: str = "") -> Limits:
    """What every candidate runs under, but for its folder."""
    return Limits(memory_mb, "", visible=view, tmp_mb=TMP_MB, files_mb=memory_mb, gpu=gpu, own_files=True)


def worker_threads(workers: int) -> int:
    """Threads for each of a job's two processes when `workers` jobs share the machine."""
    return max(1, len(os.sched_getaffinity(0)) // workers)
