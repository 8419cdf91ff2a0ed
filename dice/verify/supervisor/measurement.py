"""A right kernel's time beside the reference's, and where a forward's time goes."""

from __future__ import annotations

from typing import Any, TypeVar

from dice.verify.ipc import messages as m
from dice.verify.ipc import operator_counts, untrusted
from dice.verify.ipc.replaced import LEAST_SHARE
from dice.verify.supervisor import timing
from dice.verify.supervisor.attempt import OUTPUT, Attempt
from dice.verify.supervisor.deception import too_little
from dice.verify.supervisor.gpu_lock import GpuLock, Turn
from dice.verify.supervisor.record import VerdictReached

TIMED = m.Step(timing.INPUTS, "given")
T = TypeVar("T")


class Measurement:
    """The timing of one attempt, alone on its GPU. `turn`: the job's, until then."""

    def __init__(self, attempt: Attempt, gpu: GpuLock, turn: Turn):
        self._attempt, self._gpu, self._turn = attempt, gpu, turn
        self._job, self._record = attempt.assignment, attempt.record

    def run(self) -> None:
        """Note the times, or why there are none. Raises `VerdictReached` where the kernel fails while it is timed."""
        if self._job.backend == "emulated":
            self._record.no_timing = "emulation says nothing about speed on a GPU"
            return
        if not self._job.options.timing:
            self._record.no_timing = "not asked for"
            return
        try:
            self._measure()
        except VerdictReached as stop:
            # KernelBench's answer stands, whatever is met in its timing: there it is a label.
            if self._job.protocol.ours or (self._job.shares and stop.lacks_gpu_memory):
                raise
            self._record.no_timing = stop.message
            self._record.add_labels(f"timing:{stop.outcome}")

    def _measure(self) -> None:
        job, record = self._job, self._record
        record.stage = "time"
        self._turn.step()  # the reference runs
        drawn = self._attempt.draw(TIMED)
        self._turn.end()
        options = job.options
        with record.after(self._gpu.exclusive()), record.clock("time"):
            try:
                check = self._leave_unchecked if drawn.evolves else self._check
                contest = timing.run(self._ask_reference, self._ask_candidate, check, options.timing_s)
                facts = timing.facts(
                    contest, self._ask_reference, options.cache_dir, job.problem.id, options.compile_baseline
                )
            except timing.Busy as error:
                if job.shares and isinstance(error, timing.Stalled):
                    raise VerdictReached("out_of_memory", "time", f"{error}.", lacks_gpu_memory=True) from None
                record.no_timing = str(error)
                return
            except timing.Malformed as error:
                raise VerdictReached("runtime_error", "time", str(error)) from None
            except timing.Implausible as error:
                record.deceptions = (*record.deceptions, error.kind)
                raise VerdictReached("deceptive", "time", f"the kernel's times are not true: {error}") from None
            timed = self._ask_reference(m.TimeOperators(), m.OperatorsTimed)
            record.operator_ms = operator_counts.by_kind(zip(timed.kinds, timed.ms, strict=True))
        record.timing = contest.timing(**facts)

    def _ask_reference(self, command: Any, answer: type[T]) -> T:
        return self._attempt.ask_reference(command, answer)

    def _ask_candidate(self, command: Any, answer: type[T]) -> T:
        return self._attempt.talk.ask(command, answer)

    def _leave_unchecked(self, command: m.JudgeTimed) -> None:
        """Calls that were timed have moved a state on which the next output depends, and on each side others."""
        self._record.add_labels("timed_outputs_unchecked")

    def _check(self, command: m.JudgeTimed) -> None:
        with self._record.clock("compare"):
            judged = self._attempt.ask_reference(command, m.Judged, OUTPUT)
        if not judged.equal:
            raise VerdictReached("wrong", "compare", f"the timed run: {judged.message}", judged.errors)


def refuse_token_work(attempt: Attempt) -> None:
    """Raise `VerdictReached` where what the kernels replaced is nothing of weight, by its time."""
    record = attempt.record
    found = record.replaced if attempt.assignment.protocol.ours else None
    if found is not None and found.time_share < LEAST_SHARE:
        record.deceptions = (*record.deceptions, "replaced_too_little")
        raise VerdictReached("deceptive", "run", f"{too_little(found)}.")


def profile(attempt: Attempt) -> None:
    """At the very end, for a profiler that ends the process takes nothing with it then."""
    trial = attempt.replay.trial
    if not attempt.assignment.options.profile or attempt.assignment.backend == "emulated" or trial is None:
        return
    try:
        said = attempt.talk.ask(m.ProfileForward(attempt.drawn, trial.seed), m.Profiled)
    except VerdictReached:
        attempt.record.add_labels("profile_failed")
        return
    attempt.record.profile = untrusted.gpu_times(said.times)
