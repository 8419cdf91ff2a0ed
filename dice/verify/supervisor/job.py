"""One verification, from the file's text to the verdict; and whether a problem's own reference works here, asked of the
jailed reference before any kernel is written for it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from dice.kernel import Kernel
from dice.problem import Problem
from dice.verdict import Verdict
from dice.verify.ipc import messages as m
from dice.verify.options import Options
from dice.verify.supervisor import outcomes, sanitizer
from dice.verify.supervisor.assignment import Assignment, Services
from dice.verify.supervisor.attempt import Attempt
from dice.verify.supervisor.author import NotCaptured
from dice.verify.supervisor.feedback import Feedback
from dice.verify.supervisor.gpu_lock import CONTEXT_BYTES, GpuLock, Turn
from dice.verify.supervisor.intervention import call_often, intervene, remark
from dice.verify.supervisor.job_files import job_files
from dice.verify.supervisor.measurement import Measurement, profile, refuse_token_work
from dice.verify.supervisor.record import Record, ReferenceBroken, VerdictReached
from dice.verify.supervisor.reference_pool import NEVER, ReferenceSettings, ReferenceUnusable, Session
from dice.verify.text import static

# Before kernels are written. A larger problem is not constructed where it came to its end on tensors without data, and
# where it did not, only constructed beyond the second limit: to draw and run 270 of KernelBench's took over three
# minutes on an H100. Whether its code is there and fits together shows without.
TRIED_AT_MOST_BYTES = 1 << 26
DRAWN_AT_MOST_BYTES = 1 << 30
REFERENCE_MEMORY = 4  # times the candidate's: it holds inputs, outputs and their float64 versions


class Job:
    """Verifies one pair; `whole`: with the GPU's memory to itself.

    `hurt_device`: something ended badly on the device, so that it should be looked at. `short_of_memory`: it ended for
    lack of the GPU's memory, of which other jobs had some. `on_stage` is told what the job is at, as it goes.
    """

    def __init__(
        self,
        services: Services,
        problem: Problem,
        kernel: Kernel,
        options: Options,
        whole: bool = False,
        on_stage: Callable[[str], None] = lambda stage: None,
    ):
        self._asked = Assignment(services, problem, kernel, options, whole)
        self.assignment = self._asked.with_room()
        self.record = Record(services.backend, self.assignment.protocol.name, services.lacking, on_stage)
        self.feedback = Feedback(kernel.source)
        self.hurt_device = False
        self.short_of_memory = False

    def run(self, gpu: GpuLock) -> Verdict:
        """The verdict. Raises `MachineryError` when our own processes were lost."""
        started = time.monotonic()
        try:
            stop = self._stop(gpu)
            on_device = self.record.stage != "load" and stop.stage in ("run", "time")
            self.hurt_device = on_device and stop.outcome in outcomes.HURTING
        except ReferenceBroken as broken:
            stop = broken.as_verdict_reached()
            self.hurt_device = True  # the device may be what failed
        # No kernel was found in the text: where it is no C++, which deceives nobody, and where it was put together from
        # pieces, and its kernels have run.
        if stop.outcome == "compile_error" or self.record.launches:
            self.record.deceptions = tuple(kind for kind in self.record.deceptions if kind != "torch_only")
        # A class that a file names its base is nothing beside a program that says who computed.
        if stop.outcome == "correct" and self.record.provenance == "construction":
            self.record.deceptions = tuple(kind for kind in self.record.deceptions if kind != "inherits_reference")
        self.short_of_memory = self.assignment.shares and stop.lacks_gpu_memory
        self.record.seconds["total"] = time.monotonic() - started
        self.record.findings = tuple(self.feedback.findings)
        return self.record.verdict(stop)

    def _stop(self, gpu: GpuLock) -> VerdictReached:
        """Where the verification ended. Raises `ReferenceBroken` where not even the problem's own inputs suit it."""
        try:
            report = self._read()
        except VerdictReached as stop:
            return stop
        end = self._check_with_care(report, gpu)
        roomy = self._asked.with_room()
        of_host = end.outcome == "out_of_memory" and not end.lacks_gpu_memory
        if of_host and roomy.options.memory_mb > self.assignment.options.memory_mb:
            self.assignment = roomy  # how much the model's parameters take is known now
            end = self._check_with_care(report, gpu)
        return end

    def _check_with_care(self, report: static.StaticReport, gpu: GpuLock) -> VerdictReached:
        """On what the problem itself draws alone, where its reference does not bear more."""
        try:
            return self._check(
                report, gpu, vary=not self.assignment.services.references.is_fragile(self.assignment.problem)
            )
        except ReferenceBroken as broken:
            if not broken.varied or (self.assignment.shares and broken.lacks_gpu_memory):
                return broken.as_verdict_reached()
        return self._check(report, gpu, vary=False)

    def _read(self) -> static.StaticReport:
        """What the file's text says. Raises `VerdictReached` where it is no kernel, or computes with PyTorch alone."""
        services, record = self.assignment.services, self.record
        report, self.feedback.literals = services.examinations.examine(services.spawner.zygote, self.assignment.kernel)
        record.deceptions = report.deceptions
        record.add_labels(*report.labels)
        if report.unusable:
            raise VerdictReached("no_kernel", "extract", report.unusable)
        if report.asks_for_build:
            return report  # its compiler says what the source holds, where reading finds no kernel in it
        if not report.has_cuda and self.assignment.protocol.refuses_kind(report.deceptions):
            raise VerdictReached(
                "deceptive", "static", "the file defines no CUDA kernel: ModelNew computes with PyTorch alone."
            )
        return report

    def _check(self, report: static.StaticReport, gpu: GpuLock, vary: bool) -> VerdictReached:
        """The candidate against the reference: its program where it has one, else its own process. `vary`: on more than
        what the problem itself draws."""
        job, wanted = self.assignment, self.assignment.options.provenance
        replayed = job.options.sanitize and job.backend == "cuda"  # compute-sanitizer runs the file itself
        if job.protocol.ours and vary and wanted != "evidence" and not replayed:
            try:
                return self._compare(report, gpu, vary, constructs=True)
            except NotCaptured as reason:
                self.record.not_captured = str(reason)
        if wanted == "construction":
            why = self.record.not_captured or "it cannot be had under these options"
            return VerdictReached("unsupported", "run", f"there is no program by construction: {why}")
        return self._compare(report, gpu, vary, constructs=False)

    def _compare(self, report: static.StaticReport, gpu: GpuLock, vary: bool, constructs: bool) -> VerdictReached:
        self.record.begin(self.assignment.options.trials)
        self.record.provenance = "evidence" if self.assignment.protocol.ours and not constructs else ""
        self.record.add_labels("given_inputs_only" if self.assignment.protocol.ours and not vary else "")
        with (
            contextlib.ExitStack() as room,  # of the GPU's memory: given back last
            self._open_session(vary) as session,
            job_files(self.assignment.options.cache_dir) as files,
            Attempt(self.assignment, self.record, report, self.feedback, session, files, constructs) as attempt,
        ):
            try:
                self._go_through(attempt, gpu, room, vary)
                stop = VerdictReached("correct", "done", "")
            except VerdictReached as reached:
                stop = reached
            session.check_kept()
            return self._sanitized(attempt, gpu, stop)

    def _go_through(self, attempt: Attempt, gpu: GpuLock, room: contextlib.ExitStack, vary: bool) -> None:
        """All that a right kernel passes. Raises `VerdictReached` at the first that it does not."""
        record = self.record
        attempt.load()
        with record.after(gpu.shared()), record.clock("reference"):
            opened: m.GroupOpened = attempt.of_reference(attempt.session.open)
        record.scale = opened.scale
        # All at once, and before anything is on the GPU: who waits holds nothing that others wait for.
        needed = opened.needed + (CONTEXT_BYTES if self.assignment.backend == "cuda" else 0)
        needed = NEVER if self.assignment.whole else needed
        room.enter_context(record.after(gpu.reserve_memory(needed, self.assignment.services.step_aside)))
        attempt.make_context()
        with record.after(gpu.hold(self.assignment.whole, slow=True)):
            plan = attempt.prepare(vary)
        # All who check must be through with a step before another job can be timed.
        with Turn(gpu, self.assignment.whole, lambda: record.clock("wait")) as turn:
            for number, step in enumerate(plan):
                turn.step()
                attempt.run_trial(number, step)
            attempt.refuse_idle()
            Measurement(attempt, gpu, turn).run()
            turn.step()
            intervene(attempt, vary)
            refuse_token_work(attempt)  # after what names more: who passes on what PyTorch computed did too little, too
            profile(attempt)
            call_often(attempt)
            remark(attempt)

    def _open_session(self, vary: bool) -> Session:
        job, services = self.assignment, self.assignment.services
        # A run under compute-sanitizer is told of files only.
        lends = services.references.lends(job.problem) and not job.options.sanitize
        settings = ReferenceSettings.of(job.problem, job.options, vary, services.threads, lends, job.shares)
        memory_mb = REFERENCE_MEMORY * job.options.memory_mb
        return services.references.open(services.spawner, settings, memory_mb, services.view)

    def _sanitized(self, attempt: Attempt, gpu: GpuLock, stop: VerdictReached) -> VerdictReached:
        """What compute-sanitizer says of one more run, where that decides; else `stop`, with what it says."""
        job, record = self.assignment, self.record
        if not sanitizer.applies(job.options, job.backend, stop.outcome):
            return stop
        with record.after(gpu.shared()), record.clock("sanitize"):
            report = sanitizer.examine(
                job.services.spawner,
                attempt.limits(),
                attempt.replay,
                attempt.files.root / "sanitizer",
                attempt.report.functions,
                job.options.run_timeout_s,
                (attempt.candidate,),
            )
        record.add_labels(*report.labels)
        found = self.feedback.keep(report.findings)
        if found is None or stop.outcome != "correct":
            errors = (*stop.errors, *self.feedback.sentences, *report.troubles)
            return VerdictReached(stop.outcome, stop.stage, stop.message, errors, stop.lacks_gpu_memory)
        return VerdictReached("runtime_error", "run", f"{found.kind}: {found.message}.", self.feedback.sentences)


@dataclass(frozen=True, slots=True)
class ProblemFault:
    """Why the reference gives no output. `own`: its own code raised, as it would anywhere; else the problem is too
    large, or too slow, for this machine."""

    message: str
    own: bool


def find_fault(services: Services, problem: Problem, options: Options, gpu: GpuLock) -> ProblemFault | None:
    """Construct the reference, draw the problem's inputs and run the one on the other, once; on tensors without data
    where it needs more than `TRIED_AT_MOST_BYTES`. A problem that needs values for that and more than
    `DRAWN_AT_MOST_BYTES` is only constructed. Raises `MachineryError`, `Cancelled`."""
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
        opened = session.open()
    needed = opened.needed
    if opened.runs and TRIED_AT_MOST_BYTES < needed <= gpu.memory:
        return
    context = CONTEXT_BYTES if services.backend == "cuda" else 0
    with gpu.reserve_memory(needed + context), gpu.shared(slow=True):
        session.construct()
        if DRAWN_AT_MOST_BYTES < needed <= gpu.memory:
            return
        (step,) = session.plan().plan
        session.draw_for_nobody(m.DrawTrial(step.name, step, loadable=False))
