"""Drawing, truncating and choosing, one rule at a time."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dice.decode.sampling import Proposal, draw, forbid, propose, reveal_counts, select, truncate


def proposal(*confidence: float, entropy: tuple[float, ...] = ()) -> Proposal:
    return Proposal(list(range(len(confidence))), [math.log(c) for c in confidence], list(confidence), list(entropy))


@pytest.mark.parametrize(
    ("block", "steps", "counts"), [(4, 4, [1] * 4), (4, 3, [2, 1, 1]), (8, 3, [3, 3, 2]), (1, 1, [1])]
)
def test_reveal_counts(block: int, steps: int, counts: list[int]) -> None:
    assert reveal_counts(block, steps) == counts and sum(counts) == block


def test_sequential_ignores_confidence() -> None:
    assert select(proposal(0.1, 0.9, 0.8), "sequential", 2) == [0, 1]


def test_static_takes_the_most_confident_and_ties_go_left() -> None:
    assert select(proposal(0.1, 0.9, 0.8, 0.2), "low_confidence_static", 2) == [1, 2]
    assert select(proposal(0.5, 0.5, 0.5), "low_confidence_static", 2) == [0, 1]
    assert select(proposal(0.3, 0.4), "low_confidence_static", 5) == [0, 1]


def test_dynamic_takes_all_above_the_threshold_or_the_top_n() -> None:
    assert select(proposal(0.95, 0.2, 0.93, 0.91), "low_confidence_dynamic", 1) == [0, 2, 3]
    assert select(proposal(0.3, 0.2, 0.6), "low_confidence_dynamic", 1) == [2]
    # Leftmost would be position 0: the fallback goes by confidence.
    assert select(proposal(0.3, 0.95, 0.6), "low_confidence_dynamic", 2) == [1, 2]
    assert select(proposal(0.9, 0.8), "low_confidence_dynamic", 1) == [0]  # the threshold itself is not above it


def test_entropy_bound_is_a_budget_over_the_surest_positions() -> None:
    unsure = proposal(0.5, 0.5, 0.5, 0.5, entropy=(0.3, 0.1, 0.2, 0.05))
    assert select(unsure, "entropy_bounded", 1, entropy_bound=0.36) == [1, 2, 3]
    assert select(unsure, "entropy_bounded", 1, entropy_bound=0.16) == [1, 3]
    assert select(unsure, "entropy_bounded", 4, entropy_bound=0.0) == [3]


@given(
    confidence=st.lists(st.floats(0.001, 1.0), min_size=1, max_size=9),
    count=st.integers(0, 9),
    strategy=st.sampled_from(["sequential", "low_confidence_static", "low_confidence_dynamic", "entropy_bounded"]),
)
def test_every_strategy_reveals_something_once(confidence: list[float], count: int, strategy: str) -> None:
    chosen = select(proposal(*confidence, entropy=tuple(-math.log(c) for c in confidence)), strategy, count)
    assert chosen == sorted(set(chosen)) and chosen[0] >= 0 and chosen[-1] < len(confidence)


LOGITS = torch.tensor([[2.0, 1.0, 0.5, -1.0, 1.0]])


def test_top_k_keeps_exactly_k_also_on_ties() -> None:
    assert torch.isfinite(truncate(LOGITS, top_k=2))[0].tolist() == [True, True, False, False, False]
    assert truncate(LOGITS, top_k=0) is LOGITS and truncate(LOGITS, top_k=99) is LOGITS


def test_top_p_keeps_the_smallest_sufficient_set() -> None:
    probabilities = LOGITS.softmax(-1)[0]  # about .47 .17 .10 .02 .17
    assert torch.isfinite(truncate(LOGITS, top_p=float(probabilities[0]) - 0.01))[0].sum() == 1
    assert torch.isfinite(truncate(LOGITS, top_p=0.6))[0].tolist() == [True, True, False, False, False]
    assert torch.isfinite(truncate(LOGITS, top_p=1e-9))[0].tolist() == [True, False, False, False, False]
    assert truncate(LOGITS, top_p=1.0) is LOGITS


def test_top_p_refers_to_what_top_k_left() -> None:
    # After top-k 3 the leader holds 0.57 of the mass instead of 0.47, so it alone reaches one half.
    assert torch.isfinite(truncate(LOGITS, top_k=3, top_p=0.5))[0].sum() == 1
    assert torch.isfinite(truncate(LOGITS, top_p=0.5))[0].sum() == 2


def test_draw_follows_the_distribution() -> None:
    probabilities = torch.tensor([0.5, 0.0, 0.3, 0.2])
    count = 20000
    uniforms = (torch.arange(count) + 0.5) / count
    tokens = draw(probabilities.expand(count, -1), uniforms)
    assert (tokens.bincount(minlength=4) / count).tolist() == pytest.approx([0.5, 0.0, 0.3, 0.2], abs=1e-3)


@given(st.floats(0, 1, exclude_max=True))
def test_draw_never_returns_an_impossible_token(uniform: float) -> None:
    probabilities = torch.tensor([[0.0, 1e-30, 0.0, 0.4, 0.6, 0.0]])
    assert probabilities[0, draw(probabilities, torch.tensor([uniform], dtype=torch.float64))] > 0


def test_extreme_uniforms_land_on_possible_tokens() -> None:
    probabilities = torch.tensor([[0.0, 0.3, 0.7, 0.0]]).expand(2, -1)
    assert draw(probabilities, torch.tensor([0.0, 1.0], dtype=torch.float64)).tolist() == [1, 2]


def test_sampled_confidence_is_the_filtered_probability() -> None:
    settings = {"temperature": 1.0, "top_k": 2, "mode": "sample"}
    drawn = propose(LOGITS, torch.tensor([0.0]), **settings)
    expected = 1 / (1 + math.exp(-1))
    assert drawn.tokens == [0] and drawn.confidence == pytest.approx([expected])
    assert drawn.logprobs == pytest.approx([math.log(expected)])


def test_greedy_confidence_ignores_the_filter_and_compat_is_certain() -> None:
    greedy = propose(LOGITS, None, mode="greedy", temperature=1.0, top_k=1)
    assert greedy.tokens == [0] and greedy.confidence == pytest.approx([LOGITS.softmax(-1)[0, 0].item()])
    compat = propose(LOGITS, None, mode="compat", temperature=1.0, top_k=1)
    assert (compat.tokens, compat.confidence, compat.logprobs) == ([0], [1.0], [0.0])


def test_greedy_ties_go_to_the_lowest_token() -> None:
    assert propose(torch.ones(3, 7), None, mode="greedy", temperature=0.0).tokens == [0, 0, 0]


def test_entropy_is_that_of_the_whole_vocabulary() -> None:
    logits = forbid(torch.zeros(1, 10), 3, 9)
    result = propose(logits, torch.tensor([0.5]), mode="sample", temperature=1.0, top_k=2, with_entropy=True)
    assert result.entropy == pytest.approx([math.log(8)])


def test_forbid_rules_out_mask_and_unused_rows() -> None:
    assert torch.isfinite(forbid(torch.zeros(2, 6), 1, 4))[0].tolist() == [True, False, True, True, False, False]
    assert torch.isfinite(forbid(torch.zeros(2, 6), 5))[0].sum() == 5
