"""The ways that Python takes through a file's functions, as the interpreter's instructions tell them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dice.verify.execution.branches import Ways, numbers, periods

SOURCE = """
LIMIT = 40

def steps(count, flag):
    total = 0
    for index in range(count):
        total += index if index % 7 == 0 else 1
    while total > LIMIT and flag:
        total -= 10
    return total

def several(items):
    return [one for one in items if one > 2 or one in (-5, -6)]
"""


@pytest.fixture
def functions(tmp_path: Path) -> dict[str, Callable[..., Any]]:
    path = tmp_path / "problem.py"
    path.write_text(SOURCE)
    names: dict[str, Any] = {"__file__": str(path)}
    exec(compile(SOURCE, str(path), "exec"), names)
    return names


def test_a_way_is_left_until_it_is_taken(functions: dict[str, Any]) -> None:
    path = functions["__file__"]
    with Ways(path) as first:
        functions["steps"](3, True)  # never above the limit
    assert first.left
    with Ways(path) as second:
        functions["steps"](60, True)
    with Ways(path) as third:
        functions["steps"](3, False)
    assert first.left & second.taken, "the loop was entered"
    assert not first.left & third.taken, "a flag that nobody asks for opens nothing"


def test_conditions_within_a_line_count(functions: dict[str, Any]) -> None:
    path = functions["__file__"]
    with Ways(path) as none:
        functions["several"]([3, 4])
    with Ways(path) as some:
        functions["several"]([3, 1, -5])
    assert len(none.left) >= 1 and none.left & some.taken and not some.left


def test_nothing_is_noted_of_other_files_and_after_the_block(functions: dict[str, Any]) -> None:
    with Ways("/elsewhere.py") as other:
        functions["steps"](5, True)
    assert not other.taken and not other.left
    with Ways(functions["__file__"]) as own:
        pass
    functions["steps"](5, True)
    assert not own.taken


def test_numbers_that_a_source_decides_by() -> None:
    assert numbers(SOURCE) == (40.0, 0.0, 2.0, -5.0, -6.0)
    assert periods(SOURCE) == (7,)
    assert numbers("not python (") == () and periods("x % 2.5") == ()
