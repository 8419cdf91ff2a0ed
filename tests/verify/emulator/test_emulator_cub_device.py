"""CUB over whole arrays."""

from __future__ import annotations

import re

import numpy as np
import pytest
from emulator_harness import CASES, CompileFailed, Library, call_in_process, case, compile_cuda

from dice.verify import emulator

pytestmark = pytest.mark.xdist_group("devicewide")  # one process builds what they share

N = 3000


@pytest.fixture
def cub() -> Library:
    return case("devicewide.cu")


def drawn(count: int = N, low: int = -500, high: int = 500) -> np.ndarray:
    return np.random.default_rng(3).integers(low, high, count).astype(np.int32)


def zeros(*shape: int, dtype: type = np.int32) -> np.ndarray:
    return np.zeros(shape, dtype)


def test_reductions(cub: Library) -> None:
    x, out = drawn(), zeros(8)
    assert cub.call("h_reductions", x, out, N) == 0
    product = 5
    for value in x % 1009:  # as C++ takes remainders, the sign may differ
        product = product * int(value) % 1009
    assert out[:7].tolist() == [x.sum(), x.min(), x.max(), x.min(), x.argmin(), x.max(), x.argmax()]
    assert out[7] % 1009 == product
    assert cub.launches()["DeviceReduceKernel"] >= 6


def test_places_and_values_as_pairs(cub: Library) -> None:
    x, out = drawn(), zeros(4)
    assert cub.call("h_pairs", x, out, N) == 0
    assert out.tolist() == [x.argmax(), x.max(), x.argmin(), x.min()]
    assert cub.call("h_pairs", x, out, 0) == 0
    assert out.tolist() == [1, -(2**31), 1, 2**31 - 1]


def test_what_is_computed_where_it_is_read(cub: Library) -> None:
    out = zeros(2, dtype=np.int64)
    assert cub.call("h_computed", out, 1000) == 0
    assert set(out) == {sum(i * i for i in range(1, 1001))}


def test_sums_of_many_numbers_lose_as_little_as_on_a_gpu(cub: Library) -> None:
    x = np.random.default_rng(0).random(1 << 20, np.float32)
    total, upto = zeros(1, dtype=np.float32), zeros(1 << 20, dtype=np.float32)
    assert cub.call("h_sum", x, total, len(x)) == 0
    assert total[0] == pytest.approx(x.astype(np.float64).sum(), rel=2e-7)
    assert cub.call("h_cumsum", x, upto, len(x)) == 0
    np.testing.assert_allclose(upto, x.astype(np.float64).cumsum(), rtol=3e-6)


def test_of_nothing_there_is_the_initial_value(cub: Library) -> None:
    out = zeros(8)
    assert cub.call("h_reductions", drawn(1), out, 0) == 0
    assert out.tolist() == [0, 2**31 - 1, -(2**31), 0, 0, 0, 0, 5]


def test_runs_of_keys(cub: Library) -> None:
    keys, x = np.repeat(drawn(40), 5), drawn(200)
    unique, out, lengths, number = zeros(200), zeros(200), zeros(200), zeros(2)
    assert cub.call("h_runs", keys, x, unique, out, lengths, number, 200) == 0
    starts = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
    count = len(starts)
    assert number.tolist() == [count, count]
    np.testing.assert_array_equal(unique[:count], keys[starts])
    np.testing.assert_array_equal(out[:count], np.maximum.reduceat(x, starts))
    np.testing.assert_array_equal(lengths[:count], np.diff(np.r_[starts, 200]))


@pytest.mark.parametrize("n", [0, 1, 33, N])
def test_scans(cub: Library, n: int) -> None:
    x = drawn(n)
    out = np.tile(x, (5, 1))
    assert cub.call("h_scans", x, out, n) == 0
    product, products = 7, []
    for value in x.tolist():
        products.append(product)
        product = int(np.fmod(product * value, 1009))
    upto = np.cumsum(x)
    for row, expected in zip(out, [upto, upto - x, np.maximum.accumulate(x) if n else x, products, upto], strict=True):
        np.testing.assert_array_equal(row, expected)


def test_scans_keep_the_order_of_what_they_join(cub: Library) -> None:
    x = np.arange(2 * N, dtype=np.int32).reshape(N, 2)
    out = zeros(N, 2)
    assert cub.call("h_order", x, out, N) == 0
    assert (out[:, 0] == 0).all() and (out[:, 1] == x[:, 1]).all()


def test_scans_of_each_key(cub: Library) -> None:
    keys, x, out = np.repeat(np.arange(10, dtype=np.int32), 7), drawn(70), zeros(2, 70)
    assert cub.call("h_by_key", keys, x, out, 70) == 0
    upto = x.reshape(10, 7).cumsum(1).ravel()
    np.testing.assert_array_equal(out, [upto, upto - x])


def test_sorts_numbers(cub: Library) -> None:
    x = np.random.default_rng(0).standard_normal(N).astype(np.float32)
    x[:4] = [np.inf, -np.inf, 0, -0.0]
    rising, falling = zeros(N, dtype=np.float32), zeros(N, dtype=np.float32)
    assert cub.call("h_sort", x, rising, falling, N) == 0
    np.testing.assert_array_equal(rising, np.sort(x))
    np.testing.assert_array_equal(falling, np.sort(x)[::-1])


@pytest.mark.parametrize(("begin", "end"), [(0, 32), (0, 4), (3, 9), (31, 32)])
def test_sorts_pairs_by_some_of_their_bits(cub: Library, begin: int, end: int) -> None:
    x, values = drawn(), np.arange(N, dtype=np.int32)
    keys, moved = zeros(2, N), zeros(2, N)
    assert cub.call("h_sort_pairs", x, keys, values, moved, N, begin, end) == 0
    digits = ((x.astype(np.int64) + (1 << 31)) >> begin) & ((1 << (end - begin)) - 1)
    np.testing.assert_array_equal(moved, [np.argsort(digits, kind="stable"), np.argsort(-digits, kind="stable")])
    np.testing.assert_array_equal(keys, x[moved])


def test_sorts_between_two_buffers(cub: Library) -> None:
    keys = np.random.default_rng(0).integers(0, 256, 2 * 500).astype(np.uint8)
    values = np.arange(1000, dtype=np.int16)
    start, sorted_keys, moved = keys[:500].copy(), zeros(500, dtype=np.uint8), zeros(500, dtype=np.int16)
    assert cub.call("h_double_buffer", keys, values, sorted_keys, moved, 500) == 0
    np.testing.assert_array_equal(moved, np.argsort(start, kind="stable"))
    np.testing.assert_array_equal(sorted_keys, np.sort(start))
    assert (keys[:500] == 255).all()  # where the keys were is anything now


def test_segments(cub: Library) -> None:
    offsets = np.array([0, 10, 10, 500, N], np.int32)
    x = np.random.default_rng(0).standard_normal(N).astype(np.float32)
    sums, most, rising, falling = (zeros(size, dtype=np.float32) for size in (4, 4, N, N))
    assert cub.call("h_segments", x, sums, most, rising, falling, offsets, N, 4) == 0
    parts = np.split(x, offsets[1:-1])
    np.testing.assert_allclose(sums, [part.sum() for part in parts], rtol=1e-4)
    assert most.tolist() == [part.max() if len(part) else np.finfo(np.float32).min for part in parts]
    np.testing.assert_array_equal(rising, np.concatenate([np.sort(part) for part in parts]))
    np.testing.assert_array_equal(falling, np.concatenate([np.sort(part)[::-1] for part in parts]))


def test_selections(cub: Library) -> None:
    x = np.repeat(drawn(100, 0, 9), 3)
    flags = (x > 4).astype(np.int8)
    odd, flagged, unique, parted, numbers = zeros(300), zeros(300), zeros(300), zeros(300), zeros(4)
    assert cub.call("h_select", x, flags, odd, flagged, unique, parted, numbers, 300) == 0
    firsts = x[np.r_[True, x[1:] != x[:-1]]]
    assert numbers.tolist() == [(x % 2).sum(), (x > 4).sum(), len(firsts), (x % 2).sum()]
    np.testing.assert_array_equal(odd[: numbers[0]], x[x % 2 == 1])
    np.testing.assert_array_equal(flagged[: numbers[1]], x[x > 4])
    np.testing.assert_array_equal(unique[: numbers[2]], firsts)
    np.testing.assert_array_equal(parted, np.concatenate([x[x % 2 == 1], x[x % 2 == 0][::-1]]))


def test_half_precision(cub: Library) -> None:
    x = (-1 - np.random.default_rng(0).random(N)).astype(np.float16)
    out, rising = zeros(2, dtype=np.float16), zeros(N, dtype=np.float16)
    assert cub.call("h_halves", x, out, rising, N) == 0
    assert out.tolist() == [x.max(), x.min()]
    np.testing.assert_array_equal(rising, np.sort(x))


def test_histograms(cub: Library) -> None:
    x, counts = np.random.default_rng(0).uniform(-2, 5, N).astype(np.float32), zeros(5)
    assert cub.call("h_histogram", x, counts, N) == 0
    np.testing.assert_array_equal(counts, np.histogram(x, 5, (-1, 4))[0])


def test_sorts_by_an_order_of_ones_own(cub: Library) -> None:
    x = drawn(500, 0, 1000)
    keys = x.copy()
    assert cub.call("h_merge_sort", keys, 500) == 0
    np.testing.assert_array_equal(keys, x[np.argsort(x % 10, kind="stable")])


def test_too_little_storage_is_an_error(cub: Library) -> None:
    out = zeros(1)
    assert cub.call("h_too_little_storage", drawn(), out, N) == 1
    assert out[0] == 0


def test_the_work_is_done_in_the_order_of_its_stream(cub: Library) -> None:
    x, out = zeros(100, dtype=np.float32), np.full(1, -1, np.float32)
    assert cub.call("h_stream", x, out, 100) == -1
    assert out[0] == 100


@pytest.mark.parametrize(
    ("which", "kind", "words"),
    [
        (0, "illegal_address", "DeviceReduceKernel is given an argument, a pointer to a local variable of the host"),
        (1, "illegal_address", "a pointer to a local variable of the host"),
        (2, "illegal_address", "a pointer to a local variable of the host"),
        (3, "out_of_bounds", "kernel DeviceReduceKernel.* past the end of a tensor"),
        (4, "out_of_bounds", "kernel DeviceReduceKernel.* read just past the end of a tensor of 16 bytes"),
    ],
)  # fmt: skip
def test_memory_that_no_kernel_may_touch(which: int, kind: str, words: str) -> None:
    death = call_in_process(compile_cuda((CASES / "devicewide.cu").read_text()), "h_wrong_memory", which, guarded=True)
    assert death.fault is not None and death.fault["fault"] == kind, death
    assert re.search(words, death.fault["message"]), death


@pytest.mark.parametrize("form", ["DeviceReduce::Sum(x, 1)", "DeviceScan::SumOfAll(x, x)", "storage()"])
def test_forms_that_are_not_there_are_unsupported(form: str) -> None:
    source = f"#include <cub/cub.cuh>\nvoid f(float* x) {{ cub::{form}; }}"
    assert emulator.find_unsupported(source) is None
    with pytest.raises(CompileFailed) as failure:
        compile_cuda(source)
    said = emulator.explain_failure(str(failure.value)) or ""
    assert re.search("uses (a form of )?`cub::(Device|storage)", said), failure.value
