"""`Verifier`: verifies many pairs from one warm zygote."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from types import TracebackType
from typing import Any

from dice.kernel import Kernel
from dice.problem import Problem
from dice.verdict import Verdict
from dice.verify.job import Job, worker_threads
from dice.verify.options import Backend, Options, probe_cuda, resolve_backend, toolchain
from dice.verify.process import ChildEnded, DeadlineExceeded, MachineryError, Scratch, Zygote, wait_for
from dice.verify.sandbox import Limits
from dice.verify.turns import Turns

Pair = tuple[Problem, Kernel]
ATTEMPTS = 2  # a job whose processes were lost by our own fault is run once more


def verify(problem: Problem, kernel: Kernel, *, backend: str = "auto", options: Options | None = None) -> Verdict:
    """Compile, run and check `kernel` against `problem`. Raises `BackendUnavailable` when this machine cannot."""
    with Verifier(backend=backend, options=options) as verifier:
        return verifier.verify(problem, kernel)


class Verifier:
    """Verifies pairs, one or many at a time, each in processes of its own forked from a warm zygote.

    Raises `BackendUnavailable` when made for a backend that this machine cannot run. Every other trouble of ours
    is a verdict with outcome `infra_error`.
    """

    def __init__(self, *, backend: str = "auto", options: Options | None = None):
        self.backend: Backend = resolve_backend(backend)
        self.options = options or Options()
        self.options.cache_dir.mkdir(parents=True, exist_ok=True)
        self._zygote: Zygote | None = None
        self._zygote_lock = threading.Lock()
        self._gpu = Turns()
        self._prepared = False

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
            if self._zygote is not None:
                self._zygote.close()
            self._zygote = None

    def verify(self, problem: Problem, kernel: Kernel, options: Options | None = None) -> Verdict:
        """The verdict on one pair, under other `options` than the verifier's where given. Thread-safe."""
        return self._verify(problem, kernel, options or self.options, workers=1)

    def verify_many(self, pairs: Iterable[Pair], workers: int = 1) -> Iterator[tuple[int, Verdict]]:
        """(index, verdict) of every pair, as they finish. Identical pairs are verified once.

        Leaving the iteration early lets the jobs under way finish, and starts no others.
        """
        pairs = list(pairs)
        same: dict[tuple[str, str], list[int]] = {}
        for index, (problem, kernel) in enumerate(pairs):
            same.setdefault((problem.id, kernel.id), []).append(index)
        finished: queue.SimpleQueue[tuple[list[int], Verdict | BaseException]] = queue.SimpleQueue()

        def work(indices: list[int]) -> None:
            problem, kernel = pairs[indices[0]]
            try:
                finished.put((indices, self._verify(problem, kernel, self.options, workers)))
            except BaseException as error:  # noqa: B036 - carried to the caller's thread
                finished.put((indices, error))

        pool = ThreadPoolExecutor(max_workers=max(1, workers), thread_name_prefix="verify")
        try:
            for indices in same.values():
                pool.submit(work, indices)
            for _ in same:
                indices, verdict = finished.get()
                if isinstance(verdict, BaseException):
                    raise verdict
                for index in indices:
                    yield index, verdict
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _verify(self, problem: Problem, kernel: Kernel, options: Options, workers: int) -> Verdict:
        failure = ""
        for _ in range(ATTEMPTS):
            zygote = self._get_zygote()
            try:
                self._prepare(zygote)
                job = Job(zygote, problem, kernel, self.backend, options, worker_threads(workers))
                return self._describe(job.run(self._gpu))
            except MachineryError as error:
                failure = str(error)
                zygote.settle()
        return self._describe(Verdict("infra_error", "infra", f"{failure}.", backend=self.backend))

    def _describe(self, verdict: Verdict) -> Verdict:
        device = probe_cuda()["device"] if self.backend == "cuda" else "CPU"
        return replace(verdict, toolchain=toolchain(self.backend), device=device)

    def _get_zygote(self) -> Zygote:
        with self._zygote_lock:
            if self._zygote is None or not self._zygote.alive:
                if self._zygote is not None:
                    self._zygote.close()
                self._zygote = Zygote()
            return self._zygote

    def _prepare(self, zygote: Zygote) -> None:
        """Build once what all candidates share, so that no candidate's clock pays for it."""
        with self._zygote_lock:
            if self._prepared:
                return
            with Scratch() as scratch:
                limits = Limits(self.options.memory_mb, str(scratch.root), (str(self.options.cache_dir),))
                spec = {"backend": self.backend, "cache_dir": str(self.options.cache_dir)}
                _run_once(zygote, "prepare", asdict(limits), spec)
            self._prepared = True


def _run_once(zygote: Zygote, role: str, limits: dict[str, Any], spec: dict[str, Any], timeout_s: float = 300) -> None:
    import time

    with zygote.spawn(role, limits) as child:
        child.send(spec)
        try:
            answer = wait_for(child, (), time.monotonic() + timeout_s)
        except (ChildEnded, DeadlineExceeded) as error:
            said = child.log.decode(errors="replace").strip()[-2000:]
            raise MachineryError(f"what builds share could not be made ({error}): {said}") from None
        if answer.get("event") != "prepared":
            raise MachineryError(f"what builds share could not be made: {answer.get('message')}")
