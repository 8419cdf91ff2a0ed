"""Operators that have no rule, as the operators that they are made of: by our own table, by PyTorch's, or as PyTorch's
own code calls them. Only where there are rules for all of the parts; else the operator stays one call of PyTorch's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import torch
from torch._decomp import global_decomposition_table
from torch.fx.experimental.proxy_tensor import make_fx

from dice.optimize.operators import KINDS
from dice.optimize.trace.functional import NotTraced, is_needed, make_functional, writes
from dice.optimize.trace.parts import OWN

MOST_PARTS = 400  # of one operator: a recurrent layer over a long sequence stays PyTorch's, which has one kernel for it
DEEPEST = 4  # parts of parts that are taken apart

HasRule = Callable[[torch.fx.Node], bool]
Table = dict[Any, Callable[..., Any]]


def decompose(graph: torch.fx.Graph, has_rule: HasRule, depth: int = 0) -> None:
    """Take apart what has no rule, as often as that is needed."""
    for node in list(graph.nodes):
        if not _may_be_taken_apart(node) or has_rule(node):
            continue
        parts = _parts(node)
        if parts is None:
            continue
        if depth < DEEPEST:
            decompose(parts, has_rule, depth + 1)
        inner = [one for one in parts.nodes if one.op not in ("placeholder", "output")]
        if len(inner) <= MOST_PARTS and all(map(has_rule, inner)):
            _put(graph, node, parts)
    graph.eliminate_dead_code(is_needed)


def _may_be_taken_apart(node: torch.fx.Node) -> bool:
    is_operator = node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload)
    return is_operator and not writes(node) and bool(_tensors(node))


def _tensors(node: torch.fx.Node) -> list[torch.fx.Node]:
    return [one for one in node.all_input_nodes if isinstance(one.meta.get("val"), torch.Tensor)]


def _parts(node: torch.fx.Node) -> torch.fx.Graph | None:
    """The node's operator on tensors like its own, as a graph of other operators; None where nothing knows them."""
    given, tensors = (node.args, node.kwargs), _tensors(node)
    target: Any = node.target
    compute = OWN.get(target) or _table(None).get(target) or target

    def call(*values: torch.Tensor) -> Any:
        known = dict(zip(tensors, values, strict=True))
        args, kwargs = torch.fx.node.map_arg(given, lambda one: known.get(one, one.meta.get("val")))
        return compute(*args, **kwargs)

    # PyTorch's code raises anything where it was not written for such arguments, and calls itself where it ends.
    with contextlib.suppress(Exception), _mode_of(tensors):
        made = make_fx(call, decomposition_table=_table(target))(*(one.meta["val"] for one in tensors))
        with contextlib.suppress(NotTraced):
            _unwrap(made.graph)
            make_functional(made, {})
            calls = [one for one in made.graph.nodes if one.op not in ("placeholder", "output")]
            if all(one.op == "call_function" for one in calls) and [one.target for one in calls] != [target]:
                return made.graph
    return None


def _unwrap(graph: torch.fx.Graph) -> None:
    """Several results as a plain tuple: PyTorch's functions call a class of their own on them."""
    result = graph.output_node().args[0]
    if isinstance(result, torch.fx.Node) and getattr(result.target, "__name__", "").startswith("return_types_"):
        graph.output_node().args = (tuple(result.args),)
        graph.erase_node(result)


def _mode_of(tensors: Iterable[torch.fx.Node]) -> Any:
    """The mode that the tensors without values were made in."""
    return next(one.meta["val"].fake_mode for one in tensors)


@cache
def _table(of: Any) -> Table:
    """What PyTorch knows to take apart: all of it, or what is no work that rules know. `of`: the operator that is taken
    apart, which is in neither, else its parts would be that operator again."""
    known = {**global_decomposition_table["post_autograd"], **dict(_primitives()), **OWN}
    if of is None:
        return known
    return {one: parts for one, parts in known.items() if one is not of and _name(one) not in KINDS}


def _primitives() -> Iterator[tuple[Any, Callable[..., Any]]]:
    """PyTorch's own primitives are operators of another name."""
    for name in torch._prims.__all__:
        one = getattr(getattr(torch.ops.prims, name, None), "default", None)
        if one is not None and getattr(one, "impl_aten", None) is not None:
            yield one, one.impl_aten


def _name(target: Any) -> str:
    return str(target._schema.name.split("::")[1]) if isinstance(target, torch._ops.OpOverload) else ""


def _put(graph: torch.fx.Graph, node: torch.fx.Node, parts: torch.fx.Graph) -> None:
    """The parts in the node's place."""
    values: dict[torch.fx.Node, Any] = {}
    inputs = iter(_tensors(node))
    with graph.inserting_before(node):
        for one in parts.nodes:
            if one.op == "placeholder":
                values[one] = next(inputs)
            elif one.op == "call_function":
                values[one] = graph.node_copy(one, values.__getitem__)
    (result,) = next(one for one in parts.nodes if one.op == "output").args
    found = torch.fx.node.map_arg(result, values.__getitem__)
    if isinstance(found, torch.fx.Node):
        node.replace_all_uses_with(found)
    else:
        for user in list(node.users):
            user.replace_all_uses_with(found[user.args[1]])
            graph.erase_node(user)
    graph.erase_node(node)
