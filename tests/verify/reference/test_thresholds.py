"""Trials whose answer a rounding of a sum decides are not held; those that a comparison alone decides are."""

from __future__ import annotations

import pytest

from dice.verify.execution.changes import HALVES
from dice.verify.ipc.messages import Step
from tests.verify.reference.conftest import Make

PROBLEM = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return {expression}

def get_inputs():
    return [torch.randn(90, 7)]

def get_init_inputs():
    return []
"""
SECRETS = range(12)


def held(make: Make, expression: str, family: str) -> int:
    """How many of the trials in the family there are."""
    reference = make(PROBLEM.format(expression=expression))
    step = Step("trial 1", family)
    trials = (reference.trial(secret, step) for secret in SECRETS)
    return sum(trial is not None and trial.family == family for trial in trials)


@pytest.mark.parametrize(
    "expression",
    [
        "x > x.mean(1, keepdim=True)",
        "torch.where(x >= x.mean(1, keepdim=True), x, -x)",
        "(x / x.sum(1, keepdim=True)).argmax(1)",
        "torch.floor((x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True))",
    ],
)
def test_ties_with_a_sum_are_dropped(make: Make, expression: str) -> None:
    assert held(make, expression, "ties") < len(SECRETS)


@pytest.mark.parametrize(
    "expression",
    [
        "torch.round(x / 0.5)",
        "x > 0.5",
        "x == x.max(1, keepdim=True).values",
        "x - x.mean(1, keepdim=True)",
        "x.argmax(1)",
    ],
)
def test_ties_that_no_sum_decides_stay(make: Make, expression: str) -> None:
    assert held(make, expression, "ties") == len(SECRETS)


def test_halves_after_an_inexact_quotient_are_dropped(make: Make) -> None:
    """On a GPU PyTorch multiplies by the inverse of a number."""
    assert held(make, "torch.round(x / 3.0 * 1.5)", HALVES) == 0
    assert held(make, "torch.round(x / 0.5)", HALVES) == len(SECRETS)


def test_zeros_tell_greater_from_greater_or_equal_still(make: Make) -> None:
    assert held(make, "x > x.mean(1, keepdim=True)", "zeros") == len(SECRETS)
