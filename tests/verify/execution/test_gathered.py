"""Inputs put together of many draws: each value stands where some draw has it, and what belongs together stays so."""

from __future__ import annotations

from typing import Any

import torch

from dice.verify.execution.gathered import GATHERED, MOST_GATHERED, draws_of, gathered


def draws(make: Any, count: int = 200) -> list[list[torch.Tensor]]:
    torch.manual_seed(1)
    return [make() for _ in range(count)]


def test_rare_numbers_are_met_where_a_draw_has_them() -> None:
    found = draws(lambda: [torch.randint(-500, 500, (40,)), torch.randn(40, 3)])
    families = {name.removeprefix(GATHERED): inputs for name, inputs in gathered(found).items()}
    assert set(families) >= {"input 0 least", "input 0 greatest", "input 0 nearest zero"}
    seen = torch.stack([codes for codes, _ in found])
    assert torch.equal(families["input 0 least"][0], seen.amin(0))
    assert torch.equal(families["input 0 greatest"][0], seen.amax(0))
    assert int(families["input 0 nearest zero"][0].abs().max()) < 20
    codes, rows = families["input 0 least"]
    for place in range(40):  # the row stands with the number that it was drawn with
        assert any(one[place] == codes[place] and torch.equal(other[place], rows[place]) for one, other in found)


def test_two_inputs_meet() -> None:
    found = gathered(draws(lambda: [torch.randint(0, 5000, (30,)), torch.randint(0, 5000, (30,))], 800))
    one, other = found[f"{GATHERED}inputs 0 and 1 nearest"]
    assert int((one - other).abs().max()) < 100 and len(found) <= MOST_GATHERED


def test_what_is_bound_together_is_taken_whole() -> None:
    def make() -> list[torch.Tensor]:
        return [torch.randperm(20), torch.randint(0, 9, (20,))]

    found = draws(make)
    for inputs in gathered(found).values():
        assert any(all(map(torch.equal, inputs, draw)) for draw in found)
    offsets = draws(lambda: [torch.randint(0, 4, (12,)).cumsum(0), torch.rand(12)])
    for inputs in gathered(offsets).values():
        assert bool((inputs[0].diff() >= 0).all())


def test_measured_values_alone_and_other_forms_give_nothing() -> None:
    assert not gathered(draws(lambda: [torch.randn(8, 4), torch.rand(8) > 0.5], 20))
    assert not gathered([[torch.arange(4) // 2], [torch.arange(5) // 2]])
    assert draws_of([torch.zeros(1 << 20)]) == 4


def test_what_is_seldom_infinite_is_so_in_every_row() -> None:
    found = gathered(draws(lambda: [torch.log(torch.floor(torch.rand(6, 40) * 500))]))
    (rows,) = found[f"{GATHERED}input 0 least finite"]
    assert bool(torch.isneginf(rows).any(1).all())
