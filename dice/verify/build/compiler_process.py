"""One run of a compiler: its own session, wall-clock and resource limits, capped output, killed as a group.

What is compiled is hostile text: macro bombs, arrays of gigabytes, endless templates. nvcc starts half a dozen children
that outlive it when only nvcc itself is killed, so the whole session goes at once.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import resource
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dice.verify.toolchain import compile_environment

# A time limit is meant for the processor's time. On the clock a compiler has so many times as long: other work on the
# machine is no fault of the source's.
PATIENCE = 5
MAX_LOG_BYTES = 256 * 1024
MAX_MEMORY_BYTES = 5 << 30  # address space of one compiler process; the largest honest ones take half of it
MAX_FILE_BYTES = 1 << 30

# As g++ and nvcc say it of a part of theirs. A source that has them say so has itself not compiled.
_TIME_WAS_UP = re.compile(r"CPU time limit exceeded|signal 24\b|SIGXCPU")


@dataclass(frozen=True, slots=True)
class Finished:
    """`status` is the exit status, negative for a signal; None when the time was up, of the clock or the processor."""

    status: int | None
    log: str


def run_all(commands: Sequence[Sequence[str]], scratch: Path, timeout_s: float, cpu_s: float) -> list[Finished]:
    """Run the commands side by side in `scratch`; all of them are gone when this returns. `cpu_s`: of the
    processor, for each of their processes."""
    deadline = time.monotonic() + timeout_s
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(_Job(command, scratch / f"log{index}", scratch, cpu_s))
            for index, command in enumerate(commands)
        ]
        _wait(running, deadline)
        return [job.finish() for job in running]


def _wait(jobs: Sequence[_Job], deadline: float) -> None:
    """Until all have ended or the time is up. `Popen.wait` with a time-out sleeps up to 50 ms too long."""
    waiting = {os.pidfd_open(job.process.pid) for job in jobs}
    poll = select.poll()
    for descriptor in waiting:
        poll.register(descriptor, select.POLLIN)
    try:
        while waiting and (left := deadline - time.monotonic()) > 0:
            for descriptor, _ in poll.poll(left * 1000):
                poll.unregister(descriptor)
                waiting.discard(descriptor)
                os.close(descriptor)
    finally:
        for descriptor in waiting:
            os.close(descriptor)


class _Job:
    def __init__(self, command: Sequence[str], log: Path, scratch: Path, cpu_s: float):
        self.log = log
        self.cpu_s = cpu_s
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                cwd=scratch,
                env=compile_environment(scratch),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=self._limit,
            )

    def _limit(self) -> None:
        _lower(resource.RLIMIT_CPU, math.ceil(self.cpu_s), 1)  # a second later than told of, it is ended without a word
        _lower(resource.RLIMIT_AS, MAX_MEMORY_BYTES)
        _lower(resource.RLIMIT_FSIZE, MAX_FILE_BYTES)
        _lower(resource.RLIMIT_CORE, 0)

    def finish(self) -> Finished:
        status, log = self.process.poll(), self._read()
        time_was_up = status == -signal.SIGXCPU or (status != 0 and _TIME_WAS_UP.search(log))
        return Finished(None if time_was_up else status, log)

    def _read(self) -> str:
        with self.log.open("rb") as stream:
            return stream.read(MAX_LOG_BYTES).decode("utf-8", "replace")

    def __enter__(self) -> _Job:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _lower(limit: int, value: int, more: int = 0) -> None:
    hard = resource.getrlimit(limit)[1]
    most = value + more if hard == resource.RLIM_INFINITY else min(value + more, hard)
    resource.setrlimit(limit, (min(value, most), most))
