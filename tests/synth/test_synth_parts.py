"""The parts that a problem is built of, each alone: names, sizes, constructor, statements, printing."""

from __future__ import annotations

import ast
import random
import re
from dataclasses import replace

import pytest

from dice.synth.problem.builder import ProblemBuilder
from dice.synth.problem.constructor import Constructor
from dice.synth.problem.forward import Forward
from dice.synth.problem.names import Names
from dice.synth.problem.printing import printed
from dice.synth.problem.printing.inputs import input_functions
from dice.synth.problem.printing.page import Page
from dice.synth.problem.style import Flow, Style
from dice.synth.problem.tensors import MAX_LARGE_ELEMENTS, Tensors, Value, as_tuple

PLAIN = replace(
    Style.draw(random.Random(0)),
    flow="fresh",
    named_dimensions=True,
    upper_case=False,
    conventional=True,
    invention_rate=0.0,
    home="text",
    argument_rate=0.0,
    setting_rate=0.0,
    constant_rate=0.0,
    comments="",
    sampler="torch.randn({shape})",
)


def _names(style: Style = PLAIN, seed: int = 0) -> Names:
    return Names(random.Random(seed), style)


def _tensors(style: Style = PLAIN) -> Tensors:
    rng = random.Random(0)
    return Tensors(rng, style, Names(rng, style))


def _constructor(style: Style = PLAIN) -> Constructor:
    tensors = _tensors(style)
    return Constructor(tensors.rng, style, tensors.names, tensors)


def test_a_conventional_author_takes_the_first_free_name_and_then_numbers() -> None:
    names = _names()
    assert [names.fresh(("out", "result")) for _ in range(4)] == ["out", "result", "out2", "out3"]


def test_no_name_is_given_twice_whatever_the_style() -> None:
    for seed in range(50):
        names = _names(Style.draw(random.Random(seed)), seed)
        given = [names.fresh(("out", "result", "y")) for _ in range(20)]
        assert len(set(given)) == 20


def test_a_size_is_printed_as_its_name_or_its_number() -> None:
    tensors = _tensors()
    named = tensors.dimension("features", 8, 4096)
    tensors.dimensions.append(replace(tensors.size(named), name=None))
    assert tensors.fill(f"({named}, @1@)", large=False) == f"({tensors.size(named).name}, 8)"
    assert tensors.fill("@1@", large=True) == "4096"


def test_large_tensors_are_cut_to_a_gibibyte_and_stay_divisible() -> None:
    tensors = _tensors()
    marks = [tensors.dimension("batch", 2, 4096), tensors.dimension("features", 12, 12 * 2**17, step=12)]
    tensors.input("x", marks)
    tensors.results.append([marks[1], marks[1]])
    tensors.limit_large()
    batch, features = (tensors.size(mark).large for mark in marks)
    assert batch * features <= MAX_LARGE_ELEMENTS and features**2 <= MAX_LARGE_ELEMENTS and features % 12 == 0


def test_a_scalar_is_written_where_its_style_has_numbers() -> None:
    for home, forward, cuda in (("text", "0.25", "0.25f"), ("attribute", "self.alpha", "alpha")):
        scalar = _constructor(replace(PLAIN, home=home)).scalar("alpha", 0.25)
        assert (scalar.forward, scalar.cuda) == (forward, cuda)
    constructor = _constructor(replace(PLAIN, argument_rate=1.0))
    scalar = constructor.scalar("alpha", 0.25)
    assert constructor.scalars == {scalar.cuda: "float"} and constructor.arguments[0].value == "0.25"
    assert f"{scalar.forward} = {scalar.init}" in constructor.shared_lines


def test_modelnew_has_numbers_in_place_of_the_files_other_constants() -> None:
    constructor = _constructor()
    constructor.constants["ALPHA"] = "0.5"
    constructor.class_constants["beta"] = "2.0"
    constructor.shared_lines.append("self.w = nn.Parameter(ALPHA * self.beta * torch.ones(3))")
    assert constructor.kernel_lines == ["self.w = nn.Parameter(0.5 * 2.0 * torch.ones(3))"]


@pytest.mark.parametrize(
    ("flow", "written"),
    [
        ("fresh", r"out = torch.relu\(x\); (\w+) = out \* 2; return \1"),
        ("reassign", r"x = torch.relu\(x\); x = x \* 2; return x"),
        ("nested", r"return torch.relu\(x\) \* 2"),
    ],
)
def test_the_flow_decides_which_results_have_names(flow: Flow, written: str) -> None:
    tensors = _tensors()
    forward = Forward(tensors.rng, replace(PLAIN, flow=flow), tensors.names, tensors)
    value = tensors.input("x", [tensors.dimension("features", 8, 64)])
    value = forward.apply("{x} * 2", forward.apply("torch.relu({x})", value))
    assert re.fullmatch(written, "; ".join([*forward.lines, f"return {value.text}"]))


def test_a_name_of_its_own_is_given_whatever_the_flow() -> None:
    builder = ProblemBuilder(random.Random(3))
    builder.forward.flow = "reassign"
    x = builder.tensors.input("x", [builder.tensors.dimension("features", 8, 64)])
    assert builder.forward.name("torch.relu(x)").text != x.text
    assert builder.forward.bind(Value("torch.relu(x)", True, False)).text == x.text


def test_tuples_of_one_keep_their_comma() -> None:
    assert (as_tuple(["a"]), as_tuple([1, 2])) == ("(a,)", "(1, 2)")


def _filled(seed: int) -> ProblemBuilder:
    builder = ProblemBuilder(random.Random(seed))
    value = builder.tensors.input("x", [builder.tensors.dimension("features", 8, 64)])
    value, _ = builder.operators.chain(value, ("relu", "leaky_relu"))
    builder.finish(value)
    return builder


def test_the_large_problem_is_the_small_one_with_other_numbers() -> None:
    for seed in range(100):
        builder = _filled(seed)
        small, large = printed(builder), printed(builder, large=True)
        assert re.sub(r"\b\d+\b", "", small) == re.sub(r"\b\d+\b", "", large)
        assert printed(builder) == printed(builder)


def test_every_section_is_python_by_itself() -> None:
    for seed in range(100):
        page = Page.of(_filled(seed), large=False)
        functions = {node.name for node in ast.parse(input_functions(page)).body if isinstance(node, ast.FunctionDef)}
        assert functions == {"get_inputs", "get_init_inputs"}
