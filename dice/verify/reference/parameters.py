"""Other values of parameters that no seed changes: biases of 0, weights of 1, identities, running statistics."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dice.verify.reference.trial import State
from dice.verify.tensors import trees

MOST_BORNE = 64  # tensors that are varied one by one, where all at once make the reference fail


def varied(model: torch.nn.Module, plain: State, other: State) -> State:
    """`plain`, the state of `model`, with those made random that are the same in `other`, which another seed made, or
    hold one value everywhere. Constants move by up to a half; what has a form of its own, by as much as its values
    differ, and what rises or falls goes on to do so between the same ends."""
    state = dict(plain)
    for name, parameter in trees.taken(model, other):
        if not parameter.is_floating_point() or not trees.is_steady(parameter, other.get(name)):
            continue
        if not parameter.requires_grad and _is_sorted(parameter):
            state[name] = _warped(parameter.detach())
        else:
            spread = float(parameter.detach().double().std()) if parameter.numel() > 1 else 0.0
            offset = (torch.rand_like(parameter) - 0.5) * (2 * spread if spread > 0 else 1.0)
            state[name] = parameter.detach() + offset
    return state


def _is_sorted(table: torch.Tensor) -> bool:
    steps = table.detach().diff() if table.dim() == 1 else table.new_empty(0)
    return bool(steps.numel()) and (bool((steps > 0).all()) or bool((steps < 0).all()))


def _warped(table: torch.Tensor) -> torch.Tensor:
    """As sorted, for whoever looks a place up in it, and between the same ends: its values may be places elsewhere."""
    inner = torch.rand_like(table[1:-1]).sort(descending=bool(table[0] > table[-1])).values
    low, high = torch.minimum(table[0], table[-1]), torch.maximum(table[0], table[-1])
    return torch.cat([table[:1], low + (high - low) * inner, table[-1:]])


def borne(plain: State, state: State, bears: Callable[[State], bool]) -> State:
    """`state` where the reference bears it, which is to stay finite; else, of each tensor in which it differs from
    `plain`, what it bears: the same, or with offsets that are not negative, or none."""
    if bears(state):
        return state
    found = dict(plain)
    moved = [name for name in plain if plain[name] is not state[name]]
    for name in moved[:MOST_BORNE]:
        upwards = plain[name] + (state[name] - plain[name]).abs()
        for value in (state[name], upwards):
            if bears(found | {name: value}):
                found[name] = value
                break
    return found
