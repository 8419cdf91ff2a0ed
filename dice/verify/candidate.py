"""The untrusted child: runs a kernel file, builds `ModelNew`, calls it on inputs it is handed, hands back raw bytes.

It never holds an expected output or a seed of the inputs. Whatever it reports is a claim: the oracle compares the
output bytes, and the supervisor keeps the clock. Told what to do by commands on its channel:
`construct` (make the model), `trial` (one forward), `time`.
"""

from __future__ import annotations

import ctypes
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

from dice.verify import binding, build, compare, emulator, execution, intercept, timing, wire
from dice.verify.channel import Channel
from dice.verify.emulator import guard
from dice.verify.execution import Device

Failure = tuple[str, str]  # outcome, stage


def main(link: socket.socket) -> None:
    channel = Channel(link)
    spec = channel.receive()
    try:
        _Candidate(channel, spec).run()
    except BaseException as error:  # noqa: B036 - SystemExit and KeyboardInterrupt of the candidate are reports too
        _report(channel, error)


class _Candidate:
    def __init__(self, channel: Channel, spec: dict[str, Any]):
        self.channel = channel
        self.spec = spec
        self.device = Device(spec["backend"])
        self.inputs, self.outputs = Path(spec["inputs"]), Path(spec["outputs"])
        self.model: Any = None
        self.runtime: ctypes.CDLL | None = None
        _STAGE[0] = "load"

    def run(self) -> None:
        self.device.prepare(self.spec["threads"])
        cache_dir = Path(self.spec["cache_dir"])
        if self.device.emulated:
            self.runtime = ctypes.CDLL(str(emulator.runtime(cache_dir)), mode=ctypes.RTLD_GLOBAL)
            self.runtime.dice_set_fault_fd(self.channel.descriptor)
            guard.enable(cache_dir)
        intercept.install(self.spec["backend"], cache_dir, self._on_build, self.spec["compile_timeout_s"])
        self.channel.send("started")
        with self.device.active():
            module = execution.exec_file(self.spec["source"], self.outputs, "kernel")
        self.channel.send("loaded", has_model=hasattr(module, "ModelNew"))
        _STAGE[0] = "run"
        actions = {"construct": self._construct, "trial": self._trial, "time": self._time}
        for command in self.channel:
            actions[command["do"]](module, command)

    def _on_build(self, event: str, values: dict[str, Any]) -> None:
        error = sys.exception()  # of the build that just failed, before the candidate's own handlers see it
        if event == "build_end" and isinstance(error, build.Unsupported | emulator.Unsupported | build.ToolchainError):
            _report(self.channel, error)  # no kernel's fault, so no fallback may hide it
        self.channel.send(event, **values)

    def _construct(self, module: Any, command: dict[str, Any]) -> None:
        arguments = wire.read(self.inputs, "init")
        execution.seed_everything(command["seed"])
        with self.device.active():
            model = module.ModelNew(*arguments)
        if isinstance(model, torch.nn.Module):
            _copy_state(model, wire.read(self.inputs, "state"))
            self._label_state(model)
        self.model = self.device.place(model)
        self.device.synchronize()
        self.channel.send("constructed")

    def _label_state(self, model: torch.nn.Module) -> None:
        if self.device.emulated:
            for name, tensor in model.state_dict(keep_vars=True).items():
                if isinstance(tensor, torch.Tensor):
                    guard.label(tensor, f"parameter {name}")

    def _trial(self, module: Any, command: dict[str, Any]) -> None:
        name = command["inputs"]
        inputs = self.device.place(wire.read(self.inputs, name))
        if self.runtime is not None:
            self.runtime.dice_set_order(command["order"])
            for index, tensor in enumerate(wire.tensors(inputs)):
                guard.label(tensor, f"input {index}")
        binding.reset_launches()
        output = execution.forward(self.model, inputs, command["seed"], self.device)
        launches = binding.launches()
        damaged = guard.check() if self.device.emulated else []
        _write_output(output, self.outputs, command["output"])
        changed = self._changed(inputs, name) if command["watch_inputs"] else []
        self.channel.send("ran", launches=launches, damaged=damaged, changed=changed)

    def _changed(self, inputs: Any, name: str) -> list[int]:
        """Indices of the input tensors that `forward` wrote to."""
        fresh = self.device.place(wire.read(self.inputs, name))
        pairs = zip(wire.tensors(inputs), wire.tensors(fresh), strict=False)
        return [index for index, (used, kept) in enumerate(pairs) if not compare.same_values(used, kept)]

    def _time(self, module: Any, command: dict[str, Any]) -> None:
        _STAGE[0] = "time"
        inputs = self.device.place(wire.read(self.inputs, command["inputs"]))
        with torch.no_grad():
            times = timing.measure(lambda: self.model(*inputs))
        output = execution.forward(self.model, inputs, command["seed"], self.device)
        _write_output(output, self.outputs, command["output"])
        self.channel.send("timed", ms=times)


_STAGE = ["load"]  # where an exception counts


def _write_output(output: Any, folder: Path, name: str) -> None:
    try:
        wire.write(output, folder, name)
    except wire.WireError as error:
        raise WrongReturn(f"forward returned {error}.") from None


class WrongReturn(Exception):
    """`forward` returned something no reference returns."""


def _copy_state(model: torch.nn.Module, state: dict[str, torch.Tensor]) -> None:
    """Give the model the reference's parameters and buffers wherever names and shapes agree."""
    own = model.state_dict(keep_vars=True)
    with torch.no_grad():
        for name, value in state.items():
            target = own.get(name)
            if isinstance(target, torch.Tensor) and target.shape == value.shape:
                target.copy_(value)


def _report(channel: Channel, error: BaseException) -> None:
    outcome, stage = _classify(error)
    lines = [str(line) for line in getattr(_root(error), "lines", ())] or _own_lines(error)
    message = str(_root(error)) or type(error).__name__
    if outcome == "compile_error" and lines:
        message = f"the CUDA source does not compile: {lines[0]}"
    name = type(error).__name__
    channel.send("failed", outcome=outcome, stage=stage, type=name, message=message[:2000], lines=lines[:40])


def _classify(error: BaseException) -> Failure:
    """Outcome and stage of an exception that the candidate's code let out."""
    stage = _STAGE[0]
    root = _root(error)
    if isinstance(root, binding.LoadError | build.LinkError):
        return "load_error", "load"
    if isinstance(root, build.CompileTimeout):  # a CompileError, so first
        return "timeout", "compile"
    if isinstance(root, build.CompileError):
        return "compile_error", "compile"
    if isinstance(root, build.Unsupported | emulator.Unsupported):
        return "unsupported", "compile"
    if isinstance(root, build.ToolchainError):
        return "infra_error", "infra"
    if isinstance(error, WrongReturn):
        return "wrong", "compare"
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error):
        return "out_of_memory", stage
    if isinstance(error, SystemExit):
        return "runtime_error", stage
    return ("load_error" if stage == "load" else "runtime_error"), stage


def _root(error: BaseException) -> BaseException:
    """The build error behind an exception, if there is one: candidates wrap what `load_inline` raises."""
    ours = (build.CompileError, build.Unsupported, build.ToolchainError, binding.LoadError, emulator.Unsupported)
    seen: BaseException | None = error
    for _ in range(10):
        if seen is None or isinstance(seen, ours):
            break
        seen = seen.__cause__ or seen.__context__
    return seen or error


def _own_lines(error: BaseException) -> list[str]:
    """The exception with the lines of the candidate's own file that led to it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith("kernel.py")]
    places = [f"line {frame.lineno}: {frame.line}" for frame in frames]
    return [*places, f"{type(error).__name__}: {error}"[:1000]]
