"""One problem under one secret, in the process that serves many: its trials, and the answers to commands about it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dice.verify.execution import evidence, stopwatch
from dice.verify.execution.running import Device
from dice.verify.ipc import messages as m
from dice.verify.ipc import out_of_memory
from dice.verify.reference.judge import judge, judge_muted, precision_label
from dice.verify.reference.process_settings import ProcessSettings
from dice.verify.reference.reference import Reference
from dice.verify.reference.remarks import NOT_FINITE, Remarks, judge_special
from dice.verify.reference.subject import Subject
from dice.verify.reference.timing import TimedReference, as_timed
from dice.verify.reference.trial import ReferenceFailed, Trial
from dice.verify.reference.trials import OUTPUT_SLACK_BYTES, Trials
from dice.verify.sandbox.scratch import remove
from dice.verify.tensors import transport, trees
from dice.verify.tensors.arguments import told
from dice.verify.tensors.compare import Comparison

Files = Mapping[str, int]  # open files of the candidate's, by name

TIMING = (
    *(m.StartTiming, m.TimeRound, m.TimeBlock, m.JudgeTimed, m.DescribeWork, m.CountNeededBytes, m.MeasureCeilings),
    *(m.TimeOperators, m.TimeCompiled),
)
COMMANDS = (m.OpenGroup, m.ConstructReference, m.PlanTrials, m.DrawTrial, m.JudgeOutput, m.JudgeMuted)


class Group:
    """`spoiled`: by a lack of memory that others caused. `held_bytes`: what keeping it costs."""

    def __init__(self, spec: m.OpenGroup, number: int, device: Device):
        self.spec, self.shares = spec, spec.shares
        self.spoiled = False
        self._name = str(number)
        self._own = Path.cwd() / self._name
        self._own.mkdir(exist_ok=True)  # opened once more where memory was short at first
        self._folder = Path(spec.inputs)
        self._shown_bytes = 0  # of arguments and parameters
        self._timed: TimedReference | None = None
        torch.set_num_threads(spec.threads)
        subject = Subject(
            spec.source,
            device,
            self._own,
            protocol=spec.protocol,
            shrink=spec.scale,
            limit_s=spec.limit_s,
            large_bytes=spec.large_bytes,
        )
        self.reference = Reference(subject)
        self.remarks = Remarks(self.reference)
        self.trials = Trials(self.reference, self.remarks, spec)
        self._settings = ProcessSettings.now()

    @property
    def held_bytes(self) -> int:
        return self._shown_bytes + self.trials.held_bytes

    def answer(self, command: Any, files: Files) -> tuple[Any, list[int]]:
        """The answer's message, and open files that go with it."""
        actions: dict[type[Any], Callable[[], Any]] = {
            m.OpenGroup: self._open,
            m.ConstructReference: self._construct,
            m.PlanTrials: self._plan,
            m.DrawTrial: lambda: self.trials.draw(command),
            m.JudgeOutput: lambda: self._judge(command, files),
            m.JudgeMuted: lambda: self._judge_muted(command, files),
            m.StartTiming: lambda: self._start_timing(command),
            m.JudgeTimed: lambda: self._judge_timed(command, files),
            m.TimeRound: lambda: self._timing.round(command),
            m.TimeBlock: lambda: self._timing.block(command),
            m.DescribeWork: lambda: self._timing.describe_work(),
            m.CountNeededBytes: lambda: self._timing.count_needed_bytes(),
            m.MeasureCeilings: lambda: self._timing.measure_ceilings(),
            m.TimeOperators: lambda: self._timing.time_operators(),
            m.TimeCompiled: lambda: self._timing.time_compiled(),
        }
        with self._own_settings():
            answer = actions[type(command)]()
        return answer, self.trials.descriptors(command.inputs) if isinstance(answer, m.Drawn) else []

    @contextlib.contextmanager
    def _own_settings(self) -> Iterator[None]:
        self._settings.apply()
        try:
            yield
        finally:
            self._settings = ProcessSettings.now()

    def close(self) -> None:
        self.end_timing()
        self.trials.forget()
        for folder in (self._own, self._folder):
            remove(folder, self._name)

    def end_timing(self) -> None:
        if self._timed is not None:
            self._timed.end()
        self._timed = None

    def _open(self) -> m.GroupOpened:
        subject = self.reference.subject
        return m.GroupOpened(subject.scale, subject.sizes.needed, subject.sizes.complete)

    def _construct(self) -> m.ReferenceConstructed:
        arguments, state = self.reference.construct(self.spec.seed)
        self.reference.construct_fresh(self.spec.fresh_seed)
        self._show_arguments(arguments, m.ARGUMENTS)
        self._show(state, "state")
        outline = {name: [transport.type_name(value), list(value.shape)] for name, value in state.items()}
        fresh = self.reference.fresh_states
        taken = (
            trees.taken(self.reference.model, fresh[False] if fresh else None) if self.reference.protocol.ours else ()
        )
        model = self.reference.model
        size = sum(value.nbytes for value in (*model.parameters(), *model.buffers()))
        return m.ReferenceConstructed(outline, tuple(name for name, _ in taken), size)

    def _show_arguments(self, arguments: Any, name: str) -> None:
        as_told = told(arguments, self.reference.subject.module)
        if what := transport.unreadable(as_told):
            raise ReferenceFailed(f"get_init_inputs() returned {what}")
        self._show(as_told, name, m.CONSTRUCTOR)

    def _show(self, value: Any, name: str, folder: str = ".") -> None:
        """Write a value where candidates read it."""
        (self._folder / folder).mkdir(exist_ok=True)
        transport.write(value, self._folder / folder, name)
        self._shown_bytes += sum(tensor.nbytes for tensor in transport.tensors(value))

    def _plan(self) -> m.Planned:
        steps = self.reference.plan(self.spec.secret, self.spec.trials, self.spec.vary)
        fresh = self.reference.fresh_states
        if any(step.fresh for step in steps) and fresh is not None:
            self._show(fresh[False], "fresh state")
            self._show(fresh[True], "fresh state varied")
        if self.reference.stretched_state is not None:
            self._show(self.reference.stretched_state, "fresh state stretched")
        remarks = self.remarks.plan(self.spec.secret, self.spec.seed) if self.spec.vary else ()
        if self.remarks.other is not None:
            self._show_arguments(self.remarks.other.arguments, m.OTHER_ARGUMENTS)
            self._show(self.remarks.other.state, "other state")
        return m.Planned(steps, self.reference.labels, self.reference.signature, remarks, self.reference.cheap)

    def _judge(self, command: m.JudgeOutput, files: Files) -> m.Judged:
        trial = self.trials.known(command.inputs)
        try:
            actual = self._output(command.inputs, command.output, trial, files)
            left = _left(command, trial, files)
        except transport.WireError as error:
            return _unreadable(error)
        result = self._compared(trial, actual, command, left)
        if isinstance(result, m.Judged):
            return result
        labels = list(result.labels)
        if command.precision or not result.equal:  # it may tell why
            labels += filter(None, [precision_label(self.reference, trial, actual)])
        return _judged(result, labels)

    def _compared(
        self, trial: Trial, actual: Any, claims: m.JudgeOutput, left: Sequence[torch.Tensor] | None = None
    ) -> Comparison | m.Judged:
        """The comparison, or a refusal where the candidate's values cannot be compared at all."""
        told = (claims.changed, claims.aliased, claims.written, claims.on_cpu, claims.overlapping)
        try:
            if trial.family in NOT_FINITE:
                return judge_special(trial, actual)
            return judge(self.reference, trial, actual, *told, left, claims.kept if claims.watched else None)
        except Exception as error:
            _raise_ours(error, actual, trial.expected)
            return _refusal(f"The output could not be compared: {type(error).__name__}: {str(error)[:500]}.")

    def _judge_muted(self, command: m.JudgeMuted, files: Files) -> m.MutedJudged:
        """What a forward with the candidate's kernels turned off shows; see `judge.judge_muted`."""
        trial = self.trials.known(command.inputs)
        witnesses, actual = [], None
        with contextlib.suppress(transport.WireError):
            witnesses = transport.tensors(transport.read(files, command.witnesses, OUTPUT_SLACK_BYTES))
        if command.wrote:
            with contextlib.suppress(transport.WireError):
                actual = self._output(command.inputs, command.output, trial, files)
        told = [tensor.double() for tensor in witnesses if not tensor.is_complex()]
        samples = [evidence.ValueSample(*pair) for pair in zip(told[::2], told[1::2], strict=False)]
        try:
            kind = judge_muted(self.reference, trial, actual, samples, command.sample_seed, command.filled)
        except Exception as error:
            _raise_ours(error, actual, trial.expected)
            kind = f"ended: {type(error).__name__}"
        return m.MutedJudged(kind)

    def _output(self, inputs: str, name: str, trial: Trial, files: Files) -> Any:
        """What the candidate handed back, in memory of our own. Raises `WireError`."""
        max_bytes = 2 * trial.output_bytes + OUTPUT_SLACK_BYTES
        return transport.read(files, name, max_bytes, self.trials.memory_of_output(inputs))

    @property
    def _timing(self) -> TimedReference:
        assert self._timed is not None
        return self._timed

    def _start_timing(self, command: m.StartTiming) -> m.TimingStarted:
        timed = self.trials.take_for_timing(command.inputs)
        self._timed = TimedReference(self.reference, timed.inputs, command.warm_up_s)
        return self._timed.started

    def _judge_timed(self, command: m.JudgeTimed, files: Files) -> m.Judged:
        trial = self._timing.trial(command.seed, command.call)
        answer = self._compare_timed(trial, command, files)
        if not answer.equal and (other := as_timed(self.reference, trial)) is not None:
            answer = self._compare_timed(other, command, files)
        return answer

    def _compare_timed(self, trial: Trial, command: m.JudgeTimed, files: Files) -> m.Judged:
        try:
            actual = self._output(command.inputs, command.output, trial, files)
        except transport.WireError as error:
            return _unreadable(error)
        if int(stopwatch.checksum(actual)) != command.checksum:
            return _refusal("The output shown is not the one that was timed.")
        result = self._compared(trial, actual, m.JudgeOutput(command.inputs, command.output))
        return result if isinstance(result, m.Judged) else _judged(result, list(result.labels))


def _left(command: m.JudgeOutput, trial: Trial, files: Files) -> list[torch.Tensor]:
    """What the candidate left in the inputs and the buffers that it was asked to hand back. Raises `WireError`."""
    asked = [*trial.left, *trial.kept.values()]
    if not asked:
        return []
    max_bytes = 2 * sum(tensor.nbytes for tensor in asked) + OUTPUT_SLACK_BYTES
    left = transport.tensors(transport.read(files, command.left, max_bytes))
    if len(left) != len(asked):
        raise transport.WireError(f"{len(left)} inputs and buffers were handed back, not {len(asked)}")
    return left


def _judged(result: Comparison, labels: list[str]) -> m.Judged:
    errors = (result.max_abs_error, result.max_rel_error)
    return m.Judged(result.equal, result.message, tuple(result.errors), *errors, tuple(labels), result.tolerance)


def _unreadable(error: transport.WireError) -> m.Judged:
    return _refusal(f"The output could not be read: {error}.")


def _refusal(message: str) -> m.Judged:
    return m.Judged(False, message)


def _raise_ours(error: Exception, actual: Any, expected: Any) -> None:
    """Raise what was met in judging again, unless it is the candidate's: it chose values of other types or shapes than
    the reference's, which no code of ours is made for."""
    alike = [(one.dtype, one.shape) for one in transport.tensors(actual)] == [
        (one.dtype, one.shape) for one in transport.tensors(expected)
    ]
    if alike or out_of_memory.is_shortage(error) or isinstance(error, ReferenceFailed | OSError):
        raise error
