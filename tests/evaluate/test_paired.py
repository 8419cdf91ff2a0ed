"""The statistics of the ablation: effects whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from paired import contrast, effect, holm


def test_a_constant_difference_has_no_spread() -> None:
    found = effect(np.full((2, 30), 0.25), resamples=500)
    assert (found.value, found.low, found.high) == (0.25, 0.25, 0.25)
    assert found.p == pytest.approx(2 / 501) and not found.within(0.05)


def test_no_difference_is_no_effect_and_is_equivalent() -> None:
    found = effect(np.zeros((2, 30)), resamples=500)
    assert (found.value, found.p) == (0.0, 1.0) and found.within(0.05)


def test_seeds_that_disagree_widen_the_interval_to_both() -> None:
    """Problems alone would give no spread at all: it is the seeds that are drawn first."""
    found = effect(np.array([[0.2] * 40, [-0.2] * 40]), resamples=2000)
    assert found.value == pytest.approx(0) and (found.low, found.high) == pytest.approx((-0.2, 0.2))
    assert found.p > 0.9


def test_with_one_seed_it_is_the_bootstrap_over_problems() -> None:
    """Of 400 problems 60 are gained and 20 lost: the mean is 0.1, its standard error that of 400 draws."""
    values = np.array([[1.0] * 60 + [-1.0] * 20 + [0.0] * 320])
    found, error = effect(values, resamples=4000), values.std() / 20
    assert found.value == pytest.approx(0.1)
    assert found.low == pytest.approx(0.1 - 1.96 * error, abs=0.006)
    assert found.high == pytest.approx(0.1 + 1.96 * error, abs=0.006)
    assert found.low < found.low90 < found.high90 < found.high and found.p < 0.001


def test_an_effect_in_truth_is_covered_about_as_often_as_said() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(100):
        draws = rng.choice([-1.0, 0.0, 1.0], p=[0.1, 0.7, 0.2], size=(1, 200))
        found = effect(draws, resamples=400)
        hits += found.low <= 0.1 <= found.high
    assert 88 <= hits <= 100


def test_holm_steps_down() -> None:
    """The textbook's four: each times the number not yet passed, never below one before."""
    found = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert found == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})
    assert holm({"a": 0.6, "b": 0.9}) == {"a": 1.0, "b": 1.0}


def test_contrasts_go_by_problem_and_seed() -> None:
    one, other = np.array([[1.0, 0.0]]), np.array([[0.0, 0.0]])
    assert contrast([one, one], [other, one]).tolist() == [[0.5, 0.0]]


def test_nothing_to_resample_is_refused() -> None:
    with pytest.raises(ValueError, match="seeds, problems"):
        effect(np.zeros((2, 0)))
