"""The reference while it is timed, in turns with a candidate, as the supervisor's `timing.py` asks for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from dice.verify import toolchain
from dice.verify.execution import evidence, operator_cost, stopwatch
from dice.verify.execution.dispatch import OperatorMode
from dice.verify.ipc import messages as m
from dice.verify.reference import workload
from dice.verify.reference.reference import Reference
from dice.verify.reference.trial import ReferenceFailed, Trial, blame, unchanged
from dice.verify.tensors import transport, trees


class TimedReference:
    """A reference, ready to be timed on `inputs`, with a copy of these on the device until `end`."""

    def __init__(self, reference: Reference, inputs: Any, warm_up_s: float):
        self.reference, self.device = reference, reference.device
        self.device.allow_tf32(True)  # the reference as its users run it
        with blame("forward"), torch.no_grad():
            placed = self.device.place(inputs)
            salted = stopwatch.continuous(placed)
            self._bench: Any = stopwatch.Bench(reference.model, placed, salted, stopwatch.CudaStopwatch(), frugal=True)
            self.device.timing = True
            call_ms, output_bytes = self._bench.warm_up(warm_up_s)
            flushes = self._bench.hide_launches(call_ms)
        self.started = m.TimingStarted(call_ms, output_bytes, tuple(salted), flushes)

    def round(self, command: m.TimeRound) -> m.RoundTimed:
        with self._as_users_run_it():
            timed: m.RoundTimed = self._bench.round(command.seed, command.calls, command.idle)
            return timed

    def block(self, command: m.TimeBlock) -> m.BlockTimed:
        with self._as_users_run_it():
            measure = self._bench.empty_block if command.empty else self._bench.block
            timed: m.BlockTimed = measure(command.seed, command.calls)
            return timed

    def describe_work(self) -> m.WorkDescribed:
        with self._as_users_run_it():
            return m.WorkDescribed(workload.describe(self.reference.model, self._bench.fill(0, 0)))

    def count_needed_bytes(self) -> m.NeededBytes:
        with self._as_users_run_it():
            return m.NeededBytes(workload.needed_bytes(self.reference.model, self._bench.fill(0, 0)))

    def measure_ceilings(self) -> m.CeilingsMeasured:
        with self._as_users_run_it():
            return m.CeilingsMeasured(workload.measure_ceilings(self._bench.stopwatch))

    def time_operators(self) -> m.OperatorsTimed:
        def forward(times: operator_cost.OperatorTimes) -> None:
            with _Timed(times):
                self.reference.model(*inputs)

        with self._as_users_run_it(), unchanged(self.reference.model):
            inputs = self._bench.fill(0, 0)
            found = operator_cost.measured(forward)
        return m.OperatorsTimed(tuple(kind for kind, _ in found), tuple(ms for _, ms in found))

    def time_compiled(self) -> m.CompiledTimed:
        """No times where torch.compile cannot take the reference here, for lack of a compiler, of memory, or for other
        reasons: that is no fault of the problem's."""
        try:
            with self._as_users_run_it():
                folder = self.reference.subject.folder
                return m.CompiledTimed(stopwatch.time_compiled(self.reference.model, self._bench, folder).ms)
        except ReferenceFailed:
            if self.device.is_broken():
                raise
            return m.CompiledTimed((), no_compiler=toolchain.c_compiler() is None)

    def trial(self, seed: int, call: int) -> Trial:
        """One of the candidate's timed calls as a trial: its own inputs, and the reference's output for them."""
        reference = self.reference
        self.device.allow_tf32(not reference.protocol.ours)
        (drawn,) = reference.subject.kept(self._bench.fill(seed, call))
        forward_seed = stopwatch.call_seed(seed, call)
        exact_model = reference.exact_model if reference.protocol.ours else None
        spare = trees.elements(drawn) > workload.HEAVY_ELEMENTS
        step = m.Step("timing", "given")
        trial = reference.run(reference.model, exact_model, drawn, forward_seed, step, spare=spare)
        assert trial is not None
        return trial

    def end(self) -> None:
        """Give back the device memory that timing took: copies of the inputs, and outputs."""
        self._bench = None
        self.device.timing = False
        self.device.release()

    @contextlib.contextmanager
    def _as_users_run_it(self) -> Iterator[None]:
        self.device.allow_tf32(True)
        with blame("forward"), torch.no_grad():
            yield


class _Timed(OperatorMode):
    """Times the operators that a census counts."""

    def __init__(self, times: operator_cost.OperatorTimes):
        super().__init__()
        self._times = times

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.is_view:
            return func(*args, **(kwargs or {}))
        return self._times.call(lambda: func(*args, **(kwargs or {})), lambda result: _kind(func, args, result))


def _kind(func: Any, args: Any, result: Any) -> str:
    return evidence.kind_of(func.name(), args, transport.tensors(result))


def as_timed(reference: Reference, trial: Trial) -> Trial | None:
    """The same with the output that PyTorch's defaults give, under which both sides are timed (convolutions in
    TF32), and the one in full precision to tell how exact that is. None where it is no other."""
    if not reference.protocol.ours or "contraction" not in trial.work.elements:
        return None
    reference.device.allow_tf32(True)
    with unchanged(reference.model):
        expected = reference.forward(reference.model, reference.device.place(trial.inputs), trial.seed)
    if trees.identical(expected, reference.device.place(trial.expected)):
        return None
    return replace(trial, expected=expected, exact=trial.expected, rounded=True)
