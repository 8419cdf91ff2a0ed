"""How much of a reference's output is rounding: where it is far from float64, or is when inputs are off by one, or what
is computed of them on the way."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from dice.verify.execution import inputs
from dice.verify.execution.dispatch import OperatorMode
from dice.verify.reference.trial import ReferenceFailed
from dice.verify.tensors import compare, transport, trees

ILL_POSED = 1e-3  # of a changed draw's outputs may stray from float64
DRAWS = 4
ULP_PART = 0.05  # of the distance from float64 must come from rounding, where that distance is large
FAR_ROUNDING = 2e-3  # of the rms: what a reference may be off where values lie many spreads from zero
ROOT_ROUNDING = 1e-4  # the same where rows are alike: a fourth of the root of float32's last bit


def is_well_posed(output: Any, exact: Any, far: bool = False) -> bool:
    """Whether the reference answers a changed draw well: with finite values, and nearly as in float64. `far`: of values
    far from zero beside their spread, where a rounding weighs more."""
    if not trees.is_finite(output):
        return False
    if far:
        return _is_near_far_from_zero(output, exact)
    if exact is None or trees.shape_of(exact) != trees.shape_of(output):
        return True
    pairs = zip(transport.tensors(output), transport.tensors(exact), strict=True)
    return all(compare.stray_share(*pair) <= ILL_POSED for pair in pairs)


def _is_near_far_from_zero(output: Any, exact: Any) -> bool:
    if exact is None or trees.shape_of(exact) != trees.shape_of(output):
        return False
    pairs = zip(transport.tensors(output), transport.tensors(exact), strict=True)
    found = zip((compare.rms_difference(*pair) for pair in pairs), roundings(output, FAR_ROUNDING), strict=True)
    return all(off is None or allowed is None or off <= allowed for off, allowed in found)


def roundings(output: Any, part: float) -> tuple[float | None, ...]:
    """What each tensor of an output may be off by rounding, as a part of its rms. A right kernel may be off by ten
    times as much, since it may add its terms one by one, or take the distance of two points that are one as the root of
    a difference; a variance taken as the difference of two means is off by all of itself."""
    return tuple(None if size is None else part * size for size in map(_rms, transport.tensors(output)))


def _rms(tensor: torch.Tensor) -> float | None:
    if not (tensor.is_floating_point() or tensor.is_complex()) or not tensor.numel():
        return None
    length = torch.linalg.vector_norm(tensor if tensor.dtype.itemsize >= 4 else tensor.float())
    return float(length / tensor.numel() ** 0.5)


def slacks(forward: Callable[[Any], Any], drawn: Any, exact: Any) -> tuple[torch.Tensor, ...]:
    """How far the output is from float64, at most, for inputs that are off by a rounding: of each tensor each element;
    nothing where the outputs are not alike. An element that lives on cancellation may come out near to float64 by luck
    once, but not in several draws. No element has less than their rms."""
    truth = [leaf.double() for leaf in transport.tensors(exact)]
    found = [torch.zeros_like(leaf) for leaf in truth]
    for output in outputs(forward, drawn):
        other = [leaf.double() for leaf in transport.tensors(output)]
        if [leaf.shape for leaf in other] != [leaf.shape for leaf in truth]:
            return ()
        for slack, one, true in zip(found, other, truth, strict=True):
            torch.maximum(slack, (one - true).abs_().nan_to_num_(0.0, posinf=0.0), out=slack)
    for slack in found:
        slack.clamp_(min=float(slack.square().mean().sqrt()) if slack.numel() else 0.0)
    return tuple(found)


def outputs(forward: Callable[[Any], Any], drawn: Any) -> Iterator[Any]:
    """What the reference answers to inputs that are off by a rounding, each time in another way."""
    for number in range(DRAWS):
        yield forward(jittered(drawn, number))


def is_believable(forward: Callable[[Any], Any], drawn: Any, output: Any, exact: Any) -> bool:
    """Whether the float64 output is the same quantity. Where it is far from the reference's own, rounding of the
    inputs, or of what is computed of them, must move that too: else the model draws other random numbers in float64, or
    computes something else. Nearly the same is the same: where `x - tanh(x)` rounds is not moved by inputs that are
    off by a rounding."""
    if exact is None or trees.shape_of(exact) != trees.shape_of(output):
        return False
    if is_nearly(output, exact):
        return True
    pairs = list(zip(transport.tensors(output), transport.tensors(exact), strict=True))
    offs, moved = [compare.rms_difference(*pair) for pair in pairs], [0.0] * len(pairs)
    with contextlib.suppress(ReferenceFailed):
        for rounded in itertools.chain(outputs(forward, drawn), otherwise_rounded(forward, drawn)):
            found = map(compare.rms_difference, transport.tensors(output), transport.tensors(rounded))
            moved = [max(most, new or 0.0) for most, new in zip(moved, found, strict=False)]
            if all(off is None or most >= ULP_PART * off for off, most in zip(offs, moved, strict=False)):
                return True
    return False


def is_nearly(output: Any, exact: Any) -> bool:
    """Whether a reference's output is the float64 one but for rounding that needs no explanation."""
    if exact is None or trees.shape_of(exact) != trees.shape_of(output):
        return False
    pairs = zip(transport.tensors(output), transport.tensors(exact), strict=True)
    return all(compare.stray_share(*pair) == 0.0 or compare.is_near(*pair) for pair in pairs)


def otherwise_rounded(forward: Callable[[Any], Any], drawn: Any) -> Iterator[Any]:
    """What the reference answers where each operator rounds in another way. In `exp(x)` of small numbers all is lost
    but for a few bits, and a rounding of `x` does not show."""
    for number in range(DRAWS):
        with _OtherRounding(number):
            output = forward(drawn)
        yield output


class _OtherRounding(OperatorMode):
    """What operators make is by chance a neighbour of what they would make; whole numbers are exact, and stay."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._chance = _Chance(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not (func.is_view or func._schema.is_mutable):
            for tensor in transport.tensors(result):
                if (tensor.is_floating_point() or tensor.is_complex()) and 0 not in tensor.stride():
                    parts = torch.view_as_real(tensor) if tensor.is_complex() else tensor
                    parts.copy_(torch.where(parts == parts.round(), parts, self._chance.neighbour(parts)))
        return result


class _Chance:
    """Neighbours of numbers, drawn by a generator for each device."""

    def __init__(self, seed: int) -> None:
        self._seed, self._generators = seed, dict[torch.device, torch.Generator]()

    def neighbour(self, tensor: torch.Tensor) -> torch.Tensor:
        """Each number, or one next to it."""
        device = tensor.device
        generator = self._generators.setdefault(device, torch.Generator(device).manual_seed(self._seed))
        steps = torch.randint(-1, 2, tensor.shape, generator=generator, device=device)
        return tensor * (1 + torch.finfo(tensor.dtype).eps * steps.to(tensor.dtype))


def jittered(value: Any, seed: int) -> Any:
    """Each number of measured inputs, or a neighbour of it, by chance."""
    chance = _Chance(seed)
    return transport.map_tensors(lambda tensor: chance.neighbour(tensor) if inputs.is_free(tensor) else tensor, value)
