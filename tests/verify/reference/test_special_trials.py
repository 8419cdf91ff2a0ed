"""Trials that a plan has beside the drawn ones: rows that are alike, and numbers of the candidate's own."""

from __future__ import annotations

import problem_texts as texts
import torch

from dice.verify.execution import seldom
from dice.verify.ipc.messages import OWN_NUMBERS, Step
from dice.verify.reference.judge import judge
from tests.verify.reference.conftest import SECRET, Make

DISTANCES = """
import torch
class Model(torch.nn.Module):
    def forward(self, a, b):
        return (a[:, None] - b[None]).square().sum(dim=-1).sqrt()
def get_inputs():
    return [torch.randn(48, 200), torch.randn(40, 200)]
def get_init_inputs():
    return []
"""
MOVING = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))
    def forward(self, x):
        y = x - self.mean
        self.mean.mul_(0.5).add_(x.mean(0), alpha=0.5)
        return y
def get_inputs():
    return [torch.randn(16, 8)]
def get_init_inputs():
    return []
"""


def test_of_rows_that_are_alike_the_distance_may_be_a_root_of_rounding(make: Make) -> None:
    reference = make(DISTANCES)
    reference.plan(SECRET, 3)
    trial = reference.trial(SECRET, Step("extra", seldom.ALIKE, core=False))
    assert trial is not None
    zeros = trial.expected == 0
    assert bool(zeros.any())
    a, b = trial.inputs
    noisy = (a.square().sum(-1)[:, None] + b.square().sum(-1) - 2 * a @ b.mT).clamp(min=1e-4).sqrt()
    assert bool((noisy != trial.expected)[zeros].all())
    assert judge(reference, trial, noisy).equal
    assert not judge(reference, trial, torch.where(zeros, torch.ones(()), trial.expected)).equal


def test_a_candidates_own_numbers_leave_nothing_behind(make: Make) -> None:
    step = Step("own", f"{OWN_NUMBERS}0.4375", core=False)
    for source, told in ((texts.RELU, True), (MOVING, False)):
        reference = make(source)
        for planned in reference.plan(SECRET, 3):
            reference.trial(SECRET, planned)
        trial = reference.trial(SECRET, step)
        assert (trial is not None) is told
        assert trial is None or bool((trial.inputs[0] == 0.4375).any())
    assert reference.trial(SECRET, Step("own", f"{OWN_NUMBERS}1e9", core=False)) is None
