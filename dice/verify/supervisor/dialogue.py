"""The supervisor's talk with one candidate: what it is told, what it reports, what it has built, all on clocks."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from typing import Any, TypeVar

from dice.verify.build.compiler_process import PATIENCE
from dice.verify.build.sources import Sources
from dice.verify.ipc.encoding import Raw, claim, is_a
from dice.verify.ipc.messages import Build, Failed, Fault, Loaded, RunFile, Started
from dice.verify.sandbox.process import Child, ChildEnded, DeadlineExceeded, MachineryError, wait_for
from dice.verify.sandbox.scratch import is_crowded_out
from dice.verify.supervisor import outcomes, sanitizer
from dice.verify.supervisor.assignment import Assignment
from dice.verify.supervisor.feedback import Feedback
from dice.verify.supervisor.job_files import JobFiles
from dice.verify.supervisor.record import Record, VerdictReached

M = TypeVar("M")

MOST_BUILDS = 32  # of one job: each costs the supervisor some work, even where it was built before


class Dialogue:
    """With one candidate, until it ends or the job knows enough. What it learns goes to the job's `record`.

    `run_left`: seconds for all that the candidate does, builds excepted. `compile_left`: on the clock, for those.
    """

    def __init__(
        self,
        job: Assignment,
        candidate: Child,
        files: JobFiles,
        run_timeout_s: float,
        record: Record,
        feedback: Feedback,
        replay: sanitizer.Replay,
    ):
        self.services, self.options, self.candidate, self.files = job.services, job.options, candidate, files
        self.record, self.feedback, self.replay = record, feedback, replay
        self.problem = job.problem.source
        names_graphs = outcomes.ASKS_FOR_GRAPHS.search(job.kernel.source) is not None
        self.wants_graphs = names_graphs and job.services.backend == "emulated"
        self.run_timeout_s = self.run_left = run_timeout_s
        self.compile_left = PATIENCE * job.options.compile_timeout_s
        self.builds = 0
        self._owed: list[type[Any]] = []  # answers that nobody waits for any more; they come before all others

    def tell(self, message: Any) -> None:
        """Send the candidate something, on its clock: it may never read it."""
        started = time.monotonic()
        try:
            self.candidate.send(message, timeout_s=self.run_left)
        except DeadlineExceeded:
            raise self._overdue() from None
        finally:
            self.run_left -= time.monotonic() - started

    def ask(self, message: Any, answer: type[M]) -> M:
        """Tell it something, and hear its answer."""
        self.tell(message)
        return self.hear(answer)

    def hear(self, answer: type[M]) -> M:
        """Its next report of this kind. What it asks to be built meanwhile counts on the compile clock. An answer that
        was not there in time is none to what it is asked next, nor is it a message that nobody asked for."""
        while True:
            started = time.monotonic()
            try:
                raw = wait_for(self.candidate, (), started + self.run_left)
            except DeadlineExceeded:
                self.run_left = 0.0
                self._owed.append(answer)
                raise self._overdue() from None
            except ChildEnded as end:
                self.record.was_killed = end.ended.signal == signal.SIGKILL and not end.ended.reason
                raise outcomes.died(self.candidate, end, self.record.stage, self.options.memory_mb) from None
            self.run_left -= time.monotonic() - started
            if self._owed and is_a(raw, self._owed[0]):
                self._owed.pop(0)
                continue
            if is_a(raw, answer):
                return claim(raw, answer)
            self._raise_reported(raw)
            if is_a(raw, Build):
                self._build(claim(raw, Build))
            elif not is_a(raw, Started):
                self.record.evidence.note(raw)

    def load(self, file: RunFile) -> None:
        """Have it run the kernel file. Raises `VerdictReached` where that defines no model."""
        self.replay.file = file
        self.tell(file)
        outcomes.await_start(self.candidate)
        self.record.sandbox = self.candidate.sandbox
        built_before = self.record.build_wall  # by an earlier process of this job
        with self.record.clock("load"):
            loaded = self.hear(Loaded)
        self.record.seconds["load"] -= self.record.build_wall - built_before
        if not loaded.has_model:
            raise VerdictReached("no_kernel", "extract", "the file defines no class ModelNew.")

    def unless_full(self, stop: VerdictReached) -> VerdictReached:
        """`stop`, unless the disk is full and not of the candidate's own files: then its failure is ours."""
        if is_crowded_out(self.files.root):
            raise MachineryError("there is no space left on the disk for the files of a verification")
        return stop

    def _overdue(self) -> VerdictReached:
        limit = f"{self.run_timeout_s:g} s; --run-timeout allows more"
        return VerdictReached("timeout", self.record.stage, f"the kernel file ran for over {limit}.")

    def _raise_reported(self, raw: Raw) -> None:
        emulated = self.services.backend == "emulated"
        if "fault" in raw:
            fault = claim(raw, Fault)
            text = self.feedback.locate((fault.message,))[0]
            raise self.unless_full(outcomes.fault(fault.fault[:40], text, emulated))
        if not is_a(raw, Failed):
            return
        failed = claim(raw, Failed)
        if failed.build in self.record.failed_builds:
            raise self.record.failed_builds[failed.build]
        raise self.unless_full(outcomes.reported(failed, self.record.stage, self.problem, self.wants_graphs))

    def _build(self, wanted: Build) -> None:
        """Build what the candidate asks for and tell it the result. Only what the builder says decides an outcome."""
        stage = self.record.stage
        try:
            sources = Sources.from_json(wanted.sources)
        except ValueError:
            raise VerdictReached("runtime_error", stage, "it asked for a build as load_inline never does.") from None
        self.builds += 1
        if self.builds > MOST_BUILDS:
            raise VerdictReached("runtime_error", stage, f"it asked for over {MOST_BUILDS} builds.")
        started = time.monotonic()
        others = (self.candidate,)
        left = min(max(1.0, self.compile_left), self.options.compile_timeout_s)
        services = self.services
        answer = services.builds.build(services.spawner, sources, wanted.name, left, others, self.options.sanitize)
        if answer.built is not None:
            answer = replace(answer, built=self.files.show(answer.built))
        self.replay.note_build(sources, answer.told(wanted.request))
        self.feedback.note_build(sources, str(answer.built.path) if answer.built else "")
        self.record.build_wall += time.monotonic() - started
        self.record.seconds["compile"] = self.record.seconds.get("compile", 0.0) + answer.seconds
        self.compile_left -= answer.seconds
        if answer.kind == "timeout" or self.compile_left <= 0:
            limit = f"{self.options.compile_timeout_s:g} s; --compile-timeout allows more"
            raise VerdictReached("timeout", "compile", f"compiling took over {limit}.")
        if answer.kind == "unsupported":  # not the kernel's fault, so no fallback of its own may hide it
            raise VerdictReached("unsupported", "compile", answer.message)
        if answer.built is not None:
            self.record.headers = answer.built.headers
        else:
            lines = self.feedback.locate(answer.lines)
            self.record.failed_builds[wanted.request] = outcomes.build_failure(replace(answer, lines=lines))
        self.tell(answer.told(wanted.request))
