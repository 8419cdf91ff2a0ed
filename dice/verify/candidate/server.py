"""What the untrusted children do alike: make a model, call it on inputs that they are handed, hand back raw bytes.

It never holds an expected output or a seed of the inputs. Whatever it reports is a claim: the reference's process
compares the output bytes, and the supervisor keeps the clock. What it may be told, and what it answers, stands in
`ipc/messages.py`.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dice.verify import emulator
from dice.verify.candidate import ageing, binding, graphs, other_work, profiler_census, threads
from dice.verify.candidate.failures import WrongReturn
from dice.verify.candidate.values import Values
from dice.verify.emulator import guard, races
from dice.verify.execution import evidence, fake_cuda, running, stopwatch
from dice.verify.execution.host_reads import Reads
from dice.verify.execution.running import Device
from dice.verify.ipc import messages as m
from dice.verify.ipc.channel import Channel
from dice.verify.ipc.encoding import EVENT, name_of, read
from dice.verify.ipc.operator_counts import OperatorCounts
from dice.verify.tensors import near, transport, trees

PINNED_BYTES = 64 << 20  # of memory that a GPU copies to while the host goes on


class Server(ABC):
    """One model and what may be asked of it. `stage`: where an exception counts: "load", "run" or "time"."""

    def __init__(self, channel: Channel, file: m.RunFile | m.RunPrograms):
        self.channel, self.file = channel, file
        self.device = Device(file.backend)
        self.values = Values(Path(file.inputs), Path(file.outputs), self.device)
        self.stage = "load"
        self.model: Any = None
        self.given: frozenset[str] = frozenset()  # names of the reference's parameters and buffers
        self.bench: Any = None
        self.reads = Reads()
        self.tf32 = False  # for convolutions, in what is not timed
        self.runtime: ctypes.CDLL | None = None
        self._trials, self._has_varied = 0, False  # how many there were; whether a second set of parameters was given
        self.census: evidence.Census | None = None  # of the forward under way
        self.records = False  # what PyTorch computes, by its profiler too
        self.enqueued_s = 0.0  # what the last trial's forward took until all of it was enqueued

    @abstractmethod
    def _new_model(self, command: m.Construct) -> Any:
        """The model, as its constructor makes it."""

    def _serve(self, more: dict[type[Any], Callable[[Any], object]]) -> None:
        """Do as told until the channel closes."""
        self.stage = "run"
        handlers: dict[type[Any], Callable[[Any], object]] = {
            m.OpenDevice: self._open,
            m.MapMemory: self._map_memory,
            m.ReleaseMemory: self._release_memory,
            m.Construct: self._construct,
            m.RunTrial: self._trial,
            m.RunBeside: partial(_beside, self),
            m.RunMuted: self._muted,
            m.RunOften: self._often,
            m.ProfileForward: self._profile,
            **more,
        }
        timing: dict[type[Any], Callable[[Any], object]] = {
            m.StartTiming: self._start_timing,
            m.TimeRound: self._time_round,
            m.TimeBlock: self._time_block,
            m.ShowOutput: self._show_output,
        }
        kinds = {name_of(kind): kind for kind in (*handlers, *timing)}
        for raw in self.channel:
            kind = kinds[str(raw[EVENT])]
            command = read(raw, kind)
            self.device.timing = kind in timing
            if kind in timing:
                self._timed(timing[kind], command)
            else:
                self.bench = None
                self.channel.send(handlers[kind](command))
            self.census = None
            self.device.release()

    def _prepare(self, counts: bool) -> None:
        """Set the process up. `counts`: what PyTorch computes is noted."""
        self.device.prepare(self.file.threads)
        cache_dir = Path(self.file.cache_dir)
        if self.device.emulated:
            self.runtime = ctypes.CDLL(str(emulator.runtime(cache_dir)), mode=ctypes.RTLD_GLOBAL)
            self.runtime.dice_set_fault_fd(self.channel.descriptor)
            fake_cuda.Work.finish = self.runtime.dice_finish
            guard.enable(cache_dir)
            if self.file.sanitize:
                self.runtime.dice_sanitize()
                self.runtime.dice_findings_json.restype = ctypes.c_char_p
        else:
            graphs.install(self._note_replay)
        threads.install(self.device.active, lambda: self.census)
        self.records = counts and profiler_census.works()

    def _open(self, command: m.OpenDevice) -> m.DeviceOpened:
        self.device.open()
        return m.DeviceOpened()

    def _map_memory(self, command: m.MapMemory) -> m.MemoryMapped:
        descriptors = self.channel.take_descriptors(len(command.sizes))
        return m.MemoryMapped(self.values.map_memory(command, descriptors))

    def _release_memory(self, command: m.ReleaseMemory) -> m.MemoryReleased:
        self.values.release()
        return m.MemoryReleased()

    def _construct(self, command: m.Construct) -> m.Constructed:
        self.model = None
        if self.runtime is not None:  # the first set, after the second, lies where the second did not
            self.runtime.dice_heap_at_front(self._has_varied and not command.varied)
            self._has_varied = self._has_varied or bool(command.varied)
        if command.cast is not None:  # KernelBench's order of things
            self.tf32 = True
            self.device.allow_tf32(True)
        model = self._new_model(command)
        loadable, fewer = False, False
        if isinstance(model, torch.nn.Module):
            state = transport.show(self.values.inputs, command.state)
            self.given = frozenset(state)
            loadable = _takes(model, state) or _ignores_some(model, state)
            fewer = trees.elements(model.state_dict()) < trees.elements(state)
            varied = loadable and command.varied
            _copy_state(model, transport.show(self.values.inputs, command.varied) if varied else state)
            _label(model, self.device)
        self.model = self.device.place(model)
        if command.cast:
            self.model = self.model.to(dtype=getattr(torch, command.cast))
        self.device.synchronize()
        return m.Constructed(loadable, fewer)

    def _recording(self, work: OperatorCounts) -> contextlib.AbstractContextManager[None]:
        if not self.records:
            return contextlib.nullcontext()
        return profiler_census.recording(work, lambda: self.channel.send(m.Noticed("recorder")))

    def _note_replay(self, computed: Mapping[str, int]) -> None:
        if self.census is not None:
            self.census.work.elements.update(computed)

    def _trial(self, command: m.RunTrial) -> m.Ran:
        name = command.inputs
        at_front = self.runtime is not None and _is_at_front(self._trials)
        self._trials += 1
        if self.runtime is not None:
            self.runtime.dice_heap_at_front(at_front)
        inputs = self.values.read_in_place(name, at_front)
        if self.runtime is not None:
            self.runtime.dice_set_order(command.order)
            for index, tensor in enumerate(transport.tensors(inputs)):
                guard.label(tensor, f"input {index}")
        rng = self.values.generator_states(name, command.rng)
        before = running.fingerprints(self.model, buffers=True) if command.repeat else {}
        state = _copies(self.model, self.given) if command.repeat else {}
        binding.reset_launches()
        census = self.census = evidence.Census()
        begun = time.monotonic()
        with self._recording(census.work), binding.reading(), self.reads.trial():
            output = running.forward(self.model, inputs, command.seed, self.device, rng, census, finish=False)
        self.enqueued_s = time.monotonic() - begun
        census.work.host += binding.host_elements()
        launches = binding.launches()
        _refuse_lazy(output)
        damaged = guard.check() if self.device.emulated else []
        # Behind the forward on its own stream, before anything waits for the whole GPU: work that was left on another
        # stream is not waited for, as it would not be in the layer that uses the output.
        self.values.write(output, name, command.output)
        buffers = _buffers(self.model)
        if command.asked_back or command.asked_kept:
            given = transport.tensors(inputs)
            left = [given[index] for index in command.asked_back]
            left += [buffers.get(name, torch.empty(0)) for name in command.asked_kept]
            transport.write(left, self.values.outputs, command.left)
        self.device.synchronize()
        aliased, overlapping = running.aliased(output, inputs), running.overlapping(output, self.model)
        changed = trees.changed(inputs, self.values.shown(name))
        kept = running.written(self.model, before)
        on_cpu = self.device.on_cpu(output)
        deterministic, overwritten = _repeated(self, output, command, state) if command.repeat else (False, False)
        findings = None
        if self.runtime is not None and self.file.sanitize:
            findings = races.findings(self.runtime.dice_findings_json().decode())
        return m.Ran(
            launches=launches,
            damaged=tuple(damaged),
            changed=tuple(changed),
            aliased=tuple(aliased),
            written=tuple(name for name in kept if name not in buffers),
            kept=tuple(name for name in kept if name in buffers),
            on_cpu=tuple(on_cpu),
            overlapping=overlapping,
            work=census.work.to_json(),
            deterministic=deterministic,
            overwritten=overwritten,
            findings=findings,
        )

    def _muted(self, command: m.RunMuted) -> m.Muted:
        inputs = self.values.read(command.inputs)
        given = [tensor.clone() for tensor in transport.tensors(inputs)] if command.filled else []
        census = self.census = evidence.Census(list(command.sizes), command.sample_seed, given)
        wrote = False
        binding.set_muted(True)
        try:
            with binding.reading(), binding.watched_memory(), self.reads.replayed():
                output = running.forward(self.model, inputs, command.seed, self.device, (), census)
            self.values.write(output, command.inputs, command.output)
            wrote = True
        except Exception:  # what its kernels should have computed is missing: anything may follow from that
            wrote = False
        finally:
            binding.set_muted(False)
        transport.write([list(sample) for sample in census.witnesses], self.values.outputs, command.witnesses)
        return m.Muted(wrote)

    def _often(self, command: m.RunOften) -> m.RanOften:
        inputs = [self.values.read(name) for name in command.inputs]
        buffers = _buffers(self.model)  # of which those of the reference are as they were, in each call
        kept = _copies(self.model, self.given)
        lasting = transport.map_tensors(torch.clone, inputs[0])

        def call(place: int) -> Any:
            for name, value in kept.items():
                buffers[name].copy_(value)
            own = _poured(inputs[place], lasting)
            return running.forward(self.model, own, command.seeds[place], self.device)

        own = [buffer for name, buffer in buffers.items() if name not in kept]
        number, outputs = ageing.first_other(call, len(inputs), binding.loaded(), own)
        for place, output in outputs.items():
            self.values.write(output, command.inputs[place], f"{command.output} {place}")
        return m.RanOften(number, tuple(outputs))

    def _profile(self, command: m.ProfileForward) -> m.Profiled:
        inputs = self.values.read(command.inputs)
        return m.Profiled(
            profiler_census.gpu_times(lambda: running.forward(self.model, inputs, command.seed, self.device))
        )

    def _timed(self, handler: Callable[[Any], object], command: object) -> None:
        """One step of timing, under PyTorch's defaults: as its users run it; so is the reference."""
        self.stage = "time"
        self.device.allow_tf32(True)
        with torch.no_grad():
            try:
                answer = handler(command)
            except stopwatch.LazyOutput as error:
                raise WrongReturn(f"{error}.") from None
        self.device.allow_tf32(self.tf32)
        self.channel.send(answer)

    def _start_timing(self, command: m.StartTiming) -> m.TimingStarted:
        inputs = self.values.shown(command.inputs)
        watch = stopwatch.CudaStopwatch()
        self.bench = stopwatch.Bench(self.model, inputs, command.salted, watch, command.flushes)
        return m.TimingStarted(*self.bench.warm_up(command.warm_up_s))

    def _time_round(self, command: m.TimeRound) -> m.RoundTimed:
        timed: m.RoundTimed = self.bench.round(command.seed, command.calls, command.idle)
        return timed

    def _time_block(self, command: m.TimeBlock) -> m.BlockTimed:
        timed: m.BlockTimed = self.bench.block(command.seed, command.calls)
        return timed

    def _show_output(self, command: m.ShowOutput) -> m.OutputShown:
        self.values.write(self.bench.kept[command.call], command.inputs, command.output)
        return m.OutputShown()


def _beside(server: Server, command: m.RunBeside) -> m.RanBeside:
    """One forward beside other work of the GPU, whose output is copied before that has ended; what it leaves in inputs
    even before the output: to wait for that is time in which another stream may write."""
    inputs = server.values.read(command.inputs)
    rng = server.values.generator_states(command.inputs, command.rng)
    given = [transport.tensors(inputs)[index] for index in command.asked_back]
    few = sum(tensor.nbytes for tensor in given) <= PINNED_BYTES
    left = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=few) for tensor in given]
    held = other_work.enqueue(server.enqueued_s)
    if held:
        output = running.forward(server.model, inputs, command.seed, server.device, rng, finish=False)
        for copy, tensor in zip(left, given, strict=True):
            copy.copy_(tensor, non_blocking=True)
        server.values.write(output, command.inputs, command.output)
    server.device.synchronize()
    transport.write(left, server.values.outputs, command.left)
    return m.RanBeside(bool(held), tuple(trees.changed(inputs, server.values.shown(command.inputs))))


def _repeated(server: Server, output: Any, command: m.RunTrial, state: Mapping[str, torch.Tensor]) -> tuple[bool, bool]:
    """The same inputs once more, the threads in another order and the buffers in the same `state`: are the results
    the same bits? And were the first ones overwritten?"""
    buffers = _buffers(server.model)
    for name, value in state.items():
        buffers[name].copy_(value)
    first = transport.map_tensors(torch.clone, output)
    inputs = server.values.read(command.inputs)
    rng = server.values.generator_states(command.inputs, command.rng)
    if server.runtime is not None:
        server.runtime.dice_set_order(command.order + 1)
    second = running.forward(server.model, inputs, command.seed, server.device, rng)
    overwritten = not _same_bits(first, output) or bool(running.aliased(second, output))
    return _same_bits(first, second), overwritten


def _is_at_front(trial: int) -> bool:
    """Whether the emulated trial's tensors begin behind a guard page: later than the first that they end before one, as
    most mistakes are reads past the end, which are best told of as such."""
    return trial >= 2 and trial % 2 == 0


def _label(model: torch.nn.Module, device: Device) -> None:
    """Name its memory to the emulator, for what is said of accesses to it."""
    if device.emulated:
        for name, tensor in model.state_dict(keep_vars=True).items():
            if isinstance(tensor, torch.Tensor):
                guard.label(tensor, f"parameter {name}")


def _poured(value: Any, lasting: Any) -> Any:
    """A copy of a call's inputs, where those of the call before lay as far as they are like them: a library that takes
    an address for what it saw there answers for others then."""
    room = iter(transport.tensors(lasting))

    def pour(tensor: torch.Tensor) -> torch.Tensor:
        there = next(room, tensor)
        one, other = ((each.shape, each.dtype, each.stride()) for each in (there, tensor))
        return there.copy_(tensor) if one == other and there is not tensor else tensor.clone()

    return transport.map_tensors(pour, value)


def _copies(model: Any, names: Container[str]) -> dict[str, torch.Tensor]:
    """Of the buffers of these names."""
    return {name: buffer.clone() for name, buffer in _buffers(model).items() if name in names}


def _buffers(model: Any) -> dict[str, torch.Tensor]:
    return dict(model.named_buffers()) if isinstance(model, torch.nn.Module) else {}


def _refuse_lazy(output: Any) -> None:
    """Refuse tensors of a class of the file's own: they may compute their values when somebody looks at them."""
    for tensor in transport.tensors(output):
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            raise WrongReturn(f"forward returned a {type(tensor).__name__}, not a plain tensor.")


def _same_bits(one: Any, other: Any) -> bool:
    pairs = list(zip(transport.tensors(one), transport.tensors(other), strict=False))
    return len(transport.tensors(one)) == len(transport.tensors(other)) and all(
        near.same_values(*pair) for pair in pairs
    )


def _takes(model: torch.nn.Module, state: dict[str, torch.Tensor]) -> bool:
    """Whether the model has all of these parameters and buffers, by name and shape."""
    own = model.state_dict()
    return all(isinstance(own.get(name), torch.Tensor) and own[name].shape == state[name].shape for name in state)


def _ignores_some(model: torch.nn.Module, state: dict[str, torch.Tensor]) -> bool:
    """Whether the model takes all that it has from the state, by name and shape, and keeps what it leaves out nowhere
    else, as far as its modules tell: then other values of that are no more than it can be asked for. A mask that it
    leaves out may be in its code."""
    own = model.state_dict()
    if any(name not in state or state[name].shape != value.shape for name, value in own.items()):
        return False
    kept = {name for name, _ in model.named_buffers()} - own.keys()
    plain = (value for module in model.modules() for key, value in vars(module).items() if key not in trees.REGISTERED)
    masks = any(trees.is_mask(value) for name, value in state.items() if name not in own and value.is_floating_point())
    return not kept and not masks and not transport.tensors(list(plain))


def _copy_state(model: torch.nn.Module, state: dict[str, torch.Tensor]) -> None:
    """Give the model the reference's parameters and buffers wherever names and shapes agree."""
    own = model.state_dict(keep_vars=True)
    with torch.no_grad():
        for name, value in state.items():
            target = own.get(name)
            if isinstance(target, torch.Tensor) and target.shape == value.shape:
                transport.pour(value, target)
