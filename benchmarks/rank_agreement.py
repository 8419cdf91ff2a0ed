"""How far two orders of the same problems agree: rank correlations that take ties as ties."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

BLOCK = 512  # rows of the matrix of pairs that are compared at a time


def ranks(values: Sequence[float]) -> np.ndarray:
    """Ranks from 1; equal values share their mean rank."""
    _, where, counts = np.unique(np.asarray(values, float), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[where]


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's rho; 0 where one side is all ties."""
    left, right = ranks(one), ranks(other)
    left, right = left - left.mean(), right - right.mean()
    size = np.sqrt((left**2).sum() * (right**2).sum())
    return float((left * right).sum() / size) if size else 0.0


def kendall(one: Sequence[float], other: Sequence[float]) -> float:
    """Kendall's tau-b; 0 where one side is all ties."""
    left, right = ranks(one), ranks(other)
    agreeing = moved_left = moved_right = 0.0
    for start in range(0, len(left), BLOCK):
        rows = slice(start, start + BLOCK)
        signs_left = np.sign(left[rows, None] - left[None, :])
        signs_right = np.sign(right[rows, None] - right[None, :])
        agreeing += float((signs_left * signs_right).sum())
        moved_left += float((signs_left != 0).sum())
        moved_right += float((signs_right != 0).sum())
    size = np.sqrt(moved_left * moved_right)
    return float(agreeing / size) if size else 0.0


def outranks(higher: Sequence[float], lower: Sequence[float]) -> float:
    """The chance that one of `higher` lies above one of `lower` (ties count half): 0.5 where there is no relation."""
    both = ranks([*higher, *lower])[: len(higher)]
    least = len(higher) * (len(higher) + 1) / 2
    return float((both.sum() - least) / (len(higher) * len(lower)))
