"""Kernels written by rule from a region's graph: the writer that needs no model, and the oracle of the others."""
