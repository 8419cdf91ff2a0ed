"""Operators that a draw leaves without effect: which they are, and inputs on which they have one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from dice.verify.execution import branches, idle

Made = Callable[[], list[torch.Tensor]]


def woken(compute: Callable[..., Any], make: Made, planned: Iterable[Any] = ()) -> dict[str, Any]:
    torch.manual_seed(3)

    def forward(drawn: Any) -> Any:
        try:
            return compute(*(one.clone() for one in drawn))
        except (RuntimeError, IndexError):
            return None

    return idle.Search(forward).waking(make(), planned, (make() for _ in itertools.count()), seed=5)


def floats() -> list[torch.Tensor]:
    return [torch.randn(6, 30)]


def labelled() -> list[torch.Tensor]:
    return [torch.randn(40, 5), torch.randint(0, 5, (40,))]


def mean_of_valid(x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    valid = label != 255
    return (x.gather(1, (label * valid)[:, None])[:, 0] * valid).sum() / valid.sum()


def of_present(x: torch.Tensor, neighbour: torch.Tensor) -> torch.Tensor:
    return x[neighbour.clamp(min=0)] * (neighbour >= 0)[:, None]


def until_end(x: torch.Tensor) -> torch.Tensor:
    token = x.argmax(-1)
    return torch.where((token == 2).cumsum(0) > 0, 0, token)


def clamped_in_place(x: torch.Tensor) -> torch.Tensor:
    return x.cumsum(1).clamp_(-5e3, 5e3)


def limited(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x.abs().sum(1, keepdim=True) < 1e4, x, 0.0)


def wrapped(x: torch.Tensor) -> torch.Tensor:
    return torch.remainder(x, 1000) * 2


WAKING: dict[Callable[..., Any], tuple[Made, Callable[..., bool]]] = {
    mean_of_valid: (labelled, lambda x, label: bool((label == 255).any())),
    of_present: (labelled, lambda x, neighbour: bool((neighbour < 0).any())),
    until_end: (lambda: [torch.randn(8, 700)], lambda x: bool((x.argmax(-1)[:-1] == 2).any())),
    clamped_in_place: (floats, lambda x: float(x.cumsum(1).abs().max()) > 5e3),
    limited: (floats, lambda x: bool((x.abs().sum(1) >= 1e4).any())),
    wrapped: (lambda: [torch.randint(0, 100, (50, 2)).float() + 0.5], lambda x: float(x.max()) >= 1000),
}


@pytest.mark.parametrize("compute", WAKING)
def test_inputs_are_found_on_which_an_idle_operator_does_something(compute: Callable[..., Any]) -> None:
    make, is_awake = WAKING[compute]
    found = woken(compute, make)
    assert any(is_awake(*inputs) for inputs in found.values())
    assert len(found) <= idle.MOST_WOKEN and all(family.startswith(idle.WOKEN) for family in found)
    for inputs in found.values():
        assert bool(compute(*(one.clone() for one in inputs)).isfinite().all())


BRANCHING = """
import torch
END, TAU = 7777, 0.5

def forward(ids, scale, width):
    total = torch.zeros(len(ids))
    for row, codes in enumerate(ids.tolist()):
        for code in codes:
            if code == END:
                break
            total[row] += code % 13
    if scale == TAU:
        return total.neg()
    return total * scale if width < 1000 else total
"""


def test_inputs_are_found_for_ways_that_python_did_not_take(tmp_path: Path) -> None:
    path = tmp_path / "problem.py"
    path.write_text(BRANCHING)
    names: dict[str, Any] = {}
    exec(compile(BRANCHING, str(path), "exec"), names)

    def make() -> list[Any]:
        return [torch.randint(0, 20_000, (4, 12)), 2.0, 8]

    search = idle.Search(lambda drawn: names["forward"](*drawn), str(path), branches.numbers(BRANCHING), (), (0,))
    found = search.waking(make(), [], (make() for _ in itertools.count()), seed=5).values()
    assert any(bool((ids == 7777).any()) for ids, _, _ in found)
    assert any(scale == 0.5 for _, scale, _ in found) and any(width >= 1000 for _, _, width in found)


def test_nothing_is_looked_for_where_every_operator_does_something() -> None:
    assert not woken(lambda x: torch.relu(x).sum(1), floats)


def test_nor_where_a_planned_trial_shows_it() -> None:
    compute, drawn = lambda x: torch.relu(x) * 2, lambda: [torch.rand(4, 30)]
    assert not woken(compute, drawn, planned=[[torch.randn(4, 30)] for _ in range(2)])
    assert woken(compute, drawn, planned=[[torch.randn(4, 30)]]), "a single one may be left out"


def test_nor_where_the_output_would_stay() -> None:
    """A guard behind which nothing happens is nobody's loss."""
    assert not woken(
        lambda x: x.clamp(-1e4, 1e4).clamp(-1e3, 1e3).clamp(-5, 5), floats, [[torch.randn(6, 30) * 1e3]] * 2
    )


def test_what_is_computed_of_parameters_alone_is_left() -> None:
    scale = torch.rand(30) + 0.5
    torch.manual_seed(3)
    forward = lambda drawn: drawn[0] * scale.clamp(min=0.1)  # noqa: E731
    draws = (floats() for _ in itertools.count())
    with idle.Idle({scale.untyped_storage().data_ptr()}) as mode:
        forward(floats())
    assert not mode.calls and not idle.Search(forward, state=(scale,)).waking(floats(), (), draws, 5)


def test_inputs_that_do_not_suit_are_not_used() -> None:
    def compute(x: torch.Tensor) -> torch.Tensor:
        if float(x.abs().max()) > 100:
            raise RuntimeError("out of range")
        return x.clamp(-1e3, 1e3)

    assert not woken(compute, floats)


def test_infinity_is_no_number_to_meet() -> None:
    def compute(x: torch.Tensor, label: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        return torch.where(x == float("inf"), 0.0, x)[:, 0] * (label != 9) + count

    assert woken(compute, lambda: [*labelled(), torch.tensor([3])])
    assert branches.numbers("x > 1e999") == (float("inf"),)
    search = idle.Search(lambda drawn: drawn[0].clamp(max=1e4), numbers=(float("inf"), float("nan")))
    assert search.waking([torch.randn(4, 9), torch.tensor(3)], [], iter(()), seed=5)


def test_inputs_of_any_type_are_looked_at() -> None:
    def make() -> list[Any]:
        narrow = torch.randn(4, 8).to(torch.float8_e4m3fn)
        return [torch.randn(4, 8), narrow, torch.randn(4, 8, dtype=torch.complex64), torch.zeros(0), torch.ones(4) > 0]

    def compute(x: torch.Tensor, narrow: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        return (x + narrow.float() + rest[0].abs()).clamp(max=1e4) * rest[2][:, None]

    assert woken(compute, make)


def test_inputs_that_are_always_the_same_end_the_search() -> None:
    assert not woken(lambda: torch.ones(8).clamp(max=9.0), list)
    assert not woken(lambda x: x.sort().values.long().clamp(max=90), lambda: [torch.arange(40)])
