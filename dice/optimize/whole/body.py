"""A graph as statements: calls of the regions that have kernels, and the other operators as they were."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dice.optimize.graph import Graph, Node, references
from dice.optimize.operators import kind_of
from dice.optimize.python_text import expression, term
from dice.optimize.region import Region


@dataclass(frozen=True, slots=True)
class Statement:
    """A line, and the graph's values that it computes."""

    text: str
    values: tuple[str, ...]


class Body:
    """The statements that compute some values of a graph, each after what it needs. `functions`: of the regions, by
    their keys; `names`: what inputs and states are called; `training`: gradients flow through the regions."""

    def __init__(
        self,
        graph: Graph,
        regions: Sequence[Region],
        functions: Mapping[str, str],
        names: Mapping[str, str],
        device: str,
        training: bool = False,
    ):
        self._graph, self._functions, self._training = graph, functions, training
        self._nodes = graph.by_name()
        self._region_of = {name: region for region in regions for name in region.nodes}
        self._names = dict(names)
        self._device = device
        self._done: set[int] = set()
        self.statements: list[Statement] = []

    def compute(self, wanted: Iterable[str]) -> None:
        for name in wanted:
            self._have(name)

    def returned(self) -> str:
        """What the graph returns, as Python, once it has been computed."""
        return term(self._graph.output, self._names, self._device)

    def name_of(self, value: str) -> str:
        return self._names[value]

    def _have(self, name: str) -> None:
        """Write what computes a value, after all that it needs; without recursion, for networks are deep."""
        waiting = [name]
        while waiting:
            one = waiting[-1]
            region = self._region_of.get(one)
            item: Region | Node = region or self._nodes[one]
            assert one in self._names or id(item) not in self._done, f"{one} is inside a region, and read outside"
            if one in self._names:
                waiting.pop()
                continue
            needed = (*region.inputs, *region.states) if region else self._nodes[one].uses
            missing = [use for use in needed if use not in self._names]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            self._done.add(id(item))
            if region is not None:
                self._call(region)
            else:
                self._operator(self._nodes[one])

    def _operator(self, node: Node) -> None:
        text = expression(node, self._names, self._device)
        if node.base.endswith("_") and node.effect:
            self._write(text, node.name)
            self._names[node.name] = self._names[next(iter(node.uses))]
            return
        is_plain_view = kind_of(node) == "view" and text == self._names.get(next(iter(node.uses), ""), "")
        if is_plain_view:
            self._names[node.name] = text
            return
        self._names[node.name] = node.name
        self._write(f"{node.name} = {text}", node.name)

    def _call(self, region: Region) -> None:
        given = [self._names[name] for name in (*region.inputs, *region.states)]
        results = []
        for place, name in enumerate(region.outputs):
            own = name or f"{region.nodes[0]}_statistic{place}"
            results.append(own)
            if name:
                self._names[name] = name
        call = f"{self._functions[region.key]}({', '.join(given)})"
        self._write(f"{', '.join(results)} = {call}", *filter(None, region.outputs))
        for update in region.updates:
            value = f"{results[update.output]}.detach()" if self._training else results[update.output]
            scaled = value if update.factor == 1.0 else f"{value} * {update.factor!r}"
            self._write(f"{self._names[update.state]}.lerp_({scaled}, {update.weight!r})")

    def _write(self, text: str, *values: str) -> None:
        self.statements.append(Statement(text, values))


def needed_for(graph: Graph) -> dict[str, frozenset[int]]:
    """For each value of a graph that returns a tuple, the places of the results that depend on it."""
    found: dict[str, set[int]] = {node.name: set() for node in graph.nodes}
    for place, result in enumerate(graph.output):
        for name in references(result):
            found[name].add(place)
    for node in reversed(graph.nodes):
        for use in node.uses:
            found[use] |= found[node.name]
    return {name: frozenset(places) for name, places in found.items()}
