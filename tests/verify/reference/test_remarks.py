"""Which arguments of a constructor are changed, and where values that are not finite tell something."""

from __future__ import annotations

from typing import Any

import problem_texts as texts
import pytest
import torch

from dice.verify.ipc.messages import Step
from dice.verify.reference.judge import judge
from dice.verify.reference.reference import Reference
from dice.verify.reference.remarks import MOST_COST, Remarks, judge_special
from dice.verify.reference.trial import Trial
from tests.verify.reference.conftest import SECRET, Make

ROWS = "[torch.randn(batch_size, 40)]"
KEEPS = "self.kept = arguments[0]"
IMAGES = "[torch.randn(2, 3, 12, 12)]"
# Forward, inputs, what the constructor keeps, its arguments; and which of them are changed.
ARGUMENTS: dict[str, tuple[str, str, str, str, list[bool]]] = {
    "slope": ("return F.leaky_relu(x, self.kept)", ROWS, KEEPS, "[0.01]", [True]),
    "the first of three": ("return x * self.kept", ROWS, KEEPS, "[2.0, 3.0, 7]", [True, False, False]),
    "limits": ("return x.clamp(*self.kept)", ROWS, KEEPS, "[[-1.0, 1.0]]", [True, True]),
    "epsilon": ("return self.norm(x)", ROWS, "self.norm = nn.LayerNorm(40, arguments[0])", "[1e-5]", [True]),
    "a dimension": ("return torch.softmax(x, self.kept)", "[torch.randn(4, 4, 4)]", KEEPS, "[1]", [True]),
    "shapes": ("return self.conv(x)", IMAGES, "self.conv = nn.Conv2d(*arguments)", "[3, 8, 3, 1]", [False] * 4),
    "a size of the output": ("return F.max_pool2d(x, self.kept)", IMAGES, KEEPS, "[2]", [False]),
    "a bias": ("return self.linear(x)", ROWS, "self.linear = nn.Linear(40, 8, *arguments)", "[True]", [False]),
    "a flag": ("return x.cumsum(1) if self.kept else x", ROWS, KEEPS, "[True]", [True]),
    "a share": ("assert 0 < self.kept <= 0.9\nreturn x * self.kept", ROWS, KEEPS, "[0.8]", [True]),
    "texts": ("return F.pad(x, (1, 1), self.kept)", ROWS, KEEPS, "['reflect']", [False]),
    "nothing to change": ("return torch.relu(x)", ROWS, "", "[]", []),
}


def planned(reference: Reference) -> tuple[Remarks, dict[str, Step]]:
    reference.plan(SECRET, 3)
    remarks = Remarks(reference)
    return remarks, {step.remark: step for step in remarks.plan(SECRET, 1)}


def flat(arguments: Any) -> list[Any]:
    return [leaf for one in arguments for leaf in (one if isinstance(one, list) else [one])]


def test_nothing_is_looked_for_on_the_host_where_a_forward_takes_long_there(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = make(texts.problem("return F.leaky_relu(x, self.kept)", ROWS, KEEPS, "[0.01]"))
    reference.plan(SECRET, 3)
    assert 0 < reference.cost < MOST_COST and len(Remarks(reference).plan(SECRET, 1)) == 3
    reference.cost = MOST_COST + 1
    assert len(Remarks(reference).plan(SECRET, 1)) == 3  # emulated, it runs there anyway
    monkeypatch.setattr(reference.device, "emulated", False)
    assert [step.remark for step in Remarks(reference).plan(SECRET, 1)] == ["inexact_far_from_zero"]


@pytest.mark.parametrize("name", ARGUMENTS)
def test_numbers_that_matter_and_leave_all_shapes_alone_are_changed(make: Make, name: str) -> None:
    *problem, wanted = ARGUMENTS[name]
    reference = make(texts.problem(*problem))
    remarks, steps = planned(reference)
    assert (remarks.other is not None) == any(wanted) == ("ignores_constructor_argument" in steps)
    if remarks.other is None:
        return
    before, after = flat(reference.subject.arguments), flat(remarks.other.arguments)
    assert [one != other for one, other in zip(before, after, strict=True)] == wanted
    trial = remarks.trial(SECRET, steps["ignores_constructor_argument"])
    assert trial is not None and judge(reference, trial, trial.expected).equal
    ignorant = reference.forward(reference.model, trial.inputs, trial.seed)
    assert not judge(reference, trial, ignorant).equal


def test_a_few_elements_that_an_argument_decides_are_enough(make: Make) -> None:
    """A rounding of the inputs does not excuse them: it is asked of a model with the problem's own arguments."""
    source = texts.problem("return torch.where(x > 1.5, x + self.kept / 20, x)", ROWS, KEEPS, "[0.2]")
    reference = make(source)
    remarks, steps = planned(reference)
    trial = remarks.trial(SECRET, steps["ignores_constructor_argument"])
    assert trial is not None
    ignorant = reference.forward(reference.model, trial.inputs, trial.seed)
    assert 0 < float((ignorant != trial.expected).float().mean()) < 0.2
    assert not judge(reference, trial, ignorant).equal


def special(reference: Reference) -> Trial | None:
    remarks, steps = planned(reference)
    return remarks.trial(SECRET, steps["nan_or_infinity_differs"])


def test_nan_is_kept_where_the_reference_keeps_it(make: Make) -> None:
    trial = special(make(texts.problem("return torch.relu(x)", ROWS)))
    assert trial is not None and bool(trial.expected.isnan().any()) and bool(trial.expected.isposinf().any())
    assert judge_special(trial, trial.expected).equal
    x = trial.inputs[0]
    assert judge_special(trial, torch.where(x < 0, 0 * x.clamp(min=-1), x)).equal
    assert not judge_special(trial, torch.where(x > 0, x, torch.zeros_like(x))).equal  # NaN becomes 0
    assert not judge_special(trial, x.nan_to_num(torch.nan, 9.0, 0.0)).equal  # infinity becomes 9
    assert not judge_special(trial, trial.expected.mean(0)).equal


def test_where_all_is_lost_one_nan_is_tried_and_else_nothing(make: Make) -> None:
    both = texts.problem("return x.amax(1) + inputs[1].sum()", f"[{ROWS[1:-1]}, torch.randn(30)]")
    trial = special(make(both))
    assert trial is not None and trial.family == "one nan" and int(trial.expected.isnan().sum()) == 1
    assert special(make(texts.problem("return x.sum()", ROWS))) is None
    assert special(make(texts.problem("return x.nan_to_num(0.0, 0.0, 0.0)", ROWS))) is None
