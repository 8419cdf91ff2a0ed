"""Sets that are nearly equal, found among many without comparing every two, and without missing any.

Two sets whose Jaccard similarity is at least t share an element among the first `n - ceil(t n) + 1` of each, when the
elements of both stand in one order. So only the sets that share such an early element are compared, and with rare
elements first those are few. Unlike MinHash, which finds a near pair with a high probability, this finds every one.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

Shingle = tuple[str, ...]
Shingles = frozenset[Shingle]


@dataclass(frozen=True, slots=True)
class Near:
    """A set that was added, by its number, and how similar it is."""

    number: int
    similarity: float


class Neighbours:
    """Sets to look for near ones among. `expected`: sets like those to come, to learn which elements are rare.

    The results do not depend on `expected`; only the time does. Raises `ValueError` unless 0 < threshold <= 1.
    """

    def __init__(self, threshold: float, expected: Iterable[Shingles] = ()) -> None:
        if not 0 < threshold <= 1:
            raise ValueError(f"a similarity is above 0 and at most 1, not {threshold}")
        self.threshold = threshold
        self._frequency = Counter(shingle for shingles in expected for shingle in shingles)
        self._sets: list[Shingles] = []
        self._by_early: dict[Shingle, list[int]] = defaultdict(list)

    def __len__(self) -> int:
        return len(self._sets)

    def add(self, shingles: Shingles) -> int:
        """Remember a set and return its number: 0 for the first."""
        number = len(self._sets)
        self._sets.append(shingles)
        for shingle in self._early(shingles):
            self._by_early[shingle].append(number)
        return number

    def find(self, shingles: Shingles) -> list[Near]:
        """Every added set at least `threshold` similar, the most similar first, then the earliest."""
        near = [Near(number, jaccard(shingles, self._sets[number])) for number in self.candidates(shingles)]
        return sorted(
            (one for one in near if one.similarity >= self.threshold), key=lambda one: (-one.similarity, one.number)
        )

    def candidates(self, shingles: Shingles) -> set[int]:
        """Numbers of the sets that may be as similar: no other is."""
        least, most = self.threshold * len(shingles) - 1e-9, len(shingles) / self.threshold + 1e-9
        shared = {number for shingle in self._early(shingles) for number in self._by_early.get(shingle, ())}
        return {number for number in shared if least <= len(self._sets[number]) <= most}

    def _early(self, shingles: Shingles) -> list[Shingle]:
        ordered = sorted(shingles, key=lambda shingle: (self._frequency[shingle], shingle))
        return ordered[: len(ordered) - math.ceil(self.threshold * len(ordered) - 1e-9) + 1]


def jaccard(one: Shingles, other: Shingles) -> float:
    """Shared elements over all elements; 1 for two empty sets."""
    common = len(one & other)
    union = len(one) + len(other) - common
    return common / union if union else 1.0
