"""Changing a draw keeps what kernels may rely on, and plans hold what was asked for."""

from __future__ import annotations

import pytest
import torch

from dice.verify.execution.changes import (
    ABOVE,
    ABOVE_APART,
    BELOW,
    BELOW_APART,
    EVEN,
    HALVES,
    LARGE,
    RATHER_LARGE,
    REARRANGED,
    SCALE,
    SMALL,
    TOGETHER,
)
from dice.verify.execution.inputs import (
    OPPOSED,
    ROTATED,
    beyond_sentinels,
    disturb,
    is_free,
    mixed,
    plan,
    rare,
    vary,
)
from dice.verify.ipc.messages import FEW, Step

FLOATS = torch.rand(40, 30, generator=torch.Generator().manual_seed(1))
BOUND = {
    "labels": torch.randint(0, 9, (50,)).float(),
    "mask": (torch.rand(50) > 0.5),
    "distribution": torch.softmax(torch.rand(10, 30), dim=-1),
    "indices": torch.randint(0, 9, (50,)),
    "one number": torch.rand(1),
}


def changed(family: str) -> torch.Tensor:
    (value,) = vary([FLOATS.clone()], Step("", family))
    assert isinstance(value, torch.Tensor) and value.shape == FLOATS.shape and value.dtype == FLOATS.dtype
    return value


def test_families_are_what_they_say() -> None:
    assert torch.equal(changed("given"), FLOATS)
    assert abs(float(changed("centred").mean())) < 1e-4 and float(changed("centred").min()) < 0
    assert torch.equal(changed("scaled"), FLOATS * SCALE)
    assert torch.equal(changed("small"), FLOATS * SMALL)
    assert float(changed("large").min()) < -0.4 * LARGE and float(changed("large").max()) > 0.4 * LARGE
    assert len(changed("ties").unique()) < 10
    assert not changed("zeros").any()
    assert 8 < float(changed(RATHER_LARGE).abs().max()) < 12


@pytest.mark.parametrize("grid", [1.0, 0.5, 0.25, 0.1, 0.125])
def test_halves_are_met_on_grids_of_any_width(grid: float) -> None:
    values = changed(HALVES) if grid < 0.2 else 8 * FLOATS
    (found,) = vary([values], Step("", HALVES))
    assert int(((found / grid) % 1 == 0.5).sum()) > 10


def test_masks_are_filled_however_large_the_problem_is() -> None:
    assert rare([FLOATS, FLOATS > 0.5], cheap=False) == ("hollow", "outliers")
    large = torch.randn(1 << 10, 1 << 10)
    assert rare([large, large > 0.5], cheap=False) == ("hollow",) and not rare([large], cheap=False)
    assert rare([FLOATS, torch.arange(40) // 4], cheap=False) == ("outliers", "level")
    assert "hollow" in rare([FLOATS, FLOATS > 0.5], cheap=True) and "outliers" in rare([FLOATS], cheap=True)


def test_values_beyond_sentinels_keep_their_order() -> None:
    below, above = changed(BELOW), changed(ABOVE)
    assert float(below.max()) < -1e8 and float(below.min()) > -1e9
    assert float(above.min()) > 1e8 and float(above.max()) < 1e9
    for family, sign in ((BELOW, -1), (ABOVE, 1)):
        powers = changed(family)
        assert {float(one) for one in powers.unique()} <= {sign * 2.0**power for power in (27, 28, 29)}
        assert bool((powers.reshape(-1)[FLOATS.reshape(-1).argsort()].diff() >= 0).all())
    for family in (BELOW_APART, ABOVE_APART):
        assert torch.equal(changed(family).argmax(dim=1), FLOATS.argmax(dim=1))
    together = changed(TOGETHER)
    assert float(together.max()) < -1e5 and float(together.max() - together.min()) < 20
    (half,) = vary([FLOATS.half()], Step("", BELOW))
    assert float(half.max()) < -1e4 and bool(half.isfinite().all())


def test_floats_of_eight_bits_are_disturbed_as_bytes() -> None:
    eight = FLOATS.to(torch.float8_e4m3fn)
    (found,) = disturb([eight])
    assert found.dtype == eight.dtype and torch.equal(found.float().reshape(-1).roll(-1), eight.float().reshape(-1))


def test_they_are_asked_for_where_something_begins() -> None:
    assert beyond_sentinels({"max", "mul"}, 1) == (BELOW, ABOVE)
    assert beyond_sentinels({"max_pool2d_with_indices", "contraction"}, 1) == (BELOW,)
    assert beyond_sentinels({"softmax", "max"}, 1) == (TOGETHER,)
    assert beyond_sentinels({"softmax", "contraction"}, 3) == (OPPOSED,)
    assert not beyond_sentinels({"softmax", "contraction"}, 1) and not beyond_sentinels({"add", "relu"}, 2)
    assert BELOW in {step.family for step in plan(5, 0, beyond=(BELOW,))}


def test_opposed_inputs_have_products_far_below_zero() -> None:
    query, keys = vary([FLOATS, FLOATS.flip(0)], Step("", OPPOSED))
    assert float((query @ keys.T).max()) < -10 * float((FLOATS @ FLOATS.T).max())


def test_half_of_a_mixed_input_is_of_another_draw() -> None:
    index = torch.arange(9)
    half, kept = mixed(Step("", "mixed"), 0, [[FLOATS, index], [FLOATS + 1, index + 1]])
    assert torch.equal(half[:20], FLOATS[:20]) and torch.equal(half[20:], FLOATS[20:] + 1)
    assert torch.equal(kept, index)


def test_few_elements_are_of_another_draw() -> None:
    index = torch.arange(9)
    one, other = torch.rand(3, 4096), torch.rand(3, 4096)
    drawn = [mixed(Step("", FEW), seed, [[one, index], [other, index + 1]]) for seed in range(8)]
    places = [tensor != one for tensor, _ in drawn]
    for (tensor, kept), at in zip(drawn, places, strict=True):
        assert 1 <= int(at.sum()) <= 3 and torch.equal(tensor[at], other[at]) and torch.equal(kept, index)
    assert len({int(changed.int().argmax()) for changed in places}) > 4
    (tensor,) = mixed(Step("", FEW), 1, [[FLOATS], [FLOATS + 1]])
    assert int((tensor != FLOATS).sum()) == 1


def test_rearranged_values_have_their_sums_extremes_and_ends() -> None:
    for tensor in (FLOATS, FLOATS[:, :3], FLOATS[0]):
        even, other = (vary([tensor], Step("", family))[0] for family in (EVEN, REARRANGED))
        assert torch.equal(even.sum(dim=0), other.sum(dim=0)) is (len(tensor) == 30)
        assert even.sum() == other.sum() and even.max() == other.max()
        assert even.reshape(-1)[0] == other.reshape(-1)[0] and even.reshape(-1)[-1] == other.reshape(-1)[-1]
        assert (even != other).float().mean() > 0.8


def test_ends_of_some_rows_are_alike_among_ties() -> None:
    (tied,) = vary([FLOATS - 0.5], Step("", "ties"))
    ends = tied[:, [0, 1, -1]]
    assert (ends[::3] == ends[::3, :1]).all() and (ends[1::3] == 0).all()
    assert (tied[::3] != tied[::3, :1]).any(dim=1).all()


@pytest.mark.parametrize("family", ["ties", REARRANGED])
@pytest.mark.parametrize("form", ["triangular", "sorted", "symmetric"])
def test_what_values_are_where_for_a_reason_stays_so(form: str, family: str) -> None:
    matrix = FLOATS[:30] + 0.5
    formed = {"triangular": torch.tril(matrix), "sorted": matrix.sort().values, "symmetric": matrix + matrix.T}[form]
    (varied,) = vary([formed], Step("", family))
    kept = {
        "triangular": torch.equal(varied, torch.tril(varied)),
        "sorted": bool((varied.diff() >= 0).all()),
        "symmetric": torch.equal(varied, varied.T),
    }
    assert kept[form]


@pytest.mark.parametrize("family", ["centred", "scaled", "small", *ROTATED, BELOW, ABOVE])
@pytest.mark.parametrize("kind", BOUND)
def test_labels_masks_and_indices_keep_their_draw(kind: str, family: str) -> None:
    tensor = BOUND[kind]
    assert not is_free(tensor)
    assert torch.equal(vary({"x": tensor}, Step("", family))["x"], tensor)


def test_zeros_of_a_triangular_matrix_stay_zero() -> None:
    (matrix,) = vary([torch.tril(FLOATS[:, :30])], Step("", "centred"))
    assert not torch.triu(matrix, 1).any() and float(matrix.min()) < 0


def test_one_input_is_amplified_and_no_other() -> None:
    one, nested, two = vary([FLOATS, (FLOATS, 3), FLOATS], Step("", "input 1 amplified", index=1, factor=10.0))
    assert torch.equal(one, FLOATS) and torch.equal(two, FLOATS) and torch.equal(nested[0], FLOATS * 10)


def test_disturbed_values_are_others_of_the_same_kind() -> None:
    other, index = disturb([FLOATS, BOUND["indices"]])
    ratio = other / FLOATS.clamp_min(1e-9)
    assert not torch.equal(other, FLOATS) and float(ratio.min()) > 0.49 and float(ratio.max()) < 1.51
    assert torch.equal(index.sort().values, BOUND["indices"].sort().values)
    same, moved = disturb([FLOATS, BOUND["indices"]], index=1)
    assert torch.equal(same, FLOATS) and not torch.equal(moved, BOUND["indices"])


@pytest.mark.parametrize("trials", [1, 2, 3, 4, 5, 6, 9])
@pytest.mark.parametrize("fresh", [False, True])
def test_a_plan_has_the_trials_that_were_asked_for(trials: int, fresh: bool) -> None:
    for seed in range(20):
        steps = plan(trials, seed, fresh=fresh)
        assert len(steps) == trials and all(step.core for step in steps)
        assert len({step.name for step in steps}) == trials
        families = [step.family for step in steps]
        assert "given" in families
        assert trials < 2 or "centred" in families
        assert not any(step.fresh for step in steps[1:])
        assert steps[0].fresh is (fresh and trials >= 3)


def test_cheap_problems_get_every_family_and_amplified_inputs_always_come() -> None:
    families = {step.family for step in plan(5, 0, cheap=True)}
    assert {*ROTATED, "small"} <= families
    (step,) = [step for step in plan(2, 0, amplified=[(1, 100.0)]) if not step.core]
    assert (step.index, step.factor) == (1, 100.0)
    assert {plan(5, seed)[0].family for seed in range(30)} > {"given", "centred"}
