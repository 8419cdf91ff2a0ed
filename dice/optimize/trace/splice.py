"""What a Python function computes of tensors, as part of a graph."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from dice.optimize.trace.functional import NotTraced, make_functional

Function = Callable[..., Any]


def tensors_of(node: torch.fx.Node) -> list[torch.fx.Node]:
    return [one for one in node.all_input_nodes if isinstance(one.meta.get("val"), torch.Tensor)]


def followed(
    function: Function, inputs: Sequence[torch.fx.Node], table: Mapping[Any, Function], *, as_called: bool = False
) -> Any:
    """The function of tensors like these as a graph of its own, with operators of the table taken apart; None where it
    cannot be followed. `as_called`: with operators that PyTorch itself makes of others as they are called."""
    values = [one.meta["val"] for one in inputs]
    # PyTorch's code raises anything where it was not written for such arguments, and calls itself where it ends.
    with contextlib.suppress(Exception), values[0].fake_mode:
        made = make_fx(function, decomposition_table=table, pre_dispatch=as_called)(*values)
        _unwrap(made.graph)
        with contextlib.suppress(NotTraced):
            make_functional(made, {})
            return made.graph if all(one.op == "call_function" for one in calls_of(made.graph)) else None
    return None


def calls_of(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    return [one for one in graph.nodes if one.op not in ("placeholder", "output")]


def _unwrap(graph: torch.fx.Graph) -> None:
    """Several results as a plain tuple: PyTorch's functions call a class of their own on them."""
    result = graph.output_node().args[0]
    if isinstance(result, torch.fx.Node) and getattr(result.target, "__name__", "").startswith("return_types_"):
        graph.output_node().args = (tuple(result.args),)
        graph.erase_node(result)


def put(before: torch.fx.Node, parts: torch.fx.Graph, inputs: Sequence[torch.fx.Node]) -> Any:
    """The parts in front of a node of another graph. Gives what they come to there."""
    values = dict(zip((one for one in parts.nodes if one.op == "placeholder"), inputs, strict=True))
    with before.graph.inserting_before(before):
        for one in calls_of(parts):
            values[one] = before.graph.node_copy(one, values.__getitem__)
    return torch.fx.node.map_arg(parts.output_node().args[0], values.__getitem__)
