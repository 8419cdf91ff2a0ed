"""The generator: determinism, the split, the problem contract, and kernels that are right."""

from __future__ import annotations

import ctypes
import math
import random
import shutil
import subprocess
from collections import Counter

import pytest
import torch
from drawn_pairs import SEED, sample
from verified_pairs import assert_right, covering, of_every_style

from dice import prompts, synth
from dice.synth import FAMILIES, Pair
from dice.synth.problem.builder import ProblemBuilder
from dice.synth.problem.plan import Plan
from dice.synth.problem.tensors import Value
from dice.synth.split import HELD_OUT_CELLS, held_out_by
from dice.synth.tables.operators import OPERATORS, Spelling

pytestmark = [
    pytest.mark.usefixtures("lasting_zygote"),  # where verifiers are started
    pytest.mark.xdist_group("synth"),  # one process draws what they share
]

ELSEWHERE = ("attention", "conv", "fusion", "indexing", "layout", "network", "normalize", "pool", "vector")
TRAIN = 1500
SCALARS = {"threshold": (0.5, 1.25), "hardtanh": (-0.75, 0.5), "clamp": (-0.75, 0.5)}
NAMES = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional, "math": math}


@pytest.fixture(scope="module")
def train() -> list[Pair]:
    return list(sample()[:TRAIN])


@pytest.fixture(scope="module")
def test_set() -> list[Pair]:
    return synth.heldout(260, SEED + 1)


def test_a_pair_depends_on_seed_and_index_alone(train: list[Pair]) -> None:
    indices = list(range(0, TRAIN, 37))
    random.Random(1).shuffle(indices)
    assert [synth.generate(SEED, index) for index in indices] == [train[index] for index in indices]
    assert synth.generate(SEED + 1, 0) != train[0]
    assert synth.heldout(40, 3) == synth.heldout(60, 3)[:40]


def test_problems_are_distinct_and_meet_the_contract(train: list[Pair]) -> None:
    assert len({pair.problem.id for pair in train}) > 0.98 * len(train)
    for pair in train:
        pair.problem.check()
        pair.check_problem.check()
        assert pair.kernel.source.isascii() and pair.problem.source.isascii()


def test_kernels_have_the_parts_that_others_take_apart(train: list[Pair]) -> None:
    for pair in train[:300]:
        parts = pair.kernel.split()
        assert parts.prefix + parts.core + parts.suffix == pair.kernel.source
        *before, last = pair.kernel.global_functions
        assert pair.kernel.defines_model_new and before in ([], ["sum_kernel"])
        assert pair.kernel.bound_functions == (last.replace("_kernel", "_cuda"),)
        answer = prompts.extract_kernel(prompts.reply(pair.kernel))
        assert answer is not None and answer.source.strip() == pair.kernel.source.strip()


def test_no_held_out_composition_is_trained_on(train: list[Pair], test_set: list[Pair]) -> None:
    trained = {pair.composition for pair in train}
    assert all(pair.split == "train" and not pair.heldout_by for pair in train)
    assert all(pair.split == "heldout" and pair.heldout_by in ("composition", "operator") for pair in test_set)
    assert not trained & {pair.composition for pair in test_set}


def test_held_out_cells_are_missing_from_training_only_as_cells() -> None:
    """Their operator occurs in other contexts, and their context with other operators."""
    operators, contexts, cells = set(), set(), set()
    for index in range(12_000):
        plan = synth._draw(random.Random(f"cells:{index}"), "train")
        cells |= plan.cells
        operators.update(plan.operators)
        contexts |= {context for _, context in plan.cells}
    assert not cells & HELD_OUT_CELLS
    for operator, context in HELD_OUT_CELLS:
        assert operator in operators, f"{operator} never occurs in training"
        assert context in contexts, f"{context} never occurs in training"


def test_every_held_out_cell_can_be_drawn() -> None:
    found: set[tuple[str, str]] = set()
    rng = random.Random(2)
    for _ in range(4000):
        for family, (module, _) in FAMILIES.items():
            plan = module.sample(rng)
            assert plan.family == family
            found |= plan.cells & HELD_OUT_CELLS
        if found == HELD_OUT_CELLS:
            return
    raise AssertionError(f"{HELD_OUT_CELLS - found} are never drawn")


def test_the_held_out_share_of_compositions() -> None:
    rng = random.Random(4)
    reasons = Counter(held_out_by(FAMILIES["pointwise"][0].sample(rng)) for _ in range(3000))
    assert 0.06 < reasons["composition"] / 3000 < 0.14


def test_held_out_pairs_are_spread_over_families_and_rules(test_set: list[Pair]) -> None:
    families = Counter(pair.family for pair in test_set)
    assert set(families) == set(FAMILIES)
    assert max(families.values()) - min(families.values()) <= 2
    rules = Counter(pair.heldout_by for pair in test_set)
    assert min(rules.values()) > len(test_set) // 4
    assert len({pair.problem.id for pair in test_set}) == len(test_set)


def test_control_pairs_repeat_compositions_but_not_text(train: list[Pair]) -> None:
    control = list(synth.in_distribution(60, 9, SEED, TRAIN))
    assert {pair.composition for pair in control} <= {pair.composition for pair in train}
    assert not {pair.problem.id for pair in control} & {pair.problem.id for pair in train}


def test_a_composition_names_order_and_structure() -> None:
    one = Plan("linear", "linear", (("post", ("relu", "mul")),), ("bias",))
    other = Plan("linear", "linear", (("post", ("mul", "relu")),), ("bias",))
    assert one.composition != other.composition
    assert one.cells == other.cells == {("linear", "linear.bias"), ("relu", "linear.post"), ("mul", "linear.post")}


def test_large_problems_come_with_a_small_twin(train: list[Pair]) -> None:
    large = [pair for pair in train if pair.check_source is not None]
    assert 0.3 < len(large) / len(train) < 0.4
    for pair in large:
        assert pair.check_source is not None
        same = [line for line in pair.check_source.splitlines() if line in pair.problem.source]
        assert len(same) > 0.6 * len(pair.check_source.splitlines())


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_every_spelling_of_an_operator_computes_the_same(name: str) -> None:
    operator = OPERATORS[name]
    x = torch.linspace(-3, 3, 41) if operator.needs == "any" else torch.linspace(0.2, 3, 41)
    a, b = SCALARS.get(name, (0.75, 0.5))

    def results(forms: tuple[Spelling, ...], a: float, b: float) -> list[torch.Tensor]:
        texts = [form.text.format(x="x", a=a, b=b) + ("(x)" if form.kind == "module" else "") for form in forms]
        return [eval(text, NAMES | {"x": x}) for text in texts]

    values = results(operator.spellings, a, b)
    for form, value in zip(operator.spellings, values, strict=True):
        torch.testing.assert_close(value, values[0], msg=f"{form.text} differs from {operator.spellings[0].text}")
    if operator.plain:
        defaults = (*operator.defaults, 0.0)[:2]
        written = results(operator.spellings[:1], *defaults) if len(defaults) == 2 else values
        for value in results(operator.plain, 0.0, 0.0):
            torch.testing.assert_close(value, written[0], msg=f"{name}: PyTorch's default is not {operator.defaults}")


@pytest.fixture(scope="module")
def compiled_operators(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Every operator's CUDA statement as a C++ function of (v, a, b)."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    folder = tmp_path_factory.mktemp("operators")
    lines = ["#include <cmath>", "static float rsqrtf(float v) { return 1.0f / sqrtf(v); }", 'extern "C" {']
    for name, operator in OPERATORS.items():
        lines.append(f"float op_{name}(float v, float a, float b) {{ {operator.cuda('v', ('a', 'b'))} return v; }}")
    (folder / "operators.cpp").write_text("\n".join([*lines, "}"]))
    library = folder / "operators.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, folder / "operators.cpp"], check=True)
    return ctypes.CDLL(str(library))


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_the_cuda_statement_computes_the_operator(name: str, compiled_operators: ctypes.CDLL) -> None:
    operator = OPERATORS[name]
    function = compiled_operators[f"op_{name}"]
    function.argtypes, function.restype = [ctypes.c_float] * 3, ctypes.c_float
    a, b = SCALARS.get(name, (0.75, 0.5))
    x = torch.linspace(-6, 6, 97) if operator.needs == "any" else torch.linspace(0.05, 6, 97)
    form = operator.spellings[0]
    expected = eval(form.text.format(x="x", a=a, b=b) + ("(x)" if form.kind == "module" else ""), NAMES | {"x": x})
    actual = torch.tensor([function(value, a, b) for value in x.tolist()])
    torch.testing.assert_close(actual, expected, rtol=2e-6, atol=2e-6)


def test_a_statement_on_another_variable() -> None:
    assert OPERATORS["silu"].cuda("w", ()) == "w = w / (1.0f + expf(-w));"
    assert OPERATORS["leaky_relu"].cuda("v", ("0.2f",)) == "v = v > 0.0f ? v : v * 0.2f;"


@pytest.mark.parametrize(
    ("template", "inner", "expected"),
    [
        ("self.weight * {x}", "a + b", "self.weight * (a + b)"),
        ("self.act({x})", "a + b", "self.act(a + b)"),
        ("torch.relu({x})", "a + b", "torch.relu(a + b)"),
        ("{x}.relu()", "a + b", "(a + b).relu()"),
        ("{x}.relu()", "torch.exp(a)", "torch.exp(a).relu()"),
        ("-{x}", "a + b", "-(a + b)"),
        ("torch.clamp({x} / 6 + 0.5, 0, 1)", "a + b", "torch.clamp((a + b) / 6 + 0.5, 0, 1)"),
        ("torch.add({y}, {x}, alpha=2)", "a + b", "torch.add(y, a + b, alpha=2)"),
        ("torch.bmm({x}.transpose(1, 2), {y})", "a + b", "torch.bmm((a + b).transpose(1, 2), y)"),
    ],
)
def test_nested_expressions_are_parenthesised(template: str, inner: str, expected: str) -> None:
    builder = ProblemBuilder(random.Random(0))
    builder.forward.flow = "nested"
    value = Value(inner, is_atom=inner.endswith(")"), is_name=False)
    result = builder.forward.apply(template, value, y="y")
    assert result.text == expected
    outer = builder.forward.apply("{x}.add(1)", result)
    assert outer.text == (result.text if result.is_atom else f"({result.text})") + ".add(1)"


def test_references_run_and_depend_on_their_inputs(train: list[Pair], test_set: list[Pair]) -> None:
    flat = 0
    for pair in [*train[:250], *test_set[:150]]:
        first, second = _outputs(pair.check_problem.source), _outputs(pair.check_problem.source)
        assert torch.equal(first, second), f"{pair.composition} is not deterministic"
        assert torch.isfinite(first.float()).all(), f"{pair.composition} leaves float32's range"
        flat += first.numel() > 8 and float(first.float().std()) < 1e-6
    assert flat <= 8, f"{flat} of 400 problems have a constant output"


def _outputs(source: str) -> torch.Tensor:
    scope: dict[str, object] = {"__name__": "problem"}
    exec(compile(source, "problem", "exec"), scope)
    torch.manual_seed(0)
    model = scope["Model"](*scope["get_init_inputs"]())  # type: ignore[operator]
    with torch.no_grad():
        result: torch.Tensor = model(*scope["get_inputs"]())  # type: ignore[operator]
    return result


@pytest.fixture(scope="module")
def every_style(train: list[Pair]) -> list[Pair]:
    """One pair of each style of each family but those of test_synth_families.py."""
    return of_every_style([pair for pair in train if pair.family not in ELSEWHERE])


def test_a_pair_of_each_family_is_right(every_style: list[Pair]) -> None:
    assert_right(list({pair.family: pair for pair in every_style}.values()))


@pytest.mark.slow
def test_a_sample_of_the_families_and_styles_is_right(every_style: list[Pair]) -> None:
    """Each family and each style at least once, though not each style of each family."""
    assert_right(covering(every_style))


@pytest.mark.slow
def test_every_style_of_every_family_is_right(every_style: list[Pair]) -> None:
    assert_right(every_style, trials=2)
