"""Whether a problem's own reference works here, asked of the jailed reference before any kernel is written for it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dice.problem import Problem
from dice.verify.ipc import messages as m
from dice.verify.options import Options
from dice.verify.supervisor.assignment import Services
from dice.verify.supervisor.gpu_lock import CONTEXT_BYTES, GpuLock
from dice.verify.supervisor.job import REFERENCE_MEMORY
from dice.verify.supervisor.reference_pool import ReferenceSettings, ReferenceUnusable, Session


@dataclass(frozen=True, slots=True)
class ProblemFault:
    """Why the reference gives no output. `own`: its own code raised, as it would anywhere; else the problem is too
    large, or too slow, for this machine."""

    message: str
    own: bool


def find_fault(services: Services, problem: Problem, options: Options, gpu: GpuLock) -> ProblemFault | None:
    """Draw the problem's inputs and run its reference on them, once. Raises `MachineryError`, `Cancelled`."""
    settings = ReferenceSettings.of(
        problem,
        replace(options, trials=1),
        vary=False,
        threads=services.threads,
        lends=services.references.lends(problem),
        shares=services.backend == "cuda",
    )
    try:
        with services.references.open(
            services.spawner, settings, REFERENCE_MEMORY * options.memory_mb, services.view
        ) as session:
            _run_once(services, session, gpu)
    except ReferenceUnusable as failed:
        return ProblemFault(str(failed), failed.own)
    return None


def _run_once(services: Services, session: Session, gpu: GpuLock) -> None:
    with gpu.shared():
        needed = session.open().needed
    context = CONTEXT_BYTES if services.backend == "cuda" else 0
    with gpu.reserve_memory(needed + context), gpu.shared(slow=True):
        session.construct()
        (step,) = session.plan().plan
        session.draw_for_nobody(m.DrawTrial(step.name, step, loadable=False))
