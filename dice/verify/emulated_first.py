"""A verifier that asks emulation first, and the GPU what emulation cannot tell or takes long over.

A verdict on a GPU costs a CUDA context, of which a host makes one after the other, two or three hundred a minute, and
time of a GPU that may be busy with a model. Most kernels of a step of RL are small problems, which a core emulates in
less than a second.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from dice.kernel import Kernel
from dice.problem import Problem
from dice.verdict import Verdict
from dice.verify.options import Options
from dice.verify.sandbox.cancel import Cancellation
from dice.verify.sandbox.process import Cancelled
from dice.verify.stream import Places
from dice.verify.verifier import Verifier

QUICK_S = 5.0  # on the clock, once a kernel is built; what emulation takes longer over is asked of the GPU
BUILDING = frozenset({"compile", "load"})
DECIDED = frozenset({"correct", "wrong", "compile_error", "runtime_error", "deceptive", "no_kernel"})


class EmulatedFirst(Verifier):
    """`Verifier` of another `backend`, which is asked about kernels that emulation does not support or takes longer
    than QUICK_S over, and about right ones where they are to be timed. `Verdict.backend` says who decided."""

    def __init__(
        self,
        *,
        backend: str = "cuda",
        options: Options | None = None,
        devices: Sequence[int | str] | None = None,
        max_concurrent: int | None = None,
        builds: int | None = None,
        cache: Path | bool = False,
    ):
        super().__init__(
            backend=backend, options=options, devices=devices, max_concurrent=max_concurrent, builds=builds, cache=cache
        )
        self._first = Verifier(
            backend="emulated", options=_quick(self.options), max_concurrent=builds, builds=builds, cache=cache
        )

    def close(self) -> None:
        self._first.close()
        super().close()

    def _verify(
        self,
        problem: Problem,
        kernel: Kernel,
        options: Options,
        workers: int,
        cancellation: Cancellation,
        on_stage: Callable[[str], None] = lambda stage: None,
        places: Places | None = None,
    ) -> Verdict:
        with _alarm(cancellation, on_stage) as (own, told):
            verdict = self._first._verify(problem, kernel, _quick(options), workers, own, told, places)
            if verdict.outcome in DECIDED and not (verdict.correct and options.timing):
                return verdict
        return super()._verify(problem, kernel, options, workers, cancellation, on_stage, places)


@contextlib.contextmanager
def _alarm(
    cancellation: Cancellation, on_stage: Callable[[str], None]
) -> Iterator[tuple[Cancellation, Callable[[str], None]]]:
    """A job's own cancellation, and what to tell its stages. It is called off, and no more than that happens, QUICK_S
    after the first stage that builds nothing. Raises `Cancelled` where the `cancellation` is told."""
    own = cancellation.single_job()
    alarm = threading.Timer(QUICK_S, own.cancel)

    def told(stage: str) -> None:
        on_stage(stage)
        if stage not in BUILDING:
            with contextlib.suppress(RuntimeError):  # it was started before, maybe by another thread
                alarm.start()

    try:
        yield own, told
    except Cancelled:
        cancellation.check()
    finally:
        alarm.cancel()
        cancellation.forget(own)


def _quick(options: Options) -> Options:
    return replace(options, timing=False, sanitize=False)
