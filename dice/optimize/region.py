"""`Region`: a part of a graph that one kernel, or one family of kernels, computes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from dice.optimize.graph import Graph, to_plain
from dice.optimize.operators import kind_of


@dataclass(frozen=True, slots=True)
class Update:
    """What PyTorch still does beside a region: a statistic that the module keeps. `state` becomes
    `state + weight * (output - state)`, where `output` is one of the region's."""

    state: str
    output: int
    weight: float


@dataclass(frozen=True, slots=True)
class Region:
    """`nodes`: names of the operators that it replaces. `graph`: what it computes, over inputs and states with names of
    its own. `inputs`, `states`: what those are in the whole graph, in the order of the region's. `outputs`: the values
    that it hands on, in the order of its results; "" for one that only updates need."""

    kind: str
    nodes: tuple[str, ...]
    graph: Graph
    inputs: tuple[str, ...]
    states: tuple[str, ...]
    outputs: tuple[str, ...]
    updates: tuple[Update, ...] = ()

    @property
    def key(self) -> str:
        """Of its content alone: equal regions of any module have the same."""
        plain = []
        for node in self.graph.nodes:
            output = node.output if isinstance(node.output, tuple) else (node.output,)
            specs = [None if one is None else [one.shape, one.dtype] for one in output]
            plain.append(
                [node.name, node.operator, to_plain(list(node.arguments)), to_plain(dict(node.options)), specs]
            )
        text = json.dumps([plain, to_plain(self.graph.output)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def title(self) -> str:
        """Its operators in a few words: `linear, gelu`."""
        names: list[str] = []
        for node in self.graph.nodes:
            if kind_of(node) not in ("source", "view", "creation"):
                names.append(node.base.strip("_"))
        shown = [f"{name} x{count}" if count > 1 else name for name, count in _runs(names)]
        return ", ".join(shown[:6]) + (f" and {len(shown) - 6} more" if len(shown) > 6 else "")


def _runs(names: Sequence[str]) -> list[tuple[str, int]]:
    runs: list[tuple[str, int]] = []
    for name in names:
        if runs and runs[-1][0] == name:
            runs[-1] = (name, runs[-1][1] + 1)
        else:
            runs.append((name, 1))
    return runs
