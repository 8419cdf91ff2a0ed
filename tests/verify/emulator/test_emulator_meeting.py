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
