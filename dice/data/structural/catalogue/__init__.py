"""Every structure, with the models that it mirrors: one file per group of parts."""

from __future__ import annotations

from dice.data.structural.catalogue import attention, feedforward, layers, positions, recurrence, vocabulary
from dice.data.structural.structure import Structure

STRUCTURES: tuple[Structure, ...] = (
    *positions.STRUCTURES,
    *attention.STRUCTURES,
    *feedforward.STRUCTURES,
    *vocabulary.STRUCTURES,
    *recurrence.STRUCTURES,
    *layers.STRUCTURES,
)
