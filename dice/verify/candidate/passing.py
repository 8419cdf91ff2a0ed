"""Whether a program's calls only pass on what PyTorch computed for it: copies, and sums with constant factors, element
by element.

Such kernels undo a padding, a summand or a cut that PyTorch's operators mixed into the answer. Each call of the file's
own functions is made again with other values of its float tensors: those that it was given for other inputs, and what
lies halfway, all at once; and with each half of these values on one of them. A call that computes bends somewhere (a
product of two tensors does), mixes elements of one tensor, or tells whole numbers. What it does with values that never
occur does not count, unless the reference has bounds that PyTorch does not apply for the file; nor do tables that the
file made without its inputs. What PyTorch computes for the call's own host code is one more tensor that it is given.

Work that nobody needs does not count either: where some calls compute, their results are changed in one more forward,
equal values alike, and the output has to follow.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dice.verify.execution.dispatch import OperatorMode
from dice.verify.ipc.operator_counts import family
from dice.verify.tensors import transport

MOST_ELEMENTS = 1 << 26  # of a call's tensors: each is run several times for each of them
MOST_CALLS = 64  # that are looked at, chosen by chance
MOST_INNER = 64  # results of PyTorch's in one call: who has more in it computes
FACTORS = (2.0, 1000.0)  # times the rms, where no other inputs are known: what saturates far away bends there
APART = 0.9  # of the results depend on one element of a tensor at most
BENT = 1e-3  # of the rms: what a sum of rounded numbers may be off a straight line
BENT_HALF = 3e-2  # the same in half precision
FOLLOWS = 1e-3  # of the rms of an output: what it changes by, at least, where work matters that is changed by a half

Function = Callable[..., Any]
NOTE, LOOK, DISTURB = "note", "look", "disturb"  # what becomes of the calls of a forward


class Passing:
    """Looks at the `calls` of a program, over several forwards: on other inputs to `NOTE` what each is given there, on
    the inputs to `LOOK` at each, and once more to `DISTURB` those that compute. `far`: values that never occur count,
    too. `copies`: to take a sum or a multiple of values is to compute. `only`: all only pass values on."""

    def __init__(self, seed: int, calls: int = MOST_CALLS, far: bool = False, copies: bool = False):
        self._far, self._copies = far, copies
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

        def run(values: Mapping[int, torch.Tensor], inner: Sequence[torch.Tensor] | None = None) -> _Run:
            """All that the call gives or writes, with other values of some of its tensors, and of what PyTorch computes
            in it."""
            own = transport.map_tensors(torch.Tensor.clone, copy.copy(given))
            taken = transport.tensors(own)
            for place, value in values.items():
                taken[place].copy_(value)
            before = [tensor.clone() for tensor in taken]
            with _Inner(inner) as watched:
                result = function(*own[: len(arguments)], **dict(zip(options, own[len(arguments) :], strict=True)))
            changed = (place for place, old in enumerate(before) if not torch.equal(taken[place], old))
            self._written.setdefault(number, set()).update(changed)
            results = [tensor.detach().clone() for tensor in (*transport.tensors(result), *taken)]
            return _Run([*results, *watched.taken], watched.results)

        here = {place: tensors[place].clone() for place in data}
        base, ends = run(here), []
        if self._copies and not _are_copies(base.results, [*tensors, *base.inner]):
            return False
        for there in self._elsewhere(number, tensors, data):
            end = run(there)
            if not _same_shapes(base.inner, end.inner) or len(base.inner) > MOST_INNER:
                return False
            middle = run(_middle(here, there), [*_middle(_numbered(base.inner), _numbered(end.inner)).values()])
            if not _alike(_is_straight, middle.results, end.results, base.results):
                return False
            ends.append((there, end))
        there, end = ends[0]
        parts = [(place, here[place], value) for place, value in there.items()]
        parts += [(-1 - number, *pair) for number, pair in enumerate(zip(base.inner, end.inner, strict=True))]
        return all(self._is_apart(place, one, other, base, run) for place, one, other in parts)

    def _is_apart(
        self, place: int, one: torch.Tensor, other: torch.Tensor, base: _Run, run: Callable[..., _Run]
    ) -> bool:
        """Whether no result mixes elements of a tensor, which is one that the call is given or (below 0) one of
        PyTorch's."""
        half = torch.rand(one.shape, generator=self._generator).to(one.device) < 0.5
        found = []
        for part in (other, torch.where(half, other, one), torch.where(half, one, other)):
            inner = [part if number == -1 - place else value for number, value in enumerate(base.inner)]
            found.append(run({place: part} if place >= 0 else {}, inner).results)
        return _alike(_is_apart, base.results, *found)

    def _elsewhere(
        self, number: int, tensors: Sequence[torch.Tensor], data: Sequence[int]
    ) -> list[dict[int, torch.Tensor]]:
        """Other values of the data of a call: those of other inputs, or else such as are near and far. What other
        inputs leave as it is, as what follows from parameters, is another one, too."""
        shapes = [(tensor.shape, tensor.dtype) for tensor in tensors]

        def other(tensor: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
            return self._away(tensor, FACTORS[0]) if torch.equal(tensor, there) else there

        noted = [
            {place: other(tensors[place], taken[place]) for place in data}
            for taken in self._others.get(number, ())
            if [(tensor.shape, tensor.dtype) for tensor in taken] == shapes
        ]
        if noted and not self._far:
            return noted
        return noted + [{place: self._away(tensors[place], factor) for place in data} for factor in FACTORS]

    def _away(self, tensor: torch.Tensor, factor: float) -> torch.Tensor:
        scale = float(tensor.float().square().mean().sqrt()) or 1.0
        return tensor + (torch.randn(tensor.shape, generator=self._generator) * factor * scale).to(tensor)


@dataclass(frozen=True)
class _Run:
    """`results`: all that a call gives, what it was given, afterwards, and what it gave to PyTorch. `inner`: what
    PyTorch computed in it."""

    results: list[torch.Tensor]
    inner: list[torch.Tensor]


class _Inner(OperatorMode):
    """Keeps the floats that PyTorch's operators take in a block, and those that they compute; or has them give what
    they are `told`."""

    def __init__(self, told: Sequence[torch.Tensor] | None):
        super().__init__()
        self._told = told
        self.taken: list[torch.Tensor] = []
        self.results: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.is_view or not family(func.name()):
            return func(*args, **(kwargs or {}))
        given = transport.tensors([*args, *(kwargs or {}).values()])
        self.taken += [tensor.detach().clone() for tensor in given if tensor.is_floating_point()]
        result = func(*args, **(kwargs or {}))
        for tensor in transport.tensors(result):
            if not tensor.is_floating_point():
                continue
            number = len(self.results)
            if self._told is not None and number < len(self._told) and self._told[number].shape == tensor.shape:
                tensor.copy_(self._told[number])
            self.results.append(tensor.detach().clone())
        return result


def _numbered(tensors: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
    return dict(enumerate(tensors))


def _middle(one: Mapping[int, torch.Tensor], other: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    return {place: (value + other[place]) / 2 for place, value in one.items()}


def _same_shapes(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    return [(tensor.shape, tensor.dtype) for tensor in one] == [(tensor.shape, tensor.dtype) for tensor in other]


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
    """Whether all results that are floats pass a test, others are the same, and all are of the same shapes."""
    if len({len(run) for run in runs}) > 1:
        return False
    for results in zip(*runs, strict=True):
        if len({(one.shape, one.dtype) for one in results}) > 1:
            return False
        if results[0].is_complex():
            results = tuple(map(torch.view_as_real, results))
        if results[0].is_floating_point():
            if not test(*results):
                return False
        elif not all(torch.equal(results[0], other) for other in results[1:]):  # whole numbers made of floats
            return False
    return True


def _are_copies(results: Sequence[torch.Tensor], given: Sequence[torch.Tensor]) -> bool:
    """Whether each finite number among the results is one of those that are given, or zero."""
    floats = [tensor.detach().double().reshape(-1) for tensor in given if tensor.is_floating_point()]
    known = torch.cat([*floats, floats[0].new_zeros(1)])
    own = [tensor for tensor in results if tensor.is_floating_point()]
    return all(bool(torch.isin(one.double()[one.isfinite()], known.to(one.dtype).double()).all()) for one in own)


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
