"""Libraries that keep variables from call to call: which do, and whether their answers depend on how often they ran."""

from __future__ import annotations

import ctypes
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dice.verify.build.object_files import variable
from dice.verify.candidate import ageing
from dice.verify.toolchain import host_compiler

pytestmark = pytest.mark.xdist_group("ageing")  # one process builds what they share

SOURCE = """
static int calls;
static long beside[3] = {7, 8, 9};
extern "C" int late(int after) { beside[1] += 2; return ++calls > after; }
struct Kept { long flags; long* calls; };
static Kept* kept = new Kept{3, new long(0)};
extern "C" int late_on_the_heap(int after) { return ++*kept->calls > after; }
extern "C" int initialised() { static bool done; done = true; return done; }
thread_local int turns;
extern "C" int late_in_thread(int after) { return ++turns > after; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("ageing")
    (folder / "kept.cpp").write_text(SOURCE)
    command = [host_compiler(), "-shared", "-fPIC", "kept.cpp", "-o", "kept.so"]
    subprocess.run(command, cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "kept.so"))


def answers(function: Callable[..., int], *arguments: int) -> Callable[[int], torch.Tensor]:
    return lambda place: torch.ones(3) * (1 + place) * (1 - function(*arguments))


def test_what_counts_its_calls_is_found(library: ctypes.CDLL) -> None:
    number, outputs = ageing.first_other(answers(library.late, 25), 2, [library._name])
    assert (number, [output.tolist() for output in outputs.values()]) == (26, [[0.0, 0.0, 0.0]])


def test_an_answer_that_was_given_before_is_found() -> None:
    given: list[torch.Tensor] = []

    def call(place: int) -> torch.Tensor:
        given.append(given[-1] if len(given) > 20 else torch.ones(3) * (1 + place))
        return given[-1]

    assert ageing.first_other(call, 2, [])[0] > 20


def test_the_next_inputs_are_chosen_by_a_generator_of_its_own() -> None:
    """A forward seeds the one that all share: what follows on which inputs were always the same then, and who remembers
    an answer by a part of them would not meet it."""
    last = [-1, -1]  # the inputs of the last call, and those whose answer it gave

    def call(place: int) -> torch.Tensor:
        hit = {last[0], place} == {0, 3}
        last[:] = [place, last[1] if hit else place]
        random.seed(1 + 2 * place)
        return torch.ones(3) * (1 + last[1])

    assert ageing.first_other(call, 5, [])[0] > 0


@pytest.mark.parametrize("function", ["late", "late_in_thread", "late_on_the_heap"])
def test_counters_are_set_to_where_many_calls_bring_them(library: ctypes.CDLL, function: str) -> None:
    number, _ = ageing.first_other(answers(getattr(library, function), 100_000), 1, [library._name])
    assert number > ageing.LEAP


def test_what_was_done_before_changes_nothing(library: ctypes.CDLL) -> None:
    number, outputs = ageing.first_other(answers(library.initialised), 1, [library._name])
    assert number == 0 and outputs[0].tolist() == [0.0] * 3


def test_what_the_last_call_gave_is_told_where_none_differs() -> None:
    """Who had turned lazy before gives the same all the time, and it is wrong."""
    _, outputs = ageing.first_other(lambda place: torch.full((3,), 5.0 + place), 2, [])
    assert {place: output.tolist() for place, output in outputs.items()} == {0: [5.0] * 3, 1: [6.0] * 3}


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64])
def test_a_count_in_a_tensor_is_found(dtype: torch.dtype) -> None:
    count = torch.zeros(2, dtype=dtype)

    def call(place: int) -> torch.Tensor:
        count[1] += 1
        return torch.ones(3) * float(count[1] < 1e5)

    assert ageing.first_other(call, 1, [], [count])[0] > ageing.LEAP


def test_an_address_is_no_counter() -> None:
    address = ctypes.c_uint64(ctypes.addressof(ctypes.create_string_buffer(64)))
    words = [torch.tensor([64 * number, 0], dtype=torch.int32) for number in range(3)]
    assert not ageing._counters(ageing._mappings(), (ctypes.addressof(address), 8), *words)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("int f() { static int calls; return ++calls; }", "_ZZ1fvE5calls"),
        ("int f() { static int* p = new int(0); return ++*p; }", "_ZGVZ1fvE1p"),
        ("int f() { thread_local int t; return ++t; }", "_ZZ1fvE1t"),
        ("int f(int i) { static const int table[] = {1, 2, 3}; return table[i]; }", ""),
        ("int f(int i) { constexpr float w = 2.0f; return i * w; }", ""),
    ],
)
def test_variables_are_read_from_object_files(tmp_path: Path, text: str, kept: str) -> None:
    (tmp_path / "unit.cpp").write_text(text)
    subprocess.run([host_compiler(), "-O1", "-fPIC", "-c", "unit.cpp"], cwd=tmp_path, check=True)
    found = variable([tmp_path / "unit.o"])
    assert found == kept or (found and kept and found.removeprefix("_ZGV") == kept.removeprefix("_Z"))
