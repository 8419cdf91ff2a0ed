"""Floats of eight bits, with which PyTorch can compute next to nothing, on a GPU least of all."""

from __future__ import annotations

from typing import Any

import problem_texts as texts
import pytest
from torch.overrides import TorchFunctionMode

from dice.verify.reference.judge import judge
from dice.verify.tensors import transport
from tests.verify.reference.conftest import SECRET, Make

LACKING = ("isfinite", "roll")  # there, for such floats


class AsOnAGpu(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        eight = any(one.is_floating_point() and one.element_size() == 1 for one in transport.tensors(list(args)))
        if eight and getattr(func, "__name__", "") in LACKING:
            raise NotImplementedError(f"{func.__name__} of {args}")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("forward", "inputs"),
    [
        ("return x.float() * inputs[1]", "[torch.randn(20, 40).to(torch.float8_e4m3fn), torch.rand(20, 1) + 0.5]"),
        (
            "s = x.abs().amax(1, keepdim=True) / 448.0\nreturn (x / s).to(torch.float8_e4m3fn), s",
            "[torch.randn(20, 40)]",
        ),
    ],
    ids=["read", "written"],
)
def test_they_are_planned_drawn_and_judged(make: Make, forward: str, inputs: str) -> None:
    reference = make(texts.problem(forward, inputs))
    with AsOnAGpu():
        for step in reference.plan(SECRET, 4):
            trial = reference.trial(SECRET, step)
            assert trial is None or judge(reference, trial, trial.expected).equal, step
