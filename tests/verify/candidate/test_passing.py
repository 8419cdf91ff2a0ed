"""Which calls only pass on what they are given, element by element, and which compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import _disable_current_modes

from dice.verify.candidate.passing import DISTURB, LOOK, NOTE, Passing, follows

Call = Callable[..., Any]


def native(function: Call) -> Call:
    """The function as a kernel of the file's own would be it: nothing that PyTorch is seen to compute."""

    def call(*arguments: Any, **options: Any) -> Any:
        with _disable_current_modes():
            return function(*arguments, **options)

    return call


def only_passes(function: Call, *arguments: Any, **options: Any) -> bool:
    torch.manual_seed(0)
    passing = Passing(seed=3)
    passing.call(native(function), list(arguments), options, fixed=())
    return passing.only


def draw(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(1))


def written(x: torch.Tensor, out: torch.Tensor) -> None:
    out[: len(x)] = x


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (torch.clone, [draw(64)]),
        (lambda x: x.flip(0).t().contiguous(), [draw(8, 16)]),
        (lambda x: x[:-3] - 3, [draw(64)]),
        (lambda x: 0.5 * x.half(), [draw(64)]),
        (lambda x, y: 3 * x - y, [draw(64), draw(64)]),
        (lambda x, weight: torch.cat([x, weight * 2]), [draw(8), draw(8)]),
        (lambda table, places: table[places], [draw(32, 4), torch.tensor([3, 1, 1])]),
        (lambda x: x + float("nan"), [draw(64)]),
        (lambda x: (x.reshape(1) - 3).reshape(()), [draw(1).reshape(())]),
        (lambda parts: [parts[0] * 2, parts[1] * 3], [[draw(8), draw(8)]]),
        (written, [draw(8), torch.zeros(16)]),
        (torch.zeros_like, [draw(8)]),
        (lambda x: torch.complex(x, -x), [draw(8)]),
    ],
)
def test_what_is_copied_moved_and_scaled_is_passed_on(function: Call, arguments: list[Any]) -> None:
    assert only_passes(function, *arguments)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (torch.relu, [draw(256)]),
        (torch.exp, [draw(64)]),
        (lambda x: x * x, [draw(64)]),
        (lambda x, scale: x * scale, [draw(8, 8), draw(8)]),
        (lambda x: x.clamp(-100, 100), [draw(64)]),
        (lambda x, y: x / y, [draw(64), draw(64)]),
        (torch.sum, [draw(64)]),
        (lambda x: x.argsort(), [draw(64)]),
        (lambda x: torch.complex(x, x * x), [draw(64)]),
        (lambda x: x.cumsum(0), [draw(64)]),
        (lambda x: x[1:] - x[:-1], [draw(64)]),
        (torch.matmul, [draw(16, 16), draw(16, 16)]),
        (lambda x: torch.nn.functional.avg_pool1d(x, 2), [draw(4, 8, 16)]),
        (lambda x: x.sort().values, [draw(64)]),
        (lambda x: x + torch.rand(64), [draw(64)]),
        (lambda places: places * 2, [torch.arange(8)]),
        (lambda: torch.zeros(3), []),
        (torch.clone, [torch.zeros(1).expand(1 << 27)]),  # too large to look at
    ],
)
def test_what_bends_mixes_or_draws_computes(function: Call, arguments: list[Any]) -> None:
    assert not only_passes(function, *arguments)


def test_one_call_that_computes_is_enough() -> None:
    passing = Passing(seed=0)
    for function in (torch.clone, torch.exp, torch.clone):
        passing.call(native(function), [draw(32)], {}, fixed=())
    assert not passing.only


def test_arguments_are_left_as_they_are() -> None:
    x, out = draw(8), torch.zeros(16)
    before = x.clone()
    assert only_passes(written, x, out=out)
    assert torch.equal(x, before) and torch.equal(out[:8], x) and not out[8:].any()  # as one call leaves them


def test_what_a_call_does_with_values_that_never_occur_does_not_count() -> None:
    """A bound that no value reaches hides a copy; one that other inputs reach is work."""

    def bounded(x: torch.Tensor) -> torch.Tensor:
        return x.clamp(max=3.0)

    for factor, far, only in ((2.0, False, True), (20.0, False, False), (2.0, True, False)):
        passing = Passing(seed=1, calls=1, far=far)
        for mode, x in ((NOTE, factor * draw(64)), (LOOK, draw(64))):
            passing.begin(mode)
            passing.call(native(bounded), [x], {}, fixed=())
        assert passing.only is only


def test_what_other_inputs_leave_as_it_is_may_be_another_parameter() -> None:
    passing, scale = Passing(seed=1, calls=1), draw(64)
    for mode, x in ((NOTE, 2 * draw(64)), (LOOK, draw(64))):
        passing.begin(mode)
        passing.call(native(torch.mul), [x, scale], {}, fixed=())
    assert not passing.only


def test_tables_of_the_file_are_no_data() -> None:
    for fixed, only in (((), False), ((1,), True)):
        passing = Passing(seed=1)
        passing.call(native(torch.mul), [draw(64), draw(64)], {}, fixed)
        assert passing.only is only
    passing = Passing(seed=1)
    passing.call(
        native(torch.gather), [draw(64), 0, torch.arange(9)], {}, fixed=(0,)
    )  # what it does follows from the places
    assert not passing.only


def test_of_many_calls_some_are_looked_at_and_none_computes_unseen() -> None:
    passing = Passing(seed=1, calls=300)
    for _ in range(300):
        passing.call(native(torch.clone), [draw(4)], {}, fixed=())
    assert passing.only
    passing.begin(LOOK)
    for _ in range(300):
        passing.call(native(torch.exp), [draw(4)], {}, fixed=())
    assert len(passing.computing) == 64


WORK = {  # what becomes of two results of work that are equal, and whether the output follows them
    "used": (lambda x, one, other: x + one, True),
    "scales": (lambda x, one, other: x * one, True),
    "unused": (lambda x, one, other: x, False),
    "times zero": (lambda x, one, other: x + 0 * one, False),
    "cancels": (lambda x, one, other: x + one - other, False),
    "cancels in another order": (lambda x, one, other: x + one.flip(0) - other.flip(0), False),
}


@pytest.mark.parametrize("name", WORK)
def test_work_that_nobody_needs_does_not_count(name: str) -> None:
    combine, matters = WORK[name]
    passing, x = Passing(seed=1, calls=2), draw(64)

    def forward(mode: str) -> torch.Tensor:
        passing.begin(mode)
        results = [passing.call(native(torch.exp), [x.clone()], {}, fixed=()) for _ in range(2)]
        return combine(x, *results)

    output = forward(LOOK)
    assert passing.computing == {0, 1}
    assert follows(output, forward(DISTURB)) is matters


def test_what_a_call_writes_to_its_arguments_is_changed_too() -> None:
    def work(x: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(x.exp())

    passing, out = Passing(seed=1, calls=1), torch.zeros(64)
    passing.begin(LOOK)
    passing.call(native(work), [draw(64), out], {}, fixed=())
    before = out.clone()
    passing.begin(DISTURB)
    passing.call(native(work), [draw(64), out], {}, fixed=())
    assert not passing.only and follows(before, out)


INSIDE = {  # host code that has PyTorch compute, and what the file's own kernels do with that
    "undoes a summand": (lambda x: native(lambda y: y - 3)(torch.exp(x) + 3), True),
    "takes two apart": (lambda x: native(torch.sub)(torch.softmax(x, 0) + torch.sin(x), torch.sin(x)), True),
    "computes as well": (lambda x: native(torch.relu)(torch.exp(x) - 1.5), False),
    "adds up": (lambda x: native(lambda y: y.sum(1))(torch.exp(x.view(8, 8))), False),
    "computes before": (lambda x: torch.exp(native(torch.sin)(x)), False),
}


@pytest.mark.parametrize("name", INSIDE)
def test_what_pytorch_computes_within_a_call_is_not_the_calls(name: str) -> None:
    function, only = INSIDE[name]
    torch.manual_seed(0)
    passing = Passing(seed=3)
    passing.call(function, [draw(64)], {}, fixed=())
    assert passing.only is only
