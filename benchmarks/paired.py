"""Differences between trained models on the same problems: intervals and tests over training seeds and problems.

Values are arrays [S, N]: S training seeds, N problems, each 1 where the model of that seed solved the problem.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
RESAMPLES = 10_000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Effect:
    """A mean difference with its 95% interval, two-sided p, and the 90% interval that equivalence is judged by."""

    value: float
    low: float
    high: float
    p: float
    low90: float
    high90: float
    adjusted: float | None = None  # p by Holm, among the tests it belongs to

    def within(self, margin: float) -> bool:
        """Whether two one-sided tests at 5% say that the effect is smaller than `margin` in size."""
        return -margin < self.low90 and self.high90 < margin

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    def percent(self) -> str:
        return f"{100 * self.value:+.1f} [{100 * self.low:+.1f}, {100 * self.high:+.1f}]"


def effect(differences: Floats, *, seed: int = 0, resamples: int = RESAMPLES) -> Effect:
    """Of paired `differences` [S, N], by a hierarchical bootstrap: seeds are drawn with replacement, then problems for
    each drawn seed.

    p is twice the smaller share of resamples on either side of 0, counted with one more, so that it is never 0.
    Raises `ValueError` where there is nothing to resample.
    """
    if differences.ndim != 2 or not differences.size:
        raise ValueError("differences must be [seeds, problems], and hold some")
    seeds, problems = differences.shape
    rng = np.random.default_rng(seed)
    drawn = np.empty(resamples)
    for index in range(resamples):
        rows = rng.integers(0, seeds, size=(seeds,))
        columns = rng.integers(0, problems, (seeds, problems))
        drawn[index] = differences[rows[:, None], columns].mean()
    tail = (1 - CONFIDENCE) / 2
    low, low90, high90, high = np.quantile(drawn, [tail, 2 * tail, 1 - 2 * tail, 1 - tail])
    side = min(int((drawn <= 0).sum()), int((drawn >= 0).sum()))
    p = min(1.0, 2 * (side + 1) / (resamples + 1))
    return Effect(float(differences.mean()), float(low), float(high), p, float(low90), float(high90))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's adjusted p-values: below 5% all together are wrong with at most 5%."""
    adjusted: dict[str, float] = {}
    running = 0.0
    for rank, name in enumerate(sorted(p_values, key=lambda one: p_values[one])):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[name]))
        adjusted[name] = running
    return {name: adjusted[name] for name in p_values}


def contrast(plus: Sequence[Floats], minus: Sequence[Floats]) -> Floats:
    """The mean of `plus` less the mean of `minus`, problem by problem and seed by seed; all of equal shape."""
    return np.mean(plus, axis=0) - np.mean(minus, axis=0)
