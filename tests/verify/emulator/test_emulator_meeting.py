"""Variables that each thread takes for its own, atomics for one block, and barriers for some of its warps."""

from __future__ import annotations

import numpy as np
import pytest
from emulator_harness import case

ISOLATED, LOCKSTEP = 1, 2  # orders: threads do not see each other; after a store to a shared variable others store, too
OWN = ["own_variable", "own_element", "own_member"]
RIGHT = ["shared_in_turns", "own_elements", "threads_by_atomics_of_a_block", "makers_and_takers"]


def sums(entry: str, order: int, blocks: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """What the kernel says, and what is right."""
    library = case("meeting.cu")
    x = np.random.default_rng(0).integers(1, 9, (blocks, 256)).astype(np.float32)
    out = np.zeros(blocks, np.float32)
    library.runtime.dice_set_order(order)
    library.call(f"h_{entry}", x, out, blocks)
    library.runtime.dice_set_order(0)
    return out, x.sum(1)


@pytest.mark.parametrize("entry", OWN)
@pytest.mark.parametrize("order", [LOCKSTEP, 8])
def test_a_shared_variable_is_nobodys_own(entry: str, order: int) -> None:
    out, right = sums(entry, order)
    assert (out != right).all()


@pytest.mark.parametrize("entry", OWN)
@pytest.mark.parametrize("order", [0, ISOLATED, 5])
def test_no_order_without_steps_shows_it(entry: str, order: int) -> None:
    out, right = sums(entry, order)
    np.testing.assert_array_equal(out, right)


def test_steps_are_kept_as_long_as_the_credit_lasts() -> None:
    out, right = sums("own_elements", LOCKSTEP, blocks=300)
    np.testing.assert_array_equal(out, right)


def test_an_atomic_for_one_block_is_none_between_blocks() -> None:
    out, right = sums("blocks_by_atomics_of_a_block", ISOLATED)
    assert out[0] < right.sum()


@pytest.mark.parametrize("order", [0, ISOLATED])
def test_a_barrier_waits_for_as_many_threads_as_it_names(order: int) -> None:
    out, right = sums("barrier_of_one_warp", order)
    assert (out != right).all()


@pytest.mark.parametrize("entry", RIGHT)
@pytest.mark.parametrize("order", [0, ISOLATED, LOCKSTEP, 5])
def test_who_meets_as_it_should_is_right(entry: str, order: int) -> None:
    out, right = sums(entry, order)
    np.testing.assert_array_equal(out, right)


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("waits", [False, True])
def test_threads_wait_at_a_barrier_of_libcudacxx(waits: bool, order: int) -> None:
    library = case("meeting.cu")
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    library.runtime.dice_set_order(order)
    library.call("h_turned_round", x, y, int(waits))
    library.runtime.dice_set_order(0)
    assert (y == x[::-1] + 2).all() == waits


def test_groups_are_those_of_a_value() -> None:
    label = np.random.default_rng(0).integers(0, 4, 32).astype(np.int32)
    sums, less = np.zeros(32, np.int32), np.zeros(32, np.int32)
    case("meeting.cu").call("h_grouped", label, sums, less)
    lanes = np.arange(32)
    np.testing.assert_array_equal(sums, [lanes[label == own].sum() for own in label])
    halves = [lanes[(label < 2) == (own < 2)] for own in label]
    np.testing.assert_array_equal(less, [half[0] + 100 * len(half) for half in halves])


def test_parts_of_the_standard_library_are_there_for_the_device() -> None:
    x, y = np.random.default_rng(1).random(40).astype(np.float32), np.zeros(3, np.float32)
    case("meeting.cu").call("h_three_largest", x, y, 40)
    np.testing.assert_array_equal(y, np.sort(x)[:-4:-1])
