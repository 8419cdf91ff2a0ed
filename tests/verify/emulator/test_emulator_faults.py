"""What goes wrong in a kernel ends the process with one sentence that says where and what."""

from __future__ import annotations

import re

import pytest
from emulator_harness import CACHE, CASES, Death, call_in_process, compile_cuda

from dice.verify import emulator

EXIT = 86


def run(entry: str, *arguments: int, order: int = 0, case: str = "faults.cu") -> Death:
    return call_in_process(compile_cuda((CASES / case).read_text()), entry, *arguments, order=order)


def assert_fault(death: Death, kind: str, *patterns: str) -> None:
    assert death.returncode == EXIT, death
    assert death.fault is not None
    assert death.fault["fault"] == kind, death
    for pattern in patterns:
        assert re.search(pattern, death.fault["message"]), (pattern, death.fault["message"])


def test_a_write_without_a_bounds_check_is_named() -> None:
    death = run("h_no_bounds_check", 1000)
    where = r"kernel no_bounds_check, block \(3,0,0\), thread \(232,0,0\)"
    assert_fault(death, "out_of_bounds", where, "wrote just past the end of a tensor of 4000 bytes")


def test_the_same_kernel_is_fine_when_the_size_fits() -> None:
    assert run("h_no_bounds_check", 1024) == Death(0, None, "0\n")


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (100, "read just past the end of a tensor of 400 bytes"),
        (100_000, "read 399600 bytes past the end"),
        (-2000, "read 8000 bytes before the start"),
    ],
)
def test_reads_outside_an_allocation(index: int, words: str) -> None:
    assert_fault(run("h_reads_at", 100, index), "out_of_bounds", "kernel reads_at", words)


def test_a_read_just_before_the_start_gives_nan() -> None:
    assert run("h_reads_at", 100, -1).stdout == "-1\n"


def test_a_shared_array_indexed_past_its_last_row() -> None:
    assert run("h_shared_row", 31).returncode == 0
    assert_fault(
        run("h_shared_row", 32), "out_of_bounds", "kernel shared_row_too_many", "just past the end of shared array tile"
    )


def test_dynamic_shared_memory_has_the_size_of_the_launch() -> None:
    assert run("h_dynamic_at", 64, 15).returncode == 0
    assert_fault(run("h_dynamic_at", 64, 16), "out_of_bounds", "dynamic shared memory of 64 bytes")
    assert_fault(run("h_dynamic_at", 0, 0), "out_of_bounds", "dynamic shared memory of 0 bytes")
    assert_fault(run("h_dynamic_at", 60, 15), "out_of_bounds", "past the end of the dynamic shared memory")


@pytest.mark.parametrize("order", [0, 1, 5])
def test_lanes_that_never_come_are_a_deadlock(order: int) -> None:
    death = run("h_half_warp", order=order)
    assert_fault(death, "deadlock", "kernel half_of_the_warp_shuffles", "16 wait at __syncthreads", "0xffff0000")


def test_a_mask_without_the_own_lane() -> None:
    assert_fault(run("h_not_in_mask"), "trap", "mask 0x1")


def test_traps_assertions_and_division_by_zero() -> None:
    assert_fault(run("h_traps"), "trap", r"kernel traps, block \(2,0,0\), thread \(3,0,0\)")
    assert run("h_asserts", 32).returncode == 0
    assert_fault(run("h_asserts", 31), "assert", r"thread \(31,0,0\)", "n is big enough")
    assert_fault(run("h_divides", 0), "trap", "division by zero")


def test_stack_overflow() -> None:
    assert run("h_recurses", 10).returncode == 0
    assert_fault(run("h_recurses", 100_000), "stack_overflow", "kernel recurses")


def test_pointers_to_nowhere_and_misaligned_vectors() -> None:
    assert_fault(run("h_null"), "illegal_address", "null pointer")
    assert_fault(run("h_freed"), "illegal_address", "after it was freed")
    assert run("h_misaligned", 4).returncode == 0
    assert_fault(run("h_misaligned", 1), "illegal_address", "misaligned")


def test_more_static_shared_memory_than_nvcc_accepts() -> None:
    assert_fault(run("h_too_much_shared"), "launch_error", "kernel too_much_shared", "48 KB")


@pytest.mark.parametrize(
    "configuration", [(0, 1, 32, 1), (1, 1, 1025, 1), (1, 1, 512, 4), (1, 1, 1, 65), (1, 65536, 1, 1), (1, 1, 0, 1)]
)
def test_a_refused_configuration_is_an_error_once_and_nothing_runs(configuration: tuple[int, ...]) -> None:
    assert run("h_configuration", *configuration) == Death(0, None, "9000\n")


def test_a_kernel_called_like_a_function() -> None:
    case = "not_cuda_only.cu"
    assert_fault(run("h_without_configuration", case=case), "launch_error", "called like an ordinary function")
    assert_fault(run("h_from_a_kernel", case=case), "launch_error", "called like an ordinary function")


def test_the_runtime_is_built_once() -> None:
    path = emulator.runtime(CACHE)
    before = path.stat().st_mtime_ns
    assert emulator.runtime(CACHE) == path
    assert path.stat().st_mtime_ns == before
