"""Other values of parameters that no seed changes: biases of 0, weights of 1, identities, running statistics. And of
those that follow from another parameter when they are made: its copy, its lengths. Of those that have a form whatever
the seed, as orthogonal and symmetric matrices do. And of flags, counters and masks that all begin alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch

from dice.verify.reference.trial import COUNTER, State
from dice.verify.tensors import trees

PART = 0.01  # of a parameter, from which on it is no chance that it is the same under two seeds
REACH = 1.75
FORMLESS = 0.5  # of a parameter's spread, or of a gain: by a half of this at most it is moved up or down
MOST_SIGNED = 1 << 22  # elements
STRETCHES = (8.0, 3.0)  # times as large, as far as the reference bears it
UNIT = 0.75  # what the largest of a vector is at least before that: training opens gates that begin half open
COUNTED = 2**7 * 3**3 * 5**3 * 7 - 1  # of a counter where parameters are large
MOST_COUNTED = 1 << 31  # which still is a number of 32 bits when one less
GONE_ON = 37  # of another one: a flag that is set, a place in a ring that has gone round
SWITCHED = 0.3  # of truth values or whole numbers that are all alike
MOST_TRIED = 128  # groups of tensors, where all at once make the reference fail


def varied(model: torch.nn.Module, plain: State, other: State, looked_up: bool = False) -> State:
    """`plain`, the state of `model`, with those made random that are the same in `other`, which another seed made, or
    hold one value everywhere, or follow from another one. Constants move by up to a half, or `REACH` where they are
    less than one, as slopes are; what has a form of its own, by as much as its values differ, and what rises or falls
    goes on to do so between the same ends. All others move a little, and lose what form they have. Weights that are all
    above zero, or all below, get either sign, as training may give them. Whole numbers and truth values of buffers that
    are all alike become others. `looked_up`: the reference looks places up in tables, which are sorted for it."""
    state = dict(plain)
    state |= {name: _switched(value) for name, value in codes(model, plain)}
    taken = list(trees.taken(model, other))
    for place, (name, parameter) in enumerate(taken):
        if not parameter.is_floating_point():
            continue
        before = [one for _, one in taken[:place]]
        after = [one for _, one in taken[place + 1 :]]
        # Most are steady; whether one follows from another is asked of the rest, for that takes each pair of them.
        if not (
            trees.is_steady(parameter, other.get(name))
            or any(_is_copy(parameter, one) for one in before)
            or any(_are_lengths(parameter, one) for one in (*before, *after))
        ):
            changed = _without_steady_part(parameter, other.get(name))
            changed = _without_form(parameter, looked_up) if changed is None else changed
            state[name] = state[name] if changed is None else changed
            continue
        if not parameter.requires_grad and _is_sorted(parameter):
            state[name] = _warped(parameter.detach())
        else:
            state[name] = _moved(parameter.detach())
    for name, parameter in taken:
        if parameter.requires_grad and parameter.is_floating_point() and _has_one_sign(state[name].detach()):
            state[name] = torch.where(torch.rand_like(parameter) < 0.5, -state[name], state[name])
    first: dict[int, str] = {}  # names of tensors; one that has several has one value
    for name, tensor in model.state_dict(keep_vars=True).items():
        if name in state:
            state[name] = state[first.setdefault(id(tensor), name)]
    return state


def stretched(model: torch.nn.Module, state: State, factor: float, periods: Iterable[int] = ()) -> State:
    """`state` with parameters so many times as large, for what only large ones reach: the bound of a norm, the edge of
    a decay. Vectors of small numbers, as biases and the logits of decays are, become as large as others. The first row
    of each matrix is left as it is, for who knows a parameter by it. And with counters that have come far, to where
    whatever is done every so often, or at one of these `periods`, is due next."""
    found = dict(state)
    for name, parameter in model.state_dict(keep_vars=True).items():  # by all of its names
        if name in found and parameter.requires_grad and parameter.is_floating_point():
            found[name] = state[name] * (factor * _to_unit(state[name]))
            if parameter.dim() > 1 and len(parameter) > 1:
                found[name][0] = state[name][0]
    for name, value in codes(model, state):
        if _counts(value):
            found[name] = torch.full_like(value, _counted(periods))
    return found


def _counted(periods: Iterable[int]) -> int:
    """A number after which comes a multiple of these, and of usual ones."""
    count = COUNTED + 1
    for period in periods:
        count = math.lcm(count, period) if math.lcm(count, period) < MOST_COUNTED else count
    return count - 1


def _to_unit(value: torch.Tensor) -> float:
    """By how much a vector has to grow until its largest is of the size of one."""
    largest = float(value.detach().abs().max()) if value.dim() == 1 and value.numel() else UNIT
    return max(1.0, UNIT / largest) if largest > 0 else 1.0


def codes(model: torch.nn.Module, state: State) -> list[tuple[str, torch.Tensor]]:
    """Buffers of whole numbers or truth values that are all alike: flags, counters, masks that leave nothing out. Not
    the counter of batches that normalisations keep, which kernels need not have."""
    return [
        (name, state[name])
        for name, buffer in model.named_buffers()
        if name in state and _is_code(state[name]) and not name.endswith(COUNTER)
    ]


def _is_code(value: torch.Tensor) -> bool:
    is_other = value.is_floating_point() or value.is_complex()
    return not is_other and 0 < value.numel() <= MOST_SIGNED and bool((value == value.flatten()[0]).all())


def _switched(value: torch.Tensor) -> torch.Tensor:
    """Some of the truth values or whole numbers others: zeros for what is there, and ones for zeros. A counter goes on,
    past the end of what goes round, if the reference bears it."""
    other = (value == 0).to(value.dtype)
    if value.numel() == 1:
        return value + GONE_ON if _counts(value) else other
    return torch.where(torch.rand(value.shape, device=value.device) < SWITCHED, other, value)


def _counts(value: torch.Tensor) -> bool:
    """Whether it may be a counter."""
    return value.numel() == 1 and value.dtype in (torch.int32, torch.int64)


def _moved(value: torch.Tensor) -> torch.Tensor:
    if not value.numel():
        return value
    spread = float(value.double().std()) if value.numel() > 1 else 0.0
    least, most = value.float().aminmax()
    reach = REACH if 0 < max(-float(least), float(most)) < 1 else 0.5
    return value + (torch.rand_like(value) - 0.5) * (2 * (spread if spread > 0 else reach))


def _without_form(parameter: torch.Tensor, looked_up: bool) -> torch.Tensor | None:
    """Near to it, and no longer orthogonal, symmetric, sorted or of unit rows, which no training step leaves a
    parameter. None for what stays as it is."""
    own = parameter.detach()
    if not parameter.requires_grad or not 1 < own.numel() <= MOST_SIGNED or (looked_up and _is_sorted(own)):
        return None
    move = (torch.rand_like(own) - 0.5) * FORMLESS
    return own * (1 + move) if _has_one_sign(own) else own + move * float(own.double().std())


def _has_one_sign(value: torch.Tensor) -> bool:
    """Of a parameter that is not large, which is read and kept once more for it: those of one sign are gains."""
    if not 0 < value.numel() <= MOST_SIGNED:
        return False
    least, most = value.float().aminmax()
    return bool(least > 0) or bool(most < 0)


def _without_steady_part(parameter: torch.Tensor, other: torch.Tensor | None) -> torch.Tensor | None:
    """The parameter with other values in a part that is the same under another seed, such as the zeros of an
    embedding's padding: a state may hold any. A part is whole rows, or `PART` of all: single numbers are by chance.
    None where it has no such part. Looked for bit by bit: a large parameter is there often enough by then."""
    own = parameter.detach()
    if other is None or other.shape != own.shape or not parameter.requires_grad or not own.numel() or not own.dim():
        return None
    count, rows, step = 0, [], max(1, (1 << 20) * len(own) // own.numel())
    for start in range(0, len(own), step):
        same = own[start : start + step] == other[start : start + step].to(own)
        count += int(same.sum())
        rows += [same.flatten(1).all(1)] if own.dim() > 1 else []
    is_large = count >= PART * own.numel()
    if not is_large and not any(bool(one.any()) for one in rows):
        return None
    part = own == other.to(own) if is_large else torch.cat(rows)
    found, moved = own.clone(), own[part]
    found[part] = moved + (torch.rand_like(moved) - 0.5) * 2 * float(own.std())
    return found


def _is_copy(parameter: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether it has the values of another one, as they are or transposed, in memory of its own."""
    if parameter.dtype != other.dtype or parameter.data_ptr() == other.data_ptr():
        return False
    if parameter.numel() != other.numel() or not other.numel():
        return False
    if parameter.flatten()[0] != other.flatten()[0]:  # the first stays the first when turned
        return False
    turned = other.mT if other.dim() > 1 else other
    return any(parameter.shape == one.shape and torch.equal(parameter, one) for one in (other, turned))


def _are_lengths(parameter: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether it holds the lengths of another one's rows or columns, as a normed weight's gain does when it is made."""
    if other.dim() < 2 or parameter.dtype != other.dtype:
        return False
    for kept in {0, 1, other.dim() - 1}:
        if parameter.numel() == other.shape[kept] and parameter.numel() > 1:
            lengths = other.detach().movedim(kept, 0).flatten(1).norm(dim=1)
            if torch.allclose(parameter.detach().flatten(), lengths, rtol=1e-4):
                return True
    return False


def _is_sorted(table: torch.Tensor) -> bool:
    steps = table.detach().diff() if table.dim() == 1 else table.new_empty(0)
    return bool(steps.numel()) and (bool((steps > 0).all()) or bool((steps < 0).all()))


def _warped(table: torch.Tensor) -> torch.Tensor:
    """As sorted, for whoever looks a place up in it, and between the same ends: its values may be places elsewhere."""
    inner = torch.rand_like(table[1:-1]).sort(descending=bool(table[0] > table[-1])).values
    low, high = torch.minimum(table[0], table[-1]), torch.maximum(table[0], table[-1])
    return torch.cat([table[:1], low + (high - low) * inner, table[-1:]])


def borne(plain: State, state: State, bears: Callable[[State], bool]) -> State:
    """`state` where the reference bears it, which is to stay finite; else, of the tensors in which it differs from
    `plain`, what it bears: as many at once as it does, and of one that it does not the same with offsets that are not
    negative, or none. A tensor that has several names is one."""
    if bears(state):
        return state
    found, tensors, tried = dict(plain), dict[int, list[str]](), 0
    for name in plain:
        if plain[name] is not state[name]:
            tensors.setdefault(id(state[name]), []).append(name)
    groups = _halves(list(tensors.values()))
    while groups and tried < MOST_TRIED:
        group, tried = groups.pop(), tried + 1
        names = [name for one in group for name in one]
        if bears(found | {name: state[name] for name in names}):
            found |= {name: state[name] for name in names}
        elif len(group) > 1:
            groups += _halves(group)
        elif not plain[names[0]].is_floating_point():
            other = (plain[names[0]] == 0).to(plain[names[0]].dtype)
            found |= dict.fromkeys(names, other) if bears(found | dict.fromkeys(names, other)) else {}
        else:
            upwards = plain[names[0]] + (state[names[0]] - plain[names[0]]).abs()
            if bears(found | dict.fromkeys(names, upwards)):
                found |= dict.fromkeys(names, upwards)
    return found


def _halves(group: list[list[str]]) -> list[list[list[str]]]:
    """The first half comes last, as it is tried first."""
    middle = (len(group) + 1) // 2
    return [part for part in (group[middle:], group[:middle]) if part]
