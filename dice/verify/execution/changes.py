"""One input's values changed: what each family of `inputs.py` that needs no more than the values makes of them."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from dice.verify.execution import seldom

SCALE = 3.0
SMALL = 1 / 32  # not less: exp(x) - 1 is right enough in place of expm1(x)
LARGE, LARGEST = 200.0, 400.0  # the factor; the least that the largest value becomes
LARGEST_HALF = 1000.0  # the same for float16: sums of some hundred overflow in it
TIE_STEPS = 2.0  # steps of equal values per standard deviation
LARGE_AS_DRAWN, RATHER_LARGE, RATHER = "large as drawn", "rather large", 20.0
OFFSET, OFFSET_ABOVE, AWAY = "offset", "offset above", 30.0  # times the spread
FAR_BELOW, FAR_ABOVE, FAR = "far below zero", "far above zero", 1000.0
BELOW, ABOVE, TOGETHER = "below sentinels", "above sentinels", "far below, near together"
BELOW_APART, ABOVE_APART = (f"{family}, all different" for family in (BELOW, ABOVE))
SENTINEL, SENTINEL_HALF = 3e8, 2e4  # not more: from 1e9 on are what masks write
SENTINELS, SENTINELS_HALF = (1 << 29, 3), (1 << 15, 2)  # powers of two: the largest, and how many
TOGETHER_AT, TOGETHER_WIDTH = 1.2e5, 16.0  # a softmax may subtract the maximum of all rows, and rounds no further away
CHAINED, SHORTEST_CHAIN = "chained", 4
BACKGROUND = 1 / 256  # of what its values differ by: rows of one value alone keep nothing but roundings in a norm
TURNED, BEYOND_WHOLE, TURN, BEYOND = "turned far", "beyond whole numbers", 3e4, 1e10
NEAR, LOWER_BITS = "near", 0xB5A3  # the lower half of a float's bits, turned over here and there
LEANING, LEAN = "leaning", 3.0  # spreads
STRIPED, STRIPE, STRIPE_HEIGHT = "striped", 32, 6.0  # every so many places, by so many spreads
HALVES, EVEN, FINENESS = "halves", "even", 5  # so many halvings of the spread
# The same multiples in another order: sums, extremes and the ends of rows stay what they were.
REARRANGED = "rearranged"


def _large(tensor: torch.Tensor) -> torch.Tensor:
    largest = float(tensor.abs().max())
    if not largest > 0:
        return tensor
    if tensor.dtype == torch.float16:  # which holds little more
        return tensor * (LARGEST_HALF / largest)
    return tensor * max(LARGE, LARGEST / largest)


def _centre(tensor: torch.Tensor) -> torch.Tensor:
    count = int(torch.count_nonzero(tensor))
    if not count or 0.05 < int(torch.count_nonzero(tensor > 0)) / count < 0.95:
        return tensor
    mean = float(tensor.sum(dtype=torch.float64 if tensor.dtype == torch.float64 else torch.float32)) / count
    return (tensor - mean).masked_fill_(tensor == 0, 0.0)


def offset(tensor: torch.Tensor, spreads: float) -> torch.Tensor:
    if tensor.dtype.itemsize < 4:  # which holds nothing of the spread so far from zero
        return tensor
    spread = float(tensor.float().std())
    return (tensor + spreads * spread).masked_fill_(tensor == 0, 0.0)


def _striped(tensor: torch.Tensor) -> torch.Tensor:
    """The largest values all at places that are a warp apart: one lane has them, where each takes every 32nd."""
    if tensor.shape[-1] < 2 * STRIPE or is_formed(tensor):
        return tensor
    own = tensor.clone()
    own[..., 5::STRIPE] += STRIPE_HEIGHT * float(tensor.float().std())
    return own


def chained(tensor: torch.Tensor) -> torch.Tensor:
    """Square matrices that are about their smallest value, and beside the diagonal their largest: of a graph it is one
    path, on which nothing is near. Of truth values and zeros and ones, too, but for triangles; what is symmetric stays
    so. A list of edges becomes such a path, and so does a table of successors."""
    size = tensor.shape[-1] if tensor.dim() > 1 and tensor.shape[-1] == tensor.shape[-2] else 0
    if size < SHORTEST_CHAIN or tensor.is_complex():
        return seldom.successors(seldom.path(tensor))
    flat = tensor.reshape(-1, size, size)
    steps = flat.float().diff(dim=-1)
    in_order = bool((steps >= 0).all()) or bool((steps <= 0).all())
    two = seldom.is_mask(flat)
    if in_order or not (two or tensor.is_floating_point()):
        return tensor
    least, most = flat.flatten(1).float().aminmax(dim=1)
    found = least[:, None, None].expand(flat.shape)
    found = found.clone() if two else found + (flat - found) * BACKGROUND
    if two:  # a node may be its own neighbour, or may not
        found.diagonal(0, 1, 2).copy_(flat.diagonal(0, 1, 2))
    for side in (1, -1) if torch.equal(flat, flat.mT) else (1,):
        found.diagonal(side, 1, 2).copy_(most[:, None].expand(-1, size - 1))
    return found.to(tensor.dtype).reshape(tensor.shape)


def near(tensor: torch.Tensor) -> torch.Tensor:
    """The same values but for the lower half of their bits; of whole numbers two inner ones are moved by one against
    each other, so that their sum stays. For who remembers answers by less than their inputs."""
    if tensor.dtype == torch.float32 and not is_formed(tensor.reshape(-1)):
        return (tensor.contiguous().view(torch.int32) ^ LOWER_BITS).view(torch.float32)
    if not seldom.is_coded(tensor):
        return tensor
    flat = tensor.clone().reshape(-1)
    least, most = int(flat.min()), int(flat.max())
    for place in range(5 * len(flat) // 8, len(flat) - 2):
        if int(flat[place]) < most and int(flat[place + 1]) > least:
            flat[place] += 1
            flat[place + 1] -= 1
            break
    return flat.reshape(tensor.shape)


def _as_large(tensor: torch.Tensor, size: float) -> torch.Tensor:
    """So large that the largest is `size`; half precision does not hold such."""
    largest = float(tensor.abs().max())
    return tensor * (size / largest) if largest > 0 and tensor.dtype.itemsize >= 4 else tensor


def _beyond(tensor: torch.Tensor, begin: float) -> torch.Tensor:
    size = SENTINEL_HALF if tensor.dtype == torch.float16 else SENTINEL
    return _between(tensor, begin * size, size)


def _beyond_in_powers(tensor: torch.Tensor, sign: int) -> torch.Tensor:
    """The values in the same order, but for equal ones, as few powers of two of this sign. Zeros stay zero. Whatever
    they are multiplied by, no digit is lost, or a kernel that multiplies and subtracts with one rounding where the
    reference has two would be off by as much as exp makes something else of."""
    largest, count = SENTINELS_HALF if tensor.dtype == torch.float16 else SENTINELS
    least, most = (float(value) for value in tensor.float().aminmax())
    if not least < most:
        return tensor
    level = ((tensor.float() - least) / (most - least) * count).floor().clamp(max=count - 1)
    exponent = -level if sign < 0 else level - (count - 1)
    return torch.where(tensor == 0, tensor, (sign * largest * exponent.exp2()).to(tensor.dtype))


def _together(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype.itemsize < 4:  # which holds no differences there
        return tensor
    return _between(tensor, -TOGETHER_AT - TOGETHER_WIDTH, TOGETHER_WIDTH)


def _between(tensor: torch.Tensor, begin: float, width: float) -> torch.Tensor:
    """The values in the same order, from `begin` on. Zeros stay zero."""
    least, most = (float(value) for value in tensor.float().aminmax())
    if not least < most:
        return tensor
    place = (tensor.float() - least) / (most - least)
    return (place * width + begin).to(tensor.dtype).masked_fill_(tensor == 0, 0.0)


def _tie(tensor: torch.Tensor) -> torch.Tensor:
    step = float(tensor.float().std()) / TIE_STEPS
    if not step > 0:
        return tensor
    tied = (tensor / step).round_().mul_(step)
    return tied if is_formed(tensor) else _alike_at_ends(tied)


def _alike_at_ends(tensor: torch.Tensor) -> torch.Tensor:
    """The first two values and the last of every third row are its first one, and of the next rows the one that is
    nearest to zero: who looks only there takes such a row for constant, or for empty. Changes the tensor."""
    if tensor.shape[-1] < 4:
        return tensor
    ends, rows = [0, 1, tensor.shape[-1] - 1], tensor.reshape(-1, tensor.shape[-1])
    nearest = rows.reshape(-1)[rows.abs().argmin()].clone()
    rows[::3, ends] = rows[::3, :1].clone()
    rows[1::3, ends] = nearest
    return rows.reshape(tensor.shape)


def _rearranged(tensor: torch.Tensor) -> torch.Tensor:
    """The nearest such multiples, of which sums are exact in any order, with what lies between the ends of each row
    turned round; of tensors with short rows, of the whole. Values that are where they are for a reason stay there."""
    even = _dyadic(tensor)
    long = even.shape[-1] > 3
    rows = even if long else even.reshape(-1)
    if is_formed(tensor if long else tensor.reshape(-1)):
        return even
    return torch.cat((rows[..., :1], rows[..., 1:-1].flip(-1), rows[..., -1:]), dim=-1).reshape(tensor.shape)


def is_formed(tensor: torch.Tensor) -> bool:
    """Whether a kernel may rely on where values are: zeros, rows in order, or a symmetric matrix."""
    steps = tensor.diff(dim=-1)
    if bool((tensor == 0).any()) or bool((steps >= 0).all()) or bool((steps <= 0).all()):
        return True
    return tensor.dim() > 1 and tensor.shape[-1] == tensor.shape[-2] and torch.equal(tensor, tensor.mT)


def _dyadic(tensor: torch.Tensor) -> torch.Tensor:
    """The nearest multiples of a power of two, of which sums are exact."""
    spread = float(tensor.float().std())
    if not 0 < spread < math.inf:
        return tensor
    step = 2.0 ** (math.floor(math.log2(spread)) - FINENESS)
    return (tensor / step).round_().mul_(step)


def _halves(tensor: torch.Tensor) -> torch.Tensor:
    """The nearest multiples of powers of two, coarse and fine ones in turns: whatever of these they are divided by,
    many halves are among them."""
    spread = float(tensor.float().std())
    if not 0 < spread < math.inf:
        return tensor
    finer = torch.arange(tensor.numel(), device=tensor.device).reshape(tensor.shape) % (FINENESS + 4)
    steps = torch.exp2(math.floor(math.log2(spread)) - finer.to(tensor.dtype))
    return (tensor / steps).round_().mul_(steps)


# Families that look at every input, and not at measured ones alone.
OF_ALL: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {CHAINED: chained, NEAR: near}
CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "centred": _centre,
    "scaled": lambda tensor: tensor * SCALE,
    "small": lambda tensor: tensor * SMALL,
    "large": lambda tensor: _large(_centre(tensor)),
    LARGE_AS_DRAWN: _large,
    RATHER_LARGE: lambda tensor: _centre(tensor) * RATHER,
    "ties": _tie,
    "zeros": torch.zeros_like,
    EVEN: _dyadic,
    HALVES: _halves,
    seldom.BARE_CORNER: lambda tensor: tensor if is_formed(tensor) else seldom.bare_corner(tensor),
    REARRANGED: _rearranged,
    OFFSET: lambda tensor: offset(tensor, -AWAY),
    OFFSET_ABOVE: lambda tensor: offset(tensor, AWAY),
    seldom.BARE_LATER: lambda tensor: tensor if is_formed(tensor) else seldom.bare_later(tensor),
    seldom.IN_ORDER: lambda tensor: tensor.sort(-1).values if tensor.dim() and not is_formed(tensor) else tensor,
    seldom.NEAR_ONE: lambda tensor: seldom.near_one(tensor) if tensor.dim() and not is_formed(tensor) else tensor,
    TURNED: lambda tensor: _as_large(tensor, TURN),
    BEYOND_WHOLE: lambda tensor: _as_large(tensor, BEYOND),
    LEANING: lambda tensor: offset(tensor, LEAN),
    STRIPED: lambda tensor: _striped(tensor) if tensor.dim() else tensor,
    FAR_BELOW: lambda tensor: offset(tensor, -FAR),
    FAR_ABOVE: lambda tensor: offset(tensor, FAR),
    BELOW: lambda tensor: _beyond_in_powers(tensor, -1),
    ABOVE: lambda tensor: _beyond_in_powers(tensor, 1),
    BELOW_APART: lambda tensor: _beyond(tensor, -2),
    ABOVE_APART: lambda tensor: _beyond(tensor, 1),
    TOGETHER: _together,
}
