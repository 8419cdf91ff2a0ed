"""A job's turn on the GPU, which goes on from step to step."""

from __future__ import annotations

import contextlib
import time

from dice.verify.supervisor.gpu_lock import GpuLock
from dice.verify.supervisor.record import Record

LONG_S = 1.0  # of a turn, while another job waits to be alone; each turn that is given back may be waited for as long


class Turn:
    """To be entered; each step of the job begins with `step`, and `end` gives the turn back until the next one."""

    def __init__(self, gpu: GpuLock, whole: bool, record: Record):
        self._gpu, self._whole, self._record = gpu, whole, record
        self._held = contextlib.ExitStack()
        self._since: float | None = None

    def __enter__(self) -> Turn:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def step(self) -> None:
        """Wait for a turn, unless this job has one that is not asked for."""
        if self._since is not None and time.monotonic() - self._since > LONG_S and self._gpu.is_asked_for:
            self.end()
        if self._since is None:
            with self._record.clock("wait"):
                self._held.enter_context(self._gpu.hold(self._whole))
            self._since = time.monotonic()

    def end(self) -> None:
        self._since = None
        self._held.close()
