"""Values that a draw seldom holds: the rest stays what was drawn."""

from __future__ import annotations

import torch

from dice.verify.execution import seldom
from dice.verify.execution.inputs import vary
from dice.verify.execution.steady import BRIMMING, replaced
from dice.verify.ipc.messages import Step

FLOATS = torch.randn(9, 12, generator=torch.Generator().manual_seed(1))


def changed(family: str, *inputs: torch.Tensor, seed: int = 0) -> list[torch.Tensor]:
    kept = [tensor.clone() for tensor in inputs]
    found: list[torch.Tensor] = vary(list(inputs), Step("", family), seed)
    assert all(map(torch.equal, inputs, kept))  # the draw is needed again
    assert [(one.shape, one.dtype) for one in found] == [(one.shape, one.dtype) for one in inputs]
    return found


def test_some_rows_have_one_value_far_away() -> None:
    (found,) = changed(seldom.OUTLIERS, FLOATS)
    differs = found != FLOATS
    assert differs.sum(1).tolist() == [0, 1, 0] * 3
    assert bool((found[differs].abs() > 30).all()) and found[differs].sign().unique().tolist() == [-1, 1]
    assert float(changed(seldom.OUTLIERS, FLOATS.abs())[0].min()) >= 0
    ordered = FLOATS.sort(-1).values
    assert torch.equal(changed(seldom.OUTLIERS, ordered)[0], ordered)


def test_some_rows_are_those_of_another_input() -> None:
    same, other, short = changed(seldom.ALIKE, FLOATS, FLOATS + 1, FLOATS[:, :3])
    assert torch.equal(same, FLOATS) and torch.equal(short, FLOATS[:, :3])
    assert (other == FLOATS).all(1).tolist() == [False, True, False] * 3
    assert (other == FLOATS + 1).all(1).tolist() == [True, False, True] * 3


def test_some_rows_of_masks_are_empty_and_some_distributions_have_zeros() -> None:
    mask, shares = FLOATS > 0, FLOATS.softmax(-1)
    rows, ones, floats, row, measured = changed(seldom.HOLLOW, mask, shares, mask.float(), mask[0], FLOATS)
    assert rows.any(1).tolist()[1::3] == [False] * 3 and rows.all(1).tolist()[2::3] == [True] * 3
    assert torch.equal(rows[::3], mask[::3]) and torch.equal(floats, rows.float()) and not row.any()
    assert torch.equal(ones.sum(-1)[1::3], torch.ones(3)) and (ones == 0).sum(1).tolist() == [0, 11, 0] * 3
    assert torch.equal(ones.argmax(-1), shares.argmax(-1)) and torch.equal(measured, FLOATS)


def test_drifting_values_keep_their_mean_and_begin_on_the_other_side_of_it() -> None:
    for own in (FLOATS + 0.5, FLOATS - 0.5):
        (found,) = changed(seldom.DRIFTING, own)
        assert abs(float(found.mean() - own.mean())) < 1e-4
        assert float(found[0, :4].mean()) * float(own.mean()) < 0 < float(found[-1, -4:].mean()) * float(own.mean())
        assert bool((found[:, :4].mean(1) - found[:, -4:].mean(1)).sign().unique().numel() == 1)  # in each row
    ordered = FLOATS.sort(-1).values
    assert torch.equal(changed(seldom.DRIFTING, ordered)[0], ordered)


def test_beside_extremes_lie_values_that_are_nearly_them() -> None:
    for tensor in (FLOATS, FLOATS[0]):
        near, rest = changed(f"{seldom.NEAR_TIES}0", tensor, tensor)
        assert torch.equal(near.argmax(-1), tensor.argmax(-1)) or tensor.dim() > 1
        gaps = near.sort(-1, descending=True).values
        first, second, last, least = gaps[..., 0], gaps[..., 1], gaps[..., -2], gaps[..., -1]
        assert bool((first > second).all()) and bool((last > least).all()) and torch.equal(rest, tensor)
        assert bool(((first - second) < 1e-5).any()) and bool(((last - least) < 1e-5).any())


def test_some_values_are_the_numbers_that_they_are_compared_with() -> None:
    found, rest = changed(f"{seldom.MEETING}0: 0.1 -3", FLOATS, FLOATS + 1, seed=4)
    met = found != FLOATS
    assert set(found[met].tolist()) == set(torch.tensor([0.1, -3]).tolist()) and torch.equal(rest, FLOATS + 1)
    assert 2 <= int(met.sum()) < 0.1 * FLOATS.numel()
    (labels,) = changed(f"{seldom.MEETING}0: 17", torch.arange(100), seed=4)
    assert int((labels == 17).sum()) > 3


def test_whole_numbers_fill_their_range_to_the_brim() -> None:
    drawn = torch.randint(0, 1 << 20, (50, 30), dtype=torch.int32)
    (found,) = replaced([drawn], 0, f"{BRIMMING}0 {1 << 20}", seed=3)
    assert found.dtype == drawn.dtype and int(found.min()) >= (1 << 20) * 7 // 8 and int(found.max()) < 1 << 20
