"""The families, by name: each has `sample(rng) -> Plan` and `render(plan, rng) -> Draft`."""

from __future__ import annotations

from types import ModuleType

from dice.data.synth.families import elementwise, pointwise

FAMILIES: dict[str, tuple[ModuleType, float]] = {
    elementwise.NAME: (elementwise, 16.0),
    pointwise.NAME: (pointwise, 8.0),
}
