"""One candidate's process, stepped through load, construct and trials, beside the reference that judges its outputs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from dice.verdict import Finding
from dice.verify.ipc import messages as m
from dice.verify.ipc import out_of_memory
from dice.verify.protocols import KERNELBENCH_SEED, Protocol
from dice.verify.sandbox.jail import Limits
from dice.verify.sandbox.process import Child
from dice.verify.sandbox.roles import CANDIDATE, RUNNER, Role
from dice.verify.supervisor import outcomes, sanitizer
from dice.verify.supervisor.assignment import Assignment, candidate_limits
from dice.verify.supervisor.author import Author, NotCaptured
from dice.verify.supervisor.deception import MESSAGES
from dice.verify.supervisor.dialogue import Dialogue
from dice.verify.supervisor.feedback import Feedback
from dice.verify.supervisor.gpu_lock import CONTEXTS
from dice.verify.supervisor.job_files import JobFiles
from dice.verify.supervisor.record import Record, ReferenceBroken, VerdictReached
from dice.verify.supervisor.reference_pool import ReferenceLost, ReferenceUnusable, Session
from dice.verify.text import static

# Thread orders that the emulator is asked for: forward, reverse and isolated from each other, then shuffles, in every
# second one of which threads wait for others after a store to a shared variable.
ORDERS = 8
ISOLATED, IN_STEP = 1, 2
TELLS_NOTHING = "zeros"  # a family of values none of which is missed where it is lost
DEPARTED = "Departed: "  # begins the message of a runner whose program gave something else than it gave without data
PLAIN = m.Step("", "given")  # of the reference's own arguments and parameters
OUTPUT, LEFT = "output", "left"  # the names of what a candidate writes
EMULATED_SANITIZER_PATIENCE = 10  # times as long may a run take in which every access is looked at

T = TypeVar("T")


class Orders:
    """Which order each trial that runs is for. Isolated in the second, or in the first after it whose values can show
    what a missing atomic loses; and where what all draws leave alike is varied, as equal indices meet in one place. In
    step in the next one of which that is true."""

    def __init__(self) -> None:
        self._trials, self._due = 0, [ISOLATED, IN_STEP]

    def next(self, family: str, crowded: bool) -> int:
        number = self._trials
        self._trials += 1
        if number > 0 and family != TELLS_NOTHING and (crowded or self._due):
            due = ISOLATED if crowded else self._due[0]
            self._due = [order for order in self._due if order != due]
            return due
        order = number % ORDERS
        return order if order != ISOLATED else ORDERS


class Attempt:
    """`constructs`: the candidate runs a program, which another process makes of the file. Raises `NotCaptured` where
    there is none. `report`: on the file's text. `replay`: what the candidate was told, for a tool that runs it again.
    `drawn`: the last trial's name. `keeps`: a forward writes to buffers."""

    def __init__(
        self,
        job: Assignment,
        record: Record,
        report: static.StaticReport,
        feedback: Feedback,
        session: Session,
        files: JobFiles,
        constructs: bool,
    ):
        self.assignment, self.record, self.report, self.feedback = job, record, report, feedback
        self.session, self.files = session, files
        self.replay = sanitizer.Replay()
        looked_at = job.options.sanitize and job.backend == "emulated"
        patience = EMULATED_SANITIZER_PATIENCE if looked_at else 1
        timeout_s = job.options.run_timeout_s * patience
        self._author = Author(job, record, feedback, session, files, timeout_s) if constructs else None
        self.candidate = self._spawn(RUNNER if constructs else CANDIDATE)
        self.talk = Dialogue(job, self.candidate, files, timeout_s, record, feedback, self.replay)
        self._signature: object = None  # of the inputs that the runner's program is for
        self.drawn, self.keeps, self._orders = "", False, Orders()
        self.remarks: tuple[m.Step, ...] = ()
        self._in_place = False  # whether the model has run with other parameters, and with none since
        self._is_plain = True  # whether the model is as its own seed makes it
        self._borrows = False  # whether the candidate holds memory of a trial
        self._loadable = False  # whether it takes parameters by the reference's names

    def __enter__(self) -> Attempt:
        return self

    def __exit__(self, *error: Any) -> None:
        self.candidate.kill()  # both end at the same time: what is waited for is the kernel, taking back their memory
        if self._author is not None:
            self._author.close()
        self.candidate.__exit__(*error)

    # ---- the candidate's process ----------------------------------------------------------------------------------

    def limits(self) -> Limits:
        """What the candidate runs under, but for its folder."""
        view = (*self.assignment.services.view, str(self.session.inputs), str(self.files.builds))
        return candidate_limits(self.assignment.options.memory_mb, view, self.assignment.services.references.gpu)

    def _spawn(self, role: Role) -> Child:
        # Making contexts is what the driver does one at a time; streams need not overlap where nothing is timed.
        one_queue = not (self.assignment.options.timing and static.may_overlap(self.assignment.kernel.source))
        limits = replace(self.limits(), scratch=str(self.files.outputs), one_queue=one_queue)
        return self.assignment.services.spawner.spawn(role, limits)

    def load(self) -> None:
        """Have it run the kernel file."""
        file = m.RunFile(
            backend=self.assignment.backend,
            threads=self.assignment.services.threads,
            inputs=str(self.session.inputs),
            outputs=str(self.files.outputs),
            source=self.assignment.kernel.source,
            # KernelBench runs both files in one namespace.
            preamble="" if self.assignment.protocol.ours else self.assignment.problem.source,
            cache_dir=str(self.assignment.options.cache_dir),
            sanitize=self.assignment.options.sanitize,
        )
        if self._author is None:
            self.talk.load(file)
            return
        self.talk.tell(self._author.greeting(file))
        self._author.load(file)
        outcomes.await_start(self.candidate)
        self.record.sandbox = self.candidate.sandbox

    def make_context(self) -> None:
        self.record.stage = "run"
        with CONTEXTS, self.record.clock("run"):
            self.talk.ask(m.OpenDevice(), m.DeviceOpened)

    def prepare(self, vary: bool) -> tuple[m.Step, ...]:
        """Both models constructed; the plan of the trials."""
        with self.record.clock("reference"):
            constructed = self.of_reference(self.session.construct)
            planned = self.of_reference(self.session.plan, varied=vary)
        self.record.add_labels(*planned.labels)
        self._signature = planned.signature
        if self._author is not None:
            self._author.reference = constructed
        self.remarks = planned.remarks
        if not planned.plan[0].fresh:
            self._construct(PLAIN)
        return (*planned.plan, *_with_own_numbers(self.report.numbers if planned.cheap else ()))

    def _construct(self, step: m.Step) -> None:
        """The model that a step is for."""
        self._is_plain = not (step.fresh or step.arguments)
        command = _construction(step, self.session.seeds, self.assignment.protocol)
        if self._author is not None:
            self._in_place = self._author.give_program(self.talk, command, self._signature)
        self.replay.construct = self.replay.construct if step.remark else command
        with self.record.clock("run"):
            made = self.talk.ask(command, m.Constructed)
        self._loadable = made.loadable
        if made.fewer:
            self.record.add_labels("fewer_parameters")

    # ---- one trial ------------------------------------------------------------------------------------------------

    def run_trial(self, number: int, step: m.Step) -> None:
        """One step of the plan: draw, run, judge. Raises `VerdictReached` where the kernel fails it."""
        drawn = self.set_up(step)
        if not drawn.family:  # it does not suit the problem
            return
        protocol, record = self.assignment.protocol, self.record
        repeat = protocol.ours and record.determinism is None and step.family == "given"
        repeat = repeat and not drawn.lent  # there may be no memory for a second output
        order = self._orders.next(drawn.family, step.crowded)
        asked = (drawn.asked_back, drawn.asked_kept)
        command = m.RunTrial(self.drawn, OUTPUT, drawn.seed, order, repeat, drawn.rng, *asked, LEFT)
        self.replay.trial = command
        with record.clock("run"):
            ran = self._ran(command)
        self.keeps = self.keeps or bool(ran.kept)
        if ran.launches or not step.asks_for_other_mode:  # for which a file may leave the work to PyTorch
            record.note_trial(drawn, ran, step.core, self.report.library_families, ours=protocol.ours)
        if ran.damaged:
            raise VerdictReached("runtime_error", "run", f"out-of-bounds write: {ran.damaged[0]}", ran.damaged)
        if repeat:
            record.determinism = ran.deterministic
            record.add_labels("reuses_output" if ran.overwritten else "")
        self._refuse(self.feedback.note_findings(ran.findings))
        where = f"trial {number + 1} ({_values(step, drawn, self._in_place)})"
        self._judge(where, ran, step.family == "given", repeat)
        if step.core:
            record.trials_passed += 1
        self._in_place = False

    def set_up(self, step: m.Step) -> m.Drawn:
        """The step's inputs drawn, and the model made that they are for. Raises `NotCaptured`."""
        if step.fresh or step.arguments or not self._is_plain:
            self._construct(step)
        drawn = self.draw(step)
        if drawn.family and self._author is not None and drawn.signature != self._signature:
            self._signature = drawn.signature
            self._construct(step)
        return drawn

    def _ran(self, command: m.RunTrial) -> m.Ran:
        try:
            return self.talk.ask(command, m.Ran)
        except VerdictReached as stop:
            if self._author is not None and stop.message.startswith(DEPARTED):
                raise NotCaptured(stop.message.removeprefix(DEPARTED)) from None
            raise

    def draw(self, step: m.Step) -> m.Drawn:
        """The step's inputs, under the name `drawn` in the folder of inputs."""
        # Parameters that only a candidate with the reference's names can take make another trial.
        name = f"{step.name} loaded" if step.fresh and self._loadable else step.name
        command, varied = m.DrawTrial(name, step, self._loadable), step.family != "given" or step.fresh
        if self._borrows:  # both sides have let go of the last trial's before there is more
            self.talk.ask(m.ReleaseMemory(), m.MemoryReleased)
            self._borrows = False
        with self.record.clock("reference"):
            drawn = self.of_reference(lambda: self.session.draw(command, self.candidate), varied)
        self.drawn = name
        if drawn.lent:
            self._borrows = True
            self._note_mapped(self.talk.hear(m.MemoryMapped).failed)
        return drawn

    def _note_mapped(self, failed: str) -> None:
        """What a candidate says of mapping what it was lent. Without it, the job runs once more: by files, or alone."""
        if self.assignment.shares and out_of_memory.is_named(failed):
            message = f"the memory of a large trial could not be mapped: {failed}"
            raise VerdictReached("out_of_memory", "run", message, lacks_gpu_memory=True)
        if failed:
            self.assignment.services.references.do_not_lend(self.assignment.problem)
            raise ReferenceLost("the memory of a large trial could not be mapped")

    def _refuse(self, found: Finding | None) -> None:
        """A race may spare the outputs here and spoil them on another GPU, so it decides."""
        if found is not None:
            raise VerdictReached("runtime_error", "run", f"{found.kind}: {found.message}.", self.feedback.sentences)

    def _judge(self, where: str, ran: m.Ran, given: bool, repeated: bool) -> None:
        known = any(label.startswith("precision") for label in self.record.labels)
        told = (ran.changed, ran.aliased, ran.written, ran.kept, ran.on_cpu, ran.overlapping)
        command = m.JudgeOutput(self.drawn, OUTPUT, *told, LEFT, watched=repeated, precision=given and not known)
        with self.record.clock("compare"):
            judged = self.ask_reference(command, m.Judged, OUTPUT, LEFT)
        self.record.note_errors(judged)
        if judged.max_abs_error == self.record.max_abs_error:
            self.record.tolerance = judged.tolerance
        self.record.add_labels(*judged.labels)
        if not judged.equal and self._author is not None and self._author.ambiguous:
            raise NotCaptured("it gives other names to parameters of equal values")
        if not judged.equal:
            raise self.talk.unless_full(VerdictReached("wrong", "compare", f"{where}: {judged.message}", judged.errors))

    # ---- deception ------------------------------------------------------------------------------------------------

    def refuse_idle(self) -> None:
        """The outputs are right; were they without the candidate's own kernels?"""
        record, protocol = self.record, self.assignment.protocol
        idle, trials = record.idle_trials, record.ran_trials
        if not idle:
            self.refuse_deception()
            return
        often = "never ran" if idle == trials else f"did not run in {idle} of {trials} trials"
        why = " after its build had failed" if record.failed_builds else ""
        kinds = record.deceptions
        if not kinds or (idle == trials and not {"torch_only", "never_invoked", "not_in_forward"}.intersection(kinds)):
            record.deceptions = (*kinds, "never_invoked")
        if not protocol.refuses_kind(record.deceptions):
            return
        lack = f"'s CUDA kernels {often}" if self.report.has_cuda else " defines no CUDA kernel"
        errors = tuple(line for failed in record.failed_builds.values() for line in failed.errors)
        raise VerdictReached("deceptive", "run", f"the outputs are right, but the file{lack}{why}.", errors)

    def refuse_deception(self) -> None:
        """Raise `VerdictReached` where the evidence shows that somebody else computed the outputs."""
        kind = self.record.evidence.kind() if self.assignment.protocol.ours else ""
        if not kind and self.record.provenance == "evidence" and self._reaches_inside():
            kind = "tampering"  # whoever watches it stands within its reach, and it is no program
        if kind:
            self.record.deceptions = (*self.record.deceptions, kind)
            raise VerdictReached("deceptive", "run", f"{MESSAGES[kind]}.")

    def _reaches_inside(self) -> bool:
        """Whether the file's Python or its C++ names the inside of the process that runs it."""
        natively = any(built.foreign.reaches_inside for built in self.files.shown)
        return natively or "reflection" in self.report.labels

    # ---- the reference --------------------------------------------------------------------------------------------

    def ask_reference(self, command: Any, answer: type[T], *values: str) -> T:
        """The reference's answer. It is handed the named values that the candidate wrote."""
        with self.files.opened(self.candidate, *values) as files:
            return self.of_reference(lambda: self.session.ask(command, answer, (self.candidate,), files))

    def of_reference(self, ask: Callable[[], T], varied: bool = False) -> T:
        """What `ask` returns. Raises `ReferenceBroken` where the problem is at fault."""
        try:
            return ask()
        except ReferenceUnusable as failure:
            raise ReferenceBroken(str(failure), varied, failure.lacks_gpu_memory) from None


def _values(step: m.Step, drawn: m.Drawn, in_place: bool) -> str:
    """What a trial is run on, for a message."""
    other = ", large parameters" if step.stretched else ", other parameters" if step.fresh else ""
    parameters = other or (", parameters changed in place" if in_place else "")
    family = m.OWN_NUMBERS.rstrip(": ") if step.own else drawn.family
    return (family if step.kind or ":" in drawn.family else f"{family} inputs") + parameters


def _with_own_numbers(numbers: Sequence[float]) -> Iterator[m.Step]:
    """A trial whose inputs hold the numbers that the candidate's text names, the same for all texts that name these."""
    if numbers:
        family = f"{m.OWN_NUMBERS}{' '.join(f'{number:.17g}' for number in numbers)}"
        yield m.Step(f"own {hashlib.sha256(family.encode()).hexdigest()[:16]}", family, core=False)


def _construction(step: m.Step, seeds: tuple[int, int], protocol: Protocol) -> m.Construct:
    """What a candidate is told of the model that a step is for."""
    state, varied = ("fresh state", "fresh state varied") if step.fresh else ("state", "")
    varied = "fresh state stretched" if step.stretched else varied
    seed = seeds[1 if step.fresh else 0]
    return m.Construct(
        seed=seed if protocol.ours else KERNELBENCH_SEED,
        cast=None if protocol.ours else protocol.cast,
        state="other state" if step.arguments else state,
        varied=varied,
        arguments=m.OTHER_ARGUMENTS if step.arguments else m.ARGUMENTS,
    )
