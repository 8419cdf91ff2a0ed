"""Whether a program's calls only pass on what PyTorch computed for it: copies, and sums with constant factors, element
by element.

Such kernels undo a padding, a summand or a cut that PyTorch's operators mixed into the answer. Each call of the file's
own functions is made again with other values of its float tensors: with offsets on all of them and the opposite ones,
near and far, and with each half of an offset on one of them. A call that computes bends somewhere (a product of two
tensors does), or mixes elements of one tensor.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dice.verify.tensors import transport

MOST_ELEMENTS = 1 << 22  # of a call's tensors: each is run six times for each of them
MOST_CALLS = 64  # that are looked at
FACTORS = (2.0, 1000.0)  # times the rms: what clamps or saturates far away bends there
APART = 0.9  # of the results depend on one element of a tensor at most
BENT = 1e-3  # of the rms: what a sum of rounded numbers may be off a straight line
BENT_HALF = 3e-2  # the same in half precision


class Passing:
    """Looks at calls as they are made. `only`: all so far only pass values on."""

    def __init__(self, seed: int):
        self._generator = torch.Generator().manual_seed(seed)
        self._calls = 0
        self.only = True

    def look(self, function: Callable[..., Any], arguments: list[Any], options: dict[str, Any]) -> None:
        """A call that is about to be made."""
        self._calls += 1
        self.only = self.only and self._calls <= MOST_CALLS and self._passes(function, arguments, options)

    def _passes(self, function: Callable[..., Any], arguments: list[Any], options: dict[str, Any]) -> bool:
        given = [*arguments, *options.values()]
        tensors = transport.tensors(given)
        floats = [place for place, tensor in enumerate(tensors) if tensor.is_floating_point()]
        if not floats or sum(tensor.numel() for tensor in tensors) > MOST_ELEMENTS:
            return False

        def run(offsets: Mapping[int, torch.Tensor]) -> list[torch.Tensor]:
            """All that the call gives or writes, with offsets on some of its tensors."""
            own = transport.map_tensors(torch.Tensor.clone, copy.copy(given))
            taken = transport.tensors(own)
            for place, offset in offsets.items():
                taken[place].add_(offset)
            result = function(*own[: len(arguments)], **dict(zip(options, own[len(arguments) :], strict=True)))
            return [tensor.detach().clone() for tensor in (*transport.tensors(result), *taken)]

        base = run({})
        for factor in FACTORS:
            offsets = {place: self._offset(tensors[place], factor) for place in floats}
            if not _alike(_is_straight, base, run(offsets), run({place: -one for place, one in offsets.items()})):
                return False
        for place, offset in offsets.items():
            half = torch.rand(offset.shape, generator=self._generator).to(offset.device) < 0.5
            whole, first, second = (run({place: part}) for part in (offset, offset * half, offset * ~half))
            if not _alike(_is_apart, base, whole, first, second):
                return False
        return True

    def _offset(self, tensor: torch.Tensor, factor: float) -> torch.Tensor:
        scale = float(tensor.float().square().mean().sqrt()) or 1.0
        return (torch.randn(tensor.shape, generator=self._generator) * factor * scale).to(tensor)


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
    size = torch.maximum(over.abs(), base.abs())[known]
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
