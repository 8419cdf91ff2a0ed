"""Outputs told apart by a few of their elements: never otherwise than by all, and without a look at all."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import pytest
import torch

from dice.verify.tensors import compare, sampled, trees

SHAPE = (64, 1 << 10)
FLOATS = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1))


def one_element(tensor: torch.Tensor) -> torch.Tensor:
    other = tensor.clone()
    other[3, 5] += 1
    return other


UNEQUAL: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "negated": torch.neg,
    "scaled": lambda one: one * 1.01,
    "zeros": torch.zeros_like,
    "NaN": lambda one: one * float("nan"),
    "one element": one_element,
    "transposed": lambda one: one.reshape(SHAPE[::-1]).T,
}
ALIKE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "itself": torch.clone,
    "rounded": lambda one: one * (1 + 1e-6),
    "beside its rms": lambda one: one + 9e-5,
}


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampled, "LEAST", FLOATS.numel())


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What whole comparisons found, in the order in which they were made."""
    made: list[bool] = []
    whole = compare.compare

    def noted(*values: object) -> compare.Comparison:
        result = whole(*values)
        made.append(result.equal)
        return result

    monkeypatch.setattr(compare, "compare", noted)
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", [*UNEQUAL, *ALIKE])
def test_a_few_elements_tell_what_all_do(compared: list[bool], name: str, dtype: torch.dtype) -> None:
    one = FLOATS.to(dtype)
    other = (UNEQUAL | ALIKE)[name](one).to(dtype)
    assert sampled.are_equal({"out": [one]}, {"out": [other]}) == compare.compare(one, other).equal
    seen = name in ("negated", "zeros", "NaN") or (name == "scaled" and dtype != torch.bfloat16)
    if seen:  # the second is the test's own
        assert len(compared) == 1


@pytest.mark.parametrize("name", [*UNEQUAL, *ALIKE])
def test_halfway_is_as_between(name: str) -> None:
    other = (UNEQUAL | ALIKE)[name](FLOATS)
    assert sampled.is_half_equal(FLOATS, other) == compare.compare(FLOATS, trees.between(FLOATS, other)).equal


def test_whole_numbers_differ_wherever_one_does(compared: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampled, "LOOKED_AT", 1)
    monkeypatch.setattr(secrets, "randbits", lambda _: 1)  # draws another element than the one that differs
    one = torch.arange(FLOATS.numel()).reshape(SHAPE)
    assert not sampled.are_equal(one, one + 1)
    assert compared == []
    assert not sampled.are_equal(one, one_element(one))
    assert sampled.are_equal(one, one.clone())
    assert compared == [False, True]


def test_other_shapes_and_infinite_values_are_left_to_a_whole_comparison(compared: list[bool]) -> None:
    infinite = FLOATS.clone()
    infinite[0] = torch.inf
    assert not sampled.are_equal(FLOATS, FLOATS.reshape(-1))
    assert sampled.are_equal(infinite, infinite.clone())
    assert compared == [False, True]


def test_which_elements_are_looked_at_is_chance_and_moves_no_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    state, looked_at = torch.get_rng_state(), []

    def note(expected: torch.Tensor, *_: object) -> torch.Tensor:
        looked_at.append(expected)
        return torch.full_like(expected, torch.inf)

    monkeypatch.setattr(compare, "allowed", note)
    assert sampled.are_alike(FLOATS, -FLOATS) and sampled.are_alike(FLOATS, -FLOATS)
    assert not torch.equal(*looked_at)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("wrong", [0.0, 0.05, 0.12, 0.5])
def test_how_often_elements_stray_is_told_as_of_all(wrong: float) -> None:
    other = FLOATS.clone()
    other.reshape(-1)[: int(wrong * other.numel())] = torch.nan
    assert sampled.stray_often(FLOATS, other, 0.1) == (wrong > 0.1)
    assert sampled.stray_often(FLOATS.round().int(), other.nan_to_num(9).round().int(), 0.1) == (wrong > 0.1)
