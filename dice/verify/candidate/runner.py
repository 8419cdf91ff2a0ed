"""The process that has the data: runs a file's program (`ipc/program.py`) and its libraries, and none of its Python.

It answers what a candidate's process answers, since the model that it makes is called like the file's. The supervisor
names only libraries that take nothing from outside but what is on a list (`build/object_files.py`).
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from dice.verify.build.sources import Built
from dice.verify.candidate import binding, failures
from dice.verify.candidate.passing import DISTURB, LOOK, NOTE, Passing, follows
from dice.verify.candidate.program_model import NotThere, ProgramModel, match_names, tables
from dice.verify.candidate.server import Server
from dice.verify.execution import running
from dice.verify.ipc import messages as m
from dice.verify.ipc import program
from dice.verify.ipc.channel import Channel
from dice.verify.ipc.program import NoProgram
from dice.verify.tensors import near, transport


def main(link: socket.socket) -> None:
    channel = Channel(link)
    runner = Runner(channel, channel.expect(m.RunPrograms))
    try:
        runner.run()
    except BaseException as error:  # noqa: B036 - what host code raises is a report too
        channel.send(failures.report(error, runner.stage))


class Runner(Server):
    """Whoever has a program for a model."""

    def __init__(self, channel: Channel, told: m.RunPrograms):
        super().__init__(channel, told)
        self._builds = Path(told.builds)
        self._libraries: dict[str, ModuleType] = {}  # by path
        self._names: dict[str, str] = {}  # the reference's, of parameters that the file calls or shapes otherwise
        self._shapes: dict[str, torch.Size] = {}  # theirs in the reference, by those names
        self._made: ProgramModel | None = None  # of the program that was taken last
        self._taken: m.TakeProgram | None = None

    def run(self) -> None:
        self._prepare(counts=True)
        self.channel.send(m.Started())
        self._serve({m.TakeProgram: self._take_program, m.LookAtCalls: self._look_at_calls})

    def _take_program(self, command: m.TakeProgram) -> m.ProgramTaken:
        ambiguous = False
        try:
            read = program.read(command.program, len(command.libraries))
            libraries = self._load(read, command.libraries)
            literals = transport.tensors(transport.read(self._builds, command.literals))
            if not self._names:
                reference = transport.show(self.values.inputs, command.state)
                self._names, ambiguous = match_names(read, literals, reference)
                self._shapes = {name: reference[name].shape for name in self._names.values()}
            made = ProgramModel(read, libraries, literals, self.device, self._names, self._shapes)
        except (NoProgram, NotThere, transport.WireError, binding.LoadError) as error:
            return m.ProgramTaken(str(error))
        in_place = self._continues(read, command)
        if in_place:
            self.model.begin_again(made)
        self._made, self._taken = self.model if in_place else made, command
        return m.ProgramTaken("", tuple(self._names.values()), ambiguous, self._digest(read, literals), in_place)

    def _continues(self, read: program.Program, command: m.TakeProgram) -> bool:
        """Whether it is the program of the model that there is, with the same tables: then that one goes on, and takes
        other parameters in place. A library that keeps what it made of a parameter, and asks for no more than its
        address, works with those that are over."""
        before = self._taken
        if before is None or (before.program, before.libraries) != (command.program, command.libraries):
            return False
        # Of the files that were sent: a forward may have written to the tables of the model.
        files = (transport.tensors(transport.read(self._builds, one.literals)) for one in (before, command))
        return all(map(near.same_values, *(tables(read, literals) for literals in files)))

    def _digest(self, read: program.Program, literals: Sequence[torch.Tensor]) -> str:
        """Of the literals that are floats and none of the reference's parameters."""
        parameters = {one.literal for name, one in read.state.items() if name in self._names}
        digest = hashlib.sha256()
        for number, tensor in enumerate(literals):
            if number not in parameters and tensor.is_floating_point() and tensor.numel() > 1:
                digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def _look_at_calls(self, command: m.LookAtCalls) -> m.CallsLookedAt:
        passing = self.model.passing = Passing(command.seed, self.model.calls, command.far, command.copies)

        def forward(name: str, mode: str) -> Any:
            passing.begin(mode)
            return running.forward(self.model, self.values.read(name), command.seed, self.device)

        try:
            for name in command.others:
                forward(name, NOTE)
            output = transport.map_tensors(torch.clone, forward(command.inputs, LOOK))
            if passing.only:
                return m.CallsLookedAt(True)
            return m.CallsLookedAt(not follows(output, forward(command.inputs, DISTURB)))
        finally:
            self.model.passing = None

    def _load(self, read: program.Program, paths: Sequence[str]) -> list[ModuleType | None]:
        """The libraries that the program calls."""
        called = {paths[step.library] for step in read.steps if not step.operator}
        for path in called - set(self._libraries):
            self._libraries[path] = binding.load(Built(Path(path), "slim", 0.0, True, self.file.backend), "")
        return [self._libraries.get(path) for path in paths]

    def _new_model(self, command: m.Construct) -> Any:
        made, self._made = self._made, None
        assert made is not None  # a program is taken before each construction
        return made
