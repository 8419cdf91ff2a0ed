"""A graph as statements: calls of the regions that have kernels, and the other operators as they were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dice.optimize.graph import Graph, Node, Ref, references
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
        self._last = _Last.of(graph, regions)

    def effects(self) -> None:
        """Write what draws random numbers or writes to what is there already: in their order, and each after all that
        reads what it overwrites."""
        for node in self._graph.nodes:
            if node.effect:
                self.compute(self._readers_before(node))
                self.compute([node.name])

    def _readers_before(self, writer: Node) -> Iterator[str]:
        """What comes before `writer` in the graph and reads, itself or by a view, a tensor to which it writes."""
        same = set(_written(writer))  # and their views
        for written in list(same):
            while _is_of_same_memory(self._nodes[written]):
                written = self._nodes[written].uses[0]
            same.add(written)
        if not same:
            return
        for node in self._graph.nodes:
            if node is writer:
                return
            if _is_of_same_memory(node) and node.uses[0] in same:
                same.add(node.name)
            elif not same.isdisjoint(node.uses):
                yield node.name

    def compute(self, wanted: Iterable[str]) -> None:
        for name in wanted:
            region = self._region_of.get(name)
            if region is None or id(region) not in self._done:
                self._have(name)

    def returned(self, plain: Mapping[str, str] | None = None) -> str:
        """What the graph returns, as Python, once it has been computed. `plain`: what has another name there."""
        return term(self._graph.output, {**self._names, **(plain or {})}, self._device)

    def name_of(self, value: str) -> str:
        return self._names[value]

    def finish(self) -> None:
        """Write what can wait until all has been computed."""
        self.statements += [Statement(line, ()) for line in self._last.lines()]

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
        if node.name in self._last.counters:
            self._last.counters[node.name] = self._names[node.name] = self._names[node.uses[0]]
            return
        if node.base in ("view", "_unsafe_view") and node.operator.endswith(".default"):
            # What a kernel gives may lie in memory in another order than PyTorch's result did when it was traced.
            node = replace(node, operator="aten.reshape.default")
        text = expression(node, self._names, self._device)
        if _writes(node):
            self._write(text, node.name)
            self._names[node.name] = self._names[node.uses[0]]
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
            if update.state in self._last.states:
                self._last.rows.setdefault(update.weight, []).append((self._names[update.state], value))
                continue
            self._write(f"{self._names[update.state]}.lerp_({value}, {update.weight!r})")

    def _write(self, text: str, *values: str) -> None:
        self.statements.append(Statement(text, values))


@dataclass(slots=True)
class _Last:
    """What nobody reads before the end: running statistics, and how many batches they are of. Each alone takes a
    launch or two, which for a hundred batch normalisations are more than their kernels are, so all are done at once.

    `states`: those whose statistics wait. `counters`: the operators that count, and what they count in once it has a
    name. `rows`: by weight, a statistic's buffer and its batch's value."""

    states: frozenset[str]
    counters: dict[str, str]
    rows: dict[float, list[tuple[str, str]]]

    @classmethod
    def of(cls, graph: Graph, regions: Sequence[Region]) -> _Last:
        uses = Counter(use for node in graph.nodes for use in node.uses)
        uses.update(references(graph.output))
        known = graph.by_name()
        states = [update.state for region in regions for update in region.updates if uses[update.state] == 1]
        counters = [node.name for node in graph.nodes if _counts(node, known) and not uses[node.name]
                    and uses[node.uses[0]] == 1]  # fmt: skip
        is_worth_it = len(states) > 2  # those of one are as short as they are
        return cls(
            frozenset(states if is_worth_it else ()), dict.fromkeys(counters if len(counters) > 1 else (), ""), {}
        )

    def lines(self) -> list[str]:
        """Without a name of their own, which could be that of something returned."""
        counters = [name for name in self.counters.values() if name]
        lines = ["torch._foreach_add_([", *(f"    {name}," for name in counters), "], 1)"] if counters else []
        for weight, rows in self.rows.items():
            kept, batch = ([f"    {item}," for item in column] for column in zip(*rows, strict=True))
            lines += ["torch._foreach_lerp_([", *kept, "], [", *batch, f"], {weight!r})"]
        return lines


def _writes(node: Node) -> bool:
    """Whether it writes to the first of what it takes, and gives that."""
    return node.effect and node.base.endswith("_") and bool(node.uses)


def _written(node: Node) -> list[str]:
    """The values to which it writes: what it gives, or the statistics that a normalisation keeps."""
    if _writes(node):
        return [node.uses[0]]
    kept = node.arguments[3:5] if node.effect and node.base in ("batch_norm", "instance_norm") else ()
    return [one.name for one in kept if isinstance(one, Ref)]


def _is_of_same_memory(node: Node) -> bool:
    """Whether what it gives lies in the memory of the first of what it takes."""
    return _writes(node) or (bool(node.uses) and (node.operator == "getitem" or kind_of(node) == "view"))


def _counts(node: Node, known: Mapping[str, Node]) -> bool:
    """Whether it adds one to a state."""
    return (
        node.operator == "aten.add_.Tensor"
        and isinstance(node.arguments[0], Ref)
        and known[node.arguments[0].name].operator == "state"
        and node.arguments[1:] == (1,)
        and not node.options
    )


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
