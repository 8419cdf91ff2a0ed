"""Inputs put together of many draws: what a problem draws once in hundreds of times, where it may draw it.

An input's whole numbers may be small, large, near to zero, or equal to another's once in many draws. Of some hundred
draws each index of the first dimension takes the one in which its values go furthest that way, and so do the other
inputs that have this dimension, since what stands in a row may belong together. Where a dimension's values are bound to
each other (a permutation, rising offsets, a distribution, a symmetric matrix), the draw that goes furthest is taken
whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from dice.verify.execution import seldom
from dice.verify.tensors import transport, trees

GATHERED = "gathered of many draws: "  # begins the family, before what is extreme in it
MOST_DRAWS, MOST_ELEMENTS = 1024, 1 << 22  # of all draws together
MOST_GATHERED = 6  # families; each costs a trial
_FORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {  # of [draws, indices, rest], what is least there
    "least": lambda values: values.amin(-1),
    "greatest": lambda values: -values.amax(-1),
    "nearest zero": lambda values: values.abs().amin(-1),
    "neighbours alike": lambda values: -(values.diff(dim=-1) == 0).sum(-1).double(),
    "most alike": lambda values: -(values.sort(-1).values.diff(dim=-1) == 0).sum(-1).double(),
}


def is_counted(tensor: torch.Tensor) -> bool:
    """Whether its values are whole numbers, of which there are few enough that some are rare."""
    if not tensor.dim() or tensor.numel() < 2:
        return False
    if not tensor.is_floating_point():
        return seldom.is_whole(tensor)
    if tensor.dtype.itemsize < 2 or not is_finite(tensor):
        return False
    return bool((tensor == tensor.round()).all()) and int(tensor.abs().max()) > 1


def is_finite(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() or tensor.dtype.itemsize < 2 or bool(tensor.isfinite().all())


def draws_of(first: Any) -> int:
    """How many draws like the first are looked through at most."""
    return min(MOST_DRAWS, MOST_ELEMENTS // max(1, trees.elements(first)))


def gathered(draws: Sequence[Any], most: int = MOST_GATHERED) -> dict[str, Any]:
    """At most so many inputs by their family, none of them the first of the draws. Nothing where draws have different
    forms."""
    columns = list(zip(*(transport.tensors(draw) for draw in draws), strict=False))
    if not columns or any(len({(one.shape, one.dtype) for one in column}) > 1 for column in columns):
        return {}
    stacked = [torch.stack([one.detach().cpu() for one in column]) for column in columns]
    bound = {column.shape[1] for column in stacked if column.dim() > 1 and _is_bound(column)}
    found: dict[str, Any] = {}
    for name, length, scores in _scored(stacked):
        if len(found) == most:
            break
        if length in bound:
            scores = scores.amin(-1, keepdim=True).expand_as(scores)
        inputs = _put_together(draws[0], stacked, scores.argmin(0))
        if all(trees.changed(inputs, other) for other in (draws[0], *found.values())):
            found[f"{GATHERED}{name}"] = inputs
    return found


def _scored(stacked: Sequence[torch.Tensor]) -> Iterator[tuple[str, int, torch.Tensor]]:
    """What may be extreme, the length of the first dimension that it is told for, and [draws, length] scores."""
    counted = {
        index: column.double().reshape(*column.shape[:2], -1)
        for index, column in enumerate(stacked)
        if column.dim() > 1 and is_counted(column[0])
    }
    for (one, ours), (other, theirs) in itertools.combinations(counted.items(), 2):
        if ours.shape == theirs.shape:
            yield f"inputs {one} and {other} nearest", ours.shape[1], (ours - theirs).abs().amin(-1)
    for index, column in enumerate(stacked):
        if column.dim() > 1 and not is_finite(column):
            scores = -(~column.isfinite()).reshape(*column.shape[:2], -1).sum(-1).double()
            yield f"input {index} least finite", column.shape[1], scores
    for name, form in _FORMS.items():
        for index, values in counted.items():
            if name.endswith("alike") and values.shape[-1] == 1:
                alike = form(values.transpose(1, 2))
                yield f"input {index} {name}", values.shape[1], alike.expand(-1, values.shape[1])
            elif name != "nearest zero" or bool((values < 0).any()):
                yield f"input {index} {name}", values.shape[1], form(values)


def _is_bound(column: torch.Tensor) -> bool:
    """Whether the values at different indices of the first dimension, which is the second here, belong together."""
    if column.dim() == 2 and column.shape[1] > 1 and column.dtype != torch.bool and not column.is_complex():
        values = column.double()
        rising = bool((values.diff(dim=1) >= 0).all()) and not is_counted(column[0])
        distinct = bool((values.sort(1).values.diff(dim=1) != 0).all()) and not column.is_floating_point()
        shares = column.is_floating_point() and bool(((values.sum(1) - 1).abs() < 1e-3).all())
        return rising or distinct or shares
    square = column.dim() == 3 and column.shape[1] == column.shape[2]
    return square and all(torch.equal(one, one.mT) for one in column[:2])


def _put_together(first: Any, stacked: Sequence[torch.Tensor], chosen: torch.Tensor) -> Any:
    """The first draw with the rows of others, where a tensor has as many as `chosen` has draws for."""
    columns = iter(stacked)
    places = torch.arange(len(chosen))

    def take(tensor: torch.Tensor) -> torch.Tensor:
        column = next(columns)
        if not tensor.dim() or len(tensor) != len(chosen):
            return tensor
        return column[chosen, places].to(tensor.device)

    return transport.map_tensors(take, first)
