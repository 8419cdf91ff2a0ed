"""Programs as they come from a process that runs a stranger's Python: what is one, and what is refused."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest

from dice.verify.ipc import program
from dice.verify.ipc.program import NoProgram

RELU: dict[str, Any] = {
    "inputs": 1,
    "literals": 1,
    "state": {"scale": ["float32", [4], True, -1], "table": ["int64", [2, 2], False, 0]},
    "steps": [
        ["aten::mul.Tensor", 0, "", [{"input": 0}, {"state": "scale"}], {}, {"value": 0}, 0],
        ["", 0, "relu", [{"value": 0}, 3, 0.5, [1, 2]], {"mode": {"float": "inf"}}, {"tuple": [{"value": 1}, 7]}, 31],
        ["aten::add_.Tensor", 0, "", [{"value": 1}, {"literal": 0}], {"alpha": 2}, {"value": 1}, 0],
    ],
    "output": {"dict": [["result", {"value": 1}]]},
}


def changed(path: tuple[Any, ...], value: object) -> dict[str, Any]:
    """The program with another value in one place."""
    one = copy.deepcopy(RELU)
    place: Any = one
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return one


def test_a_program_is_read_as_it_was_sent() -> None:
    read = program.read(json.loads(json.dumps(RELU)), libraries=1)
    assert read.calls == 1 and read.inputs == 1
    assert read.state["table"].literal == 0 and read.state["scale"].parameter
    assert [step.operator for step in read.steps] == ["aten::mul.Tensor", "", "aten::add_.Tensor"]
    assert program.read(json.loads(json.dumps(read.to_json())), libraries=1) == read


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("inputs",), True),
        (("inputs",), -1),
        (("literals",), 1 << 20),
        (("state", "scale"), ["float32", [-4], True, -1]),
        (("state", "scale"), ["float32", [4], True, 5]),
        (("state", "scale"), ["os.system", [4], True, -1]),
        (("steps",), "none"),
        (("steps",), [[]] * (program.MOST_STEPS + 1)),
        (("steps", 0, 0), "os::system"),
        (("steps", 0, 0), "aten::add.Tensor; import os"),
        (("steps", 1, 1), 1),
        (("steps", 1, 1), -1),
        (("steps", 1, 2), "__class__ "),
        (("steps", 1, 2), ""),
        (("steps", 0, 3, 0), {"input": 1}),
        (("steps", 0, 3, 0), {"input": -1}),
        (("steps", 0, 3, 0), {"input": True}),
        (("steps", 0, 3, 0), {"value": 0}),  # before it is there
        (("steps", 0, 3, 0), {"literal": 1}),
        (("steps", 0, 3, 0), {"state": "other"}),
        (("steps", 0, 3, 0), {"dtype": "float32 "}),
        (("steps", 0, 3, 0), {"device": "meta"}),
        (("steps", 0, 3, 0), {"input": 0, "value": 0}),
        (("steps", 0, 3, 0), {"code": "1"}),
        (("steps", 0, 3, 0), 1 << 70),
        (("steps", 0, 3, 0), float("nan")),
        (("steps", 0, 3, 0), "x" * (program.MAX_TEXT + 1)),
        (("steps", 0, 3), [[[[[[[[[[[1]]]]]]]]]]]),
        (("steps", 0, 5), {"value": 3}),  # out of turn
        (("output",), {"value": 2}),
        (("output",), {"dict": [["one"]]}),
        (("output",), {"complex": [1.0, "2"]}),
        (("output",), [0] * (program.MOST_TERMS + 1)),
    ],
)
def test_what_is_no_program_is_refused(path: tuple[Any, ...], value: object) -> None:
    with pytest.raises(NoProgram):
        program.read(changed(path, value), libraries=1)


@pytest.mark.parametrize("raw", [None, [], "program", 3, {}, {"inputs": 1}])
def test_anything_at_all_is_refused_in_a_sentence(raw: object) -> None:
    with pytest.raises(NoProgram, match=r"\w"):
        program.read(raw, libraries=0)


def test_a_thousand_mutants_are_programs_or_are_refused() -> None:
    """Nothing but `NoProgram` comes out of a program with random parts replaced."""
    rng = random.Random(5)
    values = [None, True, -1, 0, 1 << 64, 1e308, "", "x", [], {}, {"value": 0}, {"tuple": 3}, {"dict": [1]}, [[]]]
    refused = 0
    for _ in range(1000):
        one: Any = copy.deepcopy(RELU)
        for _ in range(rng.randrange(1, 4)):
            place: Any = one
            while True:
                keys = list(place) if isinstance(place, dict) else list(range(len(place)))
                if not keys:
                    break
                key = rng.choice(keys)
                if isinstance(place[key], dict | list) and rng.random() < 0.8:
                    place = place[key]
                    continue
                place[key] = copy.deepcopy(rng.choice(values))
                break
        try:
            program.read(json.loads(json.dumps(one)), libraries=1)
        except NoProgram:
            refused += 1
    assert 500 < refused < 1000
