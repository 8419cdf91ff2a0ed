"""One kernel file for a whole module: `ModelNew` computes some regions by kernels and the rest as the module did.

`ModelNew` is the module's own class with another `forward`, so that its constructor, its parameters and their names are
the module's own. For arguments that it was not made for (other shapes, other types, gradients wanted) it does what the
module did.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from keyword import iskeyword
from typing import Protocol

from dice import syntax
from dice.errors import UserError
from dice.kernel import Kernel
from dice.optimize.graph import Node, Ref, references
from dice.optimize.region import Region
from dice.optimize.unit import Unit
from dice.optimize.whole.body import Body
from dice.optimize.whole.builds import Builds
from dice.optimize.whole.gradients import FUNCTION, HELPERS, with_gradients
from dice.optimize.whole.inline import Inlined, inlined
from dice.optimize.whole.plan import Cut, Gradient, Plan
from dice.problem import Problem


class Form(Protocol):
    """What becomes of regions' functions before others call them."""

    def forward(self, region: Region, piece: Inlined, gradient: Gradient | None, functions: Functions) -> Inlined:
        """Of a region of the module; `functions`: those that its backward calls, by the keys of their regions."""

    def behind(self, region: Region, piece: Inlined) -> Inlined:
        """Of a region that backwards call."""

    def helpers(self) -> Sequence[str]:
        """What functions of this form need above them."""


class Plain:
    """Functions as they are."""

    def forward(self, region: Region, piece: Inlined, gradient: Gradient | None, functions: Functions) -> Inlined:
        return piece

    def behind(self, region: Region, piece: Inlined) -> Inlined:
        return piece

    def helpers(self) -> Sequence[str]:
        return ()


class Differentiable(Plain):
    """Gradients flow through the functions."""

    def forward(self, region: Region, piece: Inlined, gradient: Gradient | None, functions: Functions) -> Inlined:
        return with_gradients(region, piece, gradient, functions)

    def helpers(self) -> Sequence[str]:
        return (HELPERS, FUNCTION)


Functions = Mapping[str, str]


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
    if type(value).__name__ == "partial":
        return ["partial", value.func, _plain(value.args), _plain(value.keywords)]
    if hasattr(value, "tobytes"):
        return [type(value).__name__, str(value.dtype), value.shape, value.tobytes()]
    own = type(value).__eq__ is object.__eq__ or hasattr(value, "__dataclass_fields__")
    if own and hasattr(value, "__dict__") and (isinstance(value, torch.nn.Module) or not callable(value)):
        return [type(value).__name__, _plain(vars(value))]
    return (type(value).__name__, value)
'''


_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}


def compose(plan: Plan, form: Form | None = None) -> Kernel:
    """The kernel file. Raises `NotInlined` for a kernel that cannot be part of it."""
    form = form or (Differentiable() if plan.training else Plain())
    _require_free_names(plan.problem)
    used = [region.key for _, regions in plan.units for region in regions if region.key in plan.parts]
    known, behind = plan.replaced, plan.behind
    # The same work may be in a forward and in a backward; it then is there twice, for one may be left out.
    parts = {key: plan.parts[key] for key in known} | {f"{key} behind": part for key, (_, part) in behind.items()}
    builds = Builds.of(plan.problem, {key: part.kernel for key, part in parts.items()}, plan.apart)
    pieces = {
        key: inlined(
            part.kernel, part.paths, number, part.constants, builds.shared.get(key), builds.handles.get(key, "")
        )
        for number, (key, part) in enumerate(parts.items(), 1)
    }
    of_backwards = {key: form.behind(region, pieces[f"{key} behind"]) for key, (region, _) in behind.items()}
    functions = {key: piece.function for key, piece in of_backwards.items()}
    of_module = {
        key: form.forward(region, pieces[key], plan.gradients.get(key) if plan.training else None, functions)
        for key, region in known.items()
    }
    sections = [_header(plan, len(parts), len(used)), _module_text(plan.problem.source).strip("\n")]
    sections += [_imports(plan, (*of_module.values(), *of_backwards.values()), builds), *form.helpers()]
    for key, piece in of_module.items():
        times = used.count(key)
        where = "" if times == 1 else f", at {times} places"
        sections.append(_section(piece, f"{known[key].title}{where}", builds.alone.get(key, "")))
    for key, piece in of_backwards.items():
        what = f"{behind[key][0].title}, of gradients"
        sections.append(_section(piece, what, builds.alone.get(f"{key} behind", "")))
    sections += builds.texts()
    sections.append(_FITTING.strip("\n"))
    sections += _classes(plan, of_module)
    text = "\n\n\n".join(sections) + "\n"
    if re.search(r"\bregion_\d", plan.problem.source):  # a name of the module's own
        text = re.sub(r"(?<![\w.])region_(\d+)(?=\()", r"region_kernel_\1", text)
    return Kernel(text, name=f"{plan.problem.name}_optimized")


def _imports(plan: Plan, pieces: Sequence[Inlined], builds: Builds) -> str:
    lines = ["import inspect", "", "import torch", "import torch.nn as nn", "import torch.nn.functional as F"]
    lines += [line for piece in pieces for line in piece.imports]
    lines += [f"from {unit.home} import {unit.class_name.split('.')[0]}" for unit, _ in plan.units if unit.home]
    lines += ["from torch.utils.cpp_extension import load_inline"] if builds.shared else []
    return "\n".join(dict.fromkeys(lines))


def _section(piece: Inlined, what: str, alone: str) -> str:
    number = piece.function.rpartition("_")[2]
    built = f"\n# It has a build of its own: it {alone}." if alone else ""
    return f"# Region {number}: {what}.{built}\n{piece.text}"


def _require_free_names(problem: Problem) -> None:
    """Raises `UserError` for a file that calls something else by names that the composed file needs."""
    for node in syntax.parse(problem.source).body:
        targets = node.targets if isinstance(node, ast.Assign) else ()
        names = [one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)]
        names += [node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
        taken = next((name for name in names if name in ("torch", "nn", "F", "inspect", "load_inline")), None)
        if taken:
            raise UserError(f"{problem.name} calls something of its own {taken}, line {node.lineno}; rename it.")


def _header(plan: Plan, kernels: int, places: int) -> str:
    flows = "and types that it was made for; gradients flow through them. For all else it does what `Model` does."
    stops = "and types that it was made for, and where no gradients are wanted; for all else it does what `Model` does."
    lines = [
        f'"""{plan.problem.name} with {kernels} {"kernel" if kernels == 1 else "kernels"} at {places}'
        f" {'place' if places == 1 else 'places'}, put together by `dice optimize`.",
        "",
        "`ModelNew` has the constructor and the parameters of `Model`. It calls the kernels for inputs of the shapes",
        flows if plan.training else stops,
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


def _classes(plan: Plan, pieces: Mapping[str, Inlined]) -> Iterator[str]:
    """`ModelNew`, and the classes of parts where the module was not followed whole."""
    whole: Sequence[Cut] = ()
    swaps = []
    for number, (units, paths) in enumerate(_by_place(plan, pieces), 1):
        if paths == ("",):
            whole = units
            continue
        first = units[0][0]
        name = f"{first.class_name.replace('.', '_')}_{number}"
        yield _class(name, first.class_name, units, pieces, plan.training)
        swaps.append(f"for part in ({', '.join(map(reached, paths))},):")
        swaps.append(f"    part.__class__ = {name}")
        swaps.append(f"    part._note_kernels({_noted(units)})")
    init = ["def __init__(self, *args, **kwargs):", "    super().__init__(*args, **kwargs)"]
    if swaps:
        init.append("    # Parts take a class whose forward calls the kernels; their parameters stay as they are.")
        init += [f"    {line}" for line in swaps]
    if whole:
        init.append(f"    self._note_kernels({_noted(whole)})")
        yield _class("ModelNew", "Model", whole, pieces, plan.training, init)
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
        body = _lines(unit, [region for region in regions if region.key in pieces], pieces, training)
        conditions = " and\n".join(f"        {line}" for line in _conditions(unit, training)).split("\n")
        lines += ["    if (", *conditions, "    ):", *(f"        {line}" for line in body)]
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


def _left_on_the_host(nodes: Sequence[Node]) -> list[Node]:
    """The tensors that are neither parameters nor buffers: they stay there when the module is moved. What is written to
    is no copy."""
    written = {use for node in nodes if node.effect for use in node.uses}
    return [node for node in nodes if node.options.get("plain") and node.name not in written]


def _numbers_alone(nodes: Sequence[Node]) -> dict[str, str]:
    """What is computed of plain numbers alone, as Python: it is returned as a number."""
    found = {node.name: str(node.arguments[0]) for node in nodes if node.operator == "number"}
    for node in nodes:
        sign, terms = _SIGNS.get(node.base), node.arguments[:2]
        known = [found.get(one.name) if isinstance(one, Ref) else repr(one) for one in terms]
        if sign and not node.options and len(node.arguments) == 2 and None not in known:
            found[node.name] = f"({known[0]} {sign} {known[1]})"
    return found


def _lines(unit: Unit, regions: Sequence[Region], pieces: Mapping[str, Inlined], training: bool) -> list[str]:
    """What `forward` does where the kernels fit."""
    nodes = unit.graph.nodes
    first = next((node.arguments[0] for node in nodes if node.operator == "input"), "")
    state = next((reached(node.arguments[0]) for node in nodes if node.operator == "state"), "")
    device = f"{first or state}.device" if first or state else '"cuda"'
    names = {node.name: node.arguments[0] for node in nodes if node.operator == "input"}
    names |= {node.name: reached(node.arguments[0]) for node in nodes if node.operator == "state"}
    given = []
    for node in _left_on_the_host(nodes) if first else ():
        given.append(f"{node.name}_here = {names[node.name]}.to({device})")
        names[node.name] = f"{node.name}_here"
    functions = {region.key: pieces[region.key].function for region in regions}
    numbers = [node for node in nodes if node.operator == "number"]
    names |= {node.name: f"{node.name}_value" for node in numbers}
    given += [
        f"{names[one.name]} = torch.full((), {one.arguments[0]}, dtype=torch.{one.spec.dtype}, device={device})"
        for one in numbers
    ]
    body = Body(unit.graph, regions, functions, names, device, training)
    body.effects()
    plain = _numbers_alone(nodes)
    body.compute(name for name in references(unit.graph.output) if name not in plain)
    body.finish()
    lines = [*given, *(statement.text for statement in body.statements), f"return {body.returned(plain)}"]
    others = [unit.signature, unit.call, *_conditions(unit, training)]
    return looked_up_once(nodes, lines, " ".join(others))


def looked_up_once(nodes: Sequence[Node], lines: Sequence[str], others: str) -> list[str]:
    """The lines with a name for each part of the module of which they read several tensors: finding it takes PyTorch
    some microseconds each time, which for a hundred parts is as long as their kernels run. `others`: what stands in the
    same function, whose names mean something else."""
    states = [node.arguments[0] for node in nodes if node.operator == "state"]
    owners = list(dict.fromkeys(state.rpartition(".")[0] for state in states))
    text, found = "\n".join(lines), dict[str, str]()
    for owner in sorted(filter(None, owners), key=len, reverse=True):  # a part before what it is a part of
        name = re.sub(r"\W+", "_", owner).strip("_")
        is_taken = iskeyword(name) or re.search(rf"(?<![\w.]){name}\b", f"{others}\n{text}")
        if name.isidentifier() and not is_taken and text.count(f"{reached(owner)}.") > 1:
            found[owner] = name
            text = text.replace(f"{reached(owner)}.", f"{name}.")
    names = [f"{found[owner]} = {reached(owner)}" for owner in owners if owner in found]
    return [*names, *text.split("\n")]
