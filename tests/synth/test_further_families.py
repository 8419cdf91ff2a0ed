"""The families that wide pairs alone have: breadth, whole texts, references that run, and kernels that are right."""

from __future__ import annotations

import functools
import random
import re
from typing import Any

import pytest
import torch
from verified_pairs import assert_right, of_every_style

from dice import synth
from dice.synth import ALL_FAMILIES, FURTHER, Pair, Styles
from dice.synth.syntax import fault

pytestmark = [
    pytest.mark.usefixtures("lasting_zygote"),  # where verifiers are started
    pytest.mark.xdist_group("synth families"),
]
DRAWS = 60


@functools.cache
def drawn(family: str, seed: int = 41, count: int = DRAWS) -> tuple[Pair, ...]:
    module = FURTHER[family][0]
    rngs = [random.Random(f"{seed}:{family}:{number}") for number in range(count)]
    return tuple(
        synth._render(module.sample(rng), rng, str(number), large_share=0.3) for number, rng in enumerate(rngs)
    )


def loaded(source: str) -> dict[str, Any]:
    scope: dict[str, Any] = {"__name__": "problem"}
    exec(compile(source, "problem", "exec"), scope)
    return scope


def output(source: str, device: str = "cpu") -> torch.Tensor:
    scope = loaded(source)
    torch.manual_seed(0)
    with torch.no_grad(), torch.device(device):
        result = scope["Model"](*scope["get_init_inputs"]())(*scope["get_inputs"]())
    assert isinstance(result, torch.Tensor)
    return result


@pytest.mark.parametrize("family", FURTHER)
def test_a_family_is_broad_and_its_texts_are_whole(family: str) -> None:
    pairs = drawn(family)
    assert len({pair.style for pair in pairs}) >= 3
    assert len({pair.composition for pair in pairs}) > DRAWS // 3
    assert not [(pair.composition, reason) for pair in pairs if (reason := fault(pair))]
    for pair in pairs:
        _, _, rest = pair.kernel.source.partition("__global__ void ")
        names = [part.split()[-1].lstrip("*") for part in rest[rest.index("(") + 1 : rest.index(")")].split(",")]
        assert len(names) == len(set(names)), pair.composition
        body = rest[rest.index("{") : rest.index("torch::Tensor")]
        assert all(re.search(rf"\b{name}\b", body) for name in names), f"{pair.composition} reads not all of {names}"


@pytest.mark.parametrize("family", FURTHER)
def test_references_run_in_both_sizes(family: str) -> None:
    flat = 0
    for pair in drawn(family)[::6]:
        first = output(pair.check_problem.source)
        assert torch.equal(first, output(pair.check_problem.source))
        assert torch.isfinite(first.float()).all(), pair.composition
        flat += first.numel() > 8 and float(first.float().std()) < 1e-6
        large = output(pair.problem.source, "meta")
        assert large.dim() == first.dim() and large.numel() < 2**31
    assert flat <= 2


def test_styles_keep_what_further_families_compute() -> None:
    """Wide pairs of them with their texts whole, none of them among plain ones."""
    pairs = [synth.generate(43, index, styles=Styles("wide")) for index in range(40)]
    further = [pair for pair in pairs if pair.family in FURTHER]
    assert len(further) > 4 and not [pair.written for pair in further if fault(pair)]
    assert not {synth.generate(43, index).family for index in range(40)} & {*FURTHER}
    held = synth.heldout(len(ALL_FAMILIES), 4, Styles("wide"))
    assert {pair.family for pair in held} >= {*FURTHER}


@pytest.mark.slow
@pytest.mark.parametrize("family", FURTHER)
def test_every_style_of_further_families_is_right(family: str) -> None:
    assert_right(of_every_style(drawn(family, 42, 200)), trials=2)


@pytest.mark.slow
@pytest.mark.parametrize("family", FURTHER)
def test_many_pairs_of_further_families_are_right(family: str) -> None:
    assert_right(drawn(family, 44, 30))
