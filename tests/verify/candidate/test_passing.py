"""Which calls only pass on what they are given, element by element, and which compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dice.verify.candidate.passing import Passing

Call = Callable[..., Any]


def only_passes(function: Call, *arguments: Any, **options: Any) -> bool:
    torch.manual_seed(0)
    passing = Passing(seed=3)
    passing.look(function, list(arguments), options)
    return passing.only


def draw(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(1))


def written(x: torch.Tensor, out: torch.Tensor) -> None:
    out[: len(x)] = x


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (torch.clone, [draw(64)]),
        (lambda x: x.flip(0).t().contiguous(), [draw(8, 16)]),
        (lambda x: x[:-3] - 3, [draw(64)]),
        (lambda x: 0.5 * x.half(), [draw(64)]),
        (lambda x, y: 3 * x - y, [draw(64), draw(64)]),
        (lambda x, weight: torch.cat([x, weight * 2]), [draw(8), draw(8)]),
        (lambda table, places: table[places], [draw(32, 4), torch.tensor([3, 1, 1])]),
        (lambda x: x + float("nan"), [draw(64)]),
        (lambda x: (x.reshape(1) - 3).reshape(()), [draw(1).reshape(())]),
        (lambda parts: [parts[0] * 2, parts[1] * 3], [[draw(8), draw(8)]]),
        (written, [draw(8), torch.zeros(16)]),
        (torch.zeros_like, [draw(8)]),
    ],
)
def test_what_is_copied_moved_and_scaled_is_passed_on(function: Call, arguments: list[Any]) -> None:
    assert only_passes(function, *arguments)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (torch.relu, [draw(256)]),
        (torch.exp, [draw(64)]),
        (lambda x: x * x, [draw(64)]),
        (lambda x, scale: x * scale, [draw(8, 8), draw(8)]),
        (lambda x: x.clamp(-100, 100), [draw(64)]),
        (lambda x, y: x / y, [draw(64), draw(64)]),
        (torch.sum, [draw(64)]),
        (lambda x: x.cumsum(0), [draw(64)]),
        (lambda x: x[1:] - x[:-1], [draw(64)]),
        (torch.matmul, [draw(16, 16), draw(16, 16)]),
        (lambda x: torch.nn.functional.avg_pool1d(x, 2), [draw(4, 8, 16)]),
        (lambda x: x.sort().values, [draw(64)]),
        (lambda x: x + torch.rand(64), [draw(64)]),
        (lambda places: places * 2, [torch.arange(8)]),
        (lambda: torch.zeros(3), []),
        (torch.clone, [torch.zeros(1 << 23)]),  # too large to look at
    ],
)
def test_what_bends_mixes_or_draws_computes(function: Call, arguments: list[Any]) -> None:
    assert not only_passes(function, *arguments)


def test_one_call_that_computes_is_enough() -> None:
    passing = Passing(seed=0)
    for function in (torch.clone, torch.exp, torch.clone):
        passing.look(function, [draw(32)], {})
    assert not passing.only


def test_arguments_are_left_as_they_are() -> None:
    x, out = draw(8), torch.zeros(16)
    before = x.clone()
    assert only_passes(written, x, out=out)
    assert torch.equal(x, before) and not out.any()
