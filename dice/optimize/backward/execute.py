"""Runs a graph by PyTorch, operator by operator: in the jailed process, for graphs come from strangers' modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from dice.optimize.graph import Graph, Named, Node, Ref, Term

_WIDENED = ("float32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class Executor:
    """`device`: where new tensors are made. `wide`: whatever the graph makes in another floating type is in float64."""

    device: torch.device
    wide: bool = False

    def run(self, graph: Graph, given: Mapping[str, torch.Tensor]) -> Any:
        """What the graph returns. `given`: its inputs and states by their names, and constants where they are there."""
        values: dict[str, Any] = dict(given)
        for node in graph.nodes:
            if node.name not in values:
                values[node.name] = self._node(node, values)
        return self._term(graph.output, values)

    def constant(self, node: Node) -> torch.Tensor:
        return torch.tensor(node.arguments[0], dtype=self._named("dtype", node.spec.dtype), device=self.device)

    def _node(self, node: Node, values: Mapping[str, Any]) -> Any:
        if node.operator == "constant":
            return self.constant(node)
        if node.operator == "getitem":
            return values[node.arguments[0].name][node.arguments[1]]
        space, name, overload = node.operator.split(".")
        function = getattr(getattr(getattr(torch.ops, space), name), overload)
        options = {key: self._term(value, values) for key, value in node.options.items()}
        return function(*(self._term(value, values) for value in node.arguments), **options)

    def _term(self, term: Term, values: Mapping[str, Any]) -> Any:
        match term:
            case Ref(name):
                return values[name]
            case Named("device", _):
                return self.device
            case Named(kind, name):
                return self._named(kind, name)
            case tuple() | list():
                return type(term)(self._term(one, values) for one in term)
            case dict():
                return {key: self._term(one, values) for key, one in term.items()}
        return term

    def _named(self, kind: str, name: str) -> Any:
        if kind == "dtype" and self.wide and name in _WIDENED:
            return torch.float64
        return getattr(torch, name)
