"""Trials that a plan has beside the drawn ones: rows that are alike, and numbers of the candidate's own."""

from __future__ import annotations

import problem_texts as texts
import torch

from dice.verify.execution import idle, seldom
from dice.verify.ipc.messages import OWN_NUMBERS, Step
from dice.verify.reference.judge import judge
from dice.verify.reference.reference import beyond_drawn
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


def test_places_beyond_those_that_are_drawn_are_known() -> None:
    """They are tried on the host before a GPU meets them."""
    drawn = [torch.tensor([[3, 9], [4, 5]]), torch.rand(4), torch.tensor([True, False])]
    for other, found in (([[9, 9], [3, 5]], False), ([[3, 10], [4, 5]], True), ([[-1, 9], [4, 5]], True)):
        varied = [torch.tensor(other), drawn[1] * 100, torch.tensor([True, True])]
        assert beyond_drawn(varied, drawn) == found
    assert not beyond_drawn(drawn, drawn)


CODED = """
import torch
class Model(torch.nn.Module):
    def forward(self, x, label):
        counts = label != 77
        picked = x.gather(1, torch.where(counts, label, 0)[:, None])[:, 0]
        return torch.where(counts, picked, 0.0).sum()
def get_inputs():
    return [torch.randn(40, 6), torch.randint(0, 6, (40,))]
def get_init_inputs():
    return []
"""


def test_what_no_planned_trial_gives_anything_to_do_is_a_trial_of_its_own(make: Make) -> None:
    reference = make(CODED)
    steps = [step for step in reference.plan(SECRET, 5) if step.family.startswith(idle.WOKEN)]
    trials = [reference.trial(SECRET, step) for step in steps]
    assert any(bool((trial.inputs[1] == 77).any()) for trial in trials if trial is not None)
    reached = make(CODED.replace("0, 6, (40,))", "0, 6, (40,)) * 0 + torch.tensor([77, 1, 2, 3] * 10)"))
    assert not any(step.family.startswith(idle.WOKEN) for step in reached.plan(SECRET, 5))
