"""What a region costs: what it must move and compute, and what share of the module's time it takes (Amdahl)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dice.optimize.graph import Graph, Node, Ref, Spec
from dice.optimize.operators import kind_of
from dice.optimize.region import Region
from dice.optimize.unit import Unit

# A GPU's balance of today, for what comes before any measurement: floating-point operations for each byte it can move.
FLOPS_PER_BYTE = 20.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one call: bytes of inputs, states and results, each moved once; floating-point operations, about one an
    element for what works element by element."""

    bytes_moved: int
    flops: int

    @property
    def weight(self) -> float:
        """A measure to compare regions by where no time is known."""
        return max(self.bytes_moved, self.flops / FLOPS_PER_BYTE)


def cost_of(region: Region) -> Cost:
    graph = region.graph
    ends = [node.spec.nbytes for node in graph.nodes if node.operator in ("input", "state")]
    known = graph.by_name()
    output = graph.output if isinstance(graph.output, tuple) else (graph.output,)
    ends += [known[one.name].spec.nbytes for one in output if isinstance(one, Ref)]
    return Cost(sum(ends), sum(flops_of(node, known) for node in graph.nodes))


def flops_of(node: Node, known: Mapping[str, Node]) -> int:
    kind = kind_of(node)
    if kind in ("source", "view", "creation"):
        return 0
    size = _numel(node)
    given = node.arguments
    if kind == "convolution":
        weight = known[given[1].name].spec
        source = known[given[0].name].spec
        turned = "transpose" in node.base
        return 2 * (source.numel if turned else size) * weight.numel // max(weight.shape[0], 1)
    if kind == "product":
        return 2 * size * _summed(node, known)
    if kind == "attention":
        query, key = known[given[0].name].spec, known[given[1].name].spec
        return 4 * query.numel * key.shape[-2]
    if kind == "recurrent":
        weights = [known[one.name].spec for one in given[2]]
        return 2 * sum(one.numel for one in weights) * (size // weights[1].shape[-1])  # of every step of each sequence
    sources = [known[use].output for use in node.uses]
    return max(size, *(one.numel for one in sources if isinstance(one, Spec)), 0)


def _numel(node: Node) -> int:
    first = node.output[0] if isinstance(node.output, tuple) else node.output
    return first.numel if first is not None else 0


def _summed(node: Node, known: Mapping[str, Node]) -> int:
    """How many products make one element of a product's result."""
    if node.base == "einsum":
        left, arrow, result = node.arguments[0].replace(" ", "").partition("->")
        result = result if arrow else [label for label in left if left.count(label) == 1]
        sizes = {
            label: extent
            for term, one in zip(left.split(","), node.arguments[1], strict=True)
            for label, extent in zip(term, known[one.name].spec.shape, strict=False)
        }
        return math.prod(extent for label, extent in sizes.items() if label not in result)
    first = node.arguments[1] if node.base in ("addmm", "baddbmm", "addmv") else node.arguments[0]
    shape = known[first.name].spec.shape
    return shape[-1] if shape else 1


def shares(units: Iterable[Unit], regions: Mapping[int, Iterable[Region]]) -> dict[str, float]:
    """Share of the module's time, or of its estimated cost where nothing was measured, by the region's key: over all
    places where it stands. `regions`: of each unit, by its index."""
    units = list(units)
    is_timed = any(node.ms for unit in units for node in unit.graph.nodes)
    total, found = 0.0, dict[str, float]()
    for index, unit in enumerate(units):
        weights = {node.name: node.ms if is_timed else _weight(node, unit.graph) for node in unit.graph.nodes}
        times = len(unit.paths)
        total += times * sum(weights.values())
        for region in regions.get(index, ()):
            found[region.key] = found.get(region.key, 0.0) + times * sum(weights[name] for name in region.nodes)
    return {key: weight / total if total else 0.0 for key, weight in found.items()}


def _weight(node: Node, graph: Graph) -> float:
    if kind_of(node) in ("source", "view", "creation"):
        return 0.0
    known = graph.by_name()
    size = sum(known[use].spec.nbytes for use in node.uses if isinstance(known[use].output, Spec)) + 4 * _numel(node)
    return max(size, flops_of(node, known) / FLOPS_PER_BYTE) if kind_of(node) != "other" else size
