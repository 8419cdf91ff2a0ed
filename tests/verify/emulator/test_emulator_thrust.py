"""Thrust's algorithms, where they run, and its vectors."""

from __future__ import annotations

import re

import numpy as np
import pytest
from emulator_harness import CASES, EXTENDED_LAMBDA, CompileFailed, Library, call_in_process, case, compile_cuda

from dice.verify import emulator

pytestmark = pytest.mark.xdist_group("thrust")  # one process builds what they share

N = 500


@pytest.fixture
def thrust() -> Library:
    return case("thrust.cu", EXTENDED_LAMBDA)


def drawn(low: int = -200, high: int = 200, count: int = N) -> np.ndarray:
    return np.random.default_rng(3).integers(low, high, count).astype(np.int32)


def test_reductions_and_searches(thrust: Library) -> None:
    x, out = drawn(), np.zeros(13, np.int64)
    x[17] = 3
    assert thrust.call("h_reductions", x, out, N) == 0
    expected = [
        x.sum(),
        x.max(),
        (x * x).sum(),
        x.argmax(),
        x.argmin(),
        (x > 100).sum(),
        (x == 3).sum(),
        10 + (x * x).sum(),
    ]
    expected += [np.flatnonzero(x == 3)[0], 1, x.max(), 25, 24]
    assert out.tolist() == expected


def test_sorts(thrust: Library) -> None:
    keys, values = drawn(), np.arange(N, dtype=np.int32)
    order, falling = np.argsort(keys, kind="stable"), drawn()
    expected = np.sort(keys)
    assert thrust.call("h_orders", keys, values, falling, N) == 0
    np.testing.assert_array_equal(keys, expected)
    np.testing.assert_array_equal(values, order)
    np.testing.assert_array_equal(falling, expected[::-1])


def test_mappings_and_scans(thrust: Library) -> None:
    x, out = drawn(), np.zeros((9, N), np.int32)
    assert thrust.call("h_mappings", x, out, N) == 0
    upto = np.cumsum(x)
    nines = np.full(N, 9)
    expected = [x * x, 4 * x, upto, 5 + upto - x, 10 + 2 * np.arange(N), nines, x[::-1], x + nines, x[::-1]]
    np.testing.assert_array_equal(out, expected)


def test_selections(thrust: Library) -> None:
    x, out, numbers = np.repeat(drawn(count=100), 5), np.zeros((4, N), np.int32), np.zeros(4, np.int32)
    assert thrust.call("h_selections", x, out, numbers, N) == 0
    starts = np.flatnonzero(np.r_[True, x[1:] != x[:-1]])
    expected = [x[x > 0], x[starts], x[x <= 0], np.diff(np.r_[starts, N])]
    assert numbers.tolist() == [len(part) for part in expected]
    for row, part in zip(out, expected, strict=True):
        np.testing.assert_array_equal(row[: len(part)], part)


def test_vectors_on_both_sides(thrust: Library) -> None:
    x, out = drawn(), np.zeros(N + 3, np.int32)
    said = thrust.call("h_vectors", x, out, N)
    y = x.copy()
    y[1] = 77
    tripled = np.sort(np.r_[3 * y, 5, 5])
    np.testing.assert_array_equal(out, np.r_[tripled, tripled[0]])
    assert said == 77 + y[0] + y.sum()


def test_in_a_kernel_the_thread_does_it_itself(thrust: Library) -> None:
    x, out = drawn(count=60), np.zeros(6, np.int32)
    assert thrust.call("h_in_kernels", x, out, 6, 10) == 0
    np.testing.assert_array_equal(out, x.reshape(6, 10).sum(1))


def test_the_order_of_a_stream(thrust: Library) -> None:
    assert thrust.call("h_streams", np.full(50, -1, np.int32), 50) == -100 + 16


@pytest.mark.parametrize(
    ("which", "kind", "words"),
    [
        (0, "illegal_address", "kernel _kernel_agent is given an argument, a pointer to a local variable of the host"),
        (1, "out_of_bounds", "kernel _kernel_agent.* wrote .*past the end of a tensor of 40 bytes"),
    ],
)
def test_device_work_is_held_to_the_devices_memory(which: int, kind: str, words: str) -> None:
    death = call_in_process(
        compile_cuda((CASES / "thrust.cu").read_text(), EXTENDED_LAMBDA), "h_no_policy", which, guarded=True
    )
    assert death.fault is not None and death.fault["fault"] == kind, death
    assert re.search(words, death.fault["message"]), death


def test_without_a_policy_a_pointer_is_the_hosts() -> None:
    death = call_in_process(
        compile_cuda((CASES / "thrust.cu").read_text(), EXTENDED_LAMBDA), "h_no_policy", 2, guarded=True
    )
    assert death.stdout == "3\n", death


def test_forms_that_are_not_there_are_unsupported() -> None:
    source = "#include <thrust/sort.h>\nvoid f(float* x) { thrust::sort(thrust::device, x); }"
    assert emulator.find_unsupported(source) is None
    with pytest.raises(CompileFailed) as failure:
        compile_cuda(source)
    assert "a form of `thrust::sort`" in (emulator.explain_failure(str(failure.value)) or ""), failure.value
