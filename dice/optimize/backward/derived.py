"""`Backward`: what computes the gradients of a region's inputs and states from those of its results, as a graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dice.files import JsonObject
from dice.optimize.graph import Graph, Malformed, Ref
from dice.optimize.region import Region

# What the graph's inputs are called: the region's inputs and states, results of it, and the gradients of its results.
GIVEN, RESULT, GRADIENT = "given", "result", "gradient"


@dataclass(frozen=True, slots=True)
class Backward:
    """`graph`: its inputs are named `given_0`, `result_0`, `gradient_0`; it returns a tuple with the gradient of each
    of the region's inputs and states, None for one that has none. `results`: places of the region's results that it
    reads, so that they are not computed anew. `gradients`: places of the results whose gradients it reads."""

    graph: Graph
    results: tuple[int, ...]
    gradients: tuple[int, ...]

    def to_json(self) -> JsonObject:
        return {"graph": self.graph.to_json(), "results": list(self.results), "gradients": list(self.gradients)}

    @classmethod
    def from_json(cls, raw: object, region: Region) -> Backward:
        """Raises `Malformed` for what cannot be the region's."""
        if not isinstance(raw, dict):
            raise Malformed("no backward")
        graph = Graph.from_json(raw.get("graph"))
        results, gradients = _places(raw.get("results")), _places(raw.get("gradients"))
        known = {f"{GIVEN}_{place}" for place in range(len(sources_of(region)))}
        known |= {f"{RESULT}_{place}" for place in results} | {f"{GRADIENT}_{place}" for place in gradients}
        count = len(region.outputs)
        if not all(0 <= place < count for place in (*results, *gradients)):
            raise Malformed("a result that the region does not have")
        if any(node.operator == "state" for node in graph.nodes):
            raise Malformed("a backward with states of its own")
        if not {node.arguments[0] for node in graph.nodes if node.operator == "input"} <= known:
            raise Malformed("an input that the region does not have")
        output = graph.output
        if not isinstance(output, tuple) or len(output) != len(sources_of(region)):
            raise Malformed("not a gradient for each input")
        if not all(one is None or isinstance(one, Ref) for one in output):
            raise Malformed("a gradient that is no tensor")
        return cls(graph, results, gradients)


def sources_of(region: Region) -> Sequence[str]:
    """Names of the region's inputs and states in its own graph, in the order in which its function takes them."""
    nodes = region.graph.nodes
    return [node.name for kind in ("input", "state") for node in nodes if node.operator == kind]


def _places(raw: object) -> tuple[int, ...]:
    if not isinstance(raw, list) or not all(type(one) is int for one in raw):
        raise Malformed("no list of places")
    return tuple(raw)
