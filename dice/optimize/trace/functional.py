"""A graph without operators that write to a tensor, where nobody could tell."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch

from dice.optimize.operators import words

_VIEWS = words(
    "view reshape transpose permute t select slice unsqueeze squeeze expand expand_as view_as unfold",
    "diagonal narrow chunk split split_with_sizes unbind unflatten flatten alias detach as_strided",
    "movedim swapaxes numpy_T mT tensor_split getitem contiguous to type_as real imag view_as_real",
    "view_as_complex squeeze_ unsqueeze_ transpose_ t_ swapaxes_ swapdims_",
)


class NotTraced(Exception):
    """The module cannot be described as a graph; the message ends a sentence. `final`: nor can its parts."""

    def __init__(self, message: str, final: bool = False):
        super().__init__(message)
        self.final = final


def make_functional(graph_module: torch.fx.GraphModule, sources: Mapping[str, Any]) -> None:
    """Operators that write to a tensor which was made here, and which nobody sees by another name afterwards, become
    those that give a new one. Raises `NotTraced` for what writes to an input."""
    graph = graph_module.graph
    _copy_to_out(graph)
    root: dict[torch.fx.Node, torch.fx.Node] = {}
    order = {node: place for place, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        first = node.args[0] if node.args and isinstance(node.args[0], torch.fx.Node) else None
        name = _base(node)
        is_view = node.op == "call_function" and (name in _VIEWS or node.target is operator.getitem)
        root[node] = root[first] if is_view and first is not None else node
        if first is None or not _is_in_place(node):
            continue
        origin = root[first]
        if origin.op in ("placeholder", "get_attr"):
            spec = sources.get(origin.name)
            if spec is not None and spec.kind.name == "USER_INPUT":
                raise NotTraced(f"it changes its input {spec.arg.name} in place", final=True)
            root[node] = origin  # what is written to its result is written to the state
            continue
        group = [one for one in root if root[one] is origin and one is not first and one is not node]
        later = [user for one in group for user in one.users if order.get(user, 0) > order[node]]
        fresh = _functional_form(node)
        if later or fresh is None:
            raise NotTraced(f"it writes into a part of a tensor ({name})")
        node.target = fresh
        root[node] = node
        for user in [user for user in first.users if order[user] > order[node]]:
            user.replace_input_with(first, node)
    graph.eliminate_dead_code(is_needed)
    graph.lint()


def _copy_to_out(graph: torch.fx.Graph) -> None:
    """What an operator writes to its `out` is made first, and then copied there."""
    for node in list(graph.nodes):
        out = node.kwargs.get("out")
        if not isinstance(out, torch.fx.Node) or not isinstance(node.target, torch._ops.OpOverload):
            continue
        plain = _overload(node.target.overloadpacket, [one for one in _arguments(node.target) if one[0] != "out"])
        if plain is None:
            continue
        given = {name: value for name, value in node.kwargs.items() if name != "out"}
        with graph.inserting_before(node):
            made = graph.call_function(plain, node.args, given)
            copied = graph.call_function(torch.ops.aten.copy_.default, (out, made))
        made.meta, copied.meta = dict(node.meta), dict(node.meta)
        node.replace_all_uses_with(copied)
        graph.erase_node(node)


def is_needed(node: torch.fx.Node) -> bool:
    return node.op in ("placeholder", "output") or writes(node)


def _is_in_place(node: torch.fx.Node) -> bool:
    return (
        isinstance(node.target, torch._ops.OpOverload)
        and _base(node) not in ("batch_norm", "instance_norm")
        and node.target._schema.is_mutable
    )


def writes(node: torch.fx.Node) -> bool:
    """Whether it changes a tensor that is there already: a normalisation in training keeps statistics."""
    if _base(node) in ("batch_norm", "instance_norm"):
        return bool(node.args[5]) and node.args[3] is not None
    return _is_in_place(node)


def _functional_form(node: torch.fx.Node) -> Any:
    """The operator without the underscore, of the same arguments: its overload may have another name."""
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)
    name = target._schema.name.split("::")[1]
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None)
    if not name.endswith("_") or packet is None:
        return None
    return _overload(packet, _arguments(target))


def _overload(packet: Any, arguments: list[tuple[str, str]]) -> Any:
    """The one that takes these arguments, or None."""
    overloads = (getattr(packet, one) for one in packet.overloads())
    return next((one for one in overloads if _arguments(one) == arguments), None)


def _arguments(target: torch._ops.OpOverload) -> list[tuple[str, str]]:
    return [(one.name, str(one.type)) for one in target._schema.arguments]


def _base(node: torch.fx.Node) -> str:
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target._schema.name.split("::")[1])
    return getattr(node.target, "__name__", str(node.target))
