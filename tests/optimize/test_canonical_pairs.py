"""Pairs of the synthetic corpus in canonical form: the optimiser's own text, and kernels that are right for it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dice import synth
from dice.optimize.canonical import canonical_pair
from dice.optimize.canonical.follow import follow
from dice.optimize.printing import problem_of
from dice.optimize.regions import cut
from dice.optimize.trace.capture_graph import NotTraced
from dice.optimize.trace.tracer import Tracer
from dice.synth import Pair, Styles, corpus
from tests.synth.verified_pairs import assert_right

ASKED = Styles("wide", canonical=canonical_pair)


def canonical(seed: int, count: int) -> list[Pair]:
    """The first pairs of a seed that have the form."""
    drawn = (canonical_pair(synth.generate(seed, index)) for index in range(10 * count))
    return [pair for pair in drawn if isinstance(pair, Pair)][:count]


def assert_printed_as_by_the_optimiser(seed: int, count: int) -> None:
    with Tracer("emulated") as tracer:
        for index in range(count):
            problem = synth.generate(seed, index).check_problem
            (unit,) = tracer.trace(problem).units
            expected = [problem_of(region).problem.source for region in cut(unit.graph)]
            assert [problem_of(region).problem.source for region in cut(follow(problem.source).graph)] == expected


@pytest.mark.usefixtures("lasting")
def test_a_problem_is_printed_as_by_the_optimiser() -> None:
    assert_printed_as_by_the_optimiser(6, 4)


@pytest.mark.slow
@pytest.mark.usefixtures("lasting")
def test_many_problems_are_printed_as_by_the_optimiser() -> None:
    assert_printed_as_by_the_optimiser(6, 200)


@pytest.mark.slow
@pytest.mark.usefixtures("lasting_zygote")
def test_canonical_kernels_are_right() -> None:
    assert_right(canonical(903, 60))


def test_a_share_of_wide_pairs_is_canonical_and_the_others_stay_what_they_were() -> None:
    asked = [synth.generate(5, index, styles=ASKED) for index in range(80)]
    wide = [synth.generate(5, index, styles=Styles("wide")) for index in range(80)]
    assert 8 < sum(pair.is_canonical for pair in asked) < 30
    assert all(pair.is_canonical or pair == other for pair, other in zip(asked, wide, strict=True))
    assert asked[:20] == [synth.generate(5, index, styles=ASKED) for index in range(20)]


def test_what_is_to_have_a_hidden_style_is_not_canonical() -> None:
    hidden = Styles("wide", ("helper_method",), canonical_pair)
    assert synth.heldout(30, 9, hidden) == synth.heldout(30, 9, Styles("wide", ("helper_method",)))


LOSS = """import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def forward(self, x, y):
        return {loss}

def get_inputs():
    return [torch.rand(4, 5), torch.rand(4, 5)]

def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(
    "loss",
    [
        "F.binary_cross_entropy(x, y) + x.mean()",
        "F.binary_cross_entropy(x.t(), y.t())",
        "F.binary_cross_entropy_with_logits(x, y)",
        "F.binary_cross_entropy(torch.sigmoid(x), y, reduction='sum')",
    ],
)
def test_probabilities_and_targets_are_drawn_as_such(loss: str) -> None:
    (region,) = cut(follow(LOSS.format(loss=loss)).graph)
    space: dict[str, Any] = {}
    exec(problem_of(region).problem.source, space)
    prediction, target = space["get_inputs"]()
    assert target.min() >= 0 and target.max() <= 1
    assert "sigmoid(x)" in loss or "logits" in loss or (prediction.min() > 0 and prediction.max() < 1)
    assert space["Model"]()(prediction, target) > 0


def test_what_pytorch_cannot_follow_is_said_and_a_fault_of_the_module_surfaces() -> None:
    with pytest.raises(NotTraced, match="cannot follow it: DataDependentOutput"):
        follow(LOSS.format(loss="x * y if x.sum() > 0 else x"))
    with pytest.raises(NotTraced, match="cannot follow it: DynamicOutputShape"):
        follow(LOSS.format(loss="x[y > 0.5]"))
    with pytest.raises(RuntimeError, match="broadcast"):
        follow(LOSS.format(loss="x + y[:, :3]"))


def test_a_pair_that_is_not_written_in_canonical_form_says_why() -> None:
    pair = synth.generate(6, 0)
    problem = replace(pair.problem, source=LOSS.format(loss="x * y if x.sum() > 0 else x"))
    asked = Styles("wide", canonical=lambda one: canonical_pair(replace(one, problem=problem, check_source=None)))
    reasons = {synth.generate(6, index, styles=asked).not_canonical for index in range(20)}
    assert reasons == {"", "PyTorch cannot follow it: DataDependentOutputException"}


def test_a_corpus_counts_what_has_the_form_and_why_the_rest_has_not(tmp_path: Path) -> None:
    report = corpus.build(tmp_path, 16, 5, heldout=1, control=0, verify=False, styles=ASKED)
    asked = [synth.generate(5, index, styles=ASKED) for index in range(16)]
    expected = Counter("written" if pair.is_canonical else pair.not_canonical for pair in asked)
    del expected[""]
    assert report["train"]["canonical"] == dict(expected) and expected["written"]
