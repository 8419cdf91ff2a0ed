"""What `forward` reads back, answered in a muted forward as it always was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dice.verify.execution import host_reads
from dice.verify.execution.host_reads import Reads


def read_in_trials(*trials: list[Any]) -> Reads:
    known = Reads()
    for values in trials:
        with known.trial():
            for value in values:
                assert host_reads.answer(value) is value
    return known


def replayed(known: Reads, *values: Any) -> list[Any]:
    with known.replayed():
        return [host_reads.answer(value) for value in values]


@pytest.mark.parametrize(
    "usual, now",
    [
        (1.0, 0.0),
        (True, False),
        (float("nan"), 3.0),
        (b"\x01\x00\x00\x00", b"\x00\x00\x00\x00"),
        ([1.0, 0.0], [0.0, 0.0]),
        (torch.tensor([[1, 0]]), torch.tensor([[0, 0]])),
        (np.array([1.0, 2.0], np.float32), np.zeros(2, np.float32)),
    ],
)
def test_a_sign_is_answered_as_it_always_was(usual: Any, now: Any) -> None:
    known = read_in_trials([usual], [usual], [usual])
    (answer,) = replayed(known, now)
    assert type(answer) is type(now)
    assert str(answer) == str(usual)
    assert str(now) != str(usual)  # and nobody's memory was written to


def test_data_stay_what_they_are() -> None:
    table = torch.arange(host_reads.MAX_NUMBERS + 1.0)
    known = read_in_trials([1.0, 5.0, table], [1.0, 6.0, table])
    large = torch.zeros(len(table))
    assert replayed(known, 0.0, 0.0, large) == [1.0, 0.0, large]


def test_what_was_read_in_one_trial_only_is_no_habit() -> None:
    assert replayed(read_in_trials([1.0]), 0.0) == [0.0]
    assert replayed(read_in_trials([1.0], [1.0, 2.0], [1.0, 2.0]), 0.0, 0.0, 0.0) == [1.0, 0.0, 0.0]


def test_another_kind_of_read_in_its_place_is_not_answered_for() -> None:
    known = read_in_trials([1.0, [1.0]], [1.0, [1.0]])
    assert replayed(known, False, [0.0, 0.0]) == [False, [0.0, 0.0]]


def test_outside_of_forwards_nothing_is_answered() -> None:
    known = read_in_trials([1.0], [1.0])
    with pytest.raises(KeyError), known.trial():
        raise KeyError
    assert host_reads.answer(0.0) == 0.0
    assert replayed(known, 0.0) == [1.0]  # a forward that failed is no trial
