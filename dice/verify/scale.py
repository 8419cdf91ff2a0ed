"""How long a problem would take to emulate, and smaller versions of it.

A problem shrinks by its own numbers: module-level integers that `get_inputs` uses and neither the model nor
`get_init_inputs` does (batch size, sequence length, image size). The reference must accept the smaller inputs.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dice.verify import execution, wire
from dice.verify.dispatch import OperatorMode

# Measured on one 2 GHz core with untuned kernels, g++ -O2; the estimate is meant to be right within a factor of ten.
SECONDS_PER_FLOP = 2e-9
SECONDS_PER_ELEMENT = 4e-8
SMALL_ELEMENTS = 1 << 20


class TooLarge(Exception):
    """The problem would not finish emulated; the message says how long it would take and what to do."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """`seconds` of one emulated `forward`, from the reference's operations; the shapes of the inputs."""

    seconds: float
    reason: str
    shapes: tuple[tuple[int, ...], ...]


def fit(source: str, folder: Path, scale: float | None, limit_s: float) -> tuple[str, dict[str, Any]]:
    """The source to use and how its inputs shrank: `{"input 0": [[128, 64], [16, 64]]}`.

    Without `scale` the source is unchanged. Raises `TooLarge` when one forward would take over `limit_s`.
    A problem that cannot be estimated is taken as it is; the clocks still hold.
    """
    if scale is None and _is_small(source, folder):
        return source, {}
    before = estimate(source, folder)
    if before is None or (scale is None and before.seconds <= limit_s):
        return source, {}
    if scale is None:
        raise TooLarge(
            f"one forward would take about {_duration(before.seconds)} emulated ({before.reason}), over the limit of"
            f" {limit_s:g} s; check it at a smaller size with --scale, or on a GPU"
        )
    source, after = _shrink(source, folder, scale, limit_s, before)
    if after.seconds > limit_s:
        raise TooLarge(f"even with --scale {scale:g}, one forward would take about {_duration(after.seconds)} emulated")
    pairs = enumerate(zip(before.shapes, after.shapes, strict=True))
    return source, {f"input {index}": [list(old), list(new)] for index, (old, new) in pairs if old != new}


def estimate(source: str, folder: Path) -> Estimate | None:
    """Run the problem on tensors without data. None when it needs data (`.item()`, NumPy) or fails."""
    from dice.verify.flops import FlopCounter  # slow to load

    counter, elements = FlopCounter(), _CountElements()
    try:
        module = execution.exec_file(source, folder, "problem_shapes")
        with torch.device("meta"), torch.no_grad():
            drawn = module.get_inputs()
            model = module.Model(*module.get_init_inputs())
            with counter, elements:
                model(*drawn)
    except BaseException:  # noqa: BLE001 - the problem's own code may raise anything, or exit; then there is no estimate
        return None
    flops = counter.flops
    seconds = flops * SECONDS_PER_FLOP + elements.count * SECONDS_PER_ELEMENT
    shapes = tuple(tuple(tensor.shape) for tensor in wire.tensors(drawn))
    return Estimate(seconds, f"{flops:.2g} floating-point operations, {elements.count:.2g} elements", shapes)


def _is_small(source: str, folder: Path) -> bool:
    """Whether the inputs alone say that the problem is quick; spares the estimate, which loads much of PyTorch."""
    try:
        module = execution.exec_file(source, folder, "problem_shapes")
        with torch.device("meta"):
            return sum(tensor.numel() for tensor in wire.tensors(module.get_inputs())) <= SMALL_ELEMENTS
    except BaseException:  # noqa: BLE001 - as above
        return False


def odd(source: str) -> str | None:
    """The source with every free even size made odd, one smaller; None where there is none."""
    found = [(name, value) for name, value in free_constants(source) if value % 2 == 0]
    for name, value in found:
        source = with_constant(source, name, value - 1)
    return source if found else None


def _shrink(source: str, folder: Path, scale: float, limit_s: float, now: Estimate) -> tuple[str, Estimate]:
    """Scale one free constant after another, batch size first, until the estimate fits."""
    shrunk = False
    for name, value in free_constants(source):
        smaller = with_constant(source, name, max(1, round(value * scale)))
        attempt = estimate(smaller, folder)
        if attempt is None or attempt.seconds >= now.seconds:
            continue
        source, now, shrunk = smaller, attempt, True
        if now.seconds <= limit_s:
            break
    if not shrunk:
        raise TooLarge("no input size of the problem can shrink without changing the model, so --scale cannot help")
    return source, now


def free_constants(source: str) -> list[tuple[str, int]]:
    """Module-level integers over 1 that only `get_inputs` uses, names with `batch` first."""
    tree = ast.parse(source)
    values: dict[str, int] = {}
    used_by_inputs: set[str] = set()
    used_elsewhere: set[str] = set()
    for node in tree.body:
        for name, value in _integers(node):
            values[name] = value
        names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)}
        is_inputs = isinstance(node, ast.FunctionDef) and node.name == "get_inputs"
        (used_by_inputs if is_inputs else used_elsewhere).update(names)
    free = [(name, value) for name, value in values.items() if name in used_by_inputs - used_elsewhere and value > 1]
    return sorted(free, key=lambda item: "batch" not in item[0].lower())


def _integers(node: ast.stmt) -> list[tuple[str, int]]:
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Constant):
        return []
    if type(node.value.value) is not int:
        return []
    return [(target.id, node.value.value) for target in node.targets if isinstance(target, ast.Name)]


def with_constant(source: str, name: str, value: int) -> str:
    """The source with the module-level `name = NUMBER` given another number."""
    tree = ast.parse(source)
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(found == name for found, _ in _integers(node)):
            node.value = ast.Constant(value)
    return ast.unparse(ast.fix_missing_locations(tree))


class _CountElements(OperatorMode):
    """Counts the elements that operators write."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        self.count += sum(tensor.numel() for tensor in wire.tensors(output))
        return output


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
