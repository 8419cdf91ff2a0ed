"""One kernel file for a whole module: `ModelNew` computes some regions by kernels and the rest as the module did.

`ModelNew` is the module's own class with another `forward`, so that its constructor, its parameters and their names are
the module's own. For arguments that it was not made for (other shapes, other types, gradients wanted) it does what the
module did.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dice import syntax
from dice.errors import UserError
from dice.kernel import Kernel
from dice.optimize.graph import Node, references
from dice.optimize.operators import kind_of
from dice.optimize.python_text import expression, term
from dice.optimize.region import Region
from dice.optimize.unit import Unit
from dice.optimize.whole.builds import Builds
from dice.optimize.whole.inline import Inlined, inlined
from dice.problem import Problem

Wrap = Callable[[Region, Inlined], Inlined]
Cut = tuple[Unit, tuple[Region, ...]]


@dataclass(frozen=True, slots=True)
class Part:
    """A region's kernel: its file, how that reaches the region's states, and the numbers that it may read besides."""

    kernel: Kernel
    paths: tuple[str, ...]
    constants: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """`units` with their regions, several for one place where each was followed for other inputs; `parts`: the kernel
    of each region that is replaced, by the region's key. `apart`: each kernel is built by itself, as it was when it was
    verified, so that nothing has to be compiled."""

    problem: Problem
    units: tuple[Cut, ...]
    parts: Mapping[str, Part]
    apart: bool = False


# What a kernel was made for, beside its arguments: it is noted when the module is made, and looked at again whenever
# its tensors are converted or replaced.
_FITTING = '''
class _WithKernels:
    """Knows whether the kernels fit: the module was made with the arguments that they were written for, its tensors
    have the shapes and types of then (or were converted to a type for which there are kernels), each of its parts is in
    training or not, as it was, and PyTorch is not to choose other types by itself (autocast)."""

    _kernel_states = _kernel_types = ()  # until it is made: its own constructor may convert it

    def _note_kernels(self, as_made, mode, types=(None,)):
        self._kernel_parts = tuple(self.modules())
        self._kernel_modes = mode if isinstance(mode, tuple) else (mode,) * len(self._kernel_parts)
        self._kernel_states = [(dtype, self._described(dtype)) for dtype in types] if as_made else []
        self._see_types()

    def _described(self, dtype=None):
        """Shapes and types of its tensors; as they are once it is converted to `dtype`."""
        return [
            (one.shape, dtype if dtype and one.is_floating_point() else one.dtype)
            for one in (*self.parameters(), *self.buffers())
        ]

    def _see_types(self):
        now = self._described()
        self._kernel_types = [dtype for dtype, states in self._kernel_states if states == now]

    def _kernels_fit(self, dtype=None):
        if torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu"):
            return False
        return dtype in self._kernel_types and all(
            part.training is mode for part, mode in zip(self._kernel_parts, self._kernel_modes)
        )

    def _apply(self, *args, **kwargs):
        super()._apply(*args, **kwargs)
        self._see_types()
        return self

    def load_state_dict(self, *args, **kwargs):
        result = super().load_state_dict(*args, **kwargs)
        self._see_types()
        return result


def _as_made(args, kwargs):
    """Whether these arguments are those that get_init_inputs() gives; of tensors, shape and type."""
    signature = inspect.signature(Model)
    one, other = signature.bind(*args, **kwargs), signature.bind(*get_init_inputs())
    for bound in (one, other):
        bound.apply_defaults()
    return _plain(dict(one.arguments)) == _plain(dict(other.arguments))


def _plain(value):
    if isinstance(value, torch.Tensor):
        return ("tensor", value.shape, value.dtype)
    if isinstance(value, dict):
        return [(key, _plain(one)) for key, one in value.items()]
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(_plain, value)]
    return (type(value).__name__, value)
'''


def compose(plan: Plan, wrap: Wrap = lambda region, piece: piece, training: bool = False) -> Kernel:
    """The kernel file. Raises `NotInlined` for a kernel that cannot be part of it.

    `wrap`: what becomes of a region's function before others call it; `training`: gradients flow through that.
    """
    used = [region.key for _, regions in plan.units for region in regions if region.key in plan.parts]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(used), 1)}
    known = {region.key: region for _, regions in plan.units for region in regions}
    builds = Builds.of(plan.problem, {key: plan.parts[key].kernel for key in numbers}, plan.apart)
    pieces = {}
    for key, number in numbers.items():
        part = plan.parts[key]
        shared = builds.shared.get(key)
        piece = inlined(part.kernel, part.paths, number, part.constants, shared, builds.handles.get(key, ""))
        pieces[key] = wrap(known[key], piece)
    sections = [_header(plan, len(numbers), len(used)), _module_text(plan.problem.source).strip("\n")]
    imports = ["import inspect", "", "import torch", "import torch.nn as nn", "import torch.nn.functional as F"]
    _require_free_names(plan.problem)
    imports += [line for piece in pieces.values() for line in piece.imports]
    imports += [f"from {unit.home} import {unit.class_name.split('.')[0]}" for unit, _ in plan.units if unit.home]
    imports += ["from torch.utils.cpp_extension import load_inline"] if builds.shared else []
    sections.append("\n".join(line for line in dict.fromkeys(imports)))
    for key, number in numbers.items():
        times = used.count(key)
        where = "" if times == 1 else f", at {times} places"
        alone = f"\n# It has a build of its own: it {builds.alone[key]}." if builds.alone.get(key) else ""
        sections.append(f"# Region {number}: {known[key].title}{where}.{alone}\n{pieces[key].text}")
    sections += builds.texts()
    sections.append(_FITTING.strip("\n"))
    sections += _classes(plan, pieces, training)
    text = "\n\n\n".join(sections) + "\n"
    if re.search(r"\bregion_\d", plan.problem.source):  # a name of the module's own
        text = re.sub(r"(?<![\w.])region_(\d+)(?=\()", r"region_kernel_\1", text)
    return Kernel(text, name=f"{plan.problem.name}_optimized")


def _require_free_names(problem: Problem) -> None:
    """Raises `UserError` for a file that calls something else by names that the composed file needs."""
    for node in syntax.parse(problem.source).body:
        targets = node.targets if isinstance(node, ast.Assign) else ()
        names = [one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)]
        names += [node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
        taken = next((name for name in names if name in ("torch", "nn", "F", "inspect", "load_inline")), None)
        if taken:
            raise UserError(f"{problem.name} calls something of its own {taken}, line {node.lineno}; rename it.")


def parts_of(plan: Plan) -> dict[str, Region]:
    """The regions that a plan replaces, each once, in the order of their numbers."""
    return {region.key: region for _, regions in plan.units for region in regions if region.key in plan.parts}


def _header(plan: Plan, kernels: int, places: int) -> str:
    lines = [
        f'"""{plan.problem.name} with {kernels} {"kernel" if kernels == 1 else "kernels"} at {places}'
        f" {'place' if places == 1 else 'places'}, put together by `dice optimize`.",
        "",
        "`ModelNew` has the constructor and the parameters of `Model`. It calls the kernels for inputs of the shapes",
        "and types that it was made for, and where no gradients are wanted; for all else it does what `Model` does.",
        '"""',
    ]
    return "\n".join(lines)


def _module_text(source: str) -> str:
    """The problem's file without what draws inputs, and without its docstring."""
    tree = syntax.parse(source)
    lines = source.split("\n")
    dropped: list[tuple[int, int]] = []
    for index, node in enumerate(tree.body):
        is_docstring = index == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        names = [node.name] if isinstance(node, ast.FunctionDef) else []
        names += [ast.unparse(one) for one in node.targets] if isinstance(node, ast.Assign) else []
        is_drawing = any(name.startswith("get_inputs") for name in names)
        if is_docstring or is_drawing or _is_main(node):
            decorated = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])
            dropped.append((decorated, node.end_lineno or node.lineno))
    kept = [line for number, line in enumerate(lines, 1) if not any(first <= number <= last for first, last in dropped)]
    return "\n".join(kept)


def _is_main(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def _classes(plan: Plan, pieces: Mapping[str, Inlined], training: bool) -> Iterator[str]:
    """`ModelNew`, and the classes of parts where the module was not followed whole."""
    whole: Sequence[Cut] = ()
    swaps = []
    for number, (units, paths) in enumerate(_by_place(plan, pieces), 1):
        if paths == ("",):
            whole = units
            continue
        first = units[0][0]
        name = f"{first.class_name.replace('.', '_')}_{number}"
        yield _class(name, first.class_name, units, pieces, training)
        swaps.append(f"for part in ({', '.join(map(reached, paths))},):")
        swaps.append(f"    part.__class__ = {name}")
        swaps.append(f"    part._note_kernels({_noted(units)})")
    init = ["def __init__(self, *args, **kwargs):", "    super().__init__(*args, **kwargs)"]
    if swaps:
        init.append("    # Parts take a class whose forward calls the kernels; their parameters stay as they are.")
        init += [f"    {line}" for line in swaps]
    if whole:
        init.append(f"    self._note_kernels({_noted(whole)})")
        yield _class("ModelNew", "Model", whole, pieces, training, init)
    else:
        yield "\n".join(["class ModelNew(Model):", *(f"    {line}" for line in init)])


def _by_place(plan: Plan, pieces: Mapping[str, Inlined]) -> list[tuple[list[Cut], tuple[str, ...]]]:
    """What is called at the same places, with those places: several units where the module was followed for several
    inputs, of which each has its own."""
    at: dict[str, list[int]] = {}
    for index, (unit, regions) in enumerate(plan.units):
        for path in unit.paths if any(region.key in pieces for region in regions) else ():
            at.setdefault(path, []).append(index)
    places: dict[tuple[int, ...], list[str]] = {}
    for path, indices in at.items():
        places.setdefault(tuple(indices), []).append(path)
    return [([plan.units[index] for index in indices], tuple(paths)) for indices, paths in places.items()]


def _noted(units: Sequence[Cut]) -> str:
    """The arguments of `_note_kernels`."""
    types = [f"torch.{unit.dtype}" if unit.dtype else "None" for unit, _ in units]
    known = list(dict.fromkeys(types))
    more = f", ({', '.join(known)},)" if known != ["None"] else ""
    return f"_as_made(args, kwargs), {units[0][0].mode}{more}"


def _class(
    name: str,
    base: str,
    units: Sequence[Cut],
    pieces: Mapping[str, Inlined],
    training: bool,
    init: Sequence[str] = (),
) -> str:
    """A class that computes by kernels what it was followed for, and all else as its base does."""
    first = units[0][0]
    lines = [*init, *([""] if init else [])]
    lines.append(f"def forward({', '.join(filter(None, ('self', first.signature)))}):")
    for unit, regions in units:
        body = _Body(unit, [region for region in regions if region.key in pieces], pieces, training)
        conditions = " and\n".join(f"        {line}" for line in _conditions(unit, training)).split("\n")
        lines += ["    if (", *conditions, "    ):", *(f"        {line}" for line in body.lines())]
    lines.append(f"    return super().forward({first.call})")
    return "\n".join([f"class {name}(_WithKernels, {base}):", *(f"    {line}".rstrip() for line in lines)])


def _conditions(unit: Unit, training: bool) -> list[str]:
    """What has to hold for the unit's kernels, as Python."""
    tensors = [node.arguments[0] for node in unit.graph.nodes if node.operator == "input"]
    given = f"({', '.join((*tensors, '*self.parameters()'))},)" if tensors else "self.parameters()"
    fit = f"self._kernels_fit({f'torch.{unit.dtype}' if unit.dtype else ''})"
    conditions = [fit, *(guard.condition() for guard in unit.guards)]
    if not training:
        conditions.append(f"not (torch.is_grad_enabled() and any(one.requires_grad for one in {given}))")
    return conditions


def reached(path: str) -> str:
    """A part or tensor of the module."""
    return f"self{path}"


class _Body:
    """The statements of `forward`: calls of regions, and the other operators as they were."""

    def __init__(self, unit: Unit, regions: Sequence[Region], pieces: Mapping[str, Inlined], training: bool):
        self._unit, self._pieces, self._training = unit, pieces, training
        self._nodes = unit.graph.by_name()
        self._region_of = {name: region for region in regions for name in region.nodes}
        self._names: dict[str, str] = {}
        self._done: set[int] = set()
        self._lines: list[str] = []
        first = next((node.arguments[0] for node in unit.graph.nodes if node.operator == "input"), "")
        state = next((reached(node.arguments[0]) for node in unit.graph.nodes if node.operator == "state"), "")
        self._device = f"{first or state}.device" if first or state else '"cuda"'
        for node in unit.graph.nodes:
            if node.operator in ("input", "state"):
                self._names[node.name] = node.arguments[0] if node.operator == "input" else reached(node.arguments[0])

    def lines(self) -> list[str]:
        for node in self._unit.graph.nodes:
            if node.effect:
                self._have(node.name)
        for name in references(self._unit.graph.output):
            self._have(name)
        return [*self._lines, f"return {term(self._unit.graph.output, self._names, self._device)}"]

    def _have(self, name: str) -> None:
        """Write what computes a value, after all that it needs; without recursion, for networks are deep."""
        waiting = [name]
        while waiting:
            one = waiting[-1]
            region = self._region_of.get(one)
            item: Region | Node = region or self._nodes[one]
            assert one in self._names or id(item) not in self._done, f"{one} is inside a region, and read outside"
            if one in self._names:
                waiting.pop()
                continue
            needed = (*region.inputs, *region.states) if region else self._nodes[one].uses
            missing = [use for use in needed if use not in self._names]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            self._done.add(id(item))
            if region is not None:
                self._call(region)
            else:
                self._operator(self._nodes[one])

    def _operator(self, node: Node) -> None:
        text = expression(node, self._names, self._device)
        if node.base.endswith("_") and node.effect:
            self._lines.append(text)
            self._names[node.name] = self._names[next(iter(node.uses))]
            return
        is_plain_view = kind_of(node) == "view" and text == self._names.get(next(iter(node.uses), ""), "")
        if is_plain_view:
            self._names[node.name] = text
            return
        self._names[node.name] = node.name
        self._lines.append(f"{node.name} = {text}")

    def _call(self, region: Region) -> None:
        given = [self._names[name] for name in (*region.inputs, *region.states)]
        results = []
        for place, name in enumerate(region.outputs):
            own = name or f"{region.nodes[0]}_statistic{place}"
            results.append(own)
            if name:
                self._names[name] = name
        call = f"{self._pieces[region.key].function}({', '.join(given)})"
        self._lines.append(f"{', '.join(results)} = {call}")
        for update in region.updates:
            value = f"{results[update.output]}.detach()" if self._training else results[update.output]
            scaled = value if update.factor == 1.0 else f"{value} * {update.factor!r}"
            self._lines.append(f"{self._names[update.state]}.lerp_({scaled}, {update.weight!r})")
