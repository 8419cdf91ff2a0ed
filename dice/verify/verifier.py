"""`Verifier`: verifies many pairs on this machine from one warm zygote."""

from __future__ import annotations

import logging
import os
import resource
import tempfile
import threading
import traceback
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType

from dice.kernel import Kernel
from dice.problem import Problem
from dice.verdict import Backend, Verdict
from dice.verify.build.service import BuildService
from dice.verify.options import BackendUnavailable, Options, probe_cuda, resolve_backend, toolchain, visible_gpus
from dice.verify.sandbox.cancel import Cancellation, Spawner
from dice.verify.sandbox.process import Cancelled, MachineryError, Zygote
from dice.verify.sandbox.visible_paths import candidate_view
from dice.verify.stream import Pair, Places, Progress, run_stream
from dice.verify.supervisor import guarantees, sanitizer
from dice.verify.supervisor.assignment import Services, candidate_limits, worker_threads
from dice.verify.supervisor.devices import Device, Devices
from dice.verify.supervisor.examiner import Examinations
from dice.verify.supervisor.health import DeviceLost, probe_gpu
from dice.verify.supervisor.job import Job, ProblemFault, find_fault
from dice.verify.supervisor.reference_pool import ReferenceLost
from dice.verify.verdict_cache import FILE, VerdictCache, cache_key

log = logging.getLogger(__name__)
MOST_OPEN_FILES = 1 << 16
ATTEMPTS = 3  # a job whose processes were lost by our own fault is run again,
OTHERS_FAULTS = 10  # and more often where another job's problem took the reference's process with it, or a GPU ended


def _tell_nobody(stage: str) -> None:
    """Where nobody wants to know what a verification is at."""


def verify(
    problem: Problem | str | Path,
    kernel: Kernel | str | Path,
    *,
    backend: str = "auto",
    options: Options | None = None,
) -> Verdict:
    """Compile, run and check `kernel` against `problem`; either may be the path of its file.

    Raises `BackendUnavailable` when this machine cannot, `UserError` for a file that cannot be used.
    """
    problem = problem if isinstance(problem, Problem) else Problem.from_file(problem)
    kernel = kernel if isinstance(kernel, Kernel) else Kernel.from_file(kernel)
    with Verifier(backend=backend, options=options) as verifier:
        return verifier.verify(problem, kernel)


class Verifier:
    """Verifies pairs, one or many at a time, each in processes of its own forked from a warm zygote.

    `devices`: the GPUs to use, as CUDA_VISIBLE_DEVICES names them; all that PyTorch sees by default.
    `max_concurrent`: how many candidates may be on one device at once. `builds`: how many may compile at once, a core
    each. `cache`: where verdicts are kept and found again, a file; True for one beside the built libraries.

    Raises `BackendUnavailable` when made for a backend that this machine cannot run. Every other trouble of ours
    is a verdict with outcome `infra_error`.
    """

    def __init__(
        self,
        *,
        backend: str = "auto",
        options: Options | None = None,
        devices: Sequence[int | str] | None = None,
        max_concurrent: int | None = None,
        builds: int | None = None,
        cache: Path | bool = False,
    ):
        self.backend: Backend = resolve_backend(backend)
        self.options = options or Options()
        cache_dir = self.options.cache_dir
        _make_writable(cache_dir)
        _allow_open_files()
        self._zygote: Zygote | None = None
        self._zygote_lock = threading.Lock()
        self._builds = BuildService(self.backend, cache_dir, builds)
        self._examinations = Examinations()
        probe = self._probe if self.backend == "cuda" else None
        if devices is None:
            devices = visible_gpus() if self.backend == "cuda" else ()
        self.devices = Devices(self.backend, [str(device) for device in devices], max_concurrent, probe)
        self._view_lock = threading.Lock()
        self._view: tuple[str, ...] = ()
        self._lacking: tuple[str, ...] = ()
        self._cache = VerdictCache(cache_dir / FILE if cache is True else cache) if cache else None

    def __enter__(self) -> Verifier:
        self._get_zygote()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the zygote and whatever still runs."""
        with self._zygote_lock:
            self.devices.close()
            self._examinations.close()
            if self._zygote is not None:
                self._zygote.close()
            self._zygote = None
        if self._cache is not None:
            self._cache.close()

    def verify(
        self,
        problem: Problem,
        kernel: Kernel,
        options: Options | None = None,
        *,
        workers: int = 1,
        on_stage: Callable[[str], None] = _tell_nobody,
        cancellation: Cancellation | None = None,
    ) -> Verdict:
        """The verdict on one pair, under other `options` than the verifier's where given. Thread-safe.

        Whoever verifies many in threads of its own says how many at once (`workers`), and may call them off: raises
        `Cancelled` then. `on_stage` is told what the verification is at, by the names that `Verdict.seconds` has, from
        other threads and a stage maybe many times.
        """
        off = cancellation or Cancellation(single=True)
        return self._verify(problem, kernel, options or self.options, workers, off, on_stage)

    def lacking(self) -> tuple[str, ...]:
        """The guarantees that candidates' sandbox does not give on this machine, found by trying. Raises
        `MachineryError`."""
        spawner = Spawner(self._get_zygote(), Cancellation())
        self._builds.prepare(spawner)
        with self.devices.device() as device:
            return self._services(device, spawner, 1).lacking

    def find_faults(
        self,
        problems: Sequence[Problem],
        progress: Callable[[int, int], None] = lambda done, total: None,
        cancellation: Cancellation | None = None,
    ) -> list[ProblemFault | None]:
        """Why each problem's own reference gives no output here, None where it does: what to ask before kernels are
        written. Where our machinery fails nothing is said of the problem. Raises `Cancelled` once it is called off."""
        cancellation = cancellation or Cancellation()
        found = []
        with ThreadPoolExecutor(self.default_workers, thread_name_prefix="check") as pool:
            try:
                for fault in pool.map(partial(self._find_fault, cancellation), problems):
                    found.append(fault)
                    progress(len(found), len(problems))
            except BaseException:
                cancellation.cancel()
                raise
        return found

    def verify_many(
        self,
        pairs: Iterable[Pair],
        workers: int | None = None,
        *,
        options: Options | None = None,
        ordered: bool = False,
        progress: Callable[[Progress], None] | None = None,
        cancellation: Cancellation | None = None,
    ) -> Generator[tuple[int, Verdict], None, None]:
        """(index, verdict) of every pair, as they finish or, when `ordered`, in the order of `pairs`. `options`: others
        than the verifier's.

        `workers` jobs are under way at once, by default `default_workers`. `pairs` may be an endless stream; see
        `stream.run_stream` for what is read ahead, and when. Equal pairs are verified once. Closing the iterator kills
        what runs, and so does telling the `cancellation`: the iterator raises `Cancelled` then.
        """
        workers = workers or self.default_workers
        places = Places(workers)

        def run(problem: Problem, kernel: Kernel, own: Cancellation) -> Verdict:
            return self._verify(problem, kernel, options or self.options, workers, own, places=places)

        return run_stream(
            run, pairs, workers, ordered=ordered, progress=progress, cancellation=cancellation, places=places
        )

    @property
    def default_workers(self) -> int:
        """As many jobs as may compile and run at a time."""
        cores = len(os.sched_getaffinity(0))
        return cores if self.backend == "emulated" else cores + self.devices.max_concurrent * len(self.devices.devices)

    def _verify(
        self,
        problem: Problem,
        kernel: Kernel,
        options: Options,
        workers: int,
        cancellation: Cancellation,
        on_stage: Callable[[str], None] = _tell_nobody,
        places: Places | None = None,
    ) -> Verdict:
        if options.sanitize and self.backend == "cuda":
            sanitizer.require()
        asked = problem, kernel, options, workers, cancellation, on_stage, places
        if self._cache is None:
            return self._run(*asked)
        key = cache_key(problem, kernel, options, self.backend, self._device_name(), toolchain(self.backend))
        if (verdict := self._cache.find(key)) is None:
            verdict = self._run(*asked)
            self._cache.keep(key, verdict)
        return verdict

    def _run(
        self,
        problem: Problem,
        kernel: Kernel,
        options: Options,
        workers: int,
        cancellation: Cancellation,
        on_stage: Callable[[str], None],
        places: Places | None,
    ) -> Verdict:
        """Run a job until it is through, or our own processes were lost too often."""
        ours, failure, was_killed = 0, "", False
        zygote: Zygote | None = None
        for _ in range(OTHERS_FAULTS):
            try:
                zygote = self._get_zygote()
                spawner = Spawner(zygote, cancellation)
                self._builds.prepare(spawner)
                with self.devices.device() as device:
                    services = self._services(device, spawner, workers, places)
                    for whole in (False, True):
                        job = Job(services, problem, kernel, options, whole, on_stage)
                        verdict = job.run(device.gpu_lock)
                        if job.hurt_device:
                            device.health.check()
                        if not job.short_of_memory:
                            break
                if job.record.was_killed and not was_killed:  # a system that is short of memory ends candidates first
                    was_killed = True
                    continue
                return self._describe(verdict)
            except Cancelled:
                raise
            except (ReferenceLost, DeviceLost) as error:  # in somebody else's request
                failure = str(error)
            except (MachineryError, OSError) as error:  # a full disk, no descriptors left
                failure = str(error)
                if zygote is not None:
                    zygote.settle()
                ours += 1
            except Exception as error:  # a fault in this program must cost no other job its verdict
                log.exception("verifying %s against %s failed", kernel.name, problem.name)
                failure = f"the verifier failed with {describe(error)}"
                ours += 1
            if ours == ATTEMPTS:
                break
        return self._describe(Verdict("infra_error", "infra", f"{failure}.", backend=self.backend))

    def _find_fault(self, cancellation: Cancellation, problem: Problem) -> ProblemFault | None:
        try:
            spawner = Spawner(self._get_zygote(), cancellation)
            self._builds.prepare(spawner)  # before anybody asks what candidates may see
            with self.devices.device() as device:
                services = self._services(device, spawner, self.default_workers)
                return find_fault(services, problem, self.options, device.gpu_lock)
        except Cancelled:
            raise
        except (MachineryError, OSError) as error:
            log.info("checking %s failed: %s", problem.name, error)
            return None

    def _services(self, device: Device, spawner: Spawner, workers: int, places: Places | None = None) -> Services:
        with self._view_lock:
            if not self._view:
                view = candidate_view(self.options.cache_dir)
                limits = candidate_limits(self.options.memory_mb, view)
                self._lacking = guarantees.broken(spawner, self.options.cache_dir, limits)
                self._view = view
        kept = self._builds, self._examinations, device.references
        more = worker_threads(workers), self._lacking, places.given_up if places else nullcontext
        return Services(self.backend, spawner, *kept, self._view, *more)

    def _describe(self, verdict: Verdict) -> Verdict:
        return replace(verdict, toolchain=toolchain(self.backend), device=self._device_name())

    def _device_name(self) -> str:
        return str(probe_cuda()["device"]) if self.backend == "cuda" else "CPU"

    def _probe(self, gpu: str) -> bool:
        return probe_gpu(self._get_zygote(), gpu)

    def _get_zygote(self) -> Zygote:
        with self._zygote_lock:
            if self._zygote is None or not self._zygote.alive:
                if self._zygote is not None:
                    self._zygote.close()
                self._zygote = Zygote()
            return self._zygote


def _allow_open_files() -> None:
    """As many as the system lets us have. Open files that candidates send one another count against ours, too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MOST_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def describe(error: BaseException) -> str:
    """An exception of this program's in a line, with the place that raised it."""
    frames = traceback.extract_tb(error.__traceback__)[-1:]
    place = "".join(f" ({Path(frame.filename).name}, line {frame.lineno})" for frame in frames)
    return f"{type(error).__name__}: {str(error)[:300]}{place}"


def _make_writable(folder: Path) -> None:
    """Raises `BackendUnavailable` for a folder that nothing can be built in."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = error.strerror or str(error)
        raise BackendUnavailable(f"Builds cannot be kept in {folder}: {reason} (set DICE_CACHE elsewhere).") from None
