"""What the process that traces a module, or differentiates its regions, and the one that asked say to each other."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TraceModule:
    """`measure`: also run the module and time its operators. `take_apart`: those without a rule."""

    source: str
    backend: str
    seed: int
    measure: bool
    take_apart: bool
    threads: int


@dataclass(frozen=True, slots=True)
class Stage:
    """What is about to be done, for the message should it never end."""

    stage: str


@dataclass(frozen=True, slots=True)
class Refused:
    """Why the module cannot be cut, in a sentence."""

    message: str


@dataclass(frozen=True, slots=True)
class Traced:
    """`units`: as `Unit.to_json` has them. `whole`: whether they are all of the module. `reason`: why it could not be
    had in one piece, or "". `model`: the constructor's and forward's facts that a report tells."""

    units: object
    whole: bool
    reason: str
    total_ms: float
    parameters: int


@dataclass(frozen=True, slots=True)
class Differentiate:
    """`regions`: each with its `graph`, the text and the paths of its problem, whose gradients are `wanted`, and which
    of its results are `read`."""

    regions: object
    backend: str
    seed: int
    threads: int


@dataclass(frozen=True, slots=True)
class Differentiated:
    """For each region its backward, as `Backward.to_json` has it, or why there is none, as a text."""

    backwards: object
