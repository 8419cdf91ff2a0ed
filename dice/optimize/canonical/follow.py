"""A module of our own as a graph, in this process and in milliseconds: what `torch.export` would say of it.

`trace/` follows a stranger's module, in a jail and by `torch.export`, which takes a quarter of a second. Problems that
the synthetic corpus draws are our own code, flat in their arguments and static in their shapes. PyTorch's own tracer
(`make_fx`, upon which export is built) follows them on tensors without data, and the same reader makes the graph.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from dice.optimize.graph import Graph
from dice.optimize.trace.capture_graph import Reader
from dice.optimize.trace.flat import BUFFER, INPUT, PARAMETER, flat_program
from dice.optimize.trace.functional import NotTraced, make_functional

# What PyTorch says of a module that reads its tensors' values, or has an operator that it knows no shapes of. All else
# is a fault of the problem's: its own forward failed.
_NOT_FOLLOWED = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)


@dataclass(frozen=True, slots=True)
class Followed:
    """`module`: an instance without data, for its attributes. `given`: what its constructor took. `inputs`: names of
    the parameters of `forward`, in order."""

    module: torch.nn.Module
    given: tuple[Any, ...]
    inputs: tuple[str, ...]
    graph: Graph


def follow(source: str) -> Followed:
    """The problem's module as a graph. The source is run in this process: it must be our own. Raises `NotTraced`."""
    space: dict[str, Any] = {"__name__": "problem"}
    exec(compile(source, "<problem>", "exec"), space)
    with FakeTensorMode() as mode, torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = tuple(space["get_init_inputs"]())
        module = space["Model"](*given)
        inputs = list(space["get_inputs"]())
        if not all(isinstance(one, torch.Tensor) for one in inputs):
            raise NotTraced("its inputs are not tensors alone")
        names = _parameters(module, len(inputs))
        return Followed(module, given, names, _graph(module, inputs, names, mode))


def _parameters(module: torch.nn.Module, count: int) -> tuple[str, ...]:
    code = module.forward.__code__
    if code.co_argcount - 1 != count or code.co_flags & 0x0C:  # *arguments or **keywords
        raise NotTraced("its inputs are not its parameters one by one")
    return code.co_varnames[1 : count + 1]


def _graph(module: torch.nn.Module, inputs: list[torch.Tensor], names: tuple[str, ...], mode: Any) -> Graph:
    state = dict(module.named_parameters()) | dict(module.named_buffers())
    trees: list[Any] = []

    def run(state: dict[str, torch.Tensor], inputs: list[torch.Tensor]) -> list[Any]:
        result = torch.func.functional_call(module, state, tuple(inputs))
        leaves, tree = pytree.tree_flatten(result)
        trees.append(tree)
        return leaves

    try:
        traced = make_fx(run, tracing_mode="real", pre_dispatch=True)(state, inputs)
    except _NOT_FOLLOWED as error:
        raise NotTraced(f"PyTorch cannot follow it: {type(error).__name__}") from error
    buffers = dict(module.named_buffers())
    sources = [(BUFFER if name in buffers else PARAMETER, name) for name in state] + [(INPUT, name) for name in names]
    program = flat_program(traced, sources, trees[-1])
    make_functional(traced, {spec.arg.name: spec for spec in program.graph_signature.input_specs})
    nodes, output = Reader(program, [(name, None) for name in names], module, True).read()
    return Graph(tuple(nodes), output)
