"""What export writes down and does not carry out: graphs inside of contexts, and transforms of `torch.func`."""

from __future__ import annotations

import operator
from typing import Any

import torch


def inline(graph_module: torch.fx.GraphModule) -> None:
    """What is computed without gradients, or with autocast turned off, is computed as everything here is."""
    graph, wrapped = graph_module.graph, torch.ops.higher_order
    for node in list(graph.nodes):
        off = node.target is wrapped.wrap_with_autocast and node.args[2] is False  # device, dtype, enabled
        if not off and node.target is not wrapped.wrap_with_set_grad_enabled:
            continue
        place = next(number for number, one in enumerate(node.args) if _is_graph(graph_module, one))
        holder: Any = node.args[place]
        inner = getattr(graph_module, holder.target)
        inline(inner)
        given = [one for one in inner.graph.nodes if one.op == "placeholder"]
        with graph.inserting_before(node):
            results: Any = graph.graph_copy(inner.graph, dict(zip(given, node.args[place + 1 :], strict=True)))
        for user in list(node.users):
            if user.target is operator.getitem:
                user.replace_all_uses_with(results[user.args[1]])
                graph.erase_node(user)
        graph.erase_node(node)
        if not holder.users:
            graph.erase_node(holder)


def _is_graph(graph_module: torch.fx.GraphModule, term: Any) -> bool:
    is_attribute = isinstance(term, torch.fx.Node) and term.op == "get_attr"
    return is_attribute and isinstance(getattr(graph_module, str(term.target), None), torch.fx.GraphModule)


def is_transformed(graph_module: torch.fx.GraphModule) -> bool:
    """Whether `torch.func` transforms what it computes (`vmap`): export writes that down, and a pass of its carries it
    out."""
    transforms = "torch._functorch.predispatch"
    return any(getattr(node.target, "__module__", "") == transforms for node in graph_module.graph.nodes)


def read_numbers(graph_module: torch.fx.GraphModule) -> None:
    """The numbers that the pass makes tensors of, which nothing else may hold, are what they were."""
    for node in list(graph_module.graph.nodes):
        if node.target is torch.ops.aten._to_copy.default and isinstance(node.args[0], int | float):
            number = node.args[0]
            for user in list(node.users):
                user.args = tuple(number if one is node else one for one in user.args)
            if not node.users:
                graph_module.graph.erase_node(node)
