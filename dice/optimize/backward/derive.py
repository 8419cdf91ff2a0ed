"""From a region to its backward: PyTorch's own differentiation, followed on tensors without data.

`make_fx` writes down what autograd does for the region's operators, in operators that kernels are written for. What the
region's results hold already is taken from them; what else of the forward is needed is computed anew.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._functorch.compile_utils import fx_graph_cse
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from dice.optimize.backward.decompositions import table
from dice.optimize.backward.derived import GIVEN, GRADIENT, RESULT, Backward
from dice.optimize.backward.execute import Executor
from dice.optimize.graph import Graph, Node, Ref, Spec, references
from dice.optimize.trace.capture_graph import Reader
from dice.optimize.trace.flat import INPUT, flat_program
from dice.optimize.trace.functional import NotTraced

_SAME = ("alias", "detach", "lift_fresh_copy", "lift_fresh")
_MOVED = ("view", "unsqueeze", "squeeze", "expand", "permute", *_SAME)
_CPU = torch.device("cpu")


class NotDerived(Exception):
    """There is no backward that kernels could be written for; the message ends a sentence."""


def backward_of(graph: Graph, sources: Sequence[str], wanted: Sequence[bool], read: Sequence[bool]) -> Backward:
    """The backward of a region's graph. `sources`: its inputs and states by name; `wanted`: whose gradients may be
    asked for; `read`: which results have users that may hand gradients back. Raises `NotDerived`."""
    nodes = graph.by_name()
    specs = [nodes[name].spec for name in sources]
    outputs = [nodes[name].spec for name in references(graph.output)]
    is_wanted = [one and spec.dtype.startswith(_FLOATS) for one, spec in zip(wanted, specs, strict=True)]
    has_gradient = [one and spec.dtype.startswith(_FLOATS) for one, spec in zip(read, outputs, strict=True)]
    if not any(is_wanted) or not any(has_gradient):
        raise NotDerived("nothing of it has gradients")
    with FakeTensorMode(allow_non_fake_inputs=True), warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH):
        warnings.simplefilter("ignore")
        given = [_empty(spec) for spec in (*specs, *outputs, *outputs)]
        run = _joint(graph, sources, is_wanted, has_gradient)
        try:
            traced = make_fx(run, decomposition_table=table(), tracing_mode="real")(*given)
        except Exception as error:  # noqa: BLE001 - PyTorch raises anything, of operators without a derivative
            first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise NotDerived(f"PyTorch cannot differentiate it without data: {first[:200]}") from None
    count, several = len(sources), len(outputs)
    _simplify(traced, range(count, count + several), several)
    names = [f"{GIVEN}_{place}" for place in range(count)]
    names += [f"{kind}_{place}" for kind in (RESULT, GRADIENT) for place in range(several)]
    read_graph = _read(traced, names)
    used = {node.arguments[0] for node in read_graph.nodes if node.operator == "input"}
    places = {kind: tuple(at for at in range(several) if f"{kind}_{at}" in used) for kind in (RESULT, GRADIENT)}
    return Backward(read_graph, places[RESULT], places[GRADIENT])


_FLOATS = ("float", "bfloat")


def _empty(spec: Spec) -> torch.Tensor:
    return torch.empty(spec.shape, dtype=getattr(torch, spec.dtype))


def _joint(graph: Graph, sources: Sequence[str], wanted: Sequence[bool], has_gradient: Sequence[bool]) -> Any:
    """A function of sources, results and gradients of results that gives results and gradients of the sources."""
    count, several = len(sources), len(has_gradient)

    def run(*given: torch.Tensor) -> list[Any]:
        leaves = [one.detach().requires_grad_(grad) for one, grad in zip(given, wanted, strict=False)]
        with torch.enable_grad():
            results = Executor(_CPU).run(graph, dict(zip(sources, leaves, strict=True)))
        results = list(results) if isinstance(results, tuple) else [results]
        pairs = [
            (one, gradient)
            for one, gradient, grad in zip(results, given[count + several :], has_gradient, strict=True)
            if grad and one.requires_grad
        ]
        asked = [one for one in leaves if one.requires_grad]
        if not pairs:
            raise RuntimeError("no result depends on what has gradients")
        outputs, gradients = [one for one, _ in pairs], [other for _, other in pairs]
        found = iter(torch.autograd.grad(outputs, asked, gradients, allow_unused=True))
        return [*results, *(next(found) if one.requires_grad else None for one in leaves)]

    return run


def _simplify(traced: Any, results: Sequence[int], several: int) -> None:
    """Without copies that are none, the region's results taken as given, and nothing that no gradient needs."""
    graph = traced.graph
    for node in list(graph.nodes):
        is_operator = isinstance(node.target, torch._ops.OpOverload)
        if is_operator and node.target._schema.name.split("::")[1] in _SAME:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    (returned,) = [node for node in graph.nodes if node.op == "output"]
    values = list(returned.args[0])
    gradients = values[several:]
    returned.args = (gradients,)
    for value, place in zip(values[:several], results, strict=True):
        if isinstance(value, torch.fx.Node) and value.op != "placeholder" and not _is_compared(value):
            value.replace_all_uses_with(placeholders[place])
    graph.eliminate_dead_code()
    traced.graph = fx_graph_cse(graph)
    traced.recompile()


def _is_compared(value: torch.fx.Node) -> bool:
    """Whether it is looked for among what it was chosen from, as a maximum is: then it is computed with that. As a
    tensor of its own it would be one that is found nowhere, to whoever checks a kernel on drawn values."""
    waiting = list(value.users)
    while waiting:
        user = waiting.pop()
        base = user.target._schema.name.split("::")[1] if isinstance(user.target, torch._ops.OpOverload) else ""
        if base in ("eq", "ne"):
            return True
        if base in _MOVED:
            waiting += user.users
    return False


def _read(traced: Any, names: Sequence[str]) -> Graph:
    (returned,) = [node for node in traced.graph.nodes if node.op == "output"]
    _, tree = pytree.tree_flatten(tuple(0 for _ in returned.args[0]))
    try:
        program = flat_program(traced, [(INPUT, name) for name in names], tree)
        nodes, output = Reader(program, [(name, None) for name in names], torch.nn.Module(), True).read()
    except NotTraced as error:
        raise NotDerived(str(error)) from None
    return _as_written(Graph(tuple(nodes), output))


def _as_written(graph: Graph) -> Graph:
    """With the operators that people write: `conv2d` for a convolution of two dimensions."""
    return replace(graph, nodes=tuple(_written(node, graph) for node in graph.nodes))


def _written(node: Node, graph: Graph) -> Node:
    if node.base in ("view", "_unsafe_view"):  # of whatever strides a tensor has in the end
        return replace(node, operator="aten.reshape.default")
    return _convolution(node, graph) if node.base == "convolution" else node


def _convolution(node: Node, graph: Graph) -> Node:
    x, weight, bias, stride, padding, dilation, transposed, output_padding, groups = node.arguments
    assert isinstance(weight, Ref)
    rank = len(graph[weight.name].spec.shape) - 2
    if not 1 <= rank <= 3:
        return node
    if transposed:
        operator = f"aten.conv_transpose{rank}d.{'default' if rank == 1 else 'input'}"
        return replace(
            node, operator=operator, arguments=(x, weight, bias, stride, padding, output_padding, groups, dilation)
        )
    return replace(
        node, operator=f"aten.conv{rank}d.default", arguments=(x, weight, bias, stride, padding, dilation, groups)
    )
