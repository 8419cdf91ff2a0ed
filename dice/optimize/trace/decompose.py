"""Operators that have no rule, as the operators that they are made of: by our own table, by PyTorch's, or as PyTorch's
own code calls them. Only where there are rules for all of the parts; else the operator stays one call of PyTorch's."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch._decomp import global_decomposition_table

from dice.optimize.operators import KINDS
from dice.optimize.trace.complex_numbers import PAIRS, Pair, opened
from dice.optimize.trace.functional import is_needed, writes
from dice.optimize.trace.parts import OWN
from dice.optimize.trace.recurrent import LONG_LAYERS
from dice.optimize.trace.splice import calls_of, followed, put, tensors_of

MOST_PARTS = 400  # of one operator: a recurrent layer over a long sequence stays PyTorch's, which has one kernel for it
DEEPEST = 4  # parts of parts that are taken apart

HasRule = Callable[[torch.fx.Node], bool]
Table = dict[Any, Callable[..., Any]]


def decompose(graph: torch.fx.Graph, has_rule: HasRule, depth: int = 0) -> None:
    """Take apart what has no rule, as often as that is needed."""
    if depth == 0:
        open_complex(graph)
    for node in list(graph.nodes):
        if not _may_be_taken_apart(node) or has_rule(node):
            continue
        parts = _parts(node)
        if parts is None:
            continue
        if depth < DEEPEST:
            decompose(parts, has_rule, depth + 1)
        inner = calls_of(parts)
        if len(inner) <= MOST_PARTS and all(map(has_rule, inner)):
            _replace(node, parts)
    graph.eliminate_dead_code(is_needed)


def _may_be_taken_apart(node: torch.fx.Node) -> bool:
    is_operator = node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload)
    return is_operator and not writes(node) and bool(tensors_of(node))


def _parts(node: torch.fx.Node) -> Any:
    """The node's operator on tensors like its own, as a graph of other operators; None where nothing knows them."""
    given, tensors = (node.args, node.kwargs), tensors_of(node)
    target: Any = node.target

    def calling(compute: Callable[..., Any]) -> Callable[..., Any]:
        def call(*values: torch.Tensor) -> Any:
            known = dict(zip(tensors, values, strict=True))
            args, kwargs = torch.fx.node.map_arg(given, lambda one: known.get(one, one.meta.get("val")))
            return compute(*args, **kwargs)

        return call

    parts = followed(calling(OWN.get(target) or _table(None).get(target) or target), tensors, _table(target))
    if parts is None and target in LONG_LAYERS:
        parts = followed(calling(LONG_LAYERS[target]), tensors, {}, as_called=True)
    return None if parts is None or [one.target for one in calls_of(parts)] == [target] else parts


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


def _replace(node: torch.fx.Node, parts: torch.fx.Graph) -> None:
    """The parts in the node's place."""
    found = put(node, parts, tensors_of(node))
    if isinstance(found, torch.fx.Node):
        node.replace_all_uses_with(found)
    else:
        for user in list(node.users):
            user.replace_all_uses_with(found[user.args[1]])
            node.graph.erase_node(user)
    node.graph.erase_node(node)


# ---- complex values -------------------------------------------------------------------------------------------------


def open_complex(graph: torch.fx.Graph) -> None:
    """Have what is computed with complex values computed with pairs of real ones, as far as it is known how."""
    sides: dict[torch.fx.Node, Any] = {}
    waiting = [(node, 0) for node in graph.nodes if node.op == "call_function"]
    while waiting:
        node, depth = waiting.pop(0)
        if node.target is operator.getitem and node.args[0] in sides:
            sides[node] = sides[node.args[0]][node.args[1]]
        elif not _may_be_taken_apart(node) or not any(map(_is_complex, (node, *tensors_of(node)))):
            continue
        elif node.target in PAIRS:
            _open(node, sides)
        elif depth < DEEPEST and (parts := _parts(node)) is not None:  # some come back to themselves
            known = set(graph.nodes)
            _replace(node, parts)
            waiting[:0] = [(one, depth + 1) for one in graph.nodes if one not in known]
    graph.eliminate_dead_code(is_needed)


def _is_complex(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_complex()


def _open(node: torch.fx.Node, sides: dict[torch.fx.Node, Any]) -> None:
    """Note the two sides of what the node computes, or put what it is, if real, in its place."""
    given = tensors_of(node)
    for one in given:
        if (
            _is_complex(one)
            and one not in sides
            and (parts := followed(lambda value: tuple(opened(value)), [one], {})) is not None
        ):
            sides[one] = put(node, parts, [one])
    if any(_is_complex(one) and one not in sides for one in given):
        return
    inputs = [part for one in given for part in (sides[one] if _is_complex(one) else (one,))]

    def call(*values: torch.Tensor) -> Any:
        rest = iter(values)
        known = {one: Pair(next(rest), next(rest)) if _is_complex(one) else next(rest) for one in given}
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), known.__getitem__)
        pairs = [Pair(one.real, one.imag) if isinstance(one, complex) else one for one in args]
        found = PAIRS[node.target](*pairs, **kwargs)
        if isinstance(found, list):
            return [tuple(one) for one in found]
        return tuple(found) if isinstance(found, Pair) else found

    parts = followed(call, inputs, {}) if inputs else None
    if parts is None:
        return
    found = put(node, parts, inputs)
    if isinstance(found, torch.fx.Node):
        node.replace_all_uses_with(found)
    else:
        sides[node] = found
