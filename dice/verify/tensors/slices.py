"""Parts of an output that are small beside the rest: a column, a row or a channel that was never computed hides there.

Each index of each dimension of a moderate size is held to its own rms. What is small because large values cancelled in
it is as uncertain as the reference's own distance from float64 tells; without a float64 run, only what is missing
altogether counts.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from dice.verify.tensors import near

MOST = 4096  # indices of a dimension: more are no columns or channels that a kernel treats in their own way
FEWEST = 16  # elements at an index: the rms of fewer is luck
FEW = 64  # elements of an output that are held one by one where it has no slices: sums and means in one tensor
PART = 0.25  # of a slice's own rms may be missing; TF32 leaves as much where values a thousand times larger cancel
GROSS = 0.5  # where the reference's rounding in it is not known
MARGIN = 64.0  # times the reference's own distance from float64 in the slice
SLACK_MARGIN = 10.0  # times what rounding the inputs changes in it
TOLERANCES = 10.0  # a shorter format's own tolerance, so often, is no less allowed
# Roundings of the whole output's rms: intermediate values as large as the rest leave as much in a small slice.
ROUNDINGS, ROUNDINGS_UNKNOWN, ROUNDINGS_HALF = 32.0, 256.0, 4.0
TF32_EPS = 2.0**-10
MOST_AT_ONCE = 8 * near.STRETCH  # elements at one index of the first dimension: what follows takes memory for them

Spread = dict[int, torch.Tensor]  # by dimension, the squares summed at each index


def lost(
    expected: torch.Tensor,
    actual: torch.Tensor,
    exact: torch.Tensor | None,
    slack: torch.Tensor | None,
    tolerance: float,
    worst: float,
    tf32: bool = False,
) -> tuple[str, float]:
    """Where a slice is wrong beside its own values, in words, and its part of the elements; "" and 0 where none is.

    `worst`: the largest |actual - expected| anywhere. All have the shape of `expected`. `tf32`: the reference rounds
    what it multiplies to TF32, and two that do so in other orders differ by as much.
    """
    names = [dim for dim, size in enumerate(expected.shape) if size != 1]
    expected, actual = expected.squeeze(), actual.squeeze()
    exact, slack = (None if value is None else value.squeeze() for value in (exact, slack))
    shape, count = expected.shape, expected.numel()
    dims = [dim for dim, size in enumerate(shape) if 1 < size <= MOST and count >= FEWEST * size]
    if 1 < count <= FEW and not dims and exact is not None and worst and expected.dtype.itemsize >= 4:
        return _lost_element(expected, actual, exact, slack, tf32)
    if not dims or not worst or count > MOST_AT_ONCE * shape[0]:
        return "", 0.0
    sizes = _squares(expected, None, dims)
    total = float(sizes[dims[0]].sum())
    roundings = ROUNDINGS_UNKNOWN if exact is None else ROUNDINGS
    roundings = ROUNDINGS_HALF if tf32 or expected.dtype.itemsize < 4 else roundings
    eps = max(torch.finfo(expected.dtype).eps, TF32_EPS if tf32 else 0.0)
    floor = roundings * eps * (total / count) ** 0.5
    part = max(GROSS if exact is None else PART, min(GROSS, TOLERANCES * tolerance))
    if worst <= part * floor:  # no slice's error is larger
        return "", 0.0
    errors = _squares(actual, expected if exact is None else exact, dims)
    known = [_squares(value, other, dims) for value, other in ((expected, exact), (slack, None)) if value is not None]
    for dim in dims:
        each = count / shape[dim]
        size, error = ((sums[dim] / each).sqrt() for sums in (sizes, errors))
        allowed = (part * size).clamp(min=floor)
        if exact is not None:
            allowed = torch.maximum(allowed, MARGIN * (known[0][dim] / each).sqrt())
        if slack is not None:
            allowed = torch.maximum(allowed, SLACK_MARGIN * (known[-1][dim] / each).sqrt())
        if bool((wrong := (size > floor) & (error > allowed)).any()):
            index = int(wrong.nonzero()[0])
            place = ", ".join(str(index) if number == names[dim] else ":" for number in range(names[-1] + 1))
            words = f"its error is {float(error[index]):.3g} (rms), and they are {float(size[index]):.3g}"
            return f"[{place}] is wrong beside its own values: {words}", float(wrong.double().mean())
    return "", 0.0


def _lost_element(
    expected: torch.Tensor, actual: torch.Tensor, exact: torch.Tensor, slack: torch.Tensor | None, tf32: bool
) -> tuple[str, float]:
    """The same of the elements of a small output, each of which may be of a size of its own."""
    known = (value.double().reshape(-1) for value in (expected, actual, exact, slack) if value is not None)
    size, found, exactly, *slacks = known
    eps = max(torch.finfo(expected.dtype).eps, TF32_EPS if tf32 else 0.0)
    floor = (ROUNDINGS_HALF if tf32 else ROUNDINGS) * eps * float(size.square().mean().sqrt())
    allowed = torch.maximum((PART * size.abs()).clamp(min=floor), MARGIN * (size - exactly).abs())
    for one in slacks:
        allowed = torch.maximum(allowed, SLACK_MARGIN * one.abs())
    error = (found - exactly).abs()
    wrong = (size.abs() > floor) & (error > allowed)
    if not bool(wrong.any()):
        return "", 0.0
    index = int(wrong.nonzero()[0])
    words = f"its error is {float(error[index]):.3g}, and it is {float(size[index]):.3g}"
    return f" has an element, the {index + 1}th, that is wrong beside its own size: {words}", float(
        wrong.double().mean()
    )


def _squares(value: torch.Tensor, other: torch.Tensor | None, dims: list[int]) -> Spread:
    """Of |value - other|, or |value|, in float64; what is not finite counts as zero."""
    found = {dim: torch.zeros(value.shape[dim], dtype=torch.float64, device=value.device) for dim in dims}
    for start, part in _stretches(value):
        part = part.double()
        if other is not None:
            part = part - other[start : start + len(part)].double()
        part = part.nan_to_num(0.0, 0.0, 0.0).square_()
        for dim in dims:
            sums = part.sum([number for number in range(part.dim()) if number != dim])
            if dim == 0:
                found[dim][start : start + len(part)] += sums
            else:
                found[dim] += sums
    return found


def _stretches(value: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """Along the first dimension, so that float64 copies need little memory; with where each begins."""
    rows = max(1, near.STRETCH * len(value) // value.numel())
    return ((start, value[start : start + rows]) for start in range(0, len(value), rows))
