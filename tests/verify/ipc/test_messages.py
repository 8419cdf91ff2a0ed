"""Every message that processes of a verification exchange: there and back, and what is believed of a stranger's."""

from __future__ import annotations

import dataclasses
import json
import typing
from typing import Any

import pytest

from dice.verify.audit import messages as of_audits
from dice.verify.ipc import messages
from dice.verify.ipc.encoding import EVENT, Malformed, claim, is_a, name_of, read, to_json
from dice.verify.ipc.messages import BlockTimed, Failed, Loaded, OpenGroup, Planned, Ran, RoundTimed, Step
from dice.verify.roofline import Ceilings, Work
from dice.verify.supervisor import guarantees

KINDS = [
    kind
    for module in (messages, of_audits, guarantees)
    for kind in vars(module).values()
    if dataclasses.is_dataclass(kind) and kind.__module__ == module.__name__ and kind.__dataclass_params__.frozen
]
EXAMPLES: dict[Any, Any] = {
    **{bool: True, str: "text", int: 7, float: 0.5, object: {"any": ["thing", 1]}, Any: 3},
    **{tuple[str, ...]: ("a", "b"), tuple[int, ...]: (1, 2), tuple[float, ...]: (0.5, 1.5), int | None: None},
    **{dict[str, int]: {"k": 2}, dict[str, str]: {"k": "why"}, dict[str, Any]: {"k": [1]}, str | None: "half"},
    **{float | None: 0.25},
}


def example(kind: Any) -> Any:
    """A value of a field's type, or a message with such fields."""
    if kind in EXAMPLES:
        return EXAMPLES[kind]
    if typing.get_origin(kind) is typing.Annotated:
        return example(kind.__origin__)
    if typing.get_origin(kind) is typing.Literal:
        return typing.get_args(kind)[0]
    if typing.get_origin(kind) is tuple:
        return (example(typing.get_args(kind)[0]),)
    hints = typing.get_type_hints(kind, include_extras=True)
    return kind(**{item.name: example(hints[item.name]) for item in dataclasses.fields(kind)})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_message_is_the_same_on_the_other_side(kind: type) -> None:
    sent = example(kind)
    raw = json.loads(json.dumps(to_json(sent)))
    assert is_a(raw, kind) and raw[EVENT] == name_of(kind)
    assert read(raw, kind) == sent


def test_no_two_messages_have_one_name() -> None:
    names = [name_of(kind) for kind in KINDS]
    assert len(set(names)) == len(names) > 50


@pytest.mark.parametrize("value", [None, 1, "x", [], {}, [None], {"a": 1}, True, 0.5])
@pytest.mark.parametrize("kind", [OpenGroup, Planned, Step, RoundTimed], ids=lambda kind: kind.__name__)
def test_what_a_trusted_process_says_is_of_its_type(kind: type, value: object) -> None:
    """A field of another type, or one that is missing, is refused; nothing is made of it."""
    whole = to_json(example(kind))
    hints = typing.get_type_hints(kind)
    for item in dataclasses.fields(kind):
        raw = json.loads(json.dumps(whole | {item.name: value}))
        good = hints[item.name]
        fits = {bool: [bool], str: [str], int: [int], float: [int, float]}.get(good)
        if fits is not None and type(value) not in fits:
            with pytest.raises(Malformed):
                read(raw, kind)
    required = [item.name for item in dataclasses.fields(kind) if item.default is dataclasses.MISSING]
    for name in required:
        with pytest.raises(Malformed, match=name):
            read({key: said for key, said in whole.items() if key != name}, kind)


def test_numbers_that_json_writes_without_a_point_are_floats() -> None:
    assert read({"work": to_json(Work(1, 2, 3, 4))}, messages.WorkDescribed).work == Work(1, 2, 3, 4)
    said = to_json(messages.CeilingsMeasured(Ceilings(3e12, 1, 2, 3, 50)))
    assert read(json.loads(json.dumps(said)), messages.CeilingsMeasured).ceilings.fp32 == 1


def test_what_a_stranger_says_is_cut_cleaned_or_empty() -> None:
    said: dict[str, object] = {"launches": {"k\x1b[2J": 3, "bad": -1, "worse": "x"}, "changed": [0, True, "1", None]}
    said |= {"damaged": ["x" * 5000, {"a": 1}], "written": "weight", "deterministic": 1, "work": {"elements": 3}}
    ran = claim(said, Ran)
    assert ran.launches == {"k?[2J": 3} and ran.changed == (0,) and ran.written == () and ran.deterministic is False
    assert len(ran.damaged[0]) < 5000 and ran.work == {"elements": 3} and ran.on_cpu == ()
    assert claim({}, Loaded) == Loaded(False) and claim({"has_model": "yes"}, Loaded) == Loaded(False)
    assert claim({"outcome": ["correct"], "lines": {"a": 1}, "build": "7"}, Failed) == Failed("", "", "", "", (), None)
    assert claim({"ms": [1.0, 1, "1", None, True], "checksums": [1, 1.0]}, RoundTimed).ms == (1.0,)
    assert claim({"block_ms": "soon"}, BlockTimed) == BlockTimed(0.0, ())
