"""How a product is dealt out over the blocks of a GPU: the tile of each, and in how many parts its sums are made.

The times are a model's, in cycles of one multiprocessor, and only compared with each other. A tile's are measured on
an H200, or follow from what was measured by the instructions of its loop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

DEPTH = 16  # of a tile
MULTIPROCESSORS = 132
LEAST_PART = 256  # terms of a sum that is made in parts
MOST_PARTS = 128
LAUNCH = 6000  # of another kernel, which adds the parts
BYTES = 1500  # of memory that the whole GPU reads or writes in a cycle


@dataclass(frozen=True, slots=True)
class Tile:
    """`warps`: how many of a block's eight share its rows; the others share its columns. `blocks` of them fit on a
    multiprocessor. `step`: cycles for a depth of 16, `alone` where one block has a multiprocessor; `start`: until the
    first factors are there, and for storing the results."""

    rows: int
    columns: int
    warps: int
    blocks: int
    step: int
    alone: int
    start: int

    def time(self, tiles: int, steps: int) -> int:
        """For as many tiles, each so many times as deep as one of the kernel's."""
        most = math.ceil(tiles / MULTIPROCESSORS)  # on one multiprocessor
        step = self.alone if most == 1 else self.step
        return most * steps * step + math.ceil(most / self.blocks) * self.start


TILES = (
    Tile(128, 128, 2, 1, 2200, 2200, 4000),
    Tile(96, 128, 2, 1, 1750, 1750, 3500),
    Tile(128, 64, 4, 2, 1200, 1500, 3500),
    Tile(64, 64, 4, 3, 700, 1000, 3000),
)


@dataclass(frozen=True, slots=True)
class Division:
    tile: Tile
    parts: int

    def steps(self, k: int) -> int:
        """How often a block takes a tile of both factors."""
        return math.ceil(math.ceil(k / DEPTH) / self.parts)


def division(extents: tuple[int, int, int, int]) -> Division:
    """The quickest for a product of z, m, n, k."""
    z, m, n, k = extents

    def time(one: Division) -> float:
        tiles = z * one.parts * math.ceil(m / one.tile.rows) * math.ceil(n / one.tile.columns)
        added = LAUNCH + one.parts * z * m * n * 8 / BYTES if one.parts > 1 else 0
        return one.tile.time(tiles, one.steps(k)) + added

    return min((Division(tile, parts) for tile in TILES for parts in _parts(k)), key=time)


def _parts(k: int) -> Sequence[int]:
    """In how many parts the sums may be made, none of them empty."""
    steps = math.ceil(k / DEPTH)
    most = max(1, min(MOST_PARTS, k // LEAST_PART))
    return [parts for parts in range(1, most + 1) if (parts - 1) * math.ceil(steps / parts) < steps]
