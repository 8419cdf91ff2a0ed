"""Intervals and tests over problems: a seeded bootstrap, Wilson's, the exact sign test, the unbiased pass@k."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its 95% interval, by problem; None where there is nothing to average."""

    value: float | None
    low: float | None = None
    high: float | None = None

    def percent(self, sign: str = "", empty: str = "-") -> str:
        """`48.8 [44, 54]`; `sign` "+" also marks what is positive."""
        if self.value is None or self.low is None or self.high is None:
            return empty
        return f"{100 * self.value:{sign}.1f} [{100 * self.low:.0f}, {100 * self.high:.0f}]"


class Bootstrap:
    """Resamples `count` problems with replacement; every statistic sees the same resamples."""

    def __init__(self, count: int, seed: int, resamples: int):
        generator = np.random.default_rng(seed)
        self.picks = generator.integers(0, max(count, 1), size=(resamples, count)) if count else None

    def mean(self, values: Floats) -> Estimate:
        """Of one number a problem; NaN where a problem has none."""
        return self.quotient(np.nan_to_num(values), (~np.isnan(values)).astype(float))

    def share(self, values: Floats) -> Estimate:
        """The mean of shares, 0 to 1. Where all are 0 or all 1, resampling cannot vary: the limit is then the exact
        binomial one (Clopper and Pearson), 7% for none of 50."""
        found = self.mean(values)
        if found.value not in (0.0, 1.0):
            return found
        far = 1 - ((1 - CONFIDENCE) / 2) ** (1 / int((~np.isnan(values)).sum()))
        return Estimate(0.0, 0.0, far) if found.value == 0.0 else Estimate(1.0, 1 - far, 1.0)

    def quotient(self, tops: Floats, bottoms: Floats, of: Callable[[Floats], Floats] | None = None) -> Estimate:
        """sum(tops) / sum(bottoms), then `of` it. Resamples whose bottoms sum to 0 have no value and are left out."""
        if self.picks is None or not bottoms.sum():
            return Estimate(None)
        transform = of or (lambda values: values)
        point = float(transform(np.array([tops.sum() / bottoms.sum()]))[0])
        sums, counts = tops[self.picks].sum(axis=1), bottoms[self.picks].sum(axis=1)
        drawn = transform(sums[counts > 0] / counts[counts > 0])
        low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        return Estimate(point, float(low), float(high))


def wilson(right: int, count: int) -> Estimate:
    """The share of `count` that is `right`, with Wilson's interval: it needs no resampling and holds near 0 and 1."""
    if not count:
        return Estimate(None)
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    share, weight = right / count, z * z / count
    middle = (share + weight / 2) / (1 + weight)
    reach = math.sqrt(weight * (share * (1 - share) + weight / 4)) / (1 + weight)
    return Estimate(share, max(0.0, middle - reach), min(1.0, middle + reach))


def pass_at(count: int, correct: int, k: int) -> float:
    """The chance that k of `count` samples, drawn without replacement, hold one of the `correct`. Needs k <= count."""
    if not 0 <= correct <= count or not 1 <= k <= count:
        raise ValueError(f"there is no pass@{k} of {correct} correct among {count}")
    return 1.0 - math.comb(count - correct, k) / math.comb(count, k)


def sign_test(better: int, worse: int) -> float:
    """Two-sided exact p-value of so uneven a split, or a more uneven one, of coin tosses; 1 where there are none."""
    total = better + worse
    ways = sum(math.comb(total, count) for count in range(min(better, worse) + 1))
    return min(1.0, 2 * ways / (1 << total))
