"""The families, by name: each has `sample(rng) -> Plan` and `render(plan, rng) -> Draft`."""

from __future__ import annotations

from types import ModuleType

from dice.data.synth.families import (
    broadcast,
    elementwise,
    glu,
    linear,
    loss,
    mask,
    matmul,
    norm,
    pointwise,
    pool,
    reduce,
    scan,
    softmax,
)

# Share of each among training pairs, in parts of their sum.
FAMILIES: dict[str, tuple[ModuleType, float]] = {
    elementwise.NAME: (elementwise, 16.0),
    pointwise.NAME: (pointwise, 8.0),
    broadcast.NAME: (broadcast, 7.0),
    reduce.NAME: (reduce, 14.0),
    softmax.NAME: (softmax, 8.0),
    norm.NAME: (norm, 11.0),
    loss.NAME: (loss, 9.0),
    matmul.NAME: (matmul, 9.0),
    linear.NAME: (linear, 8.0),
    pool.NAME: (pool, 5.0),
    scan.NAME: (scan, 4.0),
    glu.NAME: (glu, 4.0),
    mask.NAME: (mask, 4.0),
}
