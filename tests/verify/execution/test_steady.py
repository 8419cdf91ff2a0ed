"""Inputs that all draws leave alike: which they are, and what else each could be."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dice.verify.execution import steady

FLOAT = torch.rand(4)
SEED = 5
MASK = torch.tril(torch.ones(6, 6))
ADDED = torch.zeros(6, 6).masked_fill(MASK == 0, float("-inf"))


@pytest.mark.parametrize(
    ("leaf", "kinds"),
    [
        (torch.ones(4, 5, dtype=torch.bool), ["cleared"]),
        (torch.zeros(4, 5, dtype=torch.bool), ["set"]),
        (MASK, ["cleared", "shuffled"]),
        (ADDED, ["cleared"]),
        (torch.zeros(3, 4), ["set", "moved"]),
        (torch.ones(3, 4), ["cleared", "moved"]),
        (torch.full((3,), 0.3), ["moved"]),
        (torch.full((4,), 7), ["shorter"]),
        (torch.arange(9), ["repeated", "shuffled"]),
        (torch.tensor([4, 1, 2, 2]), ["shuffled"]),
        (torch.zeros(4, dtype=torch.long), []),  # perhaps the only row of a table
        (torch.rand(5), []),
        (torch.zeros(3, dtype=torch.complex64), []),
        (torch.empty(0), []),
        (True, ["negated"]),
        (2, ["more", "less", "far"]),
        ("mean", ["text sum", "text none"]),
        (0.5, ["moved", "halved"]),
        (0.0, ["moved"]),
    ],
)
def test_kinds(leaf: Any, kinds: list[str]) -> None:
    assert [kind for some in steady.kinds(leaf, steady.USUAL_WORDS) for kind in some] == kinds
    for kind in kinds:
        other = steady.replaced([leaf], 0, kind, SEED)[0]
        assert type(other) is type(leaf)
        if isinstance(leaf, torch.Tensor):
            assert other.dtype == leaf.dtype and other.shape == leaf.shape and not torch.equal(other, leaf)
            assert torch.equal(other, steady.replaced([leaf], 0, kind, SEED)[0])
            assert kind == "shuffled" or not torch.equal(other, steady.replaced([leaf], 0, kind, SEED + 1)[0])
        else:
            assert other != leaf


def test_a_cleared_mask_keeps_a_place_in_each_row_and_adds_none() -> None:
    for mask in (MASK, MASK.bool(), ADDED, torch.ones(50, 1)):
        taking_part = ~torch.isneginf(mask) if mask is ADDED else mask != 0
        other = steady.replaced([mask], 0, "cleared", SEED)[0]
        left = ~torch.isneginf(other) if mask is ADDED else other != 0
        assert bool((left <= taking_part).all()) and bool((left.any(-1) == taking_part.any(-1)).all())


def test_offsets_keep_their_ends_and_their_order() -> None:
    other = steady.replaced([torch.arange(0, 90, 10)], 0, "repeated", SEED)[0]
    assert int(other[0]) == 0 and int(other[-1]) == 80 and bool((other[1:] >= other[:-1]).all())


def test_offsets_are_told_by_their_order_and_by_steps_that_differ() -> None:
    one, other = torch.tensor([0, 3, 9, 17]), torch.tensor([0, 5, 6, 11])
    assert steady.rising([FLOAT, one], [FLOAT, other]) == [1]
    assert not steady.rising([one], [one]) and not steady.rising([one], [other.flip(0)])
    assert not steady.rising([one, one], [other])


def test_lengths_stay_within_what_was_drawn() -> None:
    other = steady.replaced([torch.full((100,), 7)], 0, "shorter", SEED)[0]
    assert int(other.min()) >= 1 and int(other.max()) <= 7


def test_steady_leaves_and_only_the_one_asked_for_is_replaced() -> None:
    one = [torch.rand(3), {"mask": torch.ones(2, 2)}, (2, torch.arange(4)), 0.5, "words", None]
    other = [torch.rand(3), {"mask": torch.ones(2, 2)}, (2, torch.arange(4)), 0.5, "words", None]
    assert steady.steady(one, other) == [1, 2, 3, 4, 5]
    assert steady.steady(one, one[:2]) == []
    changed = steady.replaced(one, 3, "shuffled", SEED)
    same = [a is b for a, b in zip(steady.leaves(one), steady.leaves(changed), strict=True)]
    assert same == [True, True, True, False, True, True] and changed[4:] == ["words", None]


def test_masks_that_differ_from_draw_to_draw_are_looked_at_and_other_values_are_not() -> None:
    lengths = [torch.arange(8)[None] < torch.tensor([[3], [5]]), torch.arange(8)[None] < torch.tensor([[4], [1]])]
    ones, others = ([mask, mask.long(), torch.rand(2, 8)] for mask in lengths)
    assert steady.steady(ones, others) == [0]


def test_words_are_those_that_code_compares_with_looks_up_or_matches() -> None:
    source = """
def forward(x, mode):
    "a docstring"
    if mode == "first" or mode in ("second", "third"):
        return x
    match mode:
        case "fourth":
            return {"fifth": x}[mode] + len("not this")
"""
    assert steady.words(source) == ("first", "second", "third", "fourth", "fifth", *steady.USUAL_WORDS)
    assert steady.words("def (") == ()


def test_copies_of_an_earlier_input_are_told_and_so_is_the_same_tensor() -> None:
    one, two = torch.randn(3, 4), torch.randn(3, 4)
    draws = ([one, one.clone(), one, two], [two, two.clone(), two, one])
    assert steady.copies(*draws) == [1, 2]
    assert steady.copies([one, one.clone()], [two, one]) == []


def test_floats_of_eight_bits_are_told_apart_and_taken_for_no_masks() -> None:
    one, other = (torch.randn(4, 6).to(torch.float8_e4m3fn) for _ in range(2))
    assert steady.steady([one], [other]) == [] and steady.steady([one], [one.clone()]) == [0]
    assert steady.kinds(one) == [] and steady.copies([one, one.clone()], [other, other.clone()]) == [1]
