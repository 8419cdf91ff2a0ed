"""The supervisor's talk with one candidate: what it is told, what it reports, what it has built, all on clocks."""

from __future__ import annotations

import signal
import time
from dataclasses import replace

from dice.verify import claims, endings, sanitizer
from dice.verify.feedback import Feedback
from dice.verify.job_files import JobFiles
from dice.verify.options import Options
from dice.verify.place import Place
from dice.verify.process import Child, ChildEnded, DeadlineExceeded, MachineryError, Message, wait_for
from dice.verify.record import Record, Stop
from dice.verify.scratch import is_crowded_out
from dice.verify.sources import Sources

MOST_BUILDS = 32  # of one job: each costs the supervisor some work, even where it was built before


class Dialogue:
    """With one candidate, until it ends or the job knows enough. What it learns goes to the job's `record`.

    `run_left`: seconds for all that the candidate does, builds excepted, which have `compile_timeout_s` together.
    """

    def __init__(
        self,
        place: Place,
        candidate: Child,
        files: JobFiles,
        options: Options,
        run_timeout_s: float,
        record: Record,
        feedback: Feedback,
        replay: sanitizer.Replay,
    ):
        self.place, self.candidate, self.files, self.options = place, candidate, files, options
        self.record, self.feedback, self.replay = record, feedback, replay
        self.run_timeout_s = self.run_left = run_timeout_s
        self.compile_left = options.compile_timeout_s
        self.builds = 0

    def tell(self, message: Message) -> None:
        """Send the candidate something, on its clock: it may never read it."""
        started = time.monotonic()
        try:
            self.candidate.send(message, timeout_s=self.run_left)
        except DeadlineExceeded:
            raise self._overdue() from None
        finally:
            self.run_left -= time.monotonic() - started

    def hear(self, event: str) -> Message:
        """Its next report of this kind. What it asks to be built meanwhile counts on the compile clock."""
        while True:
            started = time.monotonic()
            try:
                message = wait_for(self.candidate, (), started + self.run_left)
            except DeadlineExceeded:
                raise self._overdue() from None
            except ChildEnded as end:
                self.record.was_killed = end.ended.signal == signal.SIGKILL and not end.ended.reason
                raise endings.died(self.candidate, end, self.record.stage, self.options.memory_mb) from None
            self.run_left -= time.monotonic() - started
            kind = message.get("event")
            if kind == event:
                return message
            self._raise_reported(message)
            if kind == "build":
                self._build(message)
            elif kind != "started":
                self.record.honesty.note(message)

    def unless_full(self, stop: Stop) -> Stop:
        """`stop`, unless the disk is full and not of the candidate's own files: then its failure is ours."""
        if is_crowded_out(self.files.root):
            raise MachineryError("there is no space left on the disk for the files of a verification")
        return stop

    def _overdue(self) -> Stop:
        return Stop("timeout", self.record.stage, f"the kernel file ran for over {self.run_timeout_s:g} s.")

    def _raise_reported(self, message: Message) -> None:
        if "fault" in message:
            text = self.feedback.locate((claims.text(message.get("message", "")),))[0]
            emulated = self.place.backend == "emulated"
            raise self.unless_full(endings.fault(claims.text(message["fault"], 40), text, emulated))
        if message.get("event") != "failed":
            return
        build = message.get("build")
        if isinstance(build, int) and build in self.record.failed_builds:
            raise self.record.failed_builds[build]
        raise self.unless_full(endings.reported(message, self.record.stage))

    def _build(self, message: Message) -> None:
        """Build what the candidate asks for and tell it the result. Only what the builder says decides an outcome."""
        stage = self.record.stage
        try:
            sources = Sources.from_json(message.get("sources"))
        except ValueError:
            raise Stop("runtime_error", stage, "it asked for a build as load_inline never does.") from None
        self.builds += 1
        if self.builds > MOST_BUILDS:
            raise Stop("runtime_error", stage, f"it asked for over {MOST_BUILDS} builds.")
        started = time.monotonic()
        others = (self.candidate,)
        left, name = max(1.0, self.compile_left), str(message.get("name"))
        answer = self.place.builds.build(self.place.spawner, sources, name, left, others, self.options.sanitize)
        if answer.built is not None:
            answer = replace(answer, built=self.files.show(answer.built))
        self.replay.note_build(sources.to_json(), answer.to_json())
        self.feedback.note_build(sources, str(answer.built.path) if answer.built else "")
        self.record.build_wall += time.monotonic() - started
        self.record.seconds["compile"] = self.record.seconds.get("compile", 0.0) + answer.seconds
        self.compile_left -= answer.seconds
        if answer.kind == "timeout" or self.compile_left <= 0:
            raise Stop("timeout", "compile", f"compiling took over {self.options.compile_timeout_s:g} s.")
        if answer.kind == "unsupported":  # not the kernel's fault, so no fallback of its own may hide it
            raise Stop("unsupported", "compile", answer.message)
        request = message.get("request")
        if answer.built is not None:
            self.record.values["headers"] = answer.built.headers
        else:
            self.record.build_failed = True
            if isinstance(request, int):
                lines = self.feedback.locate(answer.lines)
                self.record.failed_builds[request] = endings.build_failure(replace(answer, lines=lines))
        self.tell(answer.to_json() | {"request": request})
