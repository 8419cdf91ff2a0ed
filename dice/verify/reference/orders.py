"""Indices that tell an order: among equal values PyTorch leaves it open, so another one is as right.

`sort` and `topk` of values that are equal may give any of their places. What counts is where indices point to: in the
problem's own inputs, along one dimension, at the same values, and at no place twice where the reference's do not. A
reference all of whose sorts are `stable` leaves nothing open. Where an output follows from which of equal values comes
first, as a mixture of experts does from a router's ties, there is no telling what is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from dice.verify.execution.dispatch import OperatorMode
from dice.verify.execution.evidence import Census
from dice.verify.ipc.operator_counts import OperatorCounts
from dice.verify.reference.trial import unchanged
from dice.verify.tensors import sampled, transport

ORDERS = frozenset({"topk", "sort", "kthvalue", "median", "mode"})


def leaves_open(work: OperatorCounts, stable: int, output: Any) -> bool:
    """Whether an output tells, by indices, an order that may be another among equal values. `stable`: how many of the
    reference's sorts settle that."""
    tells = any(not tensor.is_floating_point() for tensor in transport.tensors(output))
    return tells and has_any(work, stable)


def has_any(work: OperatorCounts, stable: int) -> bool:
    """Whether PyTorch put anything in an order that is open among equal values."""
    return sum(work.calls[name] for name in ORDERS) > stable


def decides(forward: Callable[[], Any], model: Any, output: Any, census: Census) -> bool:
    """Whether the output of the model's forward, of which the census is, would be another, were equal values in another
    order."""
    if not has_any(census.work, census.stable):
        return False
    with unchanged(model), OtherOrder():
        return not sampled.are_equal(output, forward())


class OtherOrder(OperatorMode):
    """Inside, of equal values the one comes first that else came last."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        dim = _DIMENSION.get(func.name())
        if dim is None or not args[0].dim():
            return func(*args, **(kwargs or {}))
        (place, usual), values = dim, args[0]
        along = args[place] if len(args) > place else usual
        found, indices = func(values.flip(along), *args[1:], **(kwargs or {}))
        return found, values.shape[along] - 1 - indices


# Where operators that leave an order open have their dimension, and which it is else.
_DIMENSION = {"aten::topk": (2, -1), "aten::sort": (1, -1), "aten::kthvalue": (2, -1), "aten::median.dim": (1, -1)}


def as_ordered(actual: Any, expected: Any, inputs: Any) -> Any:
    """`actual` with the reference's indices wherever its own point to the same values."""
    theirs = iter(transport.tensors(expected))

    def settled(own: torch.Tensor) -> torch.Tensor:
        other = next(theirs, own)
        if own.dtype != torch.int64 or own.shape != other.shape or other.dtype != own.dtype or torch.equal(own, other):
            return own
        return other if any(_point_alike(own, other, *place) for place in _places(other, inputs)) else own

    return transport.map_tensors(settled, actual)


def _places(indices: torch.Tensor, inputs: Any) -> Iterator[tuple[torch.Tensor, int]]:
    """Inputs, and their dimensions, that such indices may point into."""
    for tensor in transport.tensors(inputs):
        for dim in range(tensor.dim()):
            rest = [size for place, size in enumerate(tensor.shape) if place != dim]
            if tensor.dim() == indices.dim() and rest == [
                size for place, size in enumerate(indices.shape) if place != dim
            ]:
                yield tensor, dim


def _point_alike(own: torch.Tensor, other: torch.Tensor, values: torch.Tensor, dim: int) -> bool:
    if not own.numel() or min(int(own.min()), int(other.min())) < 0:
        return False
    if max(int(own.max()), int(other.max())) >= values.shape[dim]:
        return False
    same = torch.equal(values.gather(dim, own), values.gather(dim, other))
    return same and (_repeats(own, dim) <= _repeats(other, dim))


def _repeats(indices: torch.Tensor, dim: int) -> int:
    """How often an index stands a second time in its row."""
    rows = indices.sort(dim).values
    return int((rows.diff(dim=dim) == 0).sum())
