"""The trials of one group that are kept, and where a candidate finds their inputs: in files, or in lent memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from dice.verify.ipc import messages as m
from dice.verify.ipc import out_of_memory
from dice.verify.reference.reference import Reference
from dice.verify.reference.remarks import Remarks
from dice.verify.reference.trial import Trial
from dice.verify.tensors import shared_memory, transport

OUTPUT_SLACK_BYTES = 1 << 20  # an output file may be larger than twice the reference's output by so much
SHAREABLE_BYTES = 32 << 20  # of one trial; all trials of a smaller problem are kept, of a larger one the last


class LentMemory:
    """The memory of one trial: its inputs, and room for an output like the reference's."""

    def __init__(self, trial: Trial, on_gpu: bool):
        self.inputs = shared_memory.lend(transport.room(trial.inputs), on_gpu)
        try:
            self.outputs = shared_memory.lend(transport.room(trial.expected) + OUTPUT_SLACK_BYTES, on_gpu)
        except shared_memory.CannotLend:
            self.inputs.close()
            raise
        self.sizes = [self.inputs.size, self.outputs.size]
        self.descriptors = [self.inputs.descriptor, self.outputs.descriptor]

    def close(self) -> None:
        self.inputs.close()
        self.outputs.close()


class Trials:
    """The trials of one problem under one secret, by name; None for one whose family did not suit."""

    def __init__(self, reference: Reference, remarks: Remarks, spec: m.OpenGroup):
        self.held_bytes = 0
        self._reference, self._remarks = reference, remarks
        self._spec, self._folder = spec, Path(spec.inputs)
        self._trials: dict[str, Trial | None] = {}
        self._lent: dict[str, LentMemory] = {}  # of the trials whose inputs are in no file

    def known(self, name: str) -> Trial:
        trial = self._trials[name]
        assert trial is not None
        return trial

    def draw(self, command: m.DrawTrial) -> m.Drawn:
        """The trial of this name, drawn now or before. Its family is "" where none suits."""
        name = command.inputs
        if name not in self._trials:
            self._draw(name, command.step, command.loadable)
        trial = self._trials[name]
        if trial is None:
            return m.Drawn(family="", shareable=True)
        lent = self._lent.get(name)
        return m.Drawn(
            family=trial.family,
            shareable=_size_of(trial) <= SHAREABLE_BYTES and lent is None,
            seed=trial.seed,
            rng=bool(trial.rng),
            work=trial.work.to_json(),
            input_elements=sum(tensor.numel() for tensor in transport.tensors(trial.inputs)),
            sizes=tuple(sorted({tensor.numel() for tensor in transport.tensors(trial.expected)})),
            lent=tuple(lent.sizes) if lent else (),
            asked_back=trial.asked_back,
            asked_kept=tuple(trial.kept),
            signature=transport.signature(trial.inputs),
            evolves=trial.evolves,
        )

    def descriptors(self, name: str) -> list[int]:
        """Open files of the memory that is lent for this trial."""
        return self._lent[name].descriptors if name in self._lent else []

    def memory_of_output(self, name: str) -> shared_memory.Memory | None:
        return self._lent[name].outputs if name in self._lent else None

    def take_for_timing(self, name: str) -> Trial:
        """The trial. Where its inputs are lent, its outputs are forgotten: they take memory, and nobody asks again."""
        trial = self.known(name)
        if name in self._lent:
            self._trials[name] = replace(trial, expected=None, exact=None)
        return trial

    def forget(self) -> None:
        for lent in self._lent.values():
            lent.close()
        self._lent.clear()
        for name, trial in self._trials.items():
            self.held_bytes -= _size_of(trial) if trial is not None else 0
            for path in (self._folder / f"{name}.bin", self._folder / f"{name}.json"):
                path.unlink(missing_ok=True)
        self._trials.clear()

    def _draw(self, name: str, step: m.Step, loadable: bool) -> None:
        last = next(reversed(self._trials.values()), None)
        if last is not None and _size_of(last) > SHAREABLE_BYTES:
            self.forget()
        if step.remark:
            trial = self._remarks.trial(self._spec.secret, step)
        else:
            trial = self._reference.trial(self._spec.secret, step, loadable)
        self._trials[name] = trial
        if trial is None:
            return
        if _bytes(trial.inputs) + _bytes(trial.expected) >= self._spec.large_bytes:
            self._lend(name, trial)
        memory = self._lent[name].inputs if name in self._lent else None
        transport.write(trial.inputs, self._folder, name, memory)
        if trial.rng:
            transport.write(trial.rng, self._folder, f"{name} rng")
        self.held_bytes += _size_of(trial)

    def _lend(self, name: str, trial: Trial) -> None:
        """Make memory for the trial, which else goes by file. Where only others are in the way, it does not: that takes
        minutes."""
        try:
            self._lent[name] = LentMemory(trial, not self._reference.device.emulated)
        except shared_memory.CannotLend as error:
            if out_of_memory.is_shortage(error) and self._spec.shares:
                raise


def _bytes(value: Any) -> int:
    return sum(tensor.nbytes for tensor in transport.tensors(value))


def _size_of(trial: Trial) -> int:
    """Bytes that keeping the trial costs: inputs in memory and in a file."""
    return 2 * _bytes(trial.inputs) + _bytes(trial.expected) + _bytes(trial.exact)
