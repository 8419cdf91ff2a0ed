"""Blocks that wait for each other: cooperative launches, and barriers made of counters and flags."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest
from emulator_harness import CASES, Library, call_in_process, case, compile_cuda

ORDERS = (0, 1, 4)


@pytest.fixture(params=ORDERS)
def grid(request: pytest.FixtureRequest) -> Library:
    library = case("grid.cu")
    library.runtime.dice_set_order(request.param)
    request.addfinalizer(lambda: library.runtime.dice_set_order(0))
    return library


def softmax(grid: Library, synchronised: int) -> bool:
    """Whether it is right."""
    x, y = np.random.default_rng(0).random(2000, np.float32) * 9, np.zeros(2000, np.float32)
    assert grid.call("h_grid_softmax", x, y, np.full(24, np.nan, np.float32), 2000, 12, synchronised) == 0
    e = np.exp(x - x.max())
    return np.allclose(y, e / e.sum(), rtol=1e-5)


def test_phases_with_the_whole_grid_between_them(grid: Library) -> None:
    assert softmax(grid, 3)


@pytest.mark.parametrize("synchronised", [0, 1, 2])
def test_a_missing_barrier_of_the_grid_shows(grid: Library, synchronised: int) -> None:
    assert not softmax(grid, synchronised)


@pytest.mark.parametrize(
    ("entry", "blocks", "threads", "steps"),
    [
        ("h_rotates", 1, 7, 3),
        ("h_rotates", 6, 96, 5),
        ("h_rotates", 264, 64, 2),
        ("h_rotates", 3, 1024, 4),
        ("h_rotates_little", 4, 4, 3),
    ],
)
def test_what_threads_and_blocks_hold_outlives_the_barrier(
    grid: Library, entry: str, blocks: int, threads: int, steps: int
) -> None:
    n = blocks * threads
    start = np.arange(n, dtype=np.float32)
    x, y = start.copy(), np.zeros(n, np.float32)
    assert grid.call(entry, x, y, blocks, threads, steps) == 0
    last, held = (x, y) if steps % 2 == 0 else (y, x)
    np.testing.assert_array_equal(last, np.roll(start, -steps))
    np.testing.assert_array_equal(held, 1000 * start + 6 + sum(range(steps)))


def test_what_a_grid_says_of_itself() -> None:
    for cooperative in (1, 0):
        out = np.zeros((3, 8), np.int32)
        assert case("grid.cu").call("h_asks", out, cooperative) == 0
        assert out[:, :7].tolist() == [[cooperative, 15, 3, b, 3, 5 * b, 15] for b in range(3)]


def test_a_grid_that_is_too_large_for_the_device() -> None:
    library = case("grid.cu")
    capacity = library.call("h_capacity", 1024, 1024 * 4)
    assert capacity == 2 * 132
    library.launches()
    before = library.launches().get("rotates", 0)
    x = np.zeros(1, np.float32)
    assert library.call("h_rotates", x, x, capacity + 1, 1024, 1) == 720
    assert library.launches().get("rotates", 0) == before
    assert b"more blocks than the GPU can hold at once" in library.runtime.dice_last_launch_error()


@pytest.mark.parametrize("blocks", [1, 2, 40])
@pytest.mark.parametrize("polls", [0, 1, 2])
def test_barriers_of_the_kernels_own(grid: Library, blocks: int, polls: int) -> None:
    x = np.random.default_rng(0).integers(0, 9, blocks * 32).astype(np.float32)
    part, y = np.zeros(blocks, np.float32), np.zeros(blocks * 32, np.float32)
    grid.call("h_own_barriers", x, part, y, blocks, polls)
    assert set(y) == {x.sum()}
    assert not part.any()


def test_blocks_that_poll_a_counter(grid: Library) -> None:
    out = np.zeros(40, np.int32)
    grid.call("h_counts_up", out, 40, 0)
    assert set(out) == {40}


@pytest.mark.parametrize(("blocks", "ends"), [(132, True), (133, False)])
def test_blocks_that_the_gpu_does_not_hold_at_once_are_waited_for_in_vain(blocks: int, ends: bool) -> None:
    library = case("grid.cu")
    child = os.fork()
    if child == 0:
        library.call("h_counts_up", np.zeros(blocks, np.int32), blocks, 200 << 10)
        os._exit(0)
    time.sleep(0 if ends else 1)
    ended = os.waitpid(child, 0 if ends else os.WNOHANG)[0] == child
    if not ended:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ended == ends


@pytest.mark.parametrize(("order", "blocks"), [(0, 132 * 32 + 10), (1, 400), (4, 400)])  # the first: more than it holds
def test_blocks_that_wait_for_the_one_before(order: int, blocks: int) -> None:
    library = case("grid.cu")
    x = np.random.default_rng(0).integers(0, 9, blocks * 4).astype(np.int32)
    y, sums, ready = np.zeros(4 * blocks, np.int32), np.zeros(blocks, np.int32), np.zeros(blocks, np.int32)
    library.runtime.dice_set_order(order)
    library.call("h_chained_scan", x, y, sums, ready, blocks)
    library.runtime.dice_set_order(0)
    np.testing.assert_array_equal(y, np.cumsum(x))


@pytest.mark.parametrize(
    ("which", "kind", "words"),
    [
        (0, "deadlock", "1 of 2 blocks wait for the whole grid"),
        (1, "deadlock", "the first of their block has ended"),
        (2, "deadlock", "16 wait for the whole grid, and the others of the block never come"),
        (4, "trap", "in a launch that is not cooperative"),
    ],
)
def test_what_would_wait_for_ever(which: int, kind: str, words: str) -> None:
    death = call_in_process(compile_cuda((CASES / "grid.cu").read_text()), "h_dies", which)
    assert death.fault is not None and death.fault["fault"] == kind, death
    assert words in death.fault["message"]


def test_threads_that_have_ended_are_not_waited_for() -> None:
    assert call_in_process(compile_cuda((CASES / "grid.cu").read_text()), "h_dies", 3).stdout == "0\n"
