"""Whether a program's calls only pass on what PyTorch computed for it: copies, and sums with constant factors, element
by element.

Such kernels undo a padding, a summand or a cut that PyTorch's operators mixed into the answer. Each call of the file's
own functions is made again with other values of its float tensors: those that it was given for other inputs, and what
lies halfway, all at once; and with each half of these values on one of them. A call that computes bends somewhere (a
product of two tensors does), or mixes elements of one tensor. What it does with values that never occur does not count,
nor do tables that the file made without its inputs.

Work that nobody needs does not count either: where some calls compute, their results are changed in one more forward,
equal values alike, and the output has to follow.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import torch

from dice.verify.tensors import transport

MOST_ELEMENTS = 1 << 26  # of a call's tensors: each is run several times for each of them
MOST_CALLS = 64  # that are looked at, chosen by chance
FACTORS = (2.0, 1000.0)  # times the rms, where no other inputs are known: what saturates far away bends there
APART = 0.9  # of the results depend on one element of a tensor at most
BENT = 1e-3  # of the rms: what a sum of rounded numbers may be off a straight line
BENT_HALF = 3e-2  # the same in half precision
FOLLOWS = 1e-3  # of the rms of an output: what it changes by, at least, where work matters that is changed by a half

Function = Callable[..., Any]
NOTE, LOOK, DISTURB = "note", "look", "disturb"  # what becomes of the calls of a forward


class Passing:
    """Looks at the `calls` of a program, over several forwards: on other inputs to `NOTE` what each is given there, on
    the inputs to `LOOK` at each, and once more to `DISTURB` those that compute. `only`: all only pass values on."""

    def __init__(self, seed: int, calls: int = MOST_CALLS):
        self._generator = torch.Generator().manual_seed(seed)
        self._chosen = set(random.Random(seed).sample(range(calls), min(calls, MOST_CALLS)))
        self._others: dict[int, list[list[torch.Tensor]]] = {}  # what calls are given elsewhere, by their number
        self._written: dict[int, set[int]] = {}  # places of the arguments that calls write to
        self._mode, self._number = LOOK, 0
        self.computing: set[int] = set()

    @property
    def only(self) -> bool:
        return not self.computing

    def begin(self, mode: str) -> None:
        """Before a forward."""
        self._mode, self._number = mode, 0

    def call(self, function: Function, arguments: list[Any], options: dict[str, Any], fixed: Container[int]) -> Any:
        """What the function gives. `fixed`: places, among its tensors, of those that do not depend on the inputs."""
        number = self._number
        self._number += 1
        if number not in self._chosen:
            return function(*arguments, **options)
        if self._mode == DISTURB and number in self.computing:
            return _disturbed(function, arguments, options, self._written.get(number, ()))
        if self._mode == NOTE:
            taken = [tensor.clone() for tensor in transport.tensors([*arguments, *options.values()])]
            self._others.setdefault(number, []).append(taken)
        elif self._mode == LOOK and not self._passes(number, function, arguments, options, fixed):
            self.computing.add(number)
        return function(*arguments, **options)

    def _passes(
        self, number: int, function: Function, arguments: list[Any], options: dict[str, Any], fixed: Container[int]
    ) -> bool:
        given = [*arguments, *options.values()]
        tensors = transport.tensors(given)
        data = [place for place, tensor in enumerate(tensors) if tensor.is_floating_point() and place not in fixed]
        if not data:  # it makes something of tables, or of whole numbers
            return all(place in fixed for place in range(len(tensors))) and bool(tensors)
        if sum(tensor.numel() for tensor in tensors) > MOST_ELEMENTS:
            return False

        def run(values: Mapping[int, torch.Tensor]) -> list[torch.Tensor]:
            """All that the call gives or writes, with other values of some of its tensors."""
            own = transport.map_tensors(torch.Tensor.clone, copy.copy(given))
            taken = transport.tensors(own)
            for place, value in values.items():
                taken[place].copy_(value)
            before = [tensor.clone() for tensor in taken]
            result = function(*own[: len(arguments)], **dict(zip(options, own[len(arguments) :], strict=True)))
            changed = (place for place, old in enumerate(before) if not torch.equal(taken[place], old))
            self._written.setdefault(number, set()).update(changed)
            return [tensor.detach().clone() for tensor in (*transport.tensors(result), *taken)]

        here = {place: tensors[place].clone() for place in data}
        others = [there for there in self._elsewhere(number, tensors, data) if there]
        for there in others:
            middle = {place: (here[place] + there[place]) / 2 for place in data}
            if not _alike(_is_straight, run(middle), run(there), run(here)):
                return False
        for place, value in others[0].items():
            half = torch.rand(value.shape, generator=self._generator).to(value.device) < 0.5
            parts = (value, torch.where(half, value, here[place]), torch.where(half, here[place], value))
            if not _alike(_is_apart, run(here), *(run({place: part}) for part in parts)):
                return False
        return True

    def _elsewhere(
        self, number: int, tensors: Sequence[torch.Tensor], data: Sequence[int]
    ) -> list[dict[int, torch.Tensor]]:
        """Other values of the data of a call: those of other inputs, or else such as are near and far."""
        shapes = [(tensor.shape, tensor.dtype) for tensor in tensors]
        noted = [
            {place: taken[place] for place in data}
            for taken in self._others.get(number, ())
            if [(tensor.shape, tensor.dtype) for tensor in taken] == shapes
        ]
        return noted or [{place: self._away(tensors[place], factor) for place in data} for factor in FACTORS]

    def _away(self, tensor: torch.Tensor, factor: float) -> torch.Tensor:
        scale = float(tensor.float().square().mean().sqrt()) or 1.0
        return tensor + (torch.randn(tensor.shape, generator=self._generator) * factor * scale).to(tensor)


def _disturbed(function: Function, arguments: list[Any], options: dict[str, Any], written: Container[int]) -> Any:
    """What the function gives, each float by up to a half more or less, and so what it writes to its arguments."""
    given = transport.tensors([*arguments, *options.values()])
    result = function(*arguments, **options)
    filled = [tensor for place, tensor in enumerate(given) if place in written]
    once = {tensor.data_ptr(): tensor for tensor in (*filled, *transport.tensors(result)) if tensor.numel()}
    for tensor in once.values():
        if tensor.is_floating_point():  # as follows from the value itself: copies of it cannot cancel it
            tensor.mul_(1 + 0.5 * torch.sin(1e3 * tensor.double() + 1).to(tensor.dtype))
        elif not tensor.is_complex():
            tensor.copy_(tensor.flip(0) if tensor.dim() else tensor)
    return result


def follows(output: Any, other: Any) -> bool:
    """Whether one of two outputs of a program is another one."""
    pairs = zip(transport.tensors(output), transport.tensors(other), strict=False)
    return any(_is_other(one, two) for one, two in pairs)


def _is_other(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or not one.numel():
        return one.shape != other.shape
    if not one.is_floating_point() or not bool((one.isfinite() & other.isfinite()).all()):
        return not torch.equal(one, other)
    one, other = one.double(), other.double()
    return float((one - other).square().mean().sqrt()) > FOLLOWS * float(one.square().mean().sqrt())


def _alike(test: Callable[..., bool], *runs: Sequence[torch.Tensor]) -> bool:
    """Whether all results that are floats pass a test, and are of the same shapes in all runs."""
    if len({len(run) for run in runs}) > 1:
        return False
    for results in zip(*runs, strict=True):
        if len({(one.shape, one.dtype) for one in results}) > 1:
            return False
        if results[0].is_floating_point() and not test(*results):
            return False
    return True


def _is_straight(base: torch.Tensor, over: torch.Tensor, under: torch.Tensor) -> bool:
    """Whether the middle is where both ends have theirs."""
    allowed = BENT_HALF if base.dtype.itemsize < 4 else BENT
    base, over, under = base.double(), over.double(), under.double()
    known = base.isfinite() & over.isfinite() & under.isfinite()
    if not bool(known.any()):
        return True
    bend = (over + under - 2 * base)[known]
    size = torch.maximum(over.abs(), under.abs())[known]
    return float(bend.square().mean().sqrt()) <= allowed * float(size.square().mean().sqrt())


def _is_apart(base: torch.Tensor, over: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether a result follows one half of the offset alone."""

    def same(one: torch.Tensor) -> torch.Tensor:
        return (one == base) | (one.isnan() & base.isnan())

    moved = ~same(over)
    if not bool(moved.any()):
        return True
    alone = (same(first) | same(second)) & moved
    return int(alone.count_nonzero()) >= APART * int(moved.count_nonzero())
