"""Seeding: PyTorch's numbers, and nothing done for devices that nobody uses."""

from __future__ import annotations

import random
import traceback

import numpy
import pytest
import torch

from dice.verify.execution import running
from dice.verify.execution.running import seed_everything


def test_a_seed_gives_the_numbers_that_pytorch_gives() -> None:
    torch.manual_seed(11)
    expected = torch.randn(4)
    seed_everything(11)
    assert torch.equal(torch.randn(4), expected)
    found = random.random(), float(numpy.random.rand())
    seed_everything(11)
    torch.randn(9)
    assert (random.random(), float(numpy.random.rand())) == found


def test_seeding_looks_at_no_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of references seeds dozens of times a job."""
    looked: list[bool] = []
    monkeypatch.setattr(traceback, "format_stack", lambda *_: looked.append(True) or [])
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: None)  # as under emulation
    seed_everything(3)
    assert looked == []


def test_outputs_overlap_where_they_have_an_element_in_common() -> None:
    y = torch.rand(8, 12)
    assert running.overlapping((y, y)) == running.overlapping([y, y.t()]) == (0, 1)
    assert running.overlapping((y, y.clone(), y[:, 3])) == (0, 2)
    assert running.overlapping((y[:5], y[4:])) == running.overlapping((y[0], y[:, 0])) == (0, 1)
    assert running.overlapping(y.chunk(3, dim=1)) == running.overlapping((y[:, ::2], y[:, 1::2])) == ()
    assert running.overlapping(torch.empty(0).split(0)) == running.overlapping(y) == ()
    assert running.overlapping((y, y[:1].clone().expand(4, -1))) == (1, 1)
    layer = torch.nn.Linear(3, 3)
    assert running.overlapping((y, layer.weight[1]), layer) == (running.STATE, 1)
    assert running.overlapping((y, layer.weight.clone()), layer) == ()
