"""How large a problem is, without running it, and a version of it that is small enough to run here.

`measure` runs the problem on tensors without data. What shrinks are module-level integers that only `get_inputs` uses
(see `scale.py`): sizes of a batch first, then sizes that the output has too, so that what a reduction sums over, a
property that decides how much the output varies, goes last.

**Launch-bound.** The least time of a forward on a large GPU (H100 SXM: 3.35 TB/s, 67 TFLOP/s in float32) is the
greater of `bytes / bandwidth` and `operations / rate`, where bytes are inputs, parameters and outputs once. Under 5 us,
what a launch and its gaps cost on such a machine, no kernel can show that it is faster than another.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from dice.verify.audit.torch_calls import Census
from dice.verify.audit.watch_calls import Watch
from dice.verify.execution import running
from dice.verify.reference import scale, workload
from dice.verify.roofline import Ceilings, Work
from dice.verify.tensors import transport

REFERENCE_GPU = Ceilings(bandwidth=3.35e12, fp32=67e12, tf32=495e12, bf16=990e12, l2_bytes=50 << 20)
GPU_BYTES = 80e9
LAUNCH_US = 5.0
MEASURE_S = 4.0
MIN_BATCH, MIN_SIZE = 2, 16  # below these, statistics over a dimension are no longer what they were

# One core of a common server, on PyTorch's own kernels; within a factor of five. An audit draws inputs and compares
# outputs some twenty times, at up to 70 ns an element.
FORWARDS = 40
GPU_SPEEDUP = 30.0
MARGIN_PART = 0.4  # of a budget
SECONDS_PER_FLOP, SECONDS_PER_ELEMENT, SECONDS_PER_VALUE = 4e-11, 2e-9, 1.5e-6


@dataclass(frozen=True, slots=True)
class Size:
    """One forward. `elements`: written by all operators; `largest`: bytes of the largest value that one makes;
    `census`: what it is made of."""

    work: Work
    shapes: tuple[tuple[int, ...], ...]
    elements: int
    largest: int
    census: Census = Census()

    @property
    def audit_s(self) -> float:
        forward_s = self.work.flops * SECONDS_PER_FLOP + self.elements * SECONDS_PER_ELEMENT
        values = (self.work.input_bytes + self.work.output_bytes) / 4
        return FORWARDS * forward_s + values * SECONDS_PER_VALUE

    @property
    def gpu_bytes(self) -> int:
        """The least that comparing a kernel with the reference takes."""
        work = self.work
        return work.input_bytes + 2 * work.parameter_bytes + 2 * work.output_bytes + 2 * self.largest

    @property
    def peak_bytes(self) -> int:
        """What an audit holds at once: three sets of inputs, two models, a few outputs, intermediate values."""
        work = self.work
        return 3 * work.input_bytes + 2 * work.parameter_bytes + 6 * work.output_bytes + 4 * self.largest

    @property
    def ceiling_us(self) -> float:
        return 1e3 * REFERENCE_GPU.ceiling_ms(self.work)

    def to_json(self) -> dict[str, object]:
        return asdict(self.work) | {"bytes": self.work.bytes_moved}


@dataclass(frozen=True, slots=True)
class Budget:
    """What one audit may use: seconds, host memory, and the memory of the GPU (0: references run on the CPU)."""

    seconds: float
    host_bytes: float
    gpu_bytes: float = 0

    def holds(self, size: Size, part: float = 1.0) -> bool:
        """Whether memory suffices, of which no more than `part` is used."""
        if not self.gpu_bytes:
            return size.peak_bytes <= part * self.host_bytes
        work = size.work
        on_host = 2 * (work.input_bytes + work.parameter_bytes + work.output_bytes)
        return on_host <= part * self.host_bytes and size.peak_bytes <= part * self.gpu_bytes

    def fits(self, size: Size) -> bool:
        """Whether the size leaves a good margin: estimates are rough, and a machine may be busy."""
        needed_s = size.audit_s / GPU_SPEEDUP if self.gpu_bytes else size.audit_s
        return needed_s <= MARGIN_PART * self.seconds and self.holds(size, MARGIN_PART)


def measure(source: str, folder: Path, device: running.Device) -> Size | None:
    """None where the problem needs data (`.item()`, NumPy), fails, or takes long (loops over steps do)."""
    try:
        with workload.within(MEASURE_S):
            module = running.exec_file(source, folder, "problem_shapes")
            with torch.device("meta"), torch.no_grad(), device.active():
                drawn = module.get_inputs()
                return measure_run(module.Model(*module.get_init_inputs()), drawn, device)
    except Exception:  # noqa: BLE001 - the problem's own code may raise anything; then its size is not known
        return None


def measure_run(model: Any, drawn: Any, device: running.Device) -> Size:
    """One forward on these inputs."""
    seen = workload.Values()
    with torch.no_grad(), device.active(), seen, Watch(model) as watch:
        work = workload.describe(model, drawn)
    shapes = tuple(tuple(tensor.shape) for tensor in transport.tensors(drawn))
    return Size(work, shapes, seen.elements, seen.largest, watch.census)


def fit(source: str, now: Size, budget: Budget, measure_again: Callable[[str], Size | None]) -> tuple[str, Size]:
    """The source with its free constants halved, one after the other, until it fits or is as small as it can be."""
    source = fold_constants(source)
    for constants in _ranked(source, now, measure_again):
        while constants and not budget.fits(now):
            name = max(constants, key=lambda one: constants[one])
            value, least = constants[name], MIN_BATCH if _is_batch(name) else MIN_SIZE
            smaller = scale.with_constant(source, name, max(least, value // 2))
            size = measure_again(smaller) if value > least else None
            if size is None or size.peak_bytes + size.elements >= now.peak_bytes + now.elements:
                del constants[name]  # it is as small as it can be, or the model does not take it, or it is no size
                continue
            source, now, constants[name] = smaller, size, max(least, value // 2)
    return source, now


def fold_constants(source: str) -> str:
    """The source with module-level integers written plainly, for only such shrink: `K = 131072 * 4` is worked out, and
    `height, width = 64, 64` becomes two lines."""
    tree = ast.parse(source)
    tree.body = [part for node in tree.body for part in _plain(node)]
    return ast.unparse(ast.fix_missing_locations(tree))


def _plain(node: ast.stmt) -> list[ast.stmt]:
    if not isinstance(node, ast.Assign):
        return [node]
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(node.targets) == 1:
        pairs = list(zip(target.elts, value.elts, strict=False))
        if len(target.elts) != len(value.elts) or any(_value(item) is None for item in value.elts):
            return [node]
        return [ast.Assign([name], ast.Constant(_value(item)), lineno=node.lineno) for name, item in pairs]
    number = _value(value)
    return [node if number is None else ast.Assign(node.targets, ast.Constant(number), lineno=node.lineno)]


def _value(node: ast.expr) -> int | None:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if not isinstance(node, ast.BinOp) or type(node.op) not in _ARITHMETIC:
        return None
    left, right = _value(node.left), _value(node.right)
    if left is None or right is None or (right == 0 and isinstance(node.op, ast.FloorDiv)):
        return None
    return _ARITHMETIC[type(node.op)](left, right)


_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


def _ranked(source: str, now: Size, measure_again: Callable[[str], Size | None]) -> tuple[dict[str, int], ...]:
    """Free constants: of a batch, those that the size of the output follows, the others."""
    batch: dict[str, int] = {}
    kept: dict[str, int] = {}
    reduced: dict[str, int] = {}
    for name, value in scale.free_constants(source):
        if _is_batch(name):
            batch[name] = value
            continue
        halved = measure_again(scale.with_constant(source, name, max(1, value // 2)))
        follows = halved is not None and halved.work.output_bytes < now.work.output_bytes
        (kept if follows else reduced)[name] = value
    return batch, kept, reduced


def _is_batch(name: str) -> bool:
    return "batch" in name.lower()
