"""Launches, indices, shared memory, barriers and warps: emulated kernels against numpy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from emulator_harness import Library, case


@pytest.fixture(params=[0, 1, 7], ids=["forward", "reverse", "shuffled"])
def any_order(request: pytest.FixtureRequest) -> Iterator[int]:
    runtime = case("indexing.cu").runtime
    runtime.dice_set_order(request.param)
    yield request.param
    runtime.dice_set_order(0)


@pytest.fixture
def indexing() -> Library:
    return case("indexing.cu")


@pytest.fixture
def shared() -> Library:
    return case("shared.cu")


@pytest.fixture
def warp() -> Library:
    return case("warp.cu")


def ints(n: int) -> np.ndarray:
    return np.full(n, -1, np.int32)


def floats(n: int) -> np.ndarray:
    return np.arange(n, dtype=np.float32)


# ---- launches ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", ["h_where", "h_braces"])
def test_every_thread_of_a_3d_grid_runs_once_with_its_indices(indexing: Library, any_order: int, entry: str) -> None:
    out = ints(12 * 24)
    indexing.call(entry, out)
    blocks, threads = np.divmod(np.arange(12 * 24), 24)
    assert (out == blocks * 1000 + threads + 32_000_000).all()


def test_each_thread_owns_its_parameters(indexing: Library, any_order: int) -> None:
    x = floats(5 * 300)
    y = np.zeros_like(x)
    indexing.call("h_parameters", x, y, 5, 300)
    np.testing.assert_array_equal(y, x + 299)


@pytest.mark.parametrize(("entry", "value"), [("h_fill", 2.5), ("h_deduced", 4.5), ("h_launch_api", 6.0)])
def test_namespaces_deduction_and_the_launch_api(indexing: Library, entry: str, value: float) -> None:
    y = np.zeros(30, np.float32)
    indexing.call(entry, y, 29)
    assert (y[:29] == value).all()
    assert y[29] == 0


def test_structs_constants_device_functions_and_globals(indexing: Library) -> None:
    y = np.zeros(8, np.float32)
    before = indexing.call("h_mixed", y)
    assert indexing.call("h_mixed", y) == before + 7
    np.testing.assert_array_equal(y, [131, 132, 133, 134] * 2)


def test_template_launches_inside_dispatch_lambdas(indexing: Library) -> None:
    y = np.zeros(101, np.float32)
    indexing.call("h_templated", y, 100)
    assert (y[:100] == 96).all()
    assert y[100] == 0


def test_overloads_functors_packs_and_macros(indexing: Library) -> None:
    f, i = np.zeros(4, np.float32), np.zeros(4, np.int32)
    indexing.call("h_overloaded", f, i)
    assert (f == 1).all()
    assert (i == 2).all()
    y = floats(8)
    indexing.call("h_functor", y, 8)
    np.testing.assert_array_equal(y, 3 * floats(8))
    indexing.call("h_pack", y)
    assert (y[:2] == 6.5).all()
    y = floats(4)
    indexing.call("h_macros", y, 4)
    np.testing.assert_array_equal(y, [5, 1, 4, 9])


def test_kernels_through_pointers_and_launches_inside_arguments(indexing: Library) -> None:
    y = floats(4)
    indexing.call("h_pointer", y, 0)
    np.testing.assert_array_equal(y, floats(4) ** 2)
    indexing.call("h_nested_argument", y)
    np.testing.assert_array_equal(y, [-1, -1, -1, -1])


def test_launches_are_counted_by_the_name_of_the_definition(indexing: Library) -> None:
    indexing.runtime.dice_launches_reset()
    y = floats(100)
    indexing.call("h_templated", y, 100)
    indexing.call("h_pointer", y, 1)
    assert indexing.launches() == {"templated": 2, "square_kernel": 2}


# ---- shared memory -----------------------------------------------------------------------------------------------


def test_static_declarations(shared: Library, any_order: int) -> None:
    x, y = floats(32) + 1, np.zeros(32, np.float32)
    shared.call("h_reverse", x, y)
    np.testing.assert_array_equal(y, 3 * x[::-1] + 1 + x)


def test_structs_unions_pointers_and_volatile(shared: Library, any_order: int) -> None:
    x = np.random.default_rng(0).permutation(64).astype(np.float32)
    out = ints(4)
    shared.call("h_structs", x, out)
    assert out[0] == x.argmax()
    assert out[1] == 5 + 0x3F800000 + 3
    assert out[2] == x[63]


def test_a_device_function_shares_memory_between_its_calls(shared: Library, any_order: int) -> None:
    x = np.random.default_rng(1).standard_normal((50, 333), np.float32)
    y = np.zeros(50, np.float32)
    shared.call("h_sum_rows", x, y, 50, 333)
    np.testing.assert_allclose(y, x.mean(1), atol=1e-5)


def test_dynamic_shared_memory(shared: Library, any_order: int) -> None:
    x, y = np.arange(77.0), np.zeros(77)
    shared.call("h_dynamic", x, y, 77)
    np.testing.assert_array_equal(y, x[::-1])
    a, b = floats(32), np.zeros(32, np.float32)
    shared.call("h_dynamic_rows", a, b)
    np.testing.assert_array_equal(b, a.reshape(4, 8).T.ravel())
    a, b = floats(64), np.zeros(64, np.float32)
    shared.call("h_dynamic_at_namespace", a, b, 64)
    np.testing.assert_array_equal(b, 2 * a[::-1] + 3)


def test_more_than_48_kb_must_be_asked_for(shared: Library) -> None:
    y = np.zeros(1, np.float32)
    shared.runtime.dice_launches_reset()
    assert shared.call("h_big_dynamic", y, 100, 0) == 1  # cudaErrorInvalidValue
    assert y[0] == 0
    assert shared.launches() == {}
    assert "48 KB" in shared.runtime.dice_last_launch_error().decode()
    assert shared.call("h_big_dynamic", y, 228, 1) == 1001
    assert shared.call("h_big_dynamic", y, 227, 1) == 0
    assert y[0] == 9
    assert shared.launches() == {"big_dynamic": 1}


@pytest.mark.parametrize("waits", [False, True])
def test_a_warp_that_goes_on_overwrites_what_others_have_to_read(shared: Library, waits: bool) -> None:
    x, y = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    shared.call("h_sums_twice", x, y, waits)
    assert (y == x.sum() + 1000 * (x.sum() + 128)).all() == waits


def test_a_warp_that_waits_for_another_lets_it_go_on(shared: Library) -> None:
    y = np.zeros(64, np.float32)
    shared.call("h_waits_by_meeting", y)
    assert (y == 1).all()


def test_a_macro_pastes_the_name_of_what_it_launches(indexing: Library) -> None:
    y = floats(4)
    before = y.copy()
    indexing.call("h_op_halve", y)
    np.testing.assert_array_equal(y, before / 2)


def test_a_block_has_no_more_threads_than_its_kernel_is_bound_to(shared: Library) -> None:
    y = np.zeros(96, np.float32)
    assert shared.call("h_bounded", y, 96) == 1 and not y.any()
    assert "__launch_bounds__" in shared.runtime.dice_last_launch_error().decode()
    assert shared.call("h_bounded", y, 64) == 0 and y.sum() == 64
    assert shared.call("h_bounds") == 64


def test_shared_memory_starts_as_nan(shared: Library) -> None:
    y = np.zeros(2, np.float32)
    shared.call("h_unwritten", y)
    assert np.isnan(y).all()


def test_every_block_starts_with_poison_again(shared: Library) -> None:
    y = np.zeros((200, 4), np.float32)
    shared.call("h_every_other_block", y, 200)
    assert (y[::2] == 1).all()
    assert np.isnan(y[1::2]).all()


# ---- order -------------------------------------------------------------------------------------------------------


def order_of_threads(indexing: Library, mode: int) -> list[int]:
    turn, out = np.zeros(1, np.int32), ints(60)
    indexing.runtime.dice_set_order(mode)
    indexing.call("h_arrivals", turn, out, 60)
    indexing.runtime.dice_set_order(0)
    return [int(value) for value in out]


def test_threads_start_in_the_chosen_order(indexing: Library) -> None:
    forward = list(range(60))
    assert order_of_threads(indexing, 0) == forward
    assert order_of_threads(indexing, 1) == forward[::-1]
    shuffles = [order_of_threads(indexing, mode) for mode in range(2, 12)]
    assert all(sorted(shuffle) == forward for shuffle in shuffles)
    assert len({tuple(shuffle) for shuffle in shuffles}) > 5


# ---- barriers and warps ------------------------------------------------------------------------------------------


def test_shuffles(warp: Library, any_order: int) -> None:
    out = ints(13 * 32).reshape(13, 32)
    warp.call("h_shuffles", out)
    t = np.arange(32)
    expected = [
        np.full(32, 5),
        np.where(t < 3, t, t - 3),
        np.where(t > 28, t, t + 3),
        t ^ 9,
        t // 8 * 8 + 1,
        np.where(t % 8 < 2, t, t - 2),
        np.where(t % 8 > 5, t, t + 2),
        np.where(t < 16, t, t - 16),
        np.full(32, 31),
        t ^ 1,
        np.where(t == 31, 63, 2 * t + 3),
        t ^ 2,
        np.full(32, 31),
    ]
    for row, (got, want) in enumerate(zip(out, expected, strict=True)):
        np.testing.assert_array_equal(got, want, err_msg=f"row {row}")


def test_votes_matches_and_reductions(warp: Library, any_order: int) -> None:
    out = np.zeros((8, 32), np.uint32)
    warp.call("h_votes", out)
    t = np.arange(32)
    assert (out[0] == 0xAAAAAAAA).all()
    assert (out[1] == 2).all()
    np.testing.assert_array_equal(out[2], np.uint32(0xFF) << (t // 8 * 8))
    assert (out[3] == 0).all()  # all 32 bits plus the predicate wrap around
    assert (out[4] == 496).all()
    assert (out[5] == 0xFFFFFFFB).all()
    assert (out[6] == 0).all()
    assert (out[7] == 32).all()


def test_lanes_meet_by_mask_not_by_place(warp: Library, any_order: int) -> None:
    out = ints(32)
    warp.call("h_masks", out)
    assert (out[:16] == 240).all()
    assert (out[16:] == 160).all()


def test_a_partial_warp_does_not_wait_for_lanes_that_do_not_exist(warp: Library, any_order: int) -> None:
    out = ints(40)
    warp.call("h_partial_warp", out)
    assert out[0] == 32
    assert out[32] == 8


def test_exited_threads_do_not_take_part(warp: Library, any_order: int) -> None:
    out = ints(128)
    warp.call("h_exited", out)
    assert (out[:48] == 24110).all()
    assert (out[64:96] == -1).all()
    assert (out[96:112] == 0xFFFF).all()


def test_a_spinning_thread_lets_the_others_run(warp: Library, any_order: int) -> None:
    flag, out = np.zeros(1, np.int32), ints(1)
    warp.call("h_spin", flag, out)
    assert out[0] == 11


def test_block_scan(warp: Library, any_order: int) -> None:
    x = np.random.default_rng(2).integers(0, 9, (40, 256)).astype(np.float32)
    y = np.zeros_like(x)
    warp.call("h_scan", x, y, 40)
    np.testing.assert_array_equal(y, x.cumsum(1))


def test_a_missing_barrier_shows_as_a_wrong_result(warp: Library, any_order: int) -> None:
    x, y = np.arange(128, dtype=np.int32), ints(128)
    warp.call("h_missing_barrier", x, y)
    assert not (y == x[::-1]).all()
