"""Kernels that do next to nothing of the work are no solutions, and are not drawn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dice import synth
from dice.synth.work import is_solution, share

pytestmark = pytest.mark.xdist_group("synth families")  # one process imports what both need
RECURRENCE = "y, (a, c) = self.rec(x)"
PROBLEM = """import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rec = nn.LSTM(64, 64, batch_first=True)
        self.fc = nn.Linear(64, 4)

    def forward(self, x):
        y, (a, c) = self.rec(x)
        return torch.relu(self.fc(a[-1]))

def get_inputs():
    return [torch.randn(2, 8, 64)]

def get_init_inputs():
    return []
"""
KERNEL = """import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

ops = load_inline(name="network", cpp_sources="", cuda_sources="", functions=["network_cuda"])


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.rec = nn.LSTM(64, 64, batch_first=True)
        self.fc = nn.Linear(64, 4)

    def forward(self, x):
        y, (a, c) = self.rec(x)
        return ops.network_cuda(self.fc(a[-1]))
"""


def test_an_activation_behind_a_recurrence_is_next_to_nothing_of_it() -> None:
    assert share(PROBLEM, KERNEL) < 0.001
    assert share(*(text.replace(RECURRENCE, "a = [x[:, 0]]") for text in (PROBLEM, KERNEL))) > 0.01


@pytest.mark.parametrize("small", [False, True])
def test_a_pair_is_judged_in_both_sizes(small: bool) -> None:
    """Here the sizes differ by the recurrence that only one has."""
    pair = next(pair for index in range(900) if (pair := synth.generate(5, index)).family == "network")
    light = PROBLEM.replace(RECURRENCE, "a = [x[:, 0]]")
    printed, checked = (light, PROBLEM) if small else (PROBLEM, light)
    weak = replace(
        pair,
        problem=replace(pair.problem, source=printed),
        check_source=checked,
        kernel=replace(pair.kernel, source=KERNEL),
    )
    assert is_solution(pair) and not is_solution(weak)
    assert is_solution(replace(weak, problem=replace(pair.problem, source=light), check_source=light))


def test_what_is_drawn_is_a_solution() -> None:
    """Here an attention was drawn whose kernel, a softmax, replaced too little."""
    assert is_solution(synth.generate(901, 49, "heldout"))


@pytest.mark.slow
def test_many_draws_are_solutions() -> None:
    """Two of these were recurrent classifiers whose kernels replaced less than a percent."""
    assert all(is_solution(synth.generate(902, index)) for index in range(150))
