"""Pairs of the synthetic corpus as the optimiser would ask them: its printer's text, and a kernel that follows."""

from __future__ import annotations

from dice.optimize.canonical.pair import canonical_pair

__all__ = ["canonical_pair"]
