"""One module as a `Unit`, by `torch.export`: runs in the jailed process of `tracing.py`."""

from __future__ import annotations

import inspect
import keyword
import operator
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial, wraps
from typing import Any
from unittest import mock

import torch
from torch.utils import _pytree as pytree

from dice.optimize.graph import MOST_NUMBERS, NAMED, Graph, Named, Node, Output, Ref, Spec, Term
from dice.optimize.operators import LEFT, kind_of
from dice.optimize.templates.write import has_rule
from dice.optimize.trace.decompose import decompose
from dice.optimize.trace.functional import NotTraced, make_functional, writes
from dice.optimize.trace.simplify import simplified
from dice.optimize.trace.trees import leaves_of, plain_tree
from dice.optimize.trace.wrapped import inline, is_transformed, read_numbers
from dice.optimize.unit import Guard, Parameter, Unit
from dice.verify.execution import fake_cuda
from dice.verify.execution.running import Device
from dice.verify.tensors.transport import fields_of

ROUNDS = 5  # of a measurement; the median of all but the first counts
_RANDOM = re.compile(r"\b(rand|randn|randint|randperm|bernoulli|normal|uniform|exponential|multinomial|poisson)")
# Keywords that change nothing in what is computed; of an einsum the order of its products, where opt_einsum is there.
_IDLE = ("pin_memory", "path")


def export_graph(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    device: Device,
    *,
    own_file: str,
    path: str = "",
    measure: bool = False,
    take_apart: bool = True,
) -> Unit:
    """What the module computes for arguments like these: for all plain numbers of their types where it is the whole
    (its caller may change them), and for these numbers where it is the part at `path`. `take_apart`: operators without
    a rule. Raises `NotTraced`."""
    for part in module.modules():  # an empty buffer that is filled is written to an input, as export has it
        empty = [name for name, buffer in part._buffers.items() if buffer is None]
        part.__dict__.update({name: part._buffers.pop(name) for name in empty})
    parameters, reached, guards = _arguments(module, args, kwargs, any_number=not path)
    if not path:
        args, kwargs = _numbers_as_tensors(_apart((args, dict(kwargs))), module, device)
    program = _exported(module, args, dict(kwargs), device)
    reader = Reader(program, reached, module, device.emulated, own_file)
    if take_apart:
        decompose(program.graph_module.graph, reader.has_rule)
    nodes, output = reader.read()
    times = _times(program, module, args, kwargs, device) if measure else {}
    timed = tuple(
        Node(
            node.name, node.operator, node.arguments, node.options, node.output, times.get(node.name, 0.0), node.effect
        )
        for node in nodes
    )
    owner = type(module)
    home = "" if owner.__module__ == own_file else owner.__module__
    if home and getattr(sys.modules.get(home), owner.__qualname__, None) is not owner:
        raise NotTraced(f"the class {owner.__qualname__} is nowhere to be imported from")
    if path and not home and "<locals>" in owner.__qualname__:
        raise NotTraced(f"the class {owner.__qualname__} is made in a function")
    name = owner.__qualname__ if path else "Model"
    modes = tuple(part.training for part in module.modules())
    return Unit((path,), name, home if path else "", parameters, guards, modes, Graph(timed, output))


def _apart(inputs: Any) -> Any:
    """The same inputs, none the same tensor as another: what a caller passes twice the next one may pass once, and a
    graph would read one of them in both places."""
    seen: set[int] = set()

    def own(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or id(value) not in seen:
            seen.add(id(value))
            return value
        return value.clone()

    return pytree.tree_map(own, inputs)


def _exported(module: torch.nn.Module, args: Any, kwargs: Any, device: Device) -> Any:
    """Non-strict export first; the bytecode compiler where that fails. Their graphs have the same form. On the
    emulated backend there is no GPU for what the code itself puts there: then it is told that the CPU is one."""
    first = ""
    for strict, asks_for_gpu in ((False, False), (True, False), *([(False, True)] if device.emulated else [])):
        try:
            own = _with_gpu(module) if asks_for_gpu else nullcontext()
            with torch.no_grad(), _unchecked(), _data_followed(), own:
                program = torch.export.export(module, args, kwargs, strict=strict)
            # On the emulated backend PyTorch says that there is a GPU, whose state its own pass would then look at.
            hidden = mock.patch.object(torch.cuda, "is_available", lambda: False) if device.emulated else nullcontext()
            inline(program.graph_module)
            if is_transformed(program.graph_module):
                with torch.no_grad(), hidden:
                    program = program.run_decompositions({})
                read_numbers(program.graph_module)
            again = partial(torch.export.export, module, args, kwargs, strict=strict)
            return _functional(program, again, hidden)
        except NotTraced:
            raise
        except Exception as error:  # noqa: BLE001 - PyTorch and the module's own code raise anything
            first = first or _short(error)
    raise NotTraced(first)


@contextmanager
def _unchecked() -> Iterator[None]:
    """A loss of PyTorch's that looks at a variance only to refuse negative ones does not look: no graph could."""
    loss = torch.nn.functional.gaussian_nll_loss

    @wraps(loss)
    def unchecked(*args: Any, **kwargs: Any) -> torch.Tensor:
        with mock.patch.object(torch, "any", lambda value: False):
            return loss(*args, **kwargs)

    with mock.patch.object(torch.nn.functional, "gaussian_nll_loss", unchecked):
        yield


@contextmanager
def _data_followed() -> Iterator[None]:
    """What `tensor.data` gives is followed as what `tensor.detach()` does: of the first, export makes a constant."""
    data = torch.Tensor.data
    detached = property(torch.Tensor.detach, lambda tensor, value: data.__set__(tensor, value))  # type: ignore[attr-defined]
    with mock.patch.object(torch.Tensor, "data", detached):
        yield


@contextmanager
def _with_gpu(module: torch.nn.Module) -> Iterator[None]:
    """Whatever its forward puts on a GPU lies on the CPU. From within: export follows calls in a mode of its own."""
    plain = module.forward

    @wraps(plain)
    def forward(*args: Any, **kwargs: Any) -> Any:
        with fake_cuda.active(True):
            return plain(*args, **kwargs)

    with mock.patch.object(module, "forward", forward):
        yield


def _functional(program: Any, again: Callable[[], Any], without_gpu: AbstractContextManager[Any]) -> Any:
    """The program without operators that write to what was made in it. PyTorch's own pass does what ours cannot: what
    is written into a part of a tensor; it takes apart what keeps statistics, so it comes second."""
    try:
        make_functional(program.graph_module, _sources(program))
        return program
    except NotTraced as failed:
        if failed.final:
            raise
        first = failed
    with torch.no_grad(), without_gpu:
        program = again().run_decompositions({})
    signature = program.graph_signature
    if signature.buffers_to_mutate or signature.user_inputs_to_mutate:
        raise first
    return program


def _short(error: BaseException) -> str:
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    if "data-dependent" in str(error) or "GuardOnDataDependent" in type(error).__name__:
        return "its control flow depends on values"
    return f"{type(error).__name__}: {text[:200]}".rstrip(". ")


def _sources(program: Any) -> dict[str, Any]:
    """The input specification of each placeholder by its name."""
    return {spec.arg.name: spec for spec in program.graph_signature.input_specs}


def _arguments(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], any_number: bool
) -> tuple[tuple[Parameter, ...], list[tuple[str, Any]], tuple[Guard, ...]]:
    """The parameters of `forward`, how each leaf of the arguments is reached from them, in PyTorch's order, and what
    holds for them; of numbers their type alone where it may be `any_number`."""
    signature = inspect.signature(module.forward)
    kinds: dict[Any, str] = {
        inspect.Parameter.VAR_POSITIONAL: "args",
        inspect.Parameter.VAR_KEYWORD: "kwargs",
        inspect.Parameter.KEYWORD_ONLY: "keyword",
    }
    parameters = []
    for one in signature.parameters.values():
        default = () if one.default is inspect.Parameter.empty else (_constant(one.name, one.default),)
        parameters.append(Parameter(one.name, kinds.get(one.kind) or "positional", default))
    positional = [one.name for one in parameters if one.kind == "positional"]
    rest = next((one.name for one in parameters if one.kind == "args"), "")
    leaves: list[tuple[str, Any]] = []
    guards: list[Guard] = []
    given: set[str] = set()
    for index, value in enumerate(args):
        is_named = index < len(positional)
        base = positional[index] if is_named else f"{rest}[{index - len(positional)}]"
        given.add(base)
        guards += _guards(base, value, any_number)
        leaves += leaves_of(base, value)
    into = next((one.name for one in parameters if one.kind == "kwargs"), "")
    named = {one.name for one in parameters}
    for name, value in kwargs.items():
        base = name if name in named else f"{into}['{name}']"
        given.add(base)
        guards += _guards(base, value, any_number)
        leaves += leaves_of(base, value)
    for own in parameters:  # what the caller left to its default is part of what was followed
        if own.kind == "args":
            guards.insert(0, Guard(own.name, "list", max(0, len(args) - len(positional))))
        elif own.kind == "kwargs":
            guards.insert(0, Guard(own.name, "dict", sorted(name for name in kwargs if name not in named)))
        elif own.name not in given and own.default:
            guards.append(Guard(own.name, "value", own.default[0]))
    return tuple(parameters), leaves, tuple(guards)


def _constant(name: str, value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if type(value) in (tuple, list):
        return type(value)(_constant(name, one) for one in value)
    if isinstance(value, torch.dtype):
        return Named("dtype", str(value).removeprefix("torch."))
    raise NotTraced(f"the default of its argument {name} is a {type(value).__name__}")


def is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _numbers_as_tensors(values: Any, module: torch.nn.Module, device: Device) -> Any:
    """Plain numbers as tensors of no dimension, which a kernel reads: PyTorch gives both the same say in the type of a
    result. Those with a point are of PyTorch's default type, or float64 where the module computes in that."""
    tensors = [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
    in_double = any(one.dtype == torch.float64 for one in (*tensors, *module.parameters(), *module.buffers()))
    floating = torch.float64 if in_double else torch.get_default_dtype()

    def tensor(leaf: Any) -> Any:
        if not is_number(leaf):
            return leaf
        return device.place(torch.tensor(leaf, dtype=torch.int64 if isinstance(leaf, int) else floating))

    return pytree.tree_map(tensor, values)


def _guards(base: str, value: Any, any_number: bool) -> Iterator[Guard]:
    """What holds for an argument: containers before what is in them."""
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        yield Guard(base, "tensor", [list(value.shape), dtype])
    elif isinstance(value, dict):
        yield Guard(base, "dict", sorted(map(str, value)))
        for key, one in value.items():
            yield from _guards(f"{base}[{key!r}]", one, any_number)
    elif (fields := fields_of(value)) is not None:
        yield Guard(base, "object", fields)
        for name in fields:
            yield from _guards(f"{base}.{name}", getattr(value, name), any_number)
    elif isinstance(value, list | tuple):
        yield Guard(base, "list", len(value))
        for index, one in enumerate(value):
            yield from _guards(f"{base}[{index}]", one, any_number)
    elif any_number and is_number(value):
        yield Guard(base, "number", type(value).__name__)
    else:
        yield Guard(base, "value", _constant(base, value))


def access(module: torch.nn.Module, path: str) -> str:
    """How a dotted path is written after `self`: `.blocks[0].norm.weight`, `.heads['left'].bias`."""
    text = ""
    owner: Any = module
    for part in path.split(".") if path else ():
        is_list = isinstance(owner, torch.nn.ModuleList | torch.nn.Sequential | torch.nn.ParameterList)
        if is_list and part.isdecimal():
            text += f"[{part}]"
        elif isinstance(owner, torch.nn.ModuleDict | torch.nn.ParameterDict) and part in owner:
            text += f"[{part!r}]"
        elif part.isidentifier() and not keyword.iskeyword(part):
            text += f".{part}"
        else:
            raise NotTraced(f"its part {path} cannot be reached by name")
        owner = getattr(owner, "_modules", {}).get(part, getattr(owner, part, None))
    return text


class Reader:
    """The nodes of an exported program as ours."""

    def __init__(
        self, program: Any, reached: list[tuple[str, Any]], module: torch.nn.Module, emulated: bool, own_file: str = ""
    ):
        self._own_file = own_file
        self._program, self._reached, self._module = program, reached, module
        self._emulated = emulated  # then what is on the CPU stands for what is on a GPU
        self._sources = _sources(program)
        self._names: dict[str, str] = {}

    def read(self) -> tuple[list[Node], Term]:
        nodes: list[Node] = []
        for node in self._program.graph_module.graph.nodes:
            if node.op == "placeholder":
                if node.users:
                    nodes += self._source(node)
            elif node.op == "call_function":
                nodes.append(self._call(node))
            elif node.op != "output":
                raise NotTraced(f"it calls other graphs ({node.target})")
        used = {name for node in nodes for name in node.uses}
        output = self._output()
        from dice.optimize.graph import references

        used |= set(references(output))
        return simplified((node for node in nodes if node.name in used or not node.is_source), output)

    def _source(self, node: torch.fx.Node) -> Iterator[Node]:
        spec = self._sources[node.name]
        kind = spec.kind.name
        output = self._spec_of(node.meta["val"])
        if not isinstance(output, Spec):
            return  # a number: the guards hold it
        if kind == "USER_INPUT":
            names = [one.arg.name for one in self._program.graph_signature.input_specs if one.kind.name == kind]
            reached, value = self._reached[names.index(node.name)]
            yield Node(self._name(node), "number" if is_number(value) else "input", (reached,), {}, output)
        elif kind in ("PARAMETER", "BUFFER") or self._is_attribute(spec.target):
            of_kind: dict[str, dict[str, Term]] = {"PARAMETER": {}, "BUFFER": {"buffer": True}}
            options = of_kind.get(kind, {"buffer": True, "plain": True})
            yield Node(self._name(node), "state", (access(self._module, spec.target),), options, output)
        elif kind == "CONSTANT_TENSOR":
            value = self._program.constants[spec.target]
            if value.numel() > MOST_NUMBERS:
                raise NotTraced(f"its code makes a tensor of {value.numel()} numbers from a list")
            yield Node(self._name(node), "constant", (_numbers(value),), {}, output)
        else:
            raise NotTraced(f"it takes something that is no tensor ({kind.lower()})")

    def _is_attribute(self, path: str) -> bool:
        value: Any = self._module
        for name in path.split("."):
            value = getattr(value, name, None)
        return isinstance(value, torch.Tensor)

    def _call(self, node: torch.fx.Node) -> Node:
        output = self._spec_of(node.meta.get("val"))
        if node.target is operator.getitem:
            return Node(self._name(node), "getitem", (self._term(node.args[0]), node.args[1]), {}, output)
        if not isinstance(node.target, torch._ops.OpOverload):
            raise NotTraced(
                f"it calls {getattr(node.target, '__name__', node.target)}, which is no operator on tensors"
            )
        space, name = node.target._schema.name.split("::")
        target = f"{space}.{name}.{node.target._overloadname or 'default'}"
        options = {key: self._term(value) for key, value in node.kwargs.items() if key not in _IDLE}
        is_random = bool(_RANDOM.match(name)) or ("dropout" in name and _is_on(node))
        return Node(
            self._name(node),
            target,
            tuple(self._term(value) for value in node.args),
            options,
            output,
            effect=is_random or writes(node),
        )

    def has_rule(self, node: torch.fx.Node) -> bool:
        """Whether a kernel can be written for the operator, as far as it is known without the others."""
        try:
            own = self._call(node)
            known = {self._name(one): self._spec_of(one.meta.get("val")) for one in node.all_input_nodes}
        except NotTraced:
            return False
        return kind_of(own) not in LEFT and has_rule(own, known)

    def _name(self, node: torch.fx.Node) -> str:
        return self._names.setdefault(node.name, node.name)

    def _spec_of(self, value: Any) -> Output:
        if isinstance(value, torch.Tensor):
            if not all(type(extent) is int for extent in value.shape):
                raise NotTraced("the shape of what it computes depends on values")
            if value.layout != torch.strided:
                raise NotTraced(f"it computes with tensors of layout {value.layout}")
            return Spec(tuple(value.shape), str(value.dtype).removeprefix("torch."))
        if isinstance(value, list | tuple):
            return tuple(one if isinstance(one := self._spec_of(item), Spec) else None for item in value)
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            raise NotTraced("its control flow depends on values")
        return None

    def _term(self, value: Any) -> Term:
        if isinstance(value, torch.fx.Node):
            if value.op == "placeholder" and not isinstance(value.meta.get("val"), torch.Tensor):
                return value.meta.get("val")
            return Ref(self._name(value))
        if isinstance(value, list | tuple):
            return [self._term(item) for item in value]
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, torch.device):
            return Named("device", "cuda" if self._emulated else value.type)
        for kind, owner in (("dtype", torch.dtype), ("layout", torch.layout), ("memory_format", torch.memory_format)):
            text = str(value).removeprefix("torch.")
            if isinstance(value, owner) and NAMED[kind].fullmatch(text):
                return Named(kind, text)
        raise NotTraced(f"an argument of its operators is a {type(value).__name__}")

    def _output(self) -> Term:
        specs = self._program.graph_signature.output_specs
        (returned,) = [node for node in self._program.graph_module.graph.nodes if node.op == "output"]
        values = [
            self._term(value)
            for value, spec in zip(returned.args[0], specs, strict=True)
            if spec.kind.name == "USER_OUTPUT"
        ]
        tree = pytree.tree_unflatten(values, self._program.call_spec.out_spec)
        return plain_tree(tree, self._own_file)


def _is_on(node: torch.fx.Node) -> bool:
    """Of a dropout: whether it draws at all."""
    rest = node.args[1:]
    return len(rest) < 2 or bool(rest[1] and rest[0] != 0)


def _numbers(value: torch.Tensor) -> Any:
    return value.tolist() if not value.is_complex() else _refuse_complex()


def _refuse_complex() -> Any:
    raise NotTraced("its code makes a tensor of complex numbers from a list")


class _Timed(torch.fx.Interpreter):
    """Runs a graph and notes how long each node took, in milliseconds, in each run."""

    def __init__(self, graph_module: torch.fx.GraphModule, device: Device):
        super().__init__(graph_module)
        self.ms: dict[str, list[float]] = {}
        self._device = device

    def run_node(self, node: torch.fx.Node) -> Any:
        if node.op != "call_function":
            return super().run_node(node)
        self._device.synchronize()
        start = time.perf_counter()
        value = super().run_node(node)
        self._device.synchronize()
        self.ms.setdefault(node.name, []).append(1e3 * (time.perf_counter() - start))
        return value


def _times(program: Any, module: torch.nn.Module, args: Any, kwargs: Any, device: Device) -> dict[str, float]:
    """Milliseconds of each node, run one by one where the module is. On a GPU that holds a launch each, which is why
    only shares are made of them."""
    # A tied weight has several names.
    state: dict[str, torch.Tensor] = dict(module.named_parameters(remove_duplicate=False))
    state.update(module.named_buffers(remove_duplicate=False))
    leaves = iter(pytree.tree_leaves((tuple(args), dict(kwargs))))
    values = []
    for spec in program.graph_signature.input_specs:
        if spec.kind.name == "USER_INPUT":
            values.append(next(leaves))
        else:
            value = state.get(spec.target, program.constants.get(spec.target))
            values.append(value)
    timed = _Timed(program.graph_module, device)
    with torch.no_grad():
        for _ in range(ROUNDS):
            copies = [
                value.clone()
                if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter)
                else value
                for value in values
            ]
            timed.run(*copies)
    # The first run loads what PyTorch loads at first use.
    return {name: statistics.median(ms[1:]) for name, ms in timed.ms.items()}
