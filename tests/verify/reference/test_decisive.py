"""Families of values between which a reference's operators decide: halves, what is not finite, what is past a bound."""

from __future__ import annotations

import problem_texts as texts
import pytest

from tests.verify.reference.conftest import SECRET, Make

DECISIVE = {  # forward, and the families that its operators decide between
    "return torch.round(x * 8) / 8": {"halves"},
    "return torch.nan_to_num(x) * 0.5": {"NaN and infinite"},
    "return torch.where(torch.isnan(x), inputs[1], x)": {"NaN and infinite"},
    "return torch.nan_to_num(torch.softmax(x.masked_fill(inputs[1] < 0, float('-inf')), -1))": set(),
    "return torch.where(torch.isfinite(x), x, inputs[1])": {"NaN and infinite"},
    "return torch.where(x == inputs[1], x, inputs[1])": set(),
    "return torch.where(x.mean() > 50, x.abs(), x)": {"past 50"},
    "return torch.where(x < -20, x.abs(), x)": {"past -20"},
    "return x * 2 if x.max() < 1e3 else x": {"past 1000"},
    "return torch.where(x > 0.5, x, inputs[1]) + torch.where(x > 2, x, inputs[1])": set(),
}


@pytest.mark.parametrize("forward", DECISIVE)
def test_values_between_which_operators_decide_are_tried(make: Make, forward: str) -> None:
    """Of what was computed alone, whether it is finite is asked for another reason: a row that is masked altogether."""
    reference = make(texts.problem(forward, "[torch.randn(batch_size, 40), torch.randn(batch_size, 40)]"))
    steps = {step.family: step for step in reference.plan(SECRET, 5)}
    found = {family for family in steps if family in ("halves", "NaN and infinite") or family.startswith("past")}
    assert found == DECISIVE[forward]
    for family in DECISIVE[forward]:
        assert reference.trial(SECRET, steps[family]) is not None
