"""Families of values between which a reference's operators decide: halves, what is not finite, what is past a bound."""

from __future__ import annotations

import problem_texts as texts
import pytest
import torch

from dice.verify.execution import pairs
from dice.verify.execution.changes import BEYOND_WHOLE, CHAINED, TURNED
from dice.verify.execution.seldom import (
    BARE_CORNER,
    BARE_LATER,
    IN_ORDER,
    MEETING,
    NEAR_ONE,
    NEAR_TIES,
    SPREAD,
)
from dice.verify.execution.steady import ALL_BRIMMING, BRIMMING
from tests.verify.reference.conftest import SECRET, Make, draw

DECISIVE = {  # forward, and the families that its operators decide between
    "return torch.round(x * 8) / 8": {"halves"},
    "return torch.nan_to_num(x) * 0.5": {"NaN and infinite"},
    "return torch.where(torch.isnan(x), inputs[1], x)": {"NaN and infinite"},
    "return torch.nan_to_num(torch.softmax(x.masked_fill(inputs[1] < 0, float('-inf')), -1))": set(),
    "return torch.where(torch.isfinite(x), x, inputs[1])": {"NaN and infinite"},
    "return torch.where(x == inputs[1], x, inputs[1])": set(),
    "return torch.where(x.mean() > 50, x.abs(), x)": {"past 50", "drifting"},
    "return torch.where(x < -20, x.abs(), x)": {"past -20"},
    "return x * 2 if x.max() < 1e3 else x": {"past 1000"},
    "return torch.where(x.sum(1, keepdim=True) > 0, x, inputs[1])": {"drifting"},
    "return torch.where(x > 0.5, x, inputs[1]) + torch.where(x > 2, x, inputs[1])": set(),
}


@pytest.mark.parametrize("forward", DECISIVE)
def test_values_between_which_operators_decide_are_tried(make: Make, forward: str) -> None:
    """Of what was computed alone, whether it is finite is asked for another reason: a row that is masked altogether."""
    reference = make(texts.problem(forward, "[torch.randn(batch_size, 40), torch.randn(batch_size, 40)]"))
    steps = {step.family: step for step in reference.plan(SECRET, 5)}
    found = {
        family for family in steps if family in ("halves", "drifting", "NaN and infinite") or family.startswith("past")
    }
    assert found == DECISIVE[forward]
    for family in DECISIVE[forward]:
        assert reference.trial(SECRET, steps[family]) is not None


INPUTS = "[torch.randn(batch_size, 40), torch.randint(0, 40, (batch_size,))]"
MET = {  # forward, and the numbers that some values of an input are to be
    "return torch.bucketize(x, torch.tensor([-0.3, 1.5]))": ("0: -0.3 1.5",),
    "return torch.searchsorted(torch.tensor([-0.3, 1.5]), x)": ("0: -0.3 1.5",),
    "return torch.histc(x, bins=8, min=-2, max=2)": ("0: -2.0 2.0",),
    "return torch.where(x.reshape(-1) >= 0.5, 1.0, 0.0)": ("0: 0.5",),
    "return torch.where(x * 2 >= 0.5, 1.0, 0.0)": (),  # where a rounding would decide
    "return torch.nn.functional.hardshrink(x, 0.7)": ("0: 0.7",),
    "return torch.nn.functional.cross_entropy(x, inputs[1], ignore_index=7)": ("1: 7",),
    "return torch.nn.functional.cross_entropy(x, inputs[1], ignore_index=255)": ("1: 255",),
    "return torch.nn.functional.cross_entropy(x, inputs[1])": (),  # no label is -100
    "return torch.where(inputs[1] != 3, x[:, 0], 0.0)": ("1: 3",),
    "return torch.where(inputs[1] < 50, x[:, 0], 0.0)": (),
    "return x[:, 0] / inputs[1].clamp(min=1)": ("1: 0.0",),
    "return x[:, 0] * inputs[1].clamp(2, 30)": ("1: 1.0 31.0",),
    "return torch.log(x.sigmoid())": (),
}


@pytest.mark.parametrize("forward", MET)
def test_inputs_meet_the_numbers_that_they_are_compared_with(make: Make, forward: str) -> None:
    reference = make(texts.problem(forward, INPUTS))
    steps = {step.family: step for step in reference.plan(SECRET, 5) if step.family.startswith(MEETING)}
    assert tuple(family.removeprefix(MEETING) for family in steps) == MET[forward]
    for step in steps.values():
        assert reference.trial(SECRET, step) is not None


LEVELS = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.level = torch.nn.Parameter(torch.tensor([0.25, -0.5, 0.25]))
        self.register_buffer("many", torch.linspace(-1, 1, 2000))

    def forward(self, x):
        return {expression}

def get_inputs():
    return [torch.randn(5, 3, 2000)]

def get_init_inputs():
    return []
"""
COMPARED = {
    "torch.where(x >= self.level.view(3, 1), x, -x)": ("0: -0.5 0.25",),
    "torch.where(self.level[:, None] < x, x, -x)": ("0: -0.5 0.25",),
    "torch.where(x > self.many, x, -x)": (),  # too many to be met
    "torch.where(x > x.mean(-1, keepdim=True), x, -x)": (),  # where a rounding would decide
}


@pytest.mark.parametrize("expression", COMPARED)
def test_inputs_meet_the_parameters_that_they_are_compared_with(make: Make, expression: str) -> None:
    steps = make(LEVELS.format(expression=expression)).plan(SECRET, 5)
    found = [step.family.removeprefix(MEETING) for step in steps if step.family.startswith(MEETING)]
    assert tuple(found) == COMPARED[expression]


def test_products_of_whole_numbers_that_overflow_are_tried(make: Make) -> None:
    """Neither input alone makes a sum of 2^31, for the other's values are of both signs."""
    drawn = "torch.randint(-{0}, {0}, (batch_size, 40), dtype=torch.int32)"
    for high, found in ((10**5, 1), (100, 0)):
        inputs = f"[{drawn.format(1000)}, {drawn.format(high)}]"
        reference = make(texts.problem("return (x.long() * inputs[1].long()).sum(1)", inputs))
        steps = [step for step in reference.plan(SECRET, 5) if step.kind.startswith(ALL_BRIMMING)]
        assert len(steps) == found
        for step in steps:
            trial = reference.trial(SECRET, step)
            assert trial is not None and int(trial.expected.abs().max()) > 2**31


def test_whole_numbers_are_tried_at_the_end_of_their_range(make: Make) -> None:
    """Where there are few, and where their sums overflow."""
    for high, columns, found in (("2**28", 40, 1), ("2**10", 40, 1), ("2**10", 1 << 16, 0), ("2**28", 1 << 16, 1)):
        drawn = f"[torch.randint(0, {high}, (batch_size, {columns}), dtype=torch.int32)]"
        source = texts.problem("return x.sum(1)", drawn)
        assert sum(step.kind.startswith(BRIMMING) for step in make(source).plan(SECRET, 5)) == found


def test_products_of_bytes_that_overflow_twice_their_bits_are_tried(make: Make) -> None:
    drawn = "torch.randint(-{0}, {0}, (batch_size, 64), dtype=torch.int8)"
    for high, found in ((32, 1), (2, 0)):
        inputs = f"[{drawn.format(high)}, {drawn.format(high)}]"
        reference = make(texts.problem("return (x.float() * inputs[1].float()).sum(1)", inputs))
        assert sum(step.kind.startswith(ALL_BRIMMING) for step in reference.plan(SECRET, 5)) == found


def test_offsets_that_rise_by_chance_may_be_equal(make: Make) -> None:
    """But not where the last of what is written to one place stays."""
    rising = "torch.randint(1, 200, (6,)).unique().sort().values[:4]"
    for forward, found in (
        ("return torch.nn.functional.embedding_bag(inputs[1], x, inputs[2] - inputs[2][0])", 1),
        ("return x.index_copy(0, inputs[2] % 16, x[:4])", 0),
    ):
        inputs = f"[torch.randn(batch_size, 8), torch.randint(0, batch_size, (300,)), {rising}]"
        steps = make(texts.problem(forward, inputs)).plan(SECRET, 5)
        assert sum(step.kind == "repeated" and step.place == 2 for step in steps) == found, forward


@pytest.mark.parametrize(
    ("forward", "found"),
    [
        ("return x.argmax(1)", True),
        ("return x.topk(3, dim=1)[1]", True),
        ("return x.max(0)", True),
        ("return x.amax(1)", False),
        ("return (x * 0.3 + 1).argmax(1)", False),  # where a rounding would decide
    ],
)
def test_near_ties_are_tried_where_places_of_an_input_itself_are_asked_for(
    make: Make, forward: str, found: bool
) -> None:
    reference = make(texts.problem(forward, "[torch.randn(batch_size, 40)]"))
    families = {step.family: step for step in reference.plan(SECRET, 5)}
    assert (f"{NEAR_TIES}0" in families) is found
    if found:
        assert reference.trial(SECRET, families[f"{NEAR_TIES}0"]) is not None


def test_shares_are_nothing_and_all_where_an_operator_has_a_pole_there(make: Make) -> None:
    source = "[torch.rand(batch_size, 40), torch.randn(batch_size, 40)]"
    for forward, expected in {"return torch.xlogy(x, x)": ["0: 0.0 1.0"], "return x * 2": []}.items():
        steps = make(texts.problem(forward, source)).plan(SECRET, 5)
        found = [step.family.removeprefix(MEETING) for step in steps if step.family.startswith(MEETING)]
        assert found == expected


@pytest.mark.parametrize(
    ("forward", "family"),
    [
        ("return torch.isclose(x, inputs[1]).float()", pairs.NEARLY_EQUAL),
        ("return torch.linalg.det(x[:4, :4] + inputs[1][:4, :4])", BARE_CORNER),
        ("return torch.linalg.eigvalsh(x[:4, :4] + inputs[1][:4, :4])", BARE_LATER),
        ("return torch.topk(x, 3).values", IN_ORDER),
        ("return inputs[1][x.argmax(0)]", NEAR_ONE),
        ("return torch.sin(x) + inputs[1]", TURNED),
        ("return x - x.floor() + inputs[1]", BEYOND_WHOLE),
        ("return torch.where(x.std(-1, keepdim=True) > 300, x, inputs[1])", f"{SPREAD}300"),
    ],
)
def test_operators_decide_what_else_is_tried(make: Make, forward: str, family: str) -> None:
    inputs = "[torch.randn(batch_size, 40), torch.randn(batch_size, 40)]"
    assert family in [step.family for step in make(texts.problem(forward, inputs)).plan(SECRET, 5)]
    plain = make(texts.problem("return x + inputs[1]", inputs)).plan(SECRET, 5)
    assert family not in [step.family for step in plain]


LOOPED = """
y = x
for _ in range({steps}):
    y = torch.tanh(y @ x)
return y
"""


@pytest.mark.parametrize(("steps", "chained"), [(8, True), (2, False)])
def test_the_matrices_of_a_loop_are_chains_too(make: Make, steps: int, chained: bool) -> None:
    reference = make(texts.problem(LOOPED.format(steps=steps), "[torch.rand(9, 9)]"))
    found = [step for step in reference.plan(SECRET, 5) if step.family == CHAINED]
    assert bool(found) == chained
    for step in found:
        (matrix,) = draw(reference, step).inputs
        assert torch.equal(matrix > matrix.mean(), torch.ones(8).diag_embed(1).bool())


def test_a_trial_that_is_dropped_leaves_no_trace_in_the_state(make: Make) -> None:
    """Candidates do not meet it, and keep a running mean as well."""
    source = texts.problem(
        "self.seen.mul_(0.5).add_(x.mean()); return torch.asin(x) + self.seen", "[torch.rand(batch_size, 40)]",
        init='self.register_buffer("seen", torch.zeros(()))',
    )  # fmt: skip
    reference = make(source)
    expected, dropped = 0.0, 0
    for step in reference.plan(SECRET, 5):
        if step.fresh:
            continue
        trial = reference.trial(SECRET, step)
        dropped += trial is None
        if trial is not None:
            (inputs,) = trial.inputs
            expected = 0.5 * expected + float(inputs.mean())
        assert float(reference.model.seen) == pytest.approx(expected, rel=1e-5)
    assert dropped
