"""The untrusted child: runs a kernel file, builds `ModelNew`, calls it on inputs it is handed, hands back raw bytes.

It never holds an expected output or a seed of the inputs. Whatever it reports is a claim: the oracle compares the
output bytes, and the supervisor keeps the clock. Told what to do by commands on its channel:
`open` (make a context), `construct` (make the model), `trial` (one forward), `time`, `muted` (one forward without the
file's own kernels).
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from dice.verify import (
    binding,
    emulator,
    evidence,
    execution,
    graphs,
    intercept,
    lending,
    near,
    profiling,
    races,
    recording,
    shortage,
    stopwatch,
    threads,
    trees,
    tripwires,
    wire,
)
from dice.verify.channel import Channel
from dice.verify.emulator import guard
from dice.verify.execution import Device
from dice.verify.reads import Reads
from dice.verify.sources import (
    MAX_SOURCE_BYTES,
    Built,
    CompileError,
    CompileTimeout,
    LinkError,
    Sources,
    Unsupported,
)
from dice.verify.work import Work

Failure = tuple[str, str]  # outcome, stage


def main(link: socket.socket) -> None:
    channel = Channel(link)
    spec = channel.receive()
    try:
        Candidate(channel, spec).run()
    except BaseException as error:  # noqa: B036 - SystemExit and KeyboardInterrupt of the candidate are reports too
        _report(channel, error)


class Candidate:
    def __init__(self, channel: Channel, spec: dict[str, Any]):
        self.channel = channel
        self.spec = spec
        self.device = Device(spec["backend"])
        self.inputs, self.outputs = Path(spec["inputs"]), Path(spec["outputs"])
        self.lent: dict[str, tuple[lending.Memory, lending.Memory]] = {}  # of inputs and outputs, by the inputs' name
        self.model: Any = None
        self.bench: Any = None
        self.reads = Reads()
        self.tf32 = False  # for convolutions, in what is not timed
        self.runtime: ctypes.CDLL | None = None
        self.census: evidence.Census | None = None  # of the forward under way
        self.records = False  # what PyTorch computes, by its profiler too
        _STAGE[0] = "load"

    def run(self) -> None:
        self.device.prepare(self.spec["threads"])
        cache_dir = Path(self.spec["cache_dir"])
        if self.device.emulated:
            self.runtime = ctypes.CDLL(str(emulator.runtime(cache_dir)), mode=ctypes.RTLD_GLOBAL)
            self.runtime.dice_set_fault_fd(self.channel.descriptor)
            guard.enable(cache_dir)
            if self.spec["sanitize"]:
                self.runtime.dice_sanitize()
                self.runtime.dice_findings_json.restype = ctypes.c_char_p
        else:
            graphs.install(self._note_replay)
        intercept.install(self._build)
        threads.install(self.device.active, lambda: self.census)
        self._watch()
        self.records = not self.spec["preamble"] and recording.works()  # other protocols count nothing
        self.channel.send("started")
        with self.device.active():
            module = execution.exec_file(self.spec["source"], self.outputs, "kernel", self.spec["preamble"])
        self.channel.send("loaded", has_model=hasattr(module, "ModelNew"))
        _STAGE[0] = "run"
        actions = {
            "open": self._open,
            "borrow": self._borrow,
            "give back": self._give_back,
            "construct": self._construct,
            "trial": self._trial,
            "time": self._time,
            "muted": self._muted,
            "profile": self._profile,
        }
        for command in self.channel:
            self.device.timing = command["do"] == "time"
            if not self.device.timing:
                self.bench = None
            actions[command["do"]](module, command)
            self.census = None
            self.device.release()

    def _watch(self) -> None:
        """Have the supervisor told at once of what no kernel file has a reason to do."""

        def report(notice: str) -> None:
            self.channel.send("noticed", notice=notice)

        if not self.spec["preamble"]:  # other protocols take what they get
            torch.compile = _uncompiled(report)
        jobs = (f"{self.inputs.parent.parent}/", f"{self.outputs.parent.parent}/")
        private = (*jobs, "/proc/", "/dev/shm", f"{self.spec['cache_dir']}/")  # the last: others' built libraries too
        tripwires.arm(report, str(self.outputs / "kernel.py"), str(self.outputs), private)

    def _build(self, sources: Sources, name: str) -> Built:
        """Have the supervisor build, for this process may not; raises what its compilers said."""
        if sources.size > MAX_SOURCE_BYTES:
            raise CompileError("", [f"error: the sources are larger than {MAX_SOURCE_BYTES >> 20} MB"])
        answer = self.channel.request("build", name=name, sources=sources.to_json())
        if answer["kind"] != "built":
            raise _failed_build(answer)
        return Built(
            Path(answer["path"]),
            answer["headers"],
            answer["seconds"],
            answer["cached"],
            self.spec["backend"],
            answer["log"],
        )

    def _open(self, module: Any, command: dict[str, Any]) -> None:
        self.device.open()
        self.channel.send("opened")

    def _give_back(self, module: Any, command: dict[str, Any]) -> None:
        while self.lent:
            for memory in self.lent.popitem()[1]:
                memory.close()
        self.channel.send("gave back")

    def _borrow(self, module: Any, command: dict[str, Any]) -> None:
        """Take the memory that the next inputs are in, instead of files."""
        descriptors = self.channel.take_descriptors(len(command["sizes"]))
        failed = ""
        try:
            lent = [
                lending.borrow(*one, not self.device.emulated)
                for one in zip(descriptors, command["sizes"], strict=True)
            ]
            self.lent[command["inputs"]] = lent[0], lent[1]
        except (lending.CannotLend, OSError) as error:
            failed = str(error)
        self.channel.send("borrowed", failed=failed)

    def _read(self, name: str) -> Any:
        """Inputs on the device, nobody else's."""
        memory = self.lent[name][0] if name in self.lent else None
        return self.device.place(wire.read(self.inputs, name, memory=memory))

    def _shown(self, name: str) -> Any:
        """Inputs on the device, for our own eyes."""
        memory = self.lent[name][0] if name in self.lent else None
        return self.device.place(wire.show(self.inputs, name, memory))

    def _write(self, output: Any, command: dict[str, Any]) -> None:
        lent = self.lent.get(command["inputs"])
        try:
            wire.write(output, self.outputs, command["output"], lent[1] if lent else None)
        except wire.WireError as error:
            raise WrongReturn(f"forward returned {error}.") from None

    def _construct(self, module: Any, command: dict[str, Any]) -> None:
        """Make the model, with the reference's `state`, or with `varied` where it takes all of it by name.

        The answer's `fewer`: it has no room for all of it under any names, so whatever is left out is taken for what
        it is at construction, or kept where nobody could load it.
        """
        self.model = None
        arguments = wire.read(self.inputs, "init")
        if command["cast"] is not None:  # KernelBench's order of things
            self.tf32 = True
            self.device.allow_tf32(True)
            arguments = self.device.place(arguments)
        execution.seed_everything(command["seed"])
        with self.device.active():
            model = module.ModelNew(*arguments)
        loadable, fewer = False, False
        if isinstance(model, torch.nn.Module):
            state = wire.show(self.inputs, command["state"])
            loadable = _takes(model, state)
            fewer = trees.elements(model.state_dict()) < trees.elements(state)
            _copy_state(model, wire.show(self.inputs, command["varied"]) if loadable and command["varied"] else state)
            self._label_state(model)
        self.model = self.device.place(model)
        if command["cast"]:
            self.model = self.model.to(dtype=getattr(torch, command["cast"]))
        self.device.synchronize()
        self.channel.send("constructed", loadable=loadable, fewer=fewer)

    def _recording(self, work: Work) -> contextlib.AbstractContextManager[None]:
        if not self.records:
            return contextlib.nullcontext()
        return recording.recording(work, lambda: self.channel.send("noticed", notice="recorder"))

    def _note_replay(self, computed: Mapping[str, int]) -> None:
        if self.census is not None:
            self.census.work.elements.update(computed)

    def _label_state(self, model: torch.nn.Module) -> None:
        if self.device.emulated:
            for name, tensor in model.state_dict(keep_vars=True).items():
                if isinstance(tensor, torch.Tensor):
                    guard.label(tensor, f"parameter {name}")

    def _trial(self, module: Any, command: dict[str, Any]) -> None:
        name = command["inputs"]
        inputs = self._read(name)
        if self.runtime is not None:
            self.runtime.dice_set_order(command["order"])
            for index, tensor in enumerate(wire.tensors(inputs)):
                guard.label(tensor, f"input {index}")
        rng = wire.read(self.inputs, f"{name} rng") if command["rng"] else ()
        before = execution.fingerprints(self.model) if command["repeat"] else {}
        binding.reset_launches()
        census = self.census = evidence.Census()
        with self._recording(census.work), binding.reading(), self.reads.trial():
            output = execution.forward(self.model, inputs, command["seed"], self.device, rng, census)
        census.work.host += binding.host_elements()
        launches = binding.launches()
        _refuse_lazy(output)
        damaged = guard.check() if self.device.emulated else []
        self._write(output, command)
        aliased = execution.aliased(output, inputs)
        changed = self._changed(inputs, name)
        written = execution.written(self.model, before)
        answer: dict[str, Any] = {"changed": changed, "aliased": aliased, "written": written}
        answer["on_cpu"] = self.device.on_cpu(output)
        answer["work"] = census.work.to_json()
        if command["repeat"]:
            answer |= self._repeat(output, command)
        if self.runtime is not None and self.spec["sanitize"]:
            answer["findings"] = races.findings(self.runtime.dice_findings_json().decode())
        self.channel.send("ran", launches=launches, damaged=damaged, **answer)

    def _muted(self, module: Any, command: dict[str, Any]) -> None:
        """One forward in which the file's kernels do nothing: what it computes, it computes without them. `filled`:
        what they should fill holds the inputs."""
        inputs = self._read(command["inputs"])
        given = [tensor.clone() for tensor in wire.tensors(inputs)] if command["filled"] else []
        census = self.census = evidence.Census(command["sizes"], command["sample_seed"], given)
        wrote, failed = False, ""
        binding.set_muted(True)
        try:
            with binding.reading(), binding.watched_memory(), self.reads.replayed():
                output = execution.forward(self.model, inputs, command["seed"], self.device, (), census)
            self._write(output, command)
            wrote = True
        except Exception as error:  # what its kernels should have computed is missing: anything may follow from that
            failed = type(error).__name__
        finally:
            binding.set_muted(False)
        wire.write([list(sample) for sample in census.witnesses], self.outputs, command["witnesses"])
        self.channel.send("muted", wrote=wrote, failed=failed, work=census.work.to_json())

    def _repeat(self, output: Any, command: dict[str, Any]) -> dict[str, Any]:
        """The same inputs once more, the threads in another order: are the results the same bits? And do the first
        ones stay as they were?"""
        first = wire.map_tensors(torch.clone, output)
        inputs = self._read(command["inputs"])
        rng = wire.read(self.inputs, f"{command['inputs']} rng") if command["rng"] else ()
        if self.runtime is not None:
            self.runtime.dice_set_order(command["order"] + 1)
        second = execution.forward(self.model, inputs, command["seed"], self.device, rng)
        overwritten = not _same_bits(first, output) or bool(execution.aliased(second, output))
        return {"deterministic": _same_bits(first, second), "overwritten": overwritten}

    def _changed(self, inputs: Any, name: str) -> list[int]:
        """Indices of the input tensors that `forward` wrote to."""
        return list(trees.changed(inputs, self._shown(name)))

    def _profile(self, module: Any, command: dict[str, Any]) -> None:
        inputs = self._read(command["inputs"])
        times = profiling.gpu_times(lambda: execution.forward(self.model, inputs, command["seed"], self.device))
        self.channel.send("profiled", times=times)

    def _time(self, module: Any, command: dict[str, Any]) -> None:
        _STAGE[0] = "time"
        answer: dict[str, Any] = {}
        self.device.allow_tf32(True)  # as its users run it; so is the reference
        with torch.no_grad():
            if command["step"] == "start":
                inputs = self._shown(command["inputs"])
                self.bench = stopwatch.Bench(
                    self.model, inputs, command["salted"], stopwatch.CudaStopwatch(), command["flushes"]
                )
                answer = self.bench.warm_up(command["warm_up_s"])
            elif command["step"] == "show":
                self._write(self.bench.kept[command["call"]], command)
            else:
                measure = {"round": self.bench.round, "block": self.bench.block}[command["step"]]
                try:
                    answer = measure(command["seed"], command["calls"])
                except stopwatch.LazyOutput as error:
                    raise WrongReturn(f"{error}.") from None
        self.device.allow_tf32(self.tf32)
        self.channel.send("timed", **answer)


def _failed_build(answer: dict[str, Any]) -> Exception:
    if answer["kind"] == "unsupported":
        return Unsupported(answer["message"])
    kinds = {"link_error": LinkError, "timeout": CompileTimeout}
    error = kinds.get(answer["kind"], CompileError)(answer["log"], answer["lines"], answer["message"])
    error.build = answer["request"]  # type: ignore[attr-defined]  # so that a report can say which build it is about
    return error


_STAGE = ["load"]  # where an exception counts


def _refuse_lazy(output: Any) -> None:
    """Refuse tensors of a class of the file's own: they may compute their values when somebody looks at them."""
    for tensor in wire.tensors(output):
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            raise WrongReturn(f"forward returned a {type(tensor).__name__}, not a plain tensor.")


def _uncompiled(report: Callable[[str], None]) -> Callable[..., Any]:
    """Takes the place of `torch.compile`: reports its use and compiles nothing."""

    def compile(model: Any = None, **_: Any) -> Any:  # noqa: A001 - PyTorch's name
        report("torch_compile")
        return model if model is not None else lambda function: function

    return compile


class WrongReturn(Exception):
    """`forward` returned something no reference returns."""


def _same_bits(one: Any, other: Any) -> bool:
    pairs = list(zip(wire.tensors(one), wire.tensors(other), strict=False))
    return len(wire.tensors(one)) == len(wire.tensors(other)) and all(near.same_values(*pair) for pair in pairs)


def _takes(model: torch.nn.Module, state: dict[str, torch.Tensor]) -> bool:
    """Whether the model has all of these parameters and buffers, by name and shape."""
    own = model.state_dict()
    return all(isinstance(own.get(name), torch.Tensor) and own[name].shape == state[name].shape for name in state)


def _copy_state(model: torch.nn.Module, state: dict[str, torch.Tensor]) -> None:
    """Give the model the reference's parameters and buffers wherever names and shapes agree."""
    own = model.state_dict(keep_vars=True)
    with torch.no_grad():
        for name, value in state.items():
            target = own.get(name)
            if isinstance(target, torch.Tensor) and target.shape == value.shape:
                wire.pour(value, target)


def _report(channel: Channel, error: BaseException) -> None:
    outcome, stage = _classify(error)
    root = _root(error)
    lines = [str(line) for line in getattr(root, "lines", ())] or _own_lines(error)
    message = str(root) or type(error).__name__
    name = type(error).__name__
    build = getattr(root, "build", None)  # the supervisor knows how that build failed
    channel.send(
        "failed", outcome=outcome, stage=stage, type=name, message=message[:2000], lines=lines[:40], build=build
    )


def _classify(error: BaseException) -> Failure:
    """Outcome and stage of an exception that the candidate's code let out."""
    stage = _STAGE[0]
    root = _root(error)
    if isinstance(root, binding.LoadError):
        return "load_error", "load"
    if isinstance(error, WrongReturn):
        return "wrong", "compare"
    if shortage.is_shortage(error):
        return "out_of_memory", stage
    if isinstance(error, SystemExit):
        return "runtime_error", stage
    return ("load_error" if stage == "load" else "runtime_error"), stage


def _root(error: BaseException) -> BaseException:
    """The build error behind an exception, if there is one: candidates wrap what `load_inline` raises."""
    ours = (CompileError, Unsupported, binding.LoadError)
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
