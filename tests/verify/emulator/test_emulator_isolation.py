"""What threads see of each other's shared memory before they have synchronised: nothing, in the second order."""

from __future__ import annotations

import numpy as np
import pytest
from emulator_harness import case

ISOLATED = 1
WRONG = [
    "sum_without_atomics",
    "warps_without_atomics",
    "chain_without_barriers",
    "chain_without_syncwarp",
    "sum_by_the_last_unfenced",
]
RIGHT = [
    "sum_with_atomics",
    "sum_under_a_lock",
    "sum_by_flags",
    "sum_by_the_last",
    "sum_of_places_taken",
    "sum_in_tiles",
    "sum_of_bytes",
    "sum_in_much_memory",
]


WRONG_TOTALS = ["blocks_without_atomics", "threads_without_atomics", "histogram_without_atomics"]
RIGHT_TOTALS = ["blocks_with_atomics", "last_block", "blocks_under_a_lock", "own_elements"]
RIGHT_TOTALS += ["histogram_with_atomics", "histogram_under_a_lock", "same_value_by_all", "chain_of_blocks"]


def sums(entry: str, order: int, blocks: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """What the kernel says, and what is right."""
    library = case("isolated.cu")
    x = np.random.default_rng(0).integers(0, 2, (blocks, 256)).astype(np.float32)
    out = np.full(blocks, -1, np.float32)
    library.runtime.dice_set_order(order)
    library.call(f"h_{entry}", x, out, blocks)
    library.runtime.dice_set_order(0)
    return out, x.sum(1)


@pytest.mark.parametrize("entry", WRONG)
def test_missing_synchronisation_shows_as_a_wrong_result(entry: str) -> None:
    out, right = sums(entry, ISOLATED)
    assert (out != right).all()


@pytest.mark.parametrize("entry", ["sum_without_atomics", "warps_without_atomics"])
@pytest.mark.parametrize("order", [0, 2, 7])
def test_no_order_of_whole_threads_shows_it(entry: str, order: int) -> None:
    out, right = sums(entry, order)
    np.testing.assert_array_equal(out, right)


@pytest.mark.parametrize("entry", WRONG_TOTALS)
def test_blocks_that_add_to_a_number_without_atomics_lose_some(entry: str) -> None:
    out, right = sums(entry, ISOLATED)
    assert out[0] < right.sum()


@pytest.mark.parametrize("entry", RIGHT_TOTALS)
@pytest.mark.parametrize("order", [0, ISOLATED, 5])
@pytest.mark.parametrize("blocks", [1, 4, 12])
def test_blocks_that_synchronise_see_each_other(entry: str, order: int, blocks: int) -> None:
    out, right = sums(entry, order, blocks)
    assert out[0] == right.sum()


@pytest.mark.parametrize("entry", RIGHT)
@pytest.mark.parametrize("order", [0, ISOLATED, 5])
def test_threads_that_synchronise_see_each_other(entry: str, order: int) -> None:
    out, right = sums(entry, order)
    np.testing.assert_array_equal(out, right)


def test_what_is_isolated_does_not_grow_without_end() -> None:
    """Blocks beyond the credit see everything at once, and are as right."""
    out, right = sums("sum_in_much_memory", ISOLATED, blocks=300)
    np.testing.assert_array_equal(out, right)
