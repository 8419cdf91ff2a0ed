"""How long a problem would take to emulate, and smaller versions of it.

A problem shrinks by its own numbers, as far as it takes, in this order:

1. module-level integers that `get_inputs` uses and neither the model nor `get_init_inputs` does: batch size, length;
2. sizes of the inputs that `get_inputs` writes as numbers, each wherever it stands there: both N of an N x N matrix;
3. sizes of the inputs that the model is made with, everywhere: N features and the inputs that have them. Up to
   `SMALL_SIZE` they stay: three channels are as many as a kernel of 3 by 3 is wide, and kernels are written for both.

The reference must accept the smaller inputs, and a smaller model be quicker.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dice.verify.execution import running
from dice.verify.execution.dispatch import OperatorMode
from dice.verify.tensors import transport, trees

# Measured on one 2 GHz core with untuned kernels, g++ -O2; the estimate is meant to be right within a factor of ten.
SECONDS_PER_FLOP = 2e-9
SECONDS_PER_ELEMENT = 4e-8
SMALL_ELEMENTS = 1 << 20
SMALL_SIZE = 8
MADE_WITH = 200  # characters of what a model is made with


class TooLarge(Exception):
    """The problem would not finish emulated; the message says how long it would take and what to do."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """`seconds` of one emulated `forward`, from the reference's operations; the shapes of the inputs, and what the
    model is made with, as text."""

    seconds: float
    reason: str
    shapes: tuple[tuple[int, ...], ...]
    made_with: str = ""


def fit(source: str, folder: Path, scale: float | None, limit_s: float) -> tuple[str, dict[str, Any]]:
    """The source to use and how its inputs shrank, `{"input 0": [[128, 64], [16, 64]]}`, and its model: `{"Model":
    ["[64, 4096]", "[64, 512]"]}`.

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
    changes: dict[str, Any] = {f"input {index}": [list(old), list(new)] for index, (old, new) in pairs if old != new}
    if before.made_with != after.made_with:
        changes["Model"] = [before.made_with, after.made_with]
    return source, changes


def estimate(source: str, folder: Path) -> Estimate | None:
    """Run the problem on tensors without data. None when it needs data (`.item()`, NumPy) or fails."""
    from dice.verify.reference.flops import FlopCounter  # slow to load

    counter, elements = FlopCounter(), _CountElements()
    try:
        module = running.exec_file(source, folder, "problem_shapes")
        with torch.device("meta"), torch.no_grad():
            drawn = module.get_inputs()
            given = module.get_init_inputs()
            model = module.Model(*given)
            with counter, elements:
                model(*drawn)
    except BaseException:  # noqa: BLE001 - the problem's own code may raise anything, or exit; then there is no estimate
        return None
    flops = counter.flops
    seconds = flops * SECONDS_PER_FLOP + elements.count * SECONDS_PER_ELEMENT
    shapes = tuple(tuple(tensor.shape) for tensor in transport.tensors(drawn))
    return Estimate(
        seconds,
        f"{flops:.2g} floating-point operations, {elements.count:.2g} elements",
        shapes,
        repr(given)[:MADE_WITH],
    )


def _is_small(source: str, folder: Path) -> bool:
    """Whether the inputs alone say that the problem is quick; spares the estimate, which loads much of PyTorch."""
    try:
        module = running.exec_file(source, folder, "problem_shapes")
        with torch.device("meta"):
            return trees.elements(module.get_inputs()) <= SMALL_ELEMENTS
    except BaseException:  # noqa: BLE001 - as above
        return False


def _shrink(source: str, folder: Path, scale: float, limit_s: float, now: Estimate) -> tuple[str, Estimate]:
    """Scale one number after another, batch size first, until the estimate fits."""
    numbers: dict[Place, int] = {}
    shrunk = source
    for value, places in _shrinkable(source, now.shapes):
        tried = numbers | dict.fromkeys(places, max(1, round(value * scale)))
        smaller = _with_numbers(source, tried)
        attempt = estimate(smaller, folder)
        if attempt is None or attempt.seconds >= now.seconds:
            continue
        shrunk, numbers, now = smaller, tried, attempt
        if now.seconds <= limit_s:
            break
    if not numbers:
        raise TooLarge("the problem's reference runs at no smaller size of its inputs, so --scale cannot help")
    return shrunk, now


Place = tuple[int, int]  # line and column of a number in a source


def _shrinkable(source: str, shapes: Iterable[tuple[int, ...]]) -> Iterator[tuple[int, list[Place]]]:
    """Numbers to shrink, each with its places, in the order that the module's docstring gives."""
    parts: dict[str, dict[Place, int]] = {"": {}, "get_inputs": {}, "get_init_inputs": {}}
    names: dict[str, list[Place]] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            found = dict(_numbers(node.value))
            parts[""] |= found
            names |= {name: list(found) for name, _ in _integers(node)}
        elif isinstance(node, ast.FunctionDef) and node.name in parts:
            parts[node.name] = dict(_numbers(node))
    for name, value in free_constants(source):
        yield value, names[name]
    sizes = dict.fromkeys(size for shape in shapes for size in shape)
    everywhere = parts[""] | parts["get_inputs"] | parts["get_init_inputs"]
    for numbers, least in ((parts["get_inputs"], 1), (everywhere, SMALL_SIZE)):
        for size in sizes:
            if size <= least:
                continue
            places = [place for place, value in numbers.items() if value == size]
            if places:
                yield size, places


def _numbers(node: ast.AST) -> Iterator[tuple[Place, int]]:
    """Integers below a node, `2048 * 2` being one."""
    value = _integer(node)
    if value is not None:
        assert isinstance(node, ast.expr)
        yield (node.lineno, node.col_offset), value
        return
    for child in ast.iter_child_nodes(node):
        yield from _numbers(child)


def _integer(node: ast.AST) -> int | None:
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if not isinstance(node, ast.BinOp) or type(node.op) not in _ARITHMETIC:
        return None
    left, right = _integer(node.left), _integer(node.right)
    return None if left is None or right is None else _ARITHMETIC[type(node.op)](left, right)


_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


def _with_numbers(source: str, numbers: Mapping[Place, int]) -> str:
    """The source with other numbers at these places."""

    class Rewriter(ast.NodeTransformer):
        def generic_visit(self, node: ast.AST) -> ast.AST:
            if isinstance(node, ast.expr) and _integer(node) is not None:
                value = numbers.get((node.lineno, node.col_offset))
                return node if value is None else ast.copy_location(ast.Constant(value), node)
            return super().generic_visit(node)

    return ast.unparse(Rewriter().visit(ast.parse(source)))


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
    """Counts the elements that operators write, or, where they make few of many, read."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        read = trees.elements(args) if _REDUCES.match(func.name()) else 0
        self.count += max(read, trees.elements(output))
        return output


_REDUCES = re.compile(
    r"aten::(sum|nansum|mean|prod|amax|amin|aminmax|max|min|arg(max|min)|linalg_vector_norm|norm|std|var|logsumexp|all|any)"
    r"(_mean)?(\.|$)|aten::\w*_pool[123]d"
)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
