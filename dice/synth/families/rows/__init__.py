"""Families that work along a dimension: reductions, maps, norms, scans, orders and losses."""
