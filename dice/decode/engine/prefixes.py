"""Texts that begin alike, as the samples of one prompt do: their common pages are read once for several of them.

The table of one row that tells the device (`Slots.prefixes`): for each slot how many positions it reads in common, then
for each group how many those are, and its slots, -1 where there are fewer than `TEXTS`. Texts that share less than
`LEAST` positions, and steps of less than `STEP_TEXTS` texts, gain nothing by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

TEXTS = 8  # most texts of a group
LEAST = 256
STEP_TEXTS = 32


def table_size(slots: int) -> int:
    return slots + most_groups(slots) * (1 + TEXTS)


def most_groups(slots: int) -> int:
    return slots // 2


def prefix_table(pages: Iterable[tuple[int, list[int]]], slots: int, page_size: int) -> list[int]:
    """The table for texts that have these (slot, pages)."""
    shared = [0] * slots
    lines = []
    for count, members in _groups(sorted(pages, key=lambda one: one[1]), -(-LEAST // page_size)):
        for slot in members:
            shared[slot] = count * page_size
        lines += [count * page_size, *members, *[-1] * (TEXTS - len(members))]
    return shared + lines + [0] * (table_size(slots) - slots - len(lines))


def _groups(ordered: Sequence[tuple[int, list[int]]], least: int) -> Iterable[tuple[int, list[int]]]:
    """(common pages, slots) of neighbours that have `least` pages in common: as many as the first two have."""
    start = 0
    while start < len(ordered) - 1:
        first = ordered[start][1]
        common = _common(first, ordered[start + 1][1])
        end = start + 1
        if common >= least:
            while end < min(start + TEXTS, len(ordered)) and ordered[end][1][:common] == first[:common]:
                end += 1
            yield common, [slot for slot, _ in ordered[start:end]]
        start = end


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    return next(
        (index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
