"""The shadow headers carry real extensions: each case is built, loaded, run emulated and compared with PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from shadow_cases import KERNEL_CASES, Case
from shadow_cases_host import HOST_CASES

from dice.verify.build import build
from dice.verify.candidate import binding
from dice.verify.options import default_cache_dir


def same(actual: Any, expected: Any, tolerance: float) -> None:
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)
    elif isinstance(expected, list | tuple):
        assert type(actual) is type(expected) and len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            same(one, other, tolerance)
    else:
        assert actual == expected and type(actual) is type(expected)


def sources(case: Case) -> build.Sources:
    functions = tuple((name, name) for name in case.functions)
    return build.Sources((case.cpp,), (case.cuda,), functions, cuda_cflags=case.cuda_cflags)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.slow if place % 2 else ())
        for place, case in enumerate((*KERNEL_CASES, *HOST_CASES))
    ],
    ids=lambda case: case.name,
)
def test_case_agrees_with_pytorch(case: Case) -> None:
    built = build.build(sources(case), backend="emulated", cache_dir=default_cache_dir())
    assert built.headers == "slim"
    module = binding.load(built)
    binding.reset_launches()
    torch.manual_seed(1)
    arguments = case.arguments()
    copies = tuple(item.clone() if isinstance(item, torch.Tensor) else item for item in arguments)
    same(case.run(module, *arguments), case.expect(*copies), case.tolerance)
    assert set(binding.launches()) == set(case.kernels)
