"""A program (`ipc/program.py`) as a model: its steps are run by PyTorch and by the libraries, on real tensors."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import torch

from dice.verify.candidate.passing import Passing
from dice.verify.execution import program_code
from dice.verify.execution.running import Device
from dice.verify.ipc import program as p
from dice.verify.ipc.program import Program
from dice.verify.tensors import near, transport

# Operators that look outside of the process.
_REFUSED = ("aten::from_file",)


NEARLY = 1e-4  # in parts of a value


class NotThere(Exception):
    """The program cannot be run: it names an operator or a function that there is not."""


class ProgramModel(torch.nn.Module):
    """Takes what the file's `forward` took, and has its parameters by their names.

    Args:
        program: What to run.
        libraries: The modules that calls name.
        literals: Tensors on the host, made by the file.
        device: Where parameters are, and what is asked for on CUDA.
        names: The reference's names of parameters that the file calls otherwise, or gives another shape.
        shapes: Those that they have in the reference, by its names.

    Raises: `NotThere`, and from `forward` what PyTorch and the libraries raise.
    """

    def __init__(
        self,
        program: Program,
        libraries: Sequence[ModuleType | None],
        literals: Sequence[torch.Tensor],
        device: Device,
        names: Mapping[str, str] | None = None,
        shapes: Mapping[str, torch.Size] | None = None,
    ):
        super().__init__()
        self._device = torch.device("cpu" if device.emulated else "cuda")
        self._literals = list(literals)
        self.tables = tables(program, literals)
        self.passing: Passing | None = None  # looks at the calls of the next forward
        self.calls = program.calls
        self._steps, self._fixed = program.steps, _fixed(program, names or {})
        self._functions = [self._bound(step, libraries) for step in program.steps]
        self._run = program_code.compiled(program, list(program.state), self._constant)
        self._state: list[tuple[dict[str, Any], str, tuple[int, ...] | None]] = []
        for name, one in program.state.items():
            known = (names or {}).get(name, name)
            shape = tuple((shapes or {}).get(known, one.shape))
            kept = _put(self, known, one, self._literals, shape)
            self._state.append((*kept, tuple(one.shape) if shape != tuple(one.shape) else None))

    def forward(self, *inputs: Any) -> Any:
        # Looked up in each forward: a module that is moved or cast puts others in their place.
        state = [kept[key] if shape is None else kept[key].view(shape) for kept, key, shape in self._state]
        functions = self._functions if self.passing is None else self._looked_at(self.passing)
        try:
            return self._run(transport.tensors(list(inputs)), state, functions)
        except Exception as error:
            raise _located(error, self._steps[program_code.step_of(error)].line) from error.__cause__

    def _looked_at(self, passing: Passing) -> list[Callable[..., Any]]:
        """The functions, the file's own by way of who looks at their calls."""

        def call(function: Callable[..., Any], fixed: frozenset[int], *given: Any, **named: Any) -> Any:
            return passing.call(function, list(given), named, fixed)

        each = zip(self._steps, self._functions, self._fixed, strict=True)
        return [function if step.operator else partial(call, function, fixed) for step, function, fixed in each]

    def begin_again(self, other: ProgramModel) -> None:
        """Take the values that parameters, buffers and tables of another model of the same program begin with, where
        they lie: as an optimizer's step would, and `load_state_dict`."""
        with torch.no_grad():
            pairs = zip(self.state_dict().values(), other.state_dict().values(), strict=True)
            for target, value in (*pairs, *zip(self.tables, other.tables, strict=True)):
                target.copy_(value)

    def _bound(self, step: p.Step, libraries: Sequence[ModuleType | None]) -> Callable[..., Any]:
        if step.operator:
            return _operator(step.operator)
        function = getattr(libraries[step.library], step.function, None)
        if not callable(function):
            raise NotThere(f"no library binds {step.function}")
        return function  # type: ignore[no-any-return]

    def _constant(self, key: str, value: Any) -> Any:
        if key == "literal":
            return self._literals[value]
        if key == "float":
            return float(value)
        if key == "complex":
            return complex(*value)
        if key == "device":
            return self._device if value == "cuda" else torch.device("cpu")
        return _named(key, value)


def tables(program: Program, literals: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Those of the literals that steps are given, and not only parameters and buffers begin with."""
    terms = [program.output, *(term for step in program.steps for term in (*step.arguments, *step.options.values()))]
    named = {value for kind, value in p.leaves(terms) if kind == "literal"}
    return [literal for number, literal in enumerate(literals) if number in named]


_KINDS = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}


def _named(key: str, name: str) -> Any:
    """A dtype, a layout or a memory format."""
    found = getattr(torch, name, None)
    if not isinstance(found, _KINDS[key]):
        raise NotThere(f"this PyTorch has no {key} {name}")
    return found


def match_names(
    program: Program, literals: Sequence[torch.Tensor], reference: Mapping[str, torch.Tensor]
) -> tuple[dict[str, str], bool]:
    """Which of the reference's parameters those of other names or shapes are: the ones that their constructor gave the
    same values under the same seed, in order. And whether several have the same values, so that the order decides."""
    names: dict[str, str] = {}
    ambiguous = False
    left = [name for name in reference if name not in program.state]
    for name, state in program.state.items():
        if state.literal < 0 or not state.shape:
            continue
        value = literals[state.literal]
        if name in reference and _in_a_row(value, reference[name]):
            names[name] = name
            continue
        same = [other for other in left if near.same_values(value, reference[other])]
        if not same and bool((value != value.reshape(-1)[:1]).any()):  # one number everywhere would show nothing
            same = [other for other in left if _in_a_row(value, reference[other])]
        if same:
            names[name] = same[0]
            left.remove(same[0])
            ambiguous = ambiguous or len(same) > 1
    return names, ambiguous


def _in_a_row(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether they hold the same values in the same order, whatever their shapes; or nearly so, as where a file writes
    2.236 for the square root of 5 in what its parameters are drawn from."""
    if one.numel() != other.numel() or one.dtype != other.dtype:
        return False
    one, other = one.reshape(-1), other.reshape(-1)
    if near.same_values(one, other):
        return True
    return one.is_floating_point() and bool(((one - other).abs() <= NEARLY * other.abs()).all())


def _operator(name: str) -> Callable[..., Any]:
    if name == p.WAIT:
        return torch.cuda.synchronize
    space, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    found = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
    if name in _REFUSED or found is None:
        raise NotThere(f"this PyTorch has no operator {name}")
    return found  # type: ignore[no-any-return]


def _put(
    model: torch.nn.Module, name: str, state: p.State, literals: Sequence[torch.Tensor], shape: Sequence[int]
) -> tuple[dict[str, Any], str]:
    """Give the model a parameter or a buffer of this name and shape, in modules that its parts name. Returns where it
    is kept, and by what key."""
    dtype = _named("dtype", state.dtype)
    tensor = torch.zeros(state.shape, dtype=dtype) if state.literal < 0 else literals[state.literal].clone()
    if tensor.dtype != dtype or tensor.shape != state.shape:
        raise NotThere(f"parameter {name} has another shape")
    tensor = tensor.reshape(tuple(shape))
    try:
        owner, last = _owner(model, name)
        if state.parameter:
            floats = dtype.is_floating_point or dtype.is_complex
            owner.register_parameter(last, torch.nn.Parameter(tensor, requires_grad=floats))
            return owner._parameters, last
        owner.register_buffer(last, tensor)
        return owner._buffers, last
    except (KeyError, TypeError, AttributeError) as error:
        raise NotThere(f"no model can have a parameter {name}: {error}") from None


def _owner(model: torch.nn.Module, name: str) -> tuple[torch.nn.Module, str]:
    """The module that has the parameter of this name, made where it is not there yet, and its name in it."""
    *path, last = name.split(".")
    for part in path:
        if part not in model._modules:
            model.add_module(part, torch.nn.Module())
        model = model.get_submodule(part)
    return model, last


def _located(error: Exception, line: int) -> Exception:
    """The exception, with the line of the kernel file that called a bound function, for the report."""
    if line > 0:
        error.lines = (f"line {line}", f"{type(error).__name__}: {error}"[:1000])  # type: ignore[attr-defined]
    return error


def _fixed(program: Program, names: Container[str] = ()) -> list[frozenset[int]]:
    """For each step, the places among its tensors of those that do not depend on inputs and parameters. `names`: of
    the state that is the reference's under other names; what else the file made is a table, whatever it is kept as."""
    own = {name for name, one in program.state.items() if one.literal >= 0 and name not in names}
    memory: dict[object, object] = {}  # by value, the first value in the same memory
    known: set[object] = set()  # memory of values that do not
    places = []
    for step in program.steps:
        given = list(p.leaves([step.arguments, list(step.options.values())]))
        made = [kind == "literal" or (kind == "state" and value in own) for kind, value in given]
        fixed = [
            is_made or (kind == "value" and memory[value] in known)
            for is_made, (kind, value) in zip(made, given, strict=True)
        ]
        places.append(frozenset(place for place, is_fixed in enumerate(fixed) if is_fixed))
        taken = {memory[value] for kind, value in given if kind == "value"}
        views = bool(step.operator) and getattr(_operator(step.operator), "is_view", False)
        for kind, value in p.leaves(step.gives):
            if kind == "value":
                memory.setdefault(value, next(iter(taken)) if views and taken else value)
        gives = {memory[value] for kind, value in p.leaves(step.gives) if kind == "value"}
        if all(fixed) and step.operator:
            known |= gives
        else:  # an operator gives what it writes to, but for those that give nothing
            known -= gives if step.operator and gives else gives | taken
    return places
