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
    "sum_with_references_of_the_block",
    "sum_under_a_lock",
    "sum_by_flags",
    "sum_by_the_last",
    "sum_of_places_taken",
    "sum_in_tiles",
    "sum_of_bytes",
    "sum_in_much_memory",
]


WRONG_TOTALS = ["blocks_without_atomics", "threads_without_atomics", "histogram_without_atomics"]
WRONG_TOTALS += ["last_block_without_a_fence", "variable_without_atomics", "read_only_loads"]
FENCES = ["", "_in_ptx", "_by_scope"]
WRONG_TOTALS += [f"last_block_fenced_for_itself{how}" for how in FENCES]
WRONG_TOTALS += ["blocks_with_references_of_their_own"]
RIGHT_TOTALS = ["blocks_with_atomics", "last_block", "blocks_under_a_lock", "own_elements"]
RIGHT_TOTALS += ["histogram_with_atomics", "histogram_under_a_lock", "same_value_by_all", "chain_of_blocks"]
RIGHT_TOTALS += ["variable_with_atomics", "blocks_with_references"]
RIGHT_TOTALS += [f"last_block_fenced{how}" for how in FENCES]


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
    assert not out[0] >= right.sum()


def partners(grid: tuple[int, int, int], distance: int, atomically: bool) -> np.ndarray:
    """How many blocks say that they were there, of those that are `distance` apart, and how many there were."""
    library, out = case("isolated.cu"), np.zeros(distance, np.float32)
    library.runtime.dice_set_order(ISOLATED)
    library.call("h_partners", out, *grid, distance, int(atomically))
    library.runtime.dice_set_order(0)
    return out


SMALL_GRIDS = [(65, 1, 1), (70, 1, 1), (400, 1, 1), (6, 50, 1), (80, 5, 1), (10, 7, 5), (1056, 1, 1)]
LARGE_GRIDS = [(5000, 1, 1), (6, 500, 1), (40, 60, 1), (80, 40, 1), (8, 8, 40), (64, 9, 2), (64, 9, 6)]


@pytest.mark.parametrize("grid", SMALL_GRIDS)
def test_blocks_at_any_distance_are_isolated_in_small_grids(grid: tuple[int, int, int]) -> None:
    blocks = int(np.prod(grid))
    step = 1 if blocks < 100 else 7
    distances = [*range(1, blocks, step), blocks - 1]
    assert not [far for far in distances if partners(grid, far, atomically=False).sum() == blocks]


@pytest.mark.parametrize("grid", LARGE_GRIDS)
def test_neighbours_in_each_direction_and_partners_of_halves_are_isolated(grid: tuple[int, int, int]) -> None:
    blocks = int(np.prod(grid))
    distances = [1, 2, 31, grid[0], grid[0] * grid[1], *([blocks // 2] if grid[2] == 1 else [])]
    assert not [far for far in distances if far < blocks and partners(grid, far, atomically=False).sum() == blocks]


GRIDS = [*SMALL_GRIDS, *LARGE_GRIDS, (1, 1, 1), (64, 1, 1), (128, 40, 2)]


@pytest.mark.parametrize("grid", GRIDS)
def test_all_blocks_run_once_in_each_order(grid: tuple[int, int, int]) -> None:
    assert (partners(grid, int(np.prod(grid)), atomically=False) == 1).all()
    assert partners(grid, 3, atomically=True).sum() == np.prod(grid)


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
