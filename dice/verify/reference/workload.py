"""In the reference's process: what a forward of the reference moves and computes, and what the device can do."""

from __future__ import annotations

import contextlib
import signal
import statistics
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any

import torch

from dice.verify.execution import stopwatch
from dice.verify.execution.dispatch import OperatorMode
from dice.verify.execution.running import Device
from dice.verify.execution.stopwatch import Stopwatch
from dice.verify.ipc import timing_plan
from dice.verify.reference.flops import FlopCounter
from dice.verify.roofline import Ceilings, Work
from dice.verify.tensors import transport

COPY_BYTES = 1 << 30
MATRIX = 8192
REPEATS = 5
HEAVY_ELEMENTS = 1 << 28  # of inputs and outputs: no memory for float64, nor time for second looks
AT_HAND = 1 << 17  # elements, of inputs and outputs, that are varied and compared on the host
MOST_OPERATORS = 2000  # of a forward on tensors without data: a loop over steps repeats itself
IMPORTING_S = 0.01  # between looks at whether an import has ended
_IMPORTING = ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")
SHAPES_S, SHAPES_CPU_S = 3.0, 2.0  # for such a forward: not everything that is slow computes


class _Elements(OperatorMode):
    """Counts one operation for each element that an operator other than a product makes, or a reduction reads."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not _is_view(func):
            sizes = [tensor.numel() for tensor in (*transport.tensors(list(args)), *transport.tensors(result))]
            self.count += max(sizes, default=0)
        return result


class Values(OperatorMode):
    """Elements that all operators write, and bytes of the largest value that one makes. Raises `Enough` after `most`
    operators."""

    def __init__(self, most: float = float("inf")) -> None:
        super().__init__()
        self.elements = self.largest = self._count = 0
        self._most = most

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        self._count += 1
        if not func.is_view:
            for tensor in transport.tensors(output):
                self.elements += tensor.numel()
                self.largest = max(self.largest, tensor.nbytes)
        if self._count >= self._most:
            raise Enough
        return output


class Enough(Exception):
    """So many operators, or so much time, tell what there was to be told."""


@contextlib.contextmanager
def within(seconds: float, cpu_seconds: float = 0.0) -> Iterator[None]:
    """Raises `Enough` in the block after so long, or so much of the processors (0: whatever it takes): on a busy
    machine that is not the same. For a process's main thread; others have no limit."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with _Alarm(signal.SIGALRM, signal.ITIMER_REAL, seconds), _Alarm(signal.SIGPROF, signal.ITIMER_PROF, cpu_seconds):
        yield


class _Alarm:
    def __init__(self, number: signal.Signals, timer: int, seconds: float):
        self._number, self._timer, self._seconds = number, timer, seconds
        self._handler: Any = signal.SIG_DFL
        self._before = (0.0, 0.0)

    def __enter__(self) -> None:
        self._handler = signal.signal(self._number, _stop)
        self._before = signal.setitimer(self._timer, self._seconds)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(self._timer, *self._before)
        signal.signal(self._number, self._handler)


_TIMERS = {signal.SIGALRM: signal.ITIMER_REAL, signal.SIGPROF: signal.ITIMER_PROF}


def _stop(number: int, frame: FrameType | None) -> None:
    """Raise `Enough`, but not amid an import: a module that was interrupted in its first lines is broken for as long as
    the process lives, and PyTorch imports its parts when they are first used."""
    while frame is not None:
        if frame.f_code.co_filename in _IMPORTING:
            signal.setitimer(_TIMERS[signal.Signals(number)], IMPORTING_S)
            return
        frame = frame.f_back
    raise Enough


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of a problem: of one draw of inputs, of parameters and buffers, of the output, and of the largest value
    that an operator makes. `complete`: a forward came to its end on tensors without data."""

    inputs: int = 0
    parameters: int = 0
    outputs: int = 0
    value: int = 0
    complete: bool = False

    @property
    def is_heavy(self) -> bool:
        """As far as sizes tell; an element may take less than four bytes."""
        return self.inputs + self.outputs > 4 * HEAVY_ELEMENTS

    @property
    def needed(self) -> int:
        """What both sides of a verification take at their peak, contexts aside: copies of inputs and outputs, lent ones
        among them, and what a forward makes meanwhile; in float64 too where there is memory for that."""
        slots = self.inputs * stopwatch.copies(self.inputs)
        kept = min(timing_plan.ROUND_CALLS * self.outputs, max(timing_plan.KEEP_BYTES, self.outputs))
        if self.is_heavy:
            checked = 4 * self.inputs + 3 * self.outputs + 2 * self.value
            timed = 2 * self.inputs + 2 * slots + kept + 3 * self.outputs + 2 * self.value
        else:
            checked = 8 * self.inputs + 6 * self.outputs + 6 * self.value
            timed = 4 * self.inputs + 2 * slots + kept + 6 * self.outputs + 6 * self.value
        return max(checked, timed) + 6 * self.parameters


def is_heavy(inputs: Any, outputs: Any) -> bool:
    return sum(tensor.numel() for tensor in (*transport.tensors(inputs), *transport.tensors(outputs))) > HEAVY_ELEMENTS


def sizes(problem: ModuleType, device: Device) -> Sizes:
    """Sizes of a problem, as far as can be told without running it, on tensors without data. Of a forward that does
    not come to its end so, what it made until then, or as much as goes in; else 0."""
    inputs = parameters = outputs = 0
    complete = False
    values = Values(MOST_OPERATORS)
    try:
        with within(SHAPES_S, SHAPES_CPU_S), torch.device("meta"), torch.no_grad(), device.active():
            drawn = problem.get_inputs()
            inputs = _bytes(drawn)
            model = problem.Model(*problem.get_init_inputs())
            parameters = _bytes(_state(model))
            with values:
                outputs = _bytes(model(*drawn))
        complete = True
    except BaseException:  # code that needs values: whatever it raises, it says nothing of the problem
        pass
    made = values.largest if outputs else max(inputs, values.largest)
    return Sizes(inputs, parameters, outputs or made, made, complete)


def describe(model: Any, inputs: Any) -> Work:
    """Bytes of inputs, parameters with buffers, and outputs; and floating-point operations (products exactly, all else
    by elements) of one forward."""
    flops, elements = FlopCounter(), _Elements()
    with torch.no_grad(), flops, elements:
        output = model(*inputs)
    return Work(_bytes(inputs), _bytes(_state(model)), _bytes(output), flops.flops + elements.count)


def needed_bytes(model: Any, inputs: Any) -> int:
    """Bytes that a forward provably moves: outputs, and the elements of inputs and parameters that have a gradient.

    A lower bound: what is read without a gradient (a mask, whatever a ReLU cuts off) is not counted, nor is anything
    where the reference cannot be differentiated.
    """
    leaves = transport.map_tensors(lambda tensor: tensor.detach().clone(), inputs)
    wanted = [tensor for tensor in transport.tensors(leaves) if tensor.is_floating_point()]
    wanted += [tensor for tensor in _state(model) if tensor.is_floating_point()]
    needed = 0
    before = [tensor.requires_grad for tensor in wanted]
    try:
        with torch.enable_grad():
            for tensor in wanted:
                tensor.requires_grad_(True)
            output = model(*leaves)
            needed = _bytes(output)
            made = [tensor for tensor in transport.tensors(output) if tensor.requires_grad]
            weights = [torch.randn_like(tensor) for tensor in made]
            gradients = torch.autograd.grad(made, wanted, weights, allow_unused=True) if made else ()
        for tensor, gradient in zip(wanted, gradients, strict=False):
            if gradient is not None:
                needed += int(torch.count_nonzero(gradient)) * tensor.element_size()
    except Exception:  # not differentiable, too large with its gradients, or code that forbids them
        pass
    finally:
        for tensor, flag in zip(wanted, before, strict=True):
            tensor.requires_grad_(flag)
    return needed


def measure_ceilings(stopwatch: Stopwatch) -> Ceilings:
    """Bytes a second of a large copy, operations a second of large matrix products, and the size of L2."""
    pair = torch.rand(2, COPY_BYTES // 4, device="cuda")
    found = {"bandwidth": 2 * COPY_BYTES / _seconds(stopwatch, lambda: pair[0].copy_(pair[1]))}
    matrix = torch.rand(MATRIX, MATRIX, device="cuda")
    half = matrix.bfloat16()
    operations = 2 * MATRIX**3
    allowed = torch.backends.cuda.matmul.allow_tf32
    try:
        for name, tf32 in (("fp32", False), ("tf32", True)):
            torch.backends.cuda.matmul.allow_tf32 = tf32
            found[name] = operations / _seconds(stopwatch, lambda: matrix @ matrix)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
    found["bf16"] = operations / _seconds(stopwatch, lambda: half @ half)
    return Ceilings(**found, l2_bytes=torch.cuda.get_device_properties(0).L2_cache_size)


def _seconds(stopwatch: Stopwatch, call: Any) -> float:
    for _ in range(2):
        stopwatch.time(call)
    return statistics.median(stopwatch.time(call)[1] for _ in range(REPEATS)) / 1e3


def _state(model: Any) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()] if isinstance(model, torch.nn.Module) else []


def _bytes(value: Any) -> int:
    return sum(tensor.nbytes for tensor in transport.tensors(value))


_PRODUCTS = ("mm", "linear", "convolution", "attention")


def _is_view(func: Any) -> bool:
    """Whether an operator computes nothing of its own, or is counted as a product already."""
    name = func._schema.name.partition("::")[2]
    return func.is_view or name in ("detach", "empty", "empty_like") or any(part in name for part in _PRODUCTS)
