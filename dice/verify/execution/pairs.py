"""Inputs that have to do with each other as those of a draw seldom do.

| family | values | shows |
|---|---|---|
| `delayed` | of two inputs the second is the first, most of a row later | what is looked for near its own place |
| `nearly equal` | some of an input's values are another's, but for a few roundings | `isclose` as equality |
| `chained` | two lists of ends are one path (`changes.py` has graphs in one tensor) | too few steps of a loop |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dice.verify.execution import seldom
from dice.verify.tensors import transport

DELAYED, NEARLY_EQUAL = "delayed", "nearly equal"


def varied(inputs: Any, family: str, is_free: Callable[[torch.Tensor], bool]) -> Any:
    """Each measured input changed by the one before it, where that has its shape and type; for `delayed` codes, too."""
    change = {DELAYED: delayed, NEARLY_EQUAL: nearly_equal}[family]
    before: list[torch.Tensor] = []

    def changed(tensor: torch.Tensor) -> torch.Tensor:
        other = before[-1] if before else None
        before.append(tensor)
        suits = is_free(tensor) or (family == DELAYED and seldom.is_coded(tensor))
        if other is None or (other.shape, other.dtype) != (tensor.shape, tensor.dtype) or not suits:
            return tensor
        return change(tensor, other)

    return transport.map_tensors(changed, inputs)


def delayed(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The other tensor of this shape, most of a row's length later; until then each row is as it begins."""
    if not other.dim():
        return tensor
    late = 7 * other.shape[-1] // 8
    places = (torch.arange(other.shape[-1], device=other.device) - late).clamp_(min=0)
    return other[..., places]


def nearly_equal(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Every third value is that of the other tensor of this shape, a few roundings further from zero."""
    changed, others = tensor.clone().reshape(-1), other.reshape(-1)
    changed[1 :: seldom.EVERY] = others[1 :: seldom.EVERY] * (1 + seldom.APART * torch.finfo(tensor.dtype).eps)
    return changed.reshape(tensor.shape)


def along_a_path(inputs: Any) -> Any:
    """The same with lists of ends, each of which is followed by the other, as one path."""
    found = list(transport.tensors(inputs))
    for place in range(len(found) - 1):
        found[place : place + 2] = paths(*found[place : place + 2])
    changed = iter(found)
    return transport.map_tensors(lambda tensor: next(changed), inputs)


def paths(ones: torch.Tensor, others: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same as `path` for edges whose ends are two tensors."""
    if ones.dim() != 1 or ones.shape != others.shape or ones.dtype != others.dtype or not _are_ends(ones, others):
        return ones, others
    one, other = seldom.path(torch.stack((ones, others)))
    return one, other


def _are_ends(ones: torch.Tensor, others: torch.Tensor) -> bool:
    """Whether two lists may be the ends of edges: codes of the same range."""
    return (
        seldom.is_coded(ones)
        and seldom.is_coded(others)
        and 2 * int(ones.max()) > int(others.max()) > int(ones.max()) // 2
    )
