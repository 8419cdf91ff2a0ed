"""Values that a draw seldom holds and a problem's words allow: what kernels forget that are made for the usual draw.

| family | values | shows |
|---|---|---|
| `outliers` | in some rows one value 40 spreads away | a clip or a cap of what is computed from the row |
| `rows alike` | of inputs of one shape some rows the same | a branch for what is near, a division by a distance |
| `hollow` | some rows of masks empty, others full; some distributions with zeros | a division by a count, 0 log 0 |
| `values met by input ...` | some of the numbers with which the input is compared | an edge on the wrong side |
| `near ties of input ...` | beside its largest and least values some that are a few roundings off | keys cut short |
| `drifting` | their mean as it is, from one side of zero to the other | a mean taken of the first values |

Each is a trial of its own, since the reference may bear one and not another.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

OUTLIERS, ALIKE, HOLLOW, MEETING = "outliers", "rows alike", "hollow", "values met by input "
DRIFTING, NEAR_TIES = "drifting", "near ties of input "
APART = 4  # roundings, of a near tie
FAMILIES = (OUTLIERS, ALIKE, HOLLOW)
DRIFT = 4.0  # spreads, beyond the mean
OUTLYING = 40.0  # spreads
EVERY = 3  # of the rows one is changed, which leaves the others as the problem draws them
MET = 0.05  # of the values
SUM = 1e-3  # what the sum of a distribution may be off one by


def with_outliers(tensor: torch.Tensor) -> torch.Tensor:
    """A value far from the others in every third row: above them, or below where there are values below zero."""
    rows = _rows(tensor)
    if rows.shape[1] < 8:
        return tensor
    spread, numbers = float(tensor.float().std()), torch.arange(1 % len(rows), len(rows), EVERY, device=tensor.device)
    signs = torch.where(numbers % 2 == 0, -1.0, 1.0) if bool((tensor < 0).any()) else torch.ones(len(numbers))
    rows[numbers, (numbers * 7 + 3) % rows.shape[1]] = (OUTLYING * spread * signs).to(tensor)
    return rows.reshape(tensor.shape)


def with_rows_of(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Every third row is the other tensor's."""
    rows = _rows(tensor)
    rows[1::EVERY] = _rows(other)[1::EVERY]
    return rows.reshape(tensor.shape)


def drifting(tensor: torch.Tensor) -> torch.Tensor:
    """The values begin on the other side of zero than their mean, which stays, and end as far beyond it: over all
    rows, and within each."""
    spread, mean = float(tensor.float().std()), float(tensor.float().mean())
    way = (DRIFT * spread + abs(mean)) * (1.0 if mean > 0 else -1.0)
    within = torch.linspace(-1, 1, tensor.shape[-1], device=tensor.device)
    over = torch.linspace(-1, 1, tensor.numel(), device=tensor.device).reshape(tensor.shape)
    return (tensor + way * (over + within)).to(tensor.dtype).masked_fill_(tensor == 0, 0.0)


def with_near_ties(tensor: torch.Tensor) -> torch.Tensor:
    """Along the last dimension and the first, somewhere behind the largest value one that is less by a few roundings,
    and behind the least one that is larger."""
    near = tensor.clone()
    for dim in {0, tensor.dim() - 1} if tensor.dim() else ():
        size = tensor.shape[dim]
        for way in (-1, 1) if size > 3 else ():
            least, largest = near.min(dim, keepdim=True), near.max(dim, keepdim=True)
            own, other = (largest, least) if way < 0 else (least, largest)
            place = (own.indices + size // 2) % size
            place = torch.where(place == other.indices, (place + 1) % size, place)
            near.scatter_(dim, place, own.values + way * APART * torch.finfo(tensor.dtype).eps * own.values.abs())
    return near


def hollow(tensor: torch.Tensor) -> torch.Tensor:
    """Of a mask every third row is empty, and the one after it full; every third distribution is all at its most
    probable place. Anything else as it is."""
    if not tensor.dim() or tensor.numel() < 2 or (tensor.dtype.itemsize < 2 and tensor.is_floating_point()):
        return tensor
    first = 1 if tensor.numel() > tensor.shape[-1] else 0
    if _is_mask(tensor):
        rows = _rows(tensor)
        rows[first::EVERY], rows[first + 1 :: EVERY] = 0, 1
        return rows.reshape(tensor.shape)
    if _is_distribution(tensor):
        rows = _rows(tensor)
        some = rows[first::EVERY]
        rows[first::EVERY] = torch.zeros_like(some).scatter_(1, some.argmax(1, keepdim=True), 1)
        return rows.reshape(tensor.shape)
    return tensor


def meeting(tensor: torch.Tensor, numbers: Sequence[float], generator: torch.Generator) -> torch.Tensor:
    """Some values are these numbers; each of them is there."""
    flat = tensor.clone().reshape(-1)
    places = torch.randperm(len(flat), generator=generator)[: max(len(numbers), int(MET * len(flat)))]
    values = torch.tensor(numbers, dtype=torch.float64)[torch.arange(len(places)) % len(numbers)]
    flat[places.to(flat.device)] = values.to(flat)
    return flat.reshape(tensor.shape)


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with one row for each along the last dimension."""
    return tensor.clone().reshape(-1, tensor.shape[-1])


def _is_mask(tensor: torch.Tensor) -> bool:
    if tensor.dtype == torch.bool:
        return True
    return tensor.is_floating_point() and bool(((tensor == 0) | (tensor == 1)).all())


def _is_distribution(tensor: torch.Tensor) -> bool:
    if not tensor.is_floating_point() or tensor.shape[-1] < 2 or bool((tensor < 0).any()):
        return False
    return bool(((tensor.float().sum(-1) - 1).abs() < SUM).all())
