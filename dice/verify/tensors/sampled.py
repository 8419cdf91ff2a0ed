"""Whether outputs are equal, where nobody asks what differs: a few elements of large tensors mostly tell that they do.

A whole comparison of gigabytes takes dozens of passes in double precision, and most of them where values differ. Equal
are values only where all of them were compared.
"""

from __future__ import annotations

import math
import secrets
from typing import Any

import torch

from dice.verify.tensors import compare, near, transport, trees

LEAST = 1 << 20  # elements: of fewer, a whole comparison costs next to nothing
LOOKED_AT = 1 << 14  # of a tensor
MARGIN = 2.0  # times what is allowed, or the share that may be wrong: sums round, and shares of a few are chance


def are_equal(expected: Any, actual: Any) -> bool:
    """Whether `compare.compare` calls them equal."""
    return not _differ(expected, actual, part=1.0) and compare.compare(expected, actual).equal


def is_half_equal(expected: Any, actual: Any) -> bool:
    """The same of what lies halfway from `expected` to `actual` (`trees.between`)."""
    if _differ(expected, actual, part=0.5):
        return False
    return compare.compare(expected, trees.between(expected, actual)).equal


def are_alike(expected: Any, actual: Any) -> bool:
    """False where not even a few elements are: then they are not equal, by the tolerances that hold where nothing else
    is known of `expected`. True tells nothing."""
    return not _differ(expected, actual, part=1.0)


def stray_often(expected: torch.Tensor, actual: torch.Tensor, share: float) -> bool:
    """Whether more than this share of the elements is wrong, by the tolerance of the tensor's dtype. NaN is."""
    allowed, one, other = _picked(expected, actual)
    if allowed is not None:
        wrong = ~((other - one).abs() <= MARGIN * allowed)
        if float(wrong.double().mean()) > MARGIN * share:
            return True
    if actual.is_floating_point():
        actual = near.wide(actual).nan_to_num(torch.finfo(actual.dtype).max).to(actual.dtype)
    return compare.stray_share(expected, actual) > share


def _differ(expected: Any, actual: Any, part: float) -> bool:
    ours, theirs = transport.tensors(expected), transport.tensors(actual)
    if [_form(tensor) for tensor in ours] != [_form(tensor) for tensor in theirs]:
        return False  # whoever compares them says how
    return any(_tensors_differ(*pair, part) for pair in zip(ours, theirs, strict=True))


def _form(tensor: torch.Tensor) -> tuple[torch.Size, torch.dtype, torch.device]:
    return tensor.shape, tensor.dtype, tensor.device


def _tensors_differ(expected: torch.Tensor, actual: torch.Tensor, part: float) -> bool:
    allowed, one, other = _picked(expected, actual)
    if allowed is None:
        return False
    part = part if expected.is_floating_point() else 1.0  # between two integers there is none
    return not bool((part * (other - one).abs() <= MARGIN * allowed).all())  # NaN is not, either


def _picked(expected: torch.Tensor, actual: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]:
    """What is allowed of some elements of large tensors, and the elements; None where these tell nothing. Which they
    are nobody knows beforehand, and PyTorch's own generators are left as they are."""
    if expected.numel() < LEAST or expected.is_complex():
        return None, expected, actual
    generator = torch.Generator().manual_seed(secrets.randbits(60))
    places = torch.randint(expected.numel(), (LOOKED_AT,), generator=generator).to(expected.device)
    at = torch.unravel_index(places, expected.shape)
    one, other = expected[at].double(), actual[at].double()
    if not expected.is_floating_point():
        return torch.zeros_like(one), one, other
    size = _rms(expected)
    return compare.allowed(one, size, expected.dtype) if math.isfinite(size) else None, one, other


def _rms(tensor: torch.Tensor) -> float:
    squares = sum(float(torch.linalg.vector_norm(part.float())) ** 2 for part in near.stretches(tensor))
    return math.sqrt(squares / tensor.numel())
