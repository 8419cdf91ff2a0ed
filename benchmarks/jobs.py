"""Commands that depend on each other, side by side and in chunks of limited time: the same call goes on.

Every command must go on by itself where it was stopped, and end cleanly on SIGTERM, which it gets too when this process
is killed. `OUT/done/NAME` says that a job is done, `OUT/logs/NAME.log` what it said.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dice.errors import UserError
from dice.files.atomic import read_json, write_json
from dice.verify.sandbox.jail import PR_SET_PDEATHSIG, prctl

GRACE_S = 60.0  # between SIGTERM and SIGKILL
POLL_S = 0.1
TERMINATED = 128 + signal.SIGTERM


class JobFailed(Exception):
    """A command ended in an error; the message says which, and what it said last."""


@dataclass(frozen=True)
class Job:
    """`needs`: names of jobs that come first. `keep`: a folder that is copied, once done. `unless`: asked when its turn
    comes; where it says yes, the job counts as done without being run. `least_s`: with less time left it is not begun.
    """

    name: str
    command: tuple[str, ...]
    needs: tuple[str, ...] = ()
    keep: tuple[Path, Path] | None = None
    unless: Callable[[], bool] | None = None
    least_s: float = 0.0


@dataclass
class _Running:
    job: Job
    process: subprocess.Popen[bytes]
    slot: int


class Jobs:
    """The jobs of folder `out`, at most `parallel` at a time, each on a share of its own of this process's cores and on
    one of the `gpus`, which are named as in CUDA_VISIBLE_DEVICES.

    `keep_going`: a job that fails is noted in `failed` and stops no other that does not need it. `watch` is called now
    and then while jobs run."""

    def __init__(
        self, out: Path, jobs: Sequence[Job], parallel: int, gpus: Sequence[str] = (), *,
        keep_going: bool = False, watch: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        self.out, self.jobs, self.keep_going, self.watch = out, jobs, keep_going, watch
        self.failed: dict[str, str] = {}
        cores = sorted(os.sched_getaffinity(0))
        self.slots = max(1, min(parallel, len(cores)))
        self._cores = [set(cores[slot :: self.slots]) for slot in range(self.slots)]
        self._gpus = [{"CUDA_VISIBLE_DEVICES": gpus[slot % len(gpus)]} if gpus else {} for slot in range(self.slots)]
        self._running: list[_Running] = []
        for folder in ("done", "logs"):
            (out / folder).mkdir(parents=True, exist_ok=True)

    def run(self, seconds: float, grace_s: float = GRACE_S) -> bool:
        """Whether all are done. Raises `JobFailed`; in `seconds` all that runs is told to stop, and killed where it
        has not stopped after another `grace_s`."""
        deadline = time.monotonic() + seconds
        before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))  # not before the jobs have ended
        try:
            while not self._finished():
                left = deadline - time.monotonic()
                if left <= 0 or not (self._running or any(self._may_begin(job, left) for job in self.jobs)):
                    return False
                for job in self._ready(left):
                    self._start(job)
                time.sleep(POLL_S)
                self._collect()
                if self.watch is not None:
                    self.watch()
            return True
        finally:
            self._stop(grace_s)
            signal.signal(signal.SIGTERM, before)

    def is_done(self, name: str) -> bool:
        return (self.out / "done" / name).exists()

    def _finished(self) -> bool:
        return not self._running and all(self.is_done(job.name) for job in self.jobs)

    def _may_begin(self, job: Job, left: float) -> bool:
        under_way = any(one.job is job for one in self._running)
        over = under_way or job.name in self.failed or self.is_done(job.name)
        return not over and all(map(self.is_done, job.needs)) and job.least_s <= left

    def _ready(self, left: float) -> Iterator[Job]:
        """Jobs that may start now, while there is a free slot, with so many seconds left."""
        for job in self.jobs:
            if len(self._running) >= self.slots:
                return
            if not self._may_begin(job, left):
                continue
            if job.unless is not None and job.unless():
                self._note(job)
            else:
                yield job

    def _start(self, job: Job) -> None:
        slot = min(set(range(self.slots)) - {one.slot for one in self._running})
        cores = self._cores[slot]
        print(f"{time.strftime('%H:%M:%S')} {job.name}", flush=True)
        with (self.out / "logs" / f"{job.name}.log").open("ab") as log:
            process = subprocess.Popen(
                job.command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
                env=os.environ | {"OMP_NUM_THREADS": str(len(cores))} | self._gpus[slot],
                preexec_fn=lambda: _settle(cores),
            )  # fmt: skip
        self._running.append(_Running(job, process, slot))

    def _collect(self) -> None:
        for one in [one for one in self._running if one.process.poll() is not None]:
            self._running.remove(one)
            if one.process.returncode:
                said = (self.out / "logs" / f"{one.job.name}.log").read_text(errors="replace")[-2000:]
                message = f"{one.job.name} ended with {one.process.returncode}:\n{said}"
                if not self.keep_going:
                    raise JobFailed(message)
                print(message, flush=True)
                self.failed[one.job.name] = message
            else:
                self._note(one.job)

    def _note(self, job: Job) -> None:
        if job.keep is not None and job.keep[0].is_dir():
            shutil.copytree(job.keep[0], job.keep[1], dirs_exist_ok=True)
        (self.out / "done" / job.name).touch()

    def _stop(self, grace_s: float) -> None:
        for one in self._running:
            one.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        for one in self._running:
            try:
                one.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(one.process.pid, signal.SIGKILL)
                one.process.wait()
        self._running.clear()


def _settle(cores: set[int]) -> None:
    """In the new process, before the command: its cores, and its end with ours."""
    os.sched_setaffinity(0, cores)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def remember(out: Path, settings: dict[str, object]) -> None:
    """Note what `out` is for. Raises `UserError` where it holds work under other settings."""
    path, wanted = out / "settings.json", json.loads(json.dumps(settings, default=str))
    if path.exists():
        before = read_json(path)
        changed = sorted(name for name in wanted if before.get(name) != wanted[name])
        if changed:
            raise UserError(f"{out} holds work with other {', '.join(changed)}; give another folder.")
        return
    out.mkdir(parents=True, exist_ok=True)
    write_json(path, wanted)


def dice(*arguments: object) -> tuple[str, ...]:
    """The command line of `dice` in this Python."""
    return (sys.executable, "-m", "dice", *map(str, arguments))
