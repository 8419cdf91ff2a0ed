"""The process that runs a kernel file without data, and what leaves it: programs (`ipc/program.py`)."""

from __future__ import annotations

import json
from dataclasses import replace

from dice.verify.ipc import messages as m
from dice.verify.ipc import program, untrusted
from dice.verify.ipc.program import NoProgram, Program
from dice.verify.sandbox.process import Child
from dice.verify.sandbox.roles import CANDIDATE
from dice.verify.supervisor import sanitizer
from dice.verify.supervisor.assignment import Assignment, candidate_limits
from dice.verify.supervisor.dialogue import Dialogue
from dice.verify.supervisor.feedback import Feedback
from dice.verify.supervisor.job_files import JobFiles
from dice.verify.supervisor.record import Record, VerdictReached
from dice.verify.supervisor.reference_pool import Session

MAX_LITERAL_BYTES = 256 << 20


class NotCaptured(Exception):
    """The file's `forward` is no program, or none that can be run; the message says why."""


class Author:
    """One candidate's process that sees no inputs, no parameters and no outputs of the reference's.

    `reference`: what its parameters are. `ambiguous`: which of them some of the file's are.
    """

    def __init__(
        self,
        job: Assignment,
        record: Record,
        feedback: Feedback,
        session: Session,
        files: JobFiles,
        timeout_s: float,
    ):
        self._job, self._session, self._files = job, session, files
        view = (*job.services.view, str(session.constructor), str(files.builds))
        limits = candidate_limits(job.options.memory_mb, view, job.services.references.gpu)
        limits = replace(limits, scratch=str(files.authored), one_queue=True)
        self.child: Child = job.services.spawner.spawn(CANDIDATE, limits)
        self.talk = Dialogue(job, self.child, files, timeout_s, record, feedback, sanitizer.Replay())
        self._record = record
        self._programs: dict[str, tuple[Program, str]] = {}  # by seed and signature, with the names of their literals
        self._made: dict[str, str] = {}  # digests of what the file made besides its parameters, of the same programs
        self.reference = m.ReferenceConstructed({}, ())
        self.ambiguous = False

    def greeting(self, file: m.RunFile) -> m.RunPrograms:
        """What the runner is told first, where the author is told to run a file."""
        return m.RunPrograms(
            backend=file.backend,
            threads=file.threads,
            inputs=file.inputs,
            outputs=file.outputs,
            builds=str(self._files.builds),
            cache_dir=file.cache_dir,
            sanitize=file.sanitize,
        )

    def load(self, file: m.RunFile) -> None:
        self.talk.load(replace(file, outputs=str(self._files.authored)))

    def give_program(self, runner: Dialogue, made: m.Construct, signature: object) -> bool:
        """Have the runner take the program for inputs of this signature, of a model that is `made` so. Whether the
        model that it has goes on, with other parameters. Raises `NotCaptured`."""
        seed, arguments = made.seed, made.arguments
        key = json.dumps([seed, signature, arguments])
        if key not in self._programs:
            with self._record.clock("load"):
                self._programs[key] = self._capture(seed, signature, arguments)
        program, literals = self._programs[key]
        libraries = tuple(str(built.path) for built in self._files.shown)
        state = "state" if seed == self._session.seeds[0] else "fresh state"
        taken = runner.ask(m.TakeProgram(program.to_json(), literals, libraries, state), m.ProgramTaken)
        if taken.refused:
            raise NotCaptured(taken.refused)
        own = {name for name, one in program.state.items() if one.literal < 0}
        for name in self.reference.varying:
            if name not in own and name not in taken.matched:  # no trial could tell whether it matters to the file
                raise NotCaptured(f"it has no parameter with the name or the values of the reference's {name}")
        self.ambiguous = self.ambiguous or taken.ambiguous
        if arguments == m.OTHER_ARGUMENTS:
            return taken.in_place  # what it makes may follow from them
        if self._made.setdefault(key, taken.made) != next(iter(self._made.values())) and own | set(taken.matched):
            self._record.add_labels("frozen_parameters")  # it made of them what other parameters will not change
        self._record.provenance = "construction"
        return taken.in_place

    def _capture(self, seed: int, signature: object, arguments: str) -> tuple[Program, str]:
        """The program, and the name of its literals, which the job's other processes can read."""
        literals = f"literals {len(self._programs)}"
        try:
            command = m.Capture(seed, signature, self.reference.state, literals, arguments)
            said = self.talk.ask(command, m.Captured)
        except VerdictReached as stop:
            raise NotCaptured(f"without data, {stop.message}") from None
        if said.program is None:
            raise NotCaptured(untrusted.text(said.reason, 300))
        try:
            taken = program.read(said.program, len(self._files.shown))
            self._files.pass_on(self.child, self._files.authored, literals, MAX_LITERAL_BYTES)
        except (NoProgram, OSError) as error:
            raise NotCaptured(f"what the file gave is no program: {error}") from None
        for step in taken.steps:
            foreign = "" if step.operator else self._files.shown[step.library].foreign.reason
            if foreign:
                raise NotCaptured(foreign)
        return taken, literals

    def close(self) -> None:
        self.child.__exit__(None, None, None)
