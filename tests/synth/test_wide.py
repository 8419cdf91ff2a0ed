"""Wide styles: each leaves the computation as it is, `ModelNew` follows, and plain draws stay what they were."""

from __future__ import annotations

import ast
import copy
import functools
import hashlib
import inspect
import random
import re
from collections.abc import Iterator, Set
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from torch import nn
from torch.utils import cpp_extension

from dice import synth
from dice.errors import UserError
from dice.files import JsonObject
from dice.synth import FAMILIES, FURTHER, PLAIN, Pair, Styles, corpus
from dice.synth.syntax import fault
from dice.synth.wide import STYLES, Work, rewritten
from tests.synth.verified_pairs import assert_right

PLAIN_DRAWS = "f032053a4928074b6410160b6c73dec1a95bb9bf713f9e26e46bb50d4ac06939"
WIDE = Styles("wide")
SAMPLE = 700  # plain pairs among which every style has a place


@functools.cache
def plain_pair(index: int) -> Pair:
    return synth.generate(77, index)


@functools.cache
def places(name: str) -> list[tuple[Pair, Work]]:
    """Plain pairs in which the style has a place, some with a kernel that it changes, if it ever does."""
    style = STYLES[name][0]
    found: list[tuple[Pair, Work]] = []
    room = {True: 4, False: 8}  # by whether the kernel's file changes
    for index in range(SAMPLE):
        pair = plain_pair(index)
        work = Work(pair.check_problem.source, pair.kernel.source)
        if name == "method_chain":  # needs another style to make it a place
            work = STYLES["methods"][0](work, random.Random(index)) or work
        after = style(work, random.Random(index))
        if after is not None and room[after.kernel != work.kernel]:
            room[after.kernel != work.kernel] -= 1
            found.append((pair, after))
        if not any(room.values()) or (found and index > 200):
            break
    return found


def loaded(source: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "problem"}
    exec(compile(source, "problem.py", "exec"), names)
    return names


def made(names: dict[str, Any], class_name: str = "Model") -> torch.nn.Module:
    torch.manual_seed(0)
    module = names[class_name](*names["get_init_inputs"]())
    assert isinstance(module, torch.nn.Module)
    return module


def drawn(names: dict[str, Any]) -> list[Any]:
    torch.manual_seed(1)
    return list(names["get_inputs"]())


def flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [tensor for item in items for tensor in flat(item)]


def give_state(plain: torch.nn.Module, other: torch.nn.Module) -> None:
    """The state of one module in another that calls its parts otherwise: what has no namesake follows in order."""
    state, own = plain.state_dict(), other.state_dict()
    last = {name: name.rsplit(".", 1)[-1].removesuffix("_") for name in (*state, *own)}
    gone, new = [name for name in state if name not in own], [name for name in own if name not in state]
    assert len(state) == len(own) and len(gone) == len(new)
    pairs = dict(zip(new, gone, strict=True)) | {name: name for name in own if name in state}
    for name in new:  # `weight` of a dictionary is the `weight` from before, wherever it stands among the others
        namesakes = [old for old in gone if old == last[name]]
        pairs[name] = namesakes[0] if namesakes else pairs[name]
    for name, tensor in own.items():
        assert tensor.shape == state[pairs[name]].shape
        tensor.copy_(state[pairs[name]])


def outputs(style: str, source: str, after: str) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """What the module returns before and after a style, for the same inputs and state."""
    before, now = loaded(source), loaded(after)
    plain, other = made(before), made(now)
    with torch.no_grad():
        give_state(plain, other)
    inputs, others = drawn(before), drawn(now)
    expected = flat(plain(*copy.deepcopy(inputs)))
    if style == "input_order":
        names = list(inspect.signature(plain.forward).parameters)
        return expected, flat(other(**dict(zip(names, inputs, strict=True))))
    if style == "unused_input":
        return expected, flat(other(*inputs, *others[len(inputs) :]))
    if style == "input_builders":
        other(*others)
        return expected, flat(other(*inputs))
    return expected, flat(other(*others))


@pytest.mark.parametrize("style", STYLES)
def test_a_style_computes_the_same(style: str) -> None:
    found = places(style)
    assert found, "the style has no place in any pair of the sample"
    for pair, after in found:
        assert (after.problem, after.kernel) != (pair.check_problem.source, pair.kernel.source)
        assert_same(style, pair.check_problem.source, after.problem)


def assert_same(style: str, source: str, after: str) -> None:
    """A style may add outputs, if it says so, and change none."""
    expected, actual = outputs(style, source, after)
    if style in ("more_outputs", "inner_output"):
        assert len(actual) == len(expected) + 1
        actual = [next(two for two in actual if two.shape == one.shape and near(one, two)) for one in expected]
    assert len(actual) == len(expected)
    assert all(one.shape == two.shape and near(one, two) for one, two in zip(expected, actual, strict=True)), after


def assert_same_after_each(indices: range) -> None:
    """Styles on top of one another, as a wide pair has them: each compared with the text before it."""
    for index in indices:
        pair = synth.generate(78, index)
        work, rng = Work(pair.check_problem.source, pair.kernel.source), random.Random(index)
        for name, (style, rate) in STYLES.items():
            after = style(work, rng) if rng.random() < 2 * rate else None
            if after is not None:
                assert_same(name, work.problem, after.problem)
                work = after
                assert_follows(pair, work)


def test_styles_on_top_of_one_another_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpp_extension, "load_inline", lambda **settings: None)
    assert_same_after_each(range(20))


@pytest.mark.slow
def test_many_styles_on_top_of_one_another_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpp_extension, "load_inline", lambda **settings: None)
    assert_same_after_each(range(100, 400))


def near(one: torch.Tensor, two: torch.Tensor) -> bool:
    return torch.allclose(one.double(), two.double(), rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize(
    "style", [pytest.param(style, marks=pytest.mark.slow if place % 2 else ()) for place, style in enumerate(STYLES)]
)
def test_the_kernels_module_follows(style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments of the constructor, number of inputs, and paths of all state that the kernel reads."""
    monkeypatch.setattr(cpp_extension, "load_inline", lambda **settings: None)
    for pair, after in places(style):
        assert_follows(pair, after)


def state_shapes(module: torch.nn.Module) -> set[tuple[str, torch.Size]]:
    return {(name, tensor.shape) for name, tensor in module.state_dict().items()}


def assert_follows(pair: Pair, after: Work) -> None:
    """`load_inline` must have been replaced by something that compiles nothing."""
    plain, plain_kernel = loaded(pair.check_problem.source), loaded(pair.kernel.source)
    names, kernel = loaded(after.problem), loaded(after.kernel)
    plain_kernel["get_init_inputs"], kernel["get_init_inputs"] = plain["get_init_inputs"], names["get_init_inputs"]
    model, new = made(names), made(kernel, "ModelNew")
    if "__init__" in kernel["ModelNew"].__dict__:
        taken = [list(inspect.signature(type(item).__init__).parameters)[1:] for item in (model, new)]
        assert taken[0] == taken[1]
    before = made(plain_kernel, "ModelNew")
    assert len(before.state_dict()) == len(new.state_dict())
    if state_shapes(before) <= state_shapes(made(plain)):  # seldom all work is done by a module inside of `Model`
        assert state_shapes(new) <= state_shapes(model)
        assert dict(new.named_buffers()).keys() <= dict(model.named_buffers()).keys(), "a buffer is no parameter"
        assert dict(new.named_parameters()).keys() <= dict(model.named_parameters()).keys()
        state = model.state_dict()
        if len(state) == len(new.state_dict()):
            assert all(near(value, state[name]) for name, value in new.state_dict().items()), after.kernel
    parameters = [item for item in inspect.signature(new.forward).parameters.values() if item.default is item.empty]
    assert len(parameters) == len(drawn(names))


def test_plain_draws_are_what_they_were() -> None:
    """The shipped model was trained on them. A change here means to train it again, and to say so."""
    digest = hashlib.sha256()
    pairs = [synth.generate(11, index) for index in range(150)] + synth.heldout(30, 12)
    for pair in [*pairs, *synth.in_distribution(20, 13, 11, 150)]:
        texts = (pair.problem.source, pair.check_source or "", pair.kernel.source, pair.family, pair.style)
        for text in (*texts, pair.composition):
            digest.update(text.encode() + b"\0")
    assert digest.hexdigest() == PLAIN_DRAWS
    assert synth.generate(11, 3, styles=PLAIN) == synth.generate(11, 3) and synth.generate(11, 3).written == ()


def test_wide_pairs_are_whole_and_follow_from_seed_and_index() -> None:
    pairs = [synth.generate(5, index, styles=WIDE) for index in range(200)]
    assert pairs[17] == synth.generate(5, 17, styles=WIDE)
    drawn = [(pair, synth.generate(5, index)) for index, pair in enumerate(pairs) if pair.family in FAMILIES]
    assert all(pair.composition == plain.composition for pair, plain in drawn)
    assert 50 < 200 - len(drawn) < 110 and {pair.family for pair in pairs} >= {*FURTHER}
    assert not [pair.written for pair in pairs if fault(pair)]
    written = {style for pair in pairs for style in pair.written}
    assert len(written) > 0.75 * len(STYLES)
    assert 0.02 < sum(not pair.written for pair in pairs) / len(pairs) < 0.4, "some stay as they were drawn"
    own = {name for name in dir(nn.Module) if not name.startswith("__")} - {"forward"}
    for pair in pairs:
        assert not own & set(re.findall(r"(?:def |self\.(?=\w+ = ))(\w+)", pair.problem.source)), "of nn.Module"
        if pair.check_source is not None:  # the printed and the quick problem are one text with other numbers
            assert without_numbers(pair.problem.source) == without_numbers(pair.check_source)


def without_numbers(source: str) -> list[str]:
    """Classes and functions of a file, every number 0."""
    parts = [node for node in ast.parse(source).body if not isinstance(node, ast.Assign)]
    return [re.sub(r"\d+", "0", ast.unparse(node)) for node in parts]


def test_a_hidden_style_is_in_no_training_pair_and_in_every_held_out_one_that_can_have_it() -> None:
    hidden = Styles("wide", ("helper_method", "methods"))
    shown = [synth.generate(5, index, styles=WIDE).written for index in range(120)]
    kept = [synth.generate(5, index, styles=hidden).written for index in range(120)]
    assert any("helper_method" in written for written in shown)
    assert not any({"helper_method", "methods"} & set(written) for written in kept)
    held = synth.heldout(30, 9, hidden)
    assert sum("helper_method" in pair.written for pair in held) > 20


def test_what_is_drawn_for_a_style_does_not_depend_on_the_others() -> None:
    pair = plain_pair(4)
    texts = (pair.check_problem.source,)
    for seed in range(30):
        whole = rewritten(texts, pair.kernel.source, random.Random(seed))
        if whole.styles[-1:] == ("super_form",):
            less = rewritten(texts, pair.kernel.source, random.Random(seed), without=frozenset({"super_form"}))
            assert less.styles == whole.styles[:-1]
            return
    pytest.fail("no seed ends with that style")


def test_a_loop_over_functions_keeps_their_order() -> None:
    source = """import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        return torch.exp(torch.sin(torch.abs(x)))

def get_inputs():
    return [torch.randn(3, 5)]

def get_init_inputs():
    return []
"""
    after = STYLES["loop_over_functions"][0](Work(source, plain_pair(4).kernel.source), random.Random(0))
    assert after is not None and "(torch.abs, torch.sin, torch.exp)" in after.problem
    assert_same("loop_over_functions", source, after.problem)


def test_a_decorated_method_keeps_its_decorator() -> None:
    source = plain_pair(4).check_problem.source
    head, rest = source.split("class Model(nn.Module):\n", 1)
    body = rest[rest.index("    def ") :]
    source = f"{head}class Model(nn.Module):\n    @staticmethod\n    def twice(v):\n        return v\n\n{body}"
    for name in ("docstrings", "class_constant"):
        after = STYLES[name][0](Work(source, plain_pair(4).kernel.source), random.Random(1))
        assert after is None or "@staticmethod\n    def twice" in after.problem


def test_unknown_and_plain_styles_cannot_be_left_out() -> None:
    with pytest.raises(UserError, match="no style einsums"):
        Styles("wide", ("einsums",))
    with pytest.raises(UserError, match="--styles wide"):
        Styles("plain", ("einsum",))


SMALL: dict[str, Any] = {"pairs": 24, "seed": 3, "heldout": 8, "control": 4, "verify": False, "shard_pairs": 12}


@pytest.mark.slow  # a corpus of some size; its rows are looked at above
def test_a_wide_corpus_says_how_each_row_is_written(tmp_path: Path) -> None:
    report: JsonObject = corpus.build(tmp_path / "one", **SMALL, styles=WIDE)
    rows = [row for path in sorted(tmp_path.glob("one/train/*")) for row in pq.read_table(path).to_pylist()]
    expected = synth.generate(3, rows[0]["index"], styles=WIDE)
    assert rows[0]["kernel"] == expected.kernel.source and rows[0]["written"] == list(expected.written)
    assert report["train"]["written"] and report["request"]["styles"] == "wide"
    corpus.build(tmp_path / "two", **SMALL, styles=WIDE, workers=2)
    for path in (tmp_path / "one").rglob("*.parquet"):
        assert path.read_bytes() == (tmp_path / "two" / path.relative_to(tmp_path / "one")).read_bytes()
    with pytest.raises(UserError, match="another styles"):
        corpus.build(tmp_path / "one", **SMALL)


def test_a_plain_corpus_has_no_further_column(tmp_path: Path) -> None:
    corpus.build(tmp_path, **SMALL)
    assert tuple(pq.read_schema(tmp_path / "heldout.parquet").names) == corpus.COLUMNS


def test_a_benchmark_in_a_wide_style_is_dropped_too(tmp_path: Path) -> None:
    (tmp_path / "benchmark").mkdir()
    planted = next(pair for pair in (synth.generate(3, index, styles=WIDE) for index in range(24)) if pair.written)
    (tmp_path / "benchmark" / "1_planted.py").write_text(planted.problem.source)
    report = corpus.build(tmp_path / "out", decontaminate=[tmp_path / "benchmark"], **SMALL, styles=WIDE)
    assert report["train"]["dropped"]["is in a benchmark"] >= 1


def emulated(indices: range, always: Set[str] = frozenset()) -> Iterator[Pair]:
    """Wide pairs of small problems, in these styles wherever they have a place; drawn as they are asked for."""
    return (synth.generate(901, index, "heldout", Styles("wide", tuple(always))) for index in indices)


@pytest.mark.usefixtures("lasting_zygote")
def test_wide_kernels_are_right() -> None:
    """Few pairs in which the styles come that change the kernel's file."""
    changing = frozenset(
        {"explicit_weights", "sequential", "buffer", "constructor_default", "input_order", "unused_input"}
    )
    written = (pair for pair in emulated(range(60), changing) if len(changing & set(pair.written)) >= 3)
    pairs = list(islice(written, 3))
    assert len(pairs) == 3
    assert_right(pairs)


@pytest.mark.slow
@pytest.mark.usefixtures("lasting_zygote")
def test_more_wide_kernels_are_right() -> None:
    assert_right([synth.generate(902, index, styles=WIDE) for index in range(150)])
    for name in STYLES:
        assert_right(list(islice((pair for pair in emulated(range(60), {name}) if name in pair.written), 2)))
