"""Inputs that all draws leave alike are given other values, where the reference bears them and reacts."""

from __future__ import annotations

import problem_texts as texts
import pytest
import torch

from dice.verify.execution import seldom
from dice.verify.ipc.messages import BOTH
from dice.verify.reference.judge import judge
from tests.verify.reference.conftest import GIVEN, SECRET, Make, draw

IGNORED = {  # forward, inputs, and the place and kind of the one that all draws leave alike
    "float mask": ("return (x * inputs[1]).sum(-1)", "torch.ones(batch_size, 40)", (1, "cleared")),
    "bool mask": ("return x.masked_fill(~inputs[1], 0)", "torch.ones(batch_size, 40) > 0", (1, "cleared")),
    "causal mask": (
        "return torch.softmax(x + inputs[1], -1)",
        "torch.zeros(batch_size, 40).masked_fill(torch.ones(batch_size, 40).triu(1) > 0, float('-inf'))",
        (1, "cleared"),
    ),
    "state of zeros": ("return torch.tanh(x + inputs[1])", "torch.zeros(batch_size, 40)", (1, "set")),
    "full lengths": (
        "return x * (torch.arange(40) < inputs[1][:, None])", "torch.full((batch_size,), 40)", (1, "shorter"),
    ),
    "arange": ("return x[:, inputs[1]]", "torch.arange(40)", (1, "repeated")),
    "number": ("return x * inputs[1]", "2.0", (1, "halved"), (1, "moved")),
    "whole number": ("return x.roll(inputs[1], 1)", "3", (1, "more"), (1, "far")),
    "text": ("return x.exp().sum(-1) if inputs[1] == 'total' else x.exp().mean(-1)", "'mean'", (1, "text total")),
    "varying mask": (
        "return (x * inputs[1]).sum(-1)", "torch.arange(40) < torch.randint(1, 41, (batch_size, 1))", (1, "cleared"),
    ),
    "flag": ("return torch.relu(x - 0.5) if inputs[1] else x", "True", (1, "negated")),
}  # fmt: skip


@pytest.mark.parametrize("name", IGNORED)
def test_what_all_draws_leave_alike_is_given_other_values(make: Make, name: str) -> None:
    forward, other, *wanted = IGNORED[name]
    reference = make(texts.problem(forward, f"[torch.rand(batch_size, 40), {other}]"))
    steps = [step for step in reference.plan(SECRET, 3) if step.kind]
    assert sorted((step.place, step.kind) for step in steps) == sorted(wanted)
    trial = draw(reference, steps[0])
    assert judge(reference, trial, trial.expected).equal
    ignorant = reference.run(reference.model, None, reference.subject.draw(trial.seed), trial.seed, GIVEN)
    assert ignorant is not None and not judge(reference, trial, ignorant.expected).equal
    assert not any(label.startswith("unused_input") for label in reference.labels)


@pytest.mark.parametrize("other", ["torch.ones(batch_size, 40)", "7", "torch.arange(5)"])
def test_what_the_reference_ignores_costs_no_trial(make: Make, other: str) -> None:
    reference = make(texts.problem("return torch.relu(x)", f"[torch.rand(batch_size, 40), {other}]"))
    assert not any(step.kind for step in reference.plan(SECRET, 3))


def test_other_values_that_the_reference_cannot_bear_are_dropped(make: Make) -> None:
    forward = "assert bool(inputs[1].all()), 'a full mask'\nreturn x * inputs[1]"
    reference = make(texts.problem(forward, "[torch.rand(batch_size, 40), torch.ones(40) > 0]"))
    assert not any(step.kind for step in reference.plan(SECRET, 3))


def test_a_reference_may_refuse_any_other_type_in_its_own_words(make: Make) -> None:
    """Where it is asked for float64, and for gradients of what it moves."""
    refusing = texts.RELU.replace(
        "        return", "        assert x.dtype == torch.float32 and not x.requires_grad\n        return"
    )
    reference = make(refusing)
    reference.plan(SECRET, 5)
    trial = draw(reference)
    assert trial.exact is None and judge(reference, trial, trial.expected).equal


def test_counts_in_a_list_go_down_to_one(make: Make) -> None:
    drawn = torch.tensor([40, 16, 64, 17])
    assert seldom.from_one_on(drawn).tolist() == [13, 1, 25, 1]
    assert seldom.from_one_on(drawn.sort().values).tolist() == [1, 1, 13, 64]  # which may be the ends of groups
    assert torch.equal(seldom.from_one_on(drawn - 16), drawn - 16)


def test_what_shows_with_another_input_alone_is_tried_with_it(make: Make) -> None:
    """A buffer of zeros, and its rate of zero."""
    forward = "return x + inputs[2] * inputs[1] if not inputs[3] else x"
    reference = make(texts.problem(forward, "[torch.rand(batch_size, 40), torch.zeros(40), 0.0, False]"))
    steps = [step for step in reference.plan(SECRET, 3) if step.kind.startswith(BOTH)]
    assert [step.kind for step in steps] == [f'{BOTH}[[1, "set"], [2, "moved"]]']
    trial = draw(reference, steps[0])
    assert not judge(reference, trial, trial.inputs[0].clone()).equal and judge(reference, trial, trial.expected).equal
    assert not reference.labels
