"""Results computed in a shorter format are recognised by their errors, and honest float32 is not accused."""

from __future__ import annotations

from pathlib import Path

import problem_texts as texts
import pytest
import torch

from dice.verify.execution.changes import TOGETHER
from dice.verify.execution.running import Device
from dice.verify.ipc.messages import Step
from dice.verify.reference.judge import judge, precision_label
from dice.verify.reference.precision import FORMATS, common_factor, downgrade, rounded
from dice.verify.reference.reference import Reference
from dice.verify.reference.subject import Subject
from dice.verify.reference.trial import Trial

GELU = """import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.nn.functional.gelu(x)


def get_inputs():
    return [torch.rand(64, 64)]


def get_init_inputs():
    return []
"""

SOFTMAX = GELU.replace("torch.nn.functional.gelu(x)", "torch.softmax(x, dim=1)")


@pytest.fixture(scope="module")
def matmul(tmp_path_factory: pytest.TempPathFactory) -> tuple[Reference, Trial]:
    reference = Reference(Subject(texts.MATMUL, Device("emulated"), tmp_path_factory.mktemp("matmul")))
    reference.construct(1)
    trial = reference.trial(1, Step("trial 0", "given"))
    assert trial is not None
    return reference, trial


@pytest.mark.parametrize("name", FORMATS)
def test_rounded_operands_leave_their_mark(matmul: tuple[Reference, Trial], name: str) -> None:
    reference, trial = matmul
    one, other = (rounded(tensor, name) for tensor in trial.inputs)
    downgraded = one @ other
    assert judge(reference, trial, downgraded).equal is (name in ("float16", "tf32"))  # within tolerance, and yet
    label = precision_label(reference, trial, downgraded)
    # float16 and TF32 have mantissas of one length: values of order one round alike.
    named = {"bfloat16": {"bfloat16"}, "truncated": {"tf32"}}.get(name, {"float16", "tf32"})
    assert label.removeprefix("precision_downgrade:") in named


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_results_held_in_half_precision_are_recognised(matmul: tuple[Reference, Trial], dtype: torch.dtype) -> None:
    reference, trial = matmul
    label = precision_label(reference, trial, trial.expected.to(dtype).float())
    assert label == f"precision_downgrade:{str(dtype).removeprefix('torch.')}"


def test_a_result_held_in_half_precision_is_recognised_far_from_zero_too(tmp_path: Path) -> None:
    reference = Reference(Subject(SOFTMAX, Device("emulated"), tmp_path))
    reference.construct(1)
    trial = reference.trial(1, Step("trial 1", TOGETHER))
    assert trial is not None
    assert precision_label(reference, trial, trial.expected.half().float()) == "precision_downgrade:float16"
    rounded_inputs = torch.softmax(rounded(trial.inputs[0], "bfloat16"), dim=1)
    assert precision_label(reference, trial, rounded_inputs) == ""  # these are other inputs here
    assert precision_label(reference, trial, trial.expected) == ""


def test_float32_in_another_order_is_not_accused(matmul: tuple[Reference, Trial]) -> None:
    reference, trial = matmul
    one, other = trial.inputs
    serial = torch.zeros(48, 48)
    for k in range(512):  # one accumulator for each element, the least exact honest kernel
        serial += one[:, k : k + 1] * other[k : k + 1]
    blocked = sum(one[:, k : k + 64] @ other[k : k + 64] for k in range(0, 512, 64))
    for actual in (trial.expected, serial, blocked, trial.exact.float()):
        assert precision_label(reference, trial, actual) == ""


def test_parameters_are_rounded_too(tmp_path: Path) -> None:
    reference = Reference(Subject(texts.LINEAR, Device("emulated"), tmp_path))
    reference.construct(1)
    trial = reference.trial(1, Step("trial 0", "given"))
    assert trial is not None
    linear = reference.model.linear
    with torch.no_grad():
        weight, x = rounded(linear.weight, "bfloat16"), rounded(trial.inputs[0], "bfloat16")
        label = precision_label(reference, trial, torch.nn.functional.linear(x, weight, linear.bias))
    assert label == "precision_downgrade:bfloat16"


def test_grids_of_the_formats() -> None:
    values = torch.tensor([1 + 2**-7, 1 + 2**-8, 1 + 2**-10, 1 + 2**-11 + 2**-20])
    assert rounded(values, "bfloat16").tolist() == [1 + 2**-7, 1.0, 1.0, 1.0]
    assert rounded(values, "float16").tolist() == [1 + 2**-7, 1 + 2**-8, 1 + 2**-10, 1 + 2**-10]
    assert torch.equal(rounded(values, "tf32"), rounded(values, "float16"))
    assert torch.equal(rounded(torch.tensor([3]), "tf32"), torch.tensor([3]))


def test_a_few_errors_tell_nothing() -> None:
    """Of eight by eight numbers some errors are along with others by chance."""
    gelu = torch.nn.functional.gelu
    for seed in range(20):
        x = torch.randn(8, 8, generator=torch.Generator().manual_seed(seed))
        exact, near = gelu(x.double()), gelu(x, approximate="tanh")
        assert downgrade(gelu(x), near, exact, lambda name, x=x: gelu(rounded(x, name).double())) == ""


@pytest.mark.parametrize("seed", range(4))
def test_an_approximation_is_no_shorter_format(tmp_path: Path, seed: int) -> None:
    """What is wrong by a smooth function of the inputs is so along with values that are cut off."""
    reference = Reference(Subject(GELU, Device("emulated"), tmp_path))
    reference.construct(1)
    trial = reference.trial(seed, Step("trial 0", "given"))
    assert trial is not None
    x = trial.inputs[0]
    assert precision_label(reference, trial, torch.nn.functional.gelu(x, approximate="tanh")) == ""
    cut = torch.nn.functional.gelu(rounded(x, "truncated"))
    assert precision_label(reference, trial, cut) == "precision_downgrade:tf32"


def test_a_common_factor_is_no_rounding() -> None:
    exact = torch.randn(20, 30, dtype=torch.float64)
    expected = exact.float()
    assert common_factor(expected, (exact * (1 - 6e-5)).float(), exact) == pytest.approx(-6e-5, rel=0.1)
    assert common_factor(expected[0, :8], (exact * 1.0001)[0, :8].float(), exact[0, :8]) == pytest.approx(1e-4, rel=0.1)
    honest = expected * (1 + 5e-5 * torch.randn(20, 30))  # as large, and each its own
    assert common_factor(expected, honest, exact) == 0 == common_factor(expected, expected, exact)
    assert common_factor(expected, (exact * (1 + 1e-5)).float(), exact) == 0
    assert common_factor(honest, (exact * (1 + 6e-5)).float(), exact) == 0  # the reference is no better
    assert common_factor(expected[0, :4], (exact * 1.0001)[0, :4].float(), exact[0, :4]) == 0
    assert common_factor(expected.half(), (exact * 1.0001).half(), exact) == 0
