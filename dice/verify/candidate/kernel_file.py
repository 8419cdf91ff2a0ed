"""The untrusted child that runs a kernel file: without data, for its program, or, where there is none, with data.

What is done with its model once it is there, is the same as with a program: see `server.py`.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dice.verify.build.sources import MAX_SOURCE_BYTES, Built, CompileError, Sources
from dice.verify.candidate import capture, counting, failures, intercept, tripwires
from dice.verify.candidate.server import Server
from dice.verify.execution import dispatch, running
from dice.verify.ipc import messages as m
from dice.verify.ipc.channel import Channel
from dice.verify.ipc.encoding import read
from dice.verify.tensors import transport
from dice.verify.tensors.arguments import meant, own


def warm_up() -> None:
    """PyTorch loads large parts of itself at the first operator on tensors without data, which a capture runs."""
    dispatch.spare_compiler()
    with torch.no_grad():
        tensor = torch.empty((2, 2), device="meta")
        torch.nn.functional.linear(tensor, tensor, tensor[0])


def main(link: socket.socket) -> None:
    channel = Channel(link)
    candidate = KernelFile(channel, channel.expect(m.RunFile))
    try:
        candidate.run()
    except BaseException as error:  # noqa: B036 - SystemExit and KeyboardInterrupt of the candidate are reports too
        channel.send(failures.report(error, candidate.stage))


class KernelFile(Server):
    """One kernel file and its `ModelNew`."""

    def __init__(self, channel: Channel, told: m.RunFile):
        super().__init__(channel, told)
        self.told = told
        self.module: Any = None

    def run(self) -> None:
        """Load the file, then do as told until the channel closes."""
        self._prepare(counts=not self.told.preamble)  # other protocols count nothing
        self._intercept()
        self.channel.send(m.Started())
        with self.device.active():
            self.module = running.exec_file(self.told.source, self.values.outputs, "kernel", self.told.preamble)
        self.values.own = lambda value: own(value, self.module)
        self.channel.send(m.Loaded(hasattr(self.module, "ModelNew")))
        self._serve({m.Capture: self._capture})

    def _intercept(self) -> None:
        """Take the place of what a kernel file calls, and watch what it does."""
        counting.install_clocks()
        intercept.install(self._build)
        self._watch()

    def _watch(self) -> None:
        """Have the supervisor told at once of what no kernel file has a reason to do."""

        def report(notice: str) -> None:
            self.channel.send(m.Noticed(notice))

        if not self.told.preamble:  # other protocols take what they get
            torch.compile = _uncompiled(report)
        inputs, outputs = self.values.inputs, self.values.outputs
        jobs = (f"{inputs.parent.parent}/", f"{outputs.parent.parent}/")
        private = (*jobs, "/proc/", "/dev/shm", f"{self.file.cache_dir}/")  # the last: others' built libraries too
        tripwires.arm(report, str(outputs / "kernel.py"), str(outputs), private, lambda: self.census is not None)

    def _build(self, sources: Sources, name: str) -> Built:
        """Have the supervisor build, for this process may not; raises what its compilers said."""
        if sources.size > MAX_SOURCE_BYTES:
            raise CompileError("", [f"error: the sources are larger than {MAX_SOURCE_BYTES >> 20} MB"])
        answer = read(self.channel.request(m.Build(name, sources.to_json())), m.BuildAnswer)
        if answer.kind != "built":
            raise failures.failed_build(answer)
        backend = self.file.backend
        headers: Any = answer.headers
        return Built(Path(answer.path), headers, answer.seconds, answer.cached, backend, answer.log)

    def _capture(self, command: m.Capture) -> m.Captured:
        """The file's model, run without data, as a program."""
        arguments = self._arguments(command.arguments)
        running.seed_everything(command.seed)
        known: Any = command.state
        try:
            with torch.no_grad():
                with self.device.active():
                    model = self.module.ModelNew(*arguments)
                program, literals = capture.capture(model, self.values.own(capture.outline(command.signature)), known)
        except Exception as error:
            return m.Captured(None, capture.why_not(error))
        transport.write(literals, self.values.outputs, command.literals)
        return m.Captured(program, "")

    def _arguments(self, name: str) -> Any:
        """Of the constructor."""
        return meant(transport.read(self.values.inputs / m.CONSTRUCTOR, name), self.module)

    def _new_model(self, command: m.Construct) -> Any:
        arguments = self._arguments(command.arguments)
        if command.cast is not None:
            arguments = self.device.place(arguments)
        running.seed_everything(command.seed)
        with self.device.active():
            return self.module.ModelNew(*arguments)


def _uncompiled(report: Callable[[str], None]) -> Callable[..., Any]:
    """Takes the place of `torch.compile`: reports its use and compiles nothing."""

    def compile(model: Any = None, **_: Any) -> Any:  # noqa: A001 - PyTorch's name
        report("torch_compile")
        return model if model is not None else lambda function: function

    return compile
