"""Asks a jailed process for the backward of regions: their operators run there, and never in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from dice.errors import MachineError
from dice.files import JsonObject
from dice.optimize.backward.derived import Backward, sources_of
from dice.optimize.graph import Malformed
from dice.optimize.printing import Printed
from dice.optimize.region import Region
from dice.optimize.trace.messages import Differentiate, Differentiated
from dice.optimize.trace.tracer import MOST_DETAIL, Tracer
from dice.problem import Problem
from dice.verify.ipc.encoding import is_a
from dice.verify.sandbox.cancel import Cancellation
from dice.verify.sandbox.roles import Role

DIFFERENTIATOR = Role("differentiator", "dice.optimize.backward.differentiating")


def backwards_of(
    tracer: Tracer,
    problem: Problem,
    regions: Sequence[tuple[Region, Printed]],
    wanted: Mapping[str, Sequence[bool]],
    *,
    at: Callable[[str], None] = lambda stage: None,
    cancellation: Cancellation | None = None,
) -> dict[str, Backward | str]:
    """The backward of each region by its key, or why it has none, as the end of a sentence. `wanted`: of each region,
    the inputs and states that may want a gradient."""
    told = [order_for(region, printed, wanted[region.key]) for region, printed in regions]

    order = Differentiate(told, tracer.backend, 0, tracer.threads)
    raw = tracer.ask(DIFFERENTIATOR, order, problem, at=at, cancellation=cancellation)
    found = raw.get("backwards") if is_a(raw, Differentiated) else None
    if not isinstance(found, list) or len(found) != len(regions):
        raise MachineError(f"Differentiating {problem.name} failed: its process gave no answer.")
    return {region.key: _read(one, region) for (region, _), one in zip(regions, found, strict=True)}


def order_for(region: Region, printed: Printed, wanted: Sequence[bool]) -> JsonObject:
    """What the process is told of one region. To differentiate, a state is an input like the others."""
    nodes = tuple(replace(node, operator="input") if node.operator == "state" else node for node in region.graph.nodes)
    return {
        "graph": replace(region.graph, nodes=nodes).to_json(),
        "sources": list(sources_of(region)),
        "source": printed.problem.source,
        "paths": list(printed.paths),
        "wanted": list(wanted),
        "read": [bool(name) for name in region.outputs],
    }


def _read(raw: object, region: Region) -> Backward | str:
    if isinstance(raw, str):
        return raw[:MOST_DETAIL]
    try:
        return Backward.from_json(raw, region)
    except Malformed as error:
        return f"its backward is {error}"
