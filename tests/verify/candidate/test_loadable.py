"""Which models can be asked what they make of other parameters: those that take, by name, all that they have."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from dice.verify.candidate.server import _ignores_some

STATE = {"weight": torch.ones(4), "table": torch.linspace(0, 1, 8)}


class Keeps(torch.nn.Module):
    def __init__(self, table: object = None) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))
        self.table = table


def with_derived() -> torch.nn.Module:
    model = Keeps()
    model.register_buffer("own_table", torch.linspace(0, 1, 8), persistent=False)
    return model


@pytest.mark.parametrize("make", [Keeps, torch.nn.Module, lambda: Keeps([1.0, 2.0])])
def test_a_model_that_leaves_a_table_out_is_asked_what_it_makes_of_another(make: Callable[[], torch.nn.Module]) -> None:
    assert _ignores_some(make(), STATE)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Keeps(torch.linspace(0, 1, 8)),
        lambda: Keeps([torch.ones(4)]),
        with_derived,
        lambda: torch.nn.Linear(4, 4),
    ],
)
def test_one_that_keeps_it_elsewhere_is_not(make: Callable[[], torch.nn.Module]) -> None:
    assert not _ignores_some(make(), STATE)


def test_a_mask_may_be_in_its_code() -> None:
    assert not _ignores_some(Keeps(), STATE | {"mask": torch.ones(8, 8).tril()})
