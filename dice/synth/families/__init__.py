"""The families, by name: each has `sample(rng) -> Plan` and `render(plan, rng) -> Draft`."""

from __future__ import annotations

from types import ModuleType

from dice.synth.families.elements import (
    broadcast,
    combine,
    elementwise,
    formula,
    glu,
    mask,
    pointwise,
    position,
    selection,
)
from dice.synth.families.networks import fusion, network
from dice.synth.families.places import indexing, layout, scatter
from dice.synth.families.products import attention, contraction, linear, matmul, vector
from dice.synth.families.rows import (
    loss,
    norm,
    normalize,
    objective,
    order,
    recurrence,
    reduce,
    scan,
    similarity,
    softmax,
)
from dice.synth.families.windows import conv, pool

# Share of each among training pairs, in parts of their sum.
FAMILIES: dict[str, tuple[ModuleType, float]] = {
    elementwise.NAME: (elementwise, 16.0),
    pointwise.NAME: (pointwise, 14.0),
    broadcast.NAME: (broadcast, 7.0),
    reduce.NAME: (reduce, 14.0),
    softmax.NAME: (softmax, 8.0),
    norm.NAME: (norm, 12.0),
    loss.NAME: (loss, 9.0),
    matmul.NAME: (matmul, 20.0),
    vector.NAME: (vector, 5.0),
    conv.NAME: (conv, 15.0),
    fusion.NAME: (fusion, 24.0),
    attention.NAME: (attention, 5.0),
    normalize.NAME: (normalize, 4.0),
    network.NAME: (network, 15.0),
    indexing.NAME: (indexing, 5.0),
    layout.NAME: (layout, 7.0),
    linear.NAME: (linear, 10.0),
    pool.NAME: (pool, 7.0),
    scan.NAME: (scan, 5.0),
    glu.NAME: (glu, 4.0),
    mask.NAME: (mask, 4.0),
}

# Families that wide pairs have beside those: plain draws stay what the shipped model was trained on.
FURTHER: dict[str, tuple[ModuleType, float]] = {
    formula.NAME: (formula, 40.0),
    combine.NAME: (combine, 6.0),
    selection.NAME: (selection, 8.0),
    order.NAME: (order, 7.0),
    similarity.NAME: (similarity, 6.0),
    contraction.NAME: (contraction, 8.0),
    scatter.NAME: (scatter, 7.0),
    position.NAME: (position, 7.0),
    recurrence.NAME: (recurrence, 5.0),
    objective.NAME: (objective, 4.0),
}
