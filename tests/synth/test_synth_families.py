"""The families one by one: breadth, compositions, style counts, and kernels of every style that are right."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from verified_pairs import assert_right, covering, of_every_style

from dice import synth
from dice.synth import FAMILIES, Pair
from dice.synth.kernel.convolution import Window
from dice.synth.kernel.cuda import SWEEPS
from dice.synth.problem.plan import Plan
from dice.synth.split import held_out_by
from dice.synth.syntax import fault
from dice.synth.tables.architectures import ARCHITECTURES
from dice.synth.tables.forms import FORMS
from dice.synth.tables.index_maps import INDEX_MAPS
from dice.synth.tables.networks import NETWORKS

pytestmark = [
    pytest.mark.usefixtures("lasting_zygote"),  # where verifiers are started
    pytest.mark.xdist_group("synth families"),  # one process draws what they share
]

NEW = ("attention", "conv", "fusion", "indexing", "layout", "network", "normalize", "pool", "vector")
DRAWS = 250


def _drawn(family: str, seed: int, count: int) -> list[Pair]:
    module = FAMILIES[family][0]
    rngs = [random.Random(f"{seed}:{family}:{number}") for number in range(count)]
    return [synth._render(module.sample(rng), rng, str(number), large_share=0.2) for number, rng in enumerate(rngs)]


@pytest.fixture(scope="module")
def drawn() -> dict[str, list[Pair]]:
    return {family: _drawn(family, 11, DRAWS) for family in FAMILIES}


def test_every_family_has_three_styles_and_many_compositions(drawn: dict[str, list[Pair]]) -> None:
    for family, pairs in drawn.items():
        assert len({pair.style for pair in pairs}) >= 3, f"{family} has too few styles"
        assert len({pair.composition for pair in pairs}) > DRAWS // 4, f"{family} repeats itself"
        assert all(pair.family == family for pair in pairs)


def test_nothing_speaks_against_what_is_drawn(drawn: dict[str, list[Pair]]) -> None:
    found = [(pair.composition, reason) for pairs in drawn.values() for pair in pairs[::3] if (reason := fault(pair))]
    assert not found


@pytest.mark.parametrize(
    ("name", "problem", "kernel"),
    [
        ("the problem is not valid", lambda text: text.replace("def get_inputs", "def inputs"), str),
        ("the kernel is not valid Python", str, lambda text: text + "\n)"),
        ("the kernel lacks a part", str, lambda text: text.replace("class ModelNew", "class Other")),
        ("the CUDA source has unbalanced brackets", str, lambda text: text.replace("{", "", 1)),
        ("a template was left unfilled", str, lambda text: text.replace("return out;", "<sum:s> return out;")),
    ],
)
def test_faults_are_named(name: str, problem, kernel) -> None:  # type: ignore[no-untyped-def]
    pair = next(pair for pair in _drawn("elementwise", 2, 40) if pair.check_source is None)
    broken = replace(
        pair,
        problem=replace(pair.problem, source=problem(pair.problem.source)),
        kernel=replace(pair.kernel, source=kernel(pair.kernel.source)),
    )
    assert fault(pair) == ""
    assert fault(broken) == name


def test_matrix_products_come_in_every_form(drawn: dict[str, list[Pair]]) -> None:
    many = _drawn("matmul", 5, 3000)
    assert {pair.composition.split(":")[1].split("[")[0] for pair in many} == set(FORMS)
    texts = "\n".join(pair.problem.source for pair in many)
    for spelling in (".mT", ".t()", ".T", "torch.einsum", "torch.bmm", "torch.mm", "F.linear", "torch.addmm", " @ "):
        assert spelling in texts, f"{spelling} never occurs"
    styles = {"naive", "tiled16", "tiled32", "registers", "columns", "split_k", "split_k_atomic", "float4"}
    assert styles <= {pair.style for pair in many}


def test_the_extents_that_kernels_compute_are_pytorchs() -> None:
    size, found = 17, 0
    for kernel, stride, padding, dilation, more in itertools.product(
        (1, 2, 3, 5), (1, 2, 3), (0, 1), (1, 2, 3), (0, 1)
    ):
        image, weight = torch.zeros(1, 1, size), torch.zeros(1, 1, kernel)
        conv = F.conv1d(image, weight, stride=stride, padding=padding, dilation=dilation)
        plain = Window((kernel,), (stride,), (padding,), (dilation,), (0,))
        assert _value(plain.sizes(), W=size) == conv.shape[-1]
        assert _value(f"= {plain.patch(0, 16)}") == 15 * stride + dilation * (kernel - 1) + 1
        if more < max(stride, dilation):
            grown = F.conv_transpose1d(image, weight, None, stride, padding, more, 1, dilation)
            window = Window((kernel,), (stride,), (padding,), (dilation,), (more,), True)
            assert _value(window.sizes(), W=size) == grown.shape[-1]
            found += 1
    assert found == 136


def _value(text: str, **names: int) -> int:
    """Of a C++ declaration of one whole number."""
    return int(eval(text.partition("= ")[2].replace("/", "//"), names))


def test_convolutions_come_in_every_kind() -> None:
    many = _drawn("conv", 5, 1500)
    kinds = {tuple(pair.composition.split(":")[1].partition(" ")[0].rstrip("]").partition("[")[::2]) for pair in many}
    for core in ("conv", "transposed", "depthwise", "grouped", "pointwise", "transposed_grouped"):
        for rank in (1, 2, 3):
            assert any(kind == core and f"rank={rank}" in rest for kind, rest in kinds), f"{core} of rank {rank}"


def test_tables_are_drawn_whole(drawn: dict[str, list[Pair]]) -> None:
    for family, table in (("layout", INDEX_MAPS), ("network", NETWORKS | ARCHITECTURES)):
        cores = {pair.operators[0] for pair in [*drawn[family], *_drawn(family, 12, 800)]}
        assert cores == set(table)


def test_large_problems_run_and_fit_a_gpu() -> None:
    """On PyTorch's meta device, which has shapes and no values."""
    large = [pair for family in FAMILIES for pair in _drawn(family, 3, 30) if pair.check_source is not None]
    assert len(large) > 2 * len(FAMILIES)
    for pair in large:
        scope: dict[str, Any] = {}
        exec(compile(pair.problem.source, "problem", "exec"), scope)
        with torch.device("meta"):
            model, inputs = scope["Model"](*scope["get_init_inputs"]()), scope["get_inputs"]()
            output = model(*inputs)
        assert all(torch.as_tensor(item).numel() <= 2**28 for item in inputs), pair.composition
        assert output.numel() < 2**31, pair.composition  # kernels count in 32 bits


@pytest.mark.parametrize("index", [33549, 129093])
def test_the_forward_of_rare_draws_runs(index: int) -> None:
    """One had a dilated kernel that spans 41 positions of an image 32 wide; the other's constant for the shape
    of its inputs took the name, and so the place, of that for a parameter's."""
    plan, rng = Plan("", ""), random.Random(f"303:{index}")
    while plan.family == "" or held_out_by(plan):
        family = rng.choices(tuple(FAMILIES), [weight for _, weight in FAMILIES.values()])[0]
        plan = FAMILIES[family][0].sample(rng)
    scope: dict[str, Any] = {}
    exec(compile(synth._render(plan, rng, "", large_share=0.35).problem.source, "problem", "exec"), scope)
    with torch.device("meta"):
        assert scope["Model"](*scope["get_init_inputs"]())(*scope["get_inputs"]()).numel()


def test_a_library_layer_is_kept_and_its_tail_is_a_kernel(drawn: dict[str, list[Pair]]) -> None:
    for pair in drawn["fusion"][:100]:
        forward = pair.kernel.source.partition("def forward(")[2]
        assert forward.index("x = ") < forward.index("ops.fusion_cuda(x")


def test_no_scalar_of_a_problem_shadows_a_name_of_its_kernel() -> None:
    """A constructor argument that reaches the kernel becomes its parameter; `weight` there would hide a tensor."""
    for family in FAMILIES:
        for pair in _drawn(family, 21, 60):
            _, _, rest = pair.kernel.source.partition("__global__ void ")
            names = [part.split()[-1].lstrip("*") for part in rest[rest.index("(") + 1 : rest.index(")")].split(",")]
            assert len(names) == len(set(names)), pair.composition


def test_a_kernel_that_a_network_calls_several_times_has_its_numbers_written_into_it() -> None:
    """Each call would have to pass numbers of its own."""
    for pair in _drawn("network", 31, 600):
        declared = pair.kernel.source.partition("torch::Tensor network_cuda(")[2].partition(")")[0]
        assert "float " not in declared, pair.composition


def test_sweeps_cover_all_elements_once() -> None:
    assert len({sweep.style for sweep in SWEEPS}) == len(SWEEPS) == 3
    assert all("{body}" in sweep.loop and sweep.grid for sweep in SWEEPS)


@pytest.fixture(scope="module")
def every_style(drawn: dict[str, list[Pair]]) -> list[Pair]:
    """One pair of each style of each new family."""
    return of_every_style([pair for family in NEW for pair in drawn[family]])


@pytest.mark.slow
def test_a_sample_of_the_styles_of_the_families_is_right(every_style: list[Pair]) -> None:
    """Each new family and each style at least once, though not each style of each family."""
    assert_right(covering(every_style))


@pytest.mark.slow
def test_every_style_of_the_families_is_right(every_style: list[Pair]) -> None:
    assert_right(every_style)
