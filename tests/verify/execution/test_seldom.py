"""Values that a draw seldom holds: the rest stays what was drawn."""

from __future__ import annotations

import torch

from dice.verify.execution import changes, pairs, seldom
from dice.verify.execution.inputs import vary
from dice.verify.execution.steady import BRIMMING, replaced, steady
from dice.verify.ipc.messages import BOTH, OWN_NUMBERS, Step

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
    assert differs.sum(1).tolist() == [0, 1, 0] * 3 and differs[:, -1].nonzero().flatten().tolist() == [1, 7]
    assert bool((found[differs].abs() > 30).all()) and found[differs].sign().unique().tolist() == [-1, 1]
    assert float(changed(seldom.OUTLIERS, FLOATS.abs())[0].min()) >= 0
    ordered = FLOATS.sort(-1).values
    assert torch.equal(changed(seldom.OUTLIERS, ordered)[0], ordered)


def test_some_rows_are_those_of_another_input() -> None:
    same, other, short = changed(seldom.ALIKE, FLOATS, FLOATS + 1, FLOATS[:, :3])
    assert torch.equal(same, FLOATS) and torch.equal(short, FLOATS[:, :3])
    assert (other == FLOATS).all(1).tolist() == [False, True, False] * 3
    assert (other == FLOATS + 1).all(1).tolist() == [True, False, True] * 3


def test_ids_that_are_different_by_chance_are_found_in_both_inputs() -> None:
    ids, others = (torch.randint(0, 2**40, (9,), generator=torch.Generator().manual_seed(n)) for n in (1, 2))
    same, met = changed(seldom.ALIKE, ids, others)
    assert torch.equal(same, ids) and (met == others).tolist() == [True, False, True] * 3
    assert set(met[1::3].tolist()) <= set(ids.tolist())
    orders = torch.randperm(9), torch.randperm(9)
    assert all(map(torch.equal, changed(seldom.ALIKE, *orders), orders))
    nothing = torch.empty(0, 12)
    assert changed(seldom.ALIKE, FLOATS, nothing)[1].shape == (0, 12)


def test_one_index_of_each_dimension_has_a_single_value_or_none() -> None:
    for family in (seldom.LEVEL, seldom.EMPTY):
        first, second = changed(family, FLOATS, FLOATS)
        (value,) = first[1].unique().tolist()
        assert torch.equal(first[1], first[:, 1]) or first[1].unique().tolist() == first[:, 1].unique().tolist()
        assert (value == 0) == (family == seldom.EMPTY) and value in (0.0, 0.5, 1.0, 2.0)
        assert len(second[2].unique()) == len(second[:, 2].unique()) == 1 and len(second[1].unique()) > 2
        kept = [n for n in range(9) if n != 1]
        assert torch.equal(first[kept][:, 2:], FLOATS[kept][:, 2:])
    symmetric = FLOATS[:, :9] + FLOATS[:, :9].T
    assert torch.equal(changed(seldom.LEVEL, symmetric)[0], symmetric)


def test_rows_of_whole_numbers_have_one_value_and_every_second_number_is_left_out() -> None:
    codes = torch.randint(2, 9, (9, 30), generator=torch.Generator().manual_seed(1))
    orders = torch.stack([torch.randperm(30) for _ in range(9)])
    mask = (codes > 4).long()
    rows, same, also_same = changed(seldom.LEVEL, codes, orders, mask)
    assert torch.equal(same, orders) and torch.equal(also_same, mask)
    assert [sorted(set(row.tolist())) for row in rows[1:3]] == [[8], [2]] and torch.equal(rows[::3], codes[::3])
    fewer, ordered, distinct = changed(seldom.LEFT_OUT, codes, codes.reshape(-1).sort().values, torch.arange(20))
    assert set(fewer.unique().tolist()) == {2, 4, 6, 8} and bool((ordered.diff() >= 0).all())
    assert torch.equal(distinct, torch.arange(20))
    (half,) = changed(seldom.LOWER, codes)
    assert int(half.min()) == 2 and int(half.max()) == 5


def test_what_minus_infinity_blocks_is_blocked_altogether() -> None:
    block = torch.zeros(9, 12).masked_fill(FLOATS > 0, float("-inf"))
    (found,) = changed(seldom.HOLLOW, block)
    assert torch.isneginf(found).all(1).tolist() == [False, True, False] * 3
    (whole,) = changed(seldom.HOLLOW, (FLOATS > 0).long())
    assert whole.sum(1).tolist()[1::3] == [0] * 3 and whole.sum(1).tolist()[2::3] == [12] * 3


def test_some_values_are_another_inputs_but_for_roundings() -> None:
    same, near = changed(pairs.NEARLY_EQUAL, FLOATS, FLOATS + 1)
    met = near.reshape(-1)[1::3], FLOATS.reshape(-1)[1::3]
    assert torch.equal(same, FLOATS) and not bool((met[0] == met[1]).any()) and torch.allclose(*met, rtol=1e-6)


def test_matrices_begin_with_a_zero_and_spreads_lie_past_a_number() -> None:
    matrices = FLOATS[:, :9].reshape(1, 9, 9).clone()
    (bare,) = changed(seldom.BARE_CORNER, matrices)
    assert bare[0, 0, 0] == 0 and int((bare != matrices).sum()) == 1
    (wide,) = changed(f"{seldom.SPREAD}50", FLOATS)
    assert abs(float(wide.std()) - 100) < 1e-3


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
    rising, falling = changed(seldom.DRIFTING, FLOATS - FLOATS.mean(), FLOATS - FLOATS.mean())
    assert float(rising[0, 0]) < 0 < float(falling[0, 0]) and float(falling[-1, -1]) < 0 < float(rising[-1, -1])


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
    assert 0.4 < float((found == (1 << 20) - 1).float().mean()) < 0.6, "most sums are of the greatest"


def test_codes_are_all_the_greatest() -> None:
    codes, measured = torch.randint(0, 9, (6, 40)), torch.randn(6, 40)
    found, same, permuted = vary([codes, measured, torch.randperm(40)], Step("", seldom.FLAT))
    assert bool((found == codes.max()).all()) and torch.equal(same, measured) and len(permuted.unique()) == 40


def test_one_member_alone_and_rows_of_different_and_of_nested_codes() -> None:
    codes = torch.randint(0, 40, (6, 30))
    (alone,) = vary([codes], Step("", seldom.SINGLE))
    assert int((alone == alone.max()).sum()) == 1 and int(alone.max()) == int(codes.max())
    (distinct,) = vary([codes], Step("", seldom.DISTINCT_ROWS))
    assert all(len(row.unique()) == 30 for row in distinct) and int(distinct.max()) < 40
    (nested,) = vary([codes], Step("", seldom.NESTED))
    assert bool((nested[0].diff() >= 0).all()) and bool((nested[1].diff() <= 0).all())
    in_order = codes.sort(-1).values
    for family in (seldom.DISTINCT_ROWS, seldom.NESTED):
        assert torch.equal(vary([in_order], Step("", family))[0], in_order)


def test_floats_that_count_are_level_and_empty_too() -> None:
    counts = torch.randint(1, 60, (12, 20)).float()
    for family in (seldom.LEVEL, seldom.EMPTY):
        (found,) = vary([counts], Step("", family))
        assert any(len(row.unique()) == 1 for row in found) and bool((found == found.round()).all())
        assert float(found.min()) >= 1 and float(found.max()) <= 59


def test_a_graph_is_one_path_however_it_is_written() -> None:
    one, other = torch.randint(0, 40, (2, 150))
    for ends in (
        vary([one, other], Step("", changes.CHAINED)),
        vary([torch.stack((one, other))], Step("", "chained"))[0],
    ):
        assert len(set(zip(*(side.tolist() for side in ends), strict=True))) == max(one.max(), other.max())
    (table,) = vary([torch.randint(0, 80, (80, 3))], Step("", changes.CHAINED))
    node, met = 0, set()
    while node not in met:
        met.add(node)
        assert len(table[node].unique()) == 1
        node = int(table[node, 0])
    assert len(met) == 80


def test_the_second_of_two_rows_comes_later() -> None:
    one, other = torch.randn(3, 16), torch.randn(3, 16)
    first, late = vary([one, other], Step("", pairs.DELAYED))
    assert torch.equal(first, one) and torch.equal(late[:, 14:], one[:, :2])
    assert torch.equal(late[:, :14], one[:, :1].expand(3, 14))


def test_rows_are_nearly_one_and_matrices_meet_a_zero_later() -> None:
    rows = torch.randn(6, 5)
    near = seldom.near_one(rows)
    assert torch.equal(near[0], rows[0]) and 0 < float((near - near[0]).abs().max()) < 0.2
    matrices = seldom.bare_later(torch.randn(3, 4, 4))
    eliminated = matrices[:, 1, 1] - matrices[:, 1, 0] / matrices[:, 0, 0] * matrices[:, 0, 1]
    assert float(eliminated.abs().max()) < 1e-5
    assert torch.equal(seldom.bare_later(rows), rows)


def test_edges_become_one_path_of_which_no_edge_follows_on_the_one_before() -> None:
    """Labels that are handed on in the edges' order get no further in a round than by two nodes."""
    edges = torch.randint(0, 40, (2, 200))
    edges[0, 0] = 39
    for form in (edges, edges.T.contiguous()):
        found = seldom.path(form)
        assert found.shape == form.shape
        source, target = (found if form is edges else found.T)[:, :39].tolist()
        following = dict(zip(source, target, strict=True))
        assert len(following) == 39
        start = (set(source) - set(target)).pop()
        places = {node: place for place, node in enumerate(source)}
        length, run, longest = 0, 1, 1
        while start in following:
            length += 1
            onwards = following[start]
            run = run + 1 if onwards in places and places[onwards] > places[start] else 1
            longest, start = max(longest, run), onwards
        assert length == 39 and longest <= 4
    assert torch.equal(seldom.path(torch.randn(2, 200)).isnan(), torch.zeros(2, 200, dtype=torch.bool))


def test_near_values_have_the_upper_bits_and_the_sums_of_others() -> None:
    values = torch.randn(50)
    close = changes.near(values)
    assert bool((close != values).all())
    assert torch.equal(close.view(torch.int32) >> 16, values.view(torch.int32) >> 16)
    numbers = torch.randint(0, 9, (2, 40))
    moved = changes.near(numbers)
    assert int((moved != numbers).sum()) == 2 and int(moved.sum()) == int(numbers.sum())
    assert int(moved.min()) >= 0 and int(moved.max()) <= 8


def test_what_has_a_form_keeps_it() -> None:
    """Permutations, trees, one-hot rows, unit vectors and sorted keys: a kernel may rely on them."""
    permutations = torch.stack([torch.randperm(12) for _ in range(30)])
    parents = (torch.rand(6, 40) * torch.arange(40)).long()
    one_hot = torch.eye(9)[torch.randint(0, 9, (30,))]
    units = torch.nn.functional.normalize(torch.randn(30, 8), dim=1)
    keys = torch.randint(0, 50, (6, 40)).sort(1).values
    kept = [permutations, parents, one_hot, units]
    families = (*seldom.FAMILIES, "centred", "large", "ties", changes.CHAINED, f"{OWN_NUMBERS}3 7")
    for family in families:
        for one, own in zip(vary(kept, Step("", family), seed=3), kept, strict=True):
            assert torch.equal(one, own), family
    (same,) = vary([keys], Step("", f"{OWN_NUMBERS}3 7"))
    assert torch.equal(same, keys) and not steady(kept, kept[::-1])


def test_two_inputs_change_together() -> None:
    drawn = [torch.zeros(4, 6), 0.0, False]
    kind = f'{BOTH}[[1, "moved"], [2, "negated"]]'
    same, rate, flag = replaced(drawn, 1, kind, seed=3)
    assert torch.equal(same, drawn[0]) and rate > 0 and flag is True
    assert Step("", "", kind=kind).asks_for_other_mode
    assert not Step("", "", kind=f'{BOTH}[[0, "moved"], [1, "moved"]]').asks_for_other_mode
