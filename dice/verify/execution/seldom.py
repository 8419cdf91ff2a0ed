"""Values that a draw seldom holds and a problem's words allow: what kernels forget that are made for the usual draw.

| family | values | shows |
|---|---|---|
| `outliers` | in some rows one value 40 spreads away, also the last | a clip or a cap, a row's end left out |
| `rows alike` | of two inputs some rows the same, or some ids | a branch for what is near, a division by a distance |
| `hollow` | some rows of masks empty, others full; some distributions with zeros | a division by a count, 0 log 0 |
| `level` | along each dimension one index of one value; rows of one whole number | a spread of zero, an overflow |
| `flat` | all whole numbers the greatest | a sum or a count in a type that holds the usual ones, a list's capacity |
| `single` | of the greatest whole number there is one | a spread or a pair of what has one member |
| `distinct` | whole numbers of a row all different | a list's capacity |
| `nested` | whole numbers of a row in rising order, of the next in falling | a depth, the length of a run |
| `empty` | along each dimension zeros at one index | a norm or a sum of zero |
| `lower half` | whole numbers of the lower half of their range | the largest taken for known |
| `from one on` | of a list of numbers above one some that are less than all of them | a count taken for large |
| `left out` | of whole numbers every second one is never met | a group without members, a node without edges |
| `values met by input ...` | some of the numbers with which the input is compared | an edge on the wrong side |
| `near ties of input ...` | beside its largest and least values some that are a few roundings off | keys cut short |
| `drifting` | their mean as it is, from one side of zero to the other | a mean taken of the first values |
| `spread past ...` | so far apart that their spread is twice the number | a branch for what is far apart |
| `bare corner` | a zero in the first place of each matrix | an elimination that exchanges no rows |
| `bare later` | the second row of each matrix begins as the first | the same in a later step |
| `rows in order` | each row's values in rising order | candidates that are left out stretch by stretch |
| `rows near one` | rows that are nearly the first one | a limit to how many choose the same |

Each is a trial of its own, since the reference may bear one and not another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

OUTLIERS, ALIKE, HOLLOW, MEETING = "outliers", "rows alike", "hollow", "values met by input "
LEVEL, FLAT, EMPTY, LEFT_OUT = "level", "flat", "empty", "left out"
SINGLE, DISTINCT_ROWS, NESTED = "single", "distinct", "nested"
LOWER, FROM_ONE = "lower half", "from one on"
DRIFTING, NEAR_TIES = "drifting", "near ties of input "
SPREAD, BARE_CORNER = "spread past ", "bare corner"
BARE_LATER, IN_ORDER, NEAR_ONE = "bare later", "rows in order", "rows near one"
NEARNESS = 0.02  # of what rows differ by from the first one
APART = 4  # roundings, of a near tie
FAMILIES = (OUTLIERS, ALIKE, HOLLOW, LEVEL, FLAT, SINGLE, DISTINCT_ROWS, NESTED, EMPTY, LEFT_OUT, LOWER, FROM_ONE)
DRIFT = 4.0  # spreads, beyond the mean
OUTLYING = 40.0  # spreads
FEW = 4  # indices of a dimension: fewer are no rows
DISTINCT, SPARSE = 0.5, 4  # the share of values that are different in what is coded at most; the gaps between ids
EVERY = 3  # of the rows one is changed, which leaves the others as the problem draws them
MET = 0.05  # of the values
NO_LABEL = -100.0  # the label that counts for nothing, if PyTorch may choose: hardly anybody means it
SUM = 1e-3  # what the sum of a distribution may be off one by


def with_outliers(tensor: torch.Tensor, number: int) -> torch.Tensor:
    """A value far from the others in every third row, in half of these the last one: above them, or below where there
    are values below zero; further with each of the inputs, by their `number`, since differences may be asked for."""
    rows = _rows(tensor)
    if rows.shape[1] < 8:
        return tensor
    away = OUTLYING * (1 + number / 2) * float(tensor.float().std())
    numbers = torch.arange(1 % len(rows), len(rows), EVERY, device=tensor.device)
    turns = torch.arange(len(numbers), device=tensor.device)
    signs = torch.where(turns % 4 < 2, 1.0, -1.0) if bool((tensor < 0).any()) else torch.ones(len(numbers))
    places = torch.where(turns % 2 == 0, rows.shape[1] - 1, (numbers * 7 + 3) % rows.shape[1])
    rows[numbers, places] = (away * signs).to(tensor)
    return rows.reshape(tensor.shape)


def with_rows_of(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Every third row is one of the other tensor's, whose rows are as long; of ids every third."""
    rows, others = (_rows(one) if tensor.is_floating_point() else one.clone().reshape(-1, 1) for one in (tensor, other))
    places = torch.arange(1 % len(rows), len(rows), EVERY, device=rows.device)
    rows[places] = others[places % len(others)]
    return rows.reshape(tensor.shape)


def is_alike(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether rows of the other may stand in the tensor: measured values in rows as long, or ids of one range."""
    if tensor.dtype != other.dtype or not other.numel():
        return False
    if tensor.is_floating_point():
        return tensor.shape[-1] == other.shape[-1]
    return all(_is_ids(one) for one in (tensor, other)) and int(tensor.min()) <= int(other.max())


def level(tensor: torch.Tensor, number: int) -> torch.Tensor:
    """One index of each dimension that has a few holds a single value: of measured ones a power of two, whose sums are
    exact, and of whole numbers, row by row, the least or the greatest. `number`: which of the inputs it is, as the
    indices of two are different."""
    if tensor.is_floating_point():
        spread = float(tensor.float().std())
        size = 2.0 ** round(math.log2(spread)) if 0 < spread < math.inf else 1.0
        size = min(size, float(tensor.max())) if bool((tensor == tensor.round()).all()) else size
        return _at_each_dimension(tensor, number, size if number % 2 == 0 or bool((tensor >= 0).all()) else -size)
    rows = _rows(tensor)
    ordered = rows.sort(-1).values
    if len(rows) > 1 and not bool((ordered == ordered[:1]).all()):  # as they are of permutations
        least, greatest = tensor.aminmax()
        rows[1::EVERY], rows[2::EVERY] = greatest, least
    return rows.reshape(tensor.shape)


def empty(tensor: torch.Tensor, number: int) -> torch.Tensor:
    """One index of each dimension that has a few holds zeros, or of whole numbers the least; another one for each of
    the inputs, by their `number`."""
    least = 0.0 if not bool((tensor == tensor.round()).all()) else max(0.0, float(tensor.min()))
    return _at_each_dimension(tensor, number, least)


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Of whole numbers all are the greatest."""
    return torch.full_like(tensor, int(tensor.max()))


def single(tensor: torch.Tensor) -> torch.Tensor:
    """Of the greatest whole number there is one, and more of the least; what rises still does."""
    flat = tensor.clone().reshape(-1)
    greatest = (flat == flat.max()).nonzero().flatten()
    flat[greatest[:-1]] = flat[flat != flat.max()].max()
    return flat.reshape(tensor.shape)


def distinct_rows(tensor: torch.Tensor) -> torch.Tensor:
    """Whole numbers of a row all different, if there are so many between the least and the greatest, and not in
    order."""
    least, length = int(tensor.min()), tensor.shape[-1]
    if int(tensor.max()) - least + 1 < length or is_in_order(tensor):
        return tensor
    places = (torch.arange(length, device=tensor.device) * _stride(length)) % length
    rows = tensor.numel() // length
    turned = torch.stack([places.roll(row) for row in range(rows)])
    return (least + turned).to(tensor.dtype).reshape(tensor.shape)


def nested(tensor: torch.Tensor) -> torch.Tensor:
    """Whole numbers of a row in rising order, and of the next in falling, unless all are in order."""
    if is_in_order(tensor):
        return tensor
    rows = _rows(tensor).sort(-1).values
    rows[1::2] = rows[1::2].flip(-1)
    return rows.reshape(tensor.shape)


def is_in_order(tensor: torch.Tensor) -> bool:
    """Whether values rise along the last dimension, as ends of groups do, and groups."""
    return bool((tensor.diff(dim=-1) >= 0).all())


def left_out(tensor: torch.Tensor) -> torch.Tensor:
    """Every second whole number is the one below it, but for the greatest; what rises still does."""
    return torch.where(tensor == tensor.max(), tensor, tensor - tensor % 2)


def lower(tensor: torch.Tensor) -> torch.Tensor:
    """Whole numbers of the lower half of their range, in the same order."""
    least = tensor.min()
    return least + (tensor - least) // 2


def from_one_on(tensor: torch.Tensor) -> torch.Tensor:
    """A list of whole numbers above one, such as a length for each sequence, in the same order from one on. Of one that
    rises, which may be ends of groups, the last is as it was."""
    if tensor.dim() != 1 or not is_whole(tensor) or int(tensor.min()) < 2:
        return tensor
    found = 1 + (tensor - tensor.min()) // 2
    if bool((tensor.diff() >= 0).all()):
        found[-1] = tensor[-1]
    return found


def is_whole(tensor: torch.Tensor) -> bool:
    """Whether it holds whole numbers, more than one, and no truth values."""
    return is_integer(tensor) and tensor.numel() > 1


def is_integer(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def is_coded(tensor: torch.Tensor) -> bool:
    """Whether it holds whole numbers of which some come again: codes, groups, places; no permutations, no offsets, no
    trees."""
    if not is_whole(tensor) or is_bound(tensor):
        return False
    values: torch.Tensor = torch.unique(tensor)
    return 1 < len(values) <= DISTINCT * tensor.numel() and int(values[0]) >= 0 and int(values[-1]) > 1


def is_bound(tensor: torch.Tensor) -> bool:
    """Whether whole numbers are bound to each other: rows that are one row in other orders, as permutations are, or
    places none of which lies behind its own, as the parents of a tree's nodes do."""
    if not tensor.dim() or tensor.shape[-1] < FEW or is_in_order(tensor):
        return False
    ordered = tensor.reshape(-1, tensor.shape[-1]).sort(-1).values
    if len(ordered) > 1 and bool((ordered == ordered[:1]).all()):
        return True
    return bool((tensor <= torch.arange(tensor.shape[-1], device=tensor.device)).all())


def _is_ids(tensor: torch.Tensor) -> bool:
    """Whether it holds whole numbers from a range so large that all are different by chance: no permutation."""
    if not is_whole(tensor):
        return False
    sparse = int(tensor.max()) > SPARSE * tensor.numel() and len(torch.unique(tensor)) == tensor.numel()
    return sparse and not bool((tensor.reshape(-1).diff() > 0).all())


def _at_each_dimension(tensor: torch.Tensor, number: int, value: float) -> torch.Tensor:
    changed = tensor.clone()
    for dim, size in enumerate(tensor.shape if tensor.dim() > 1 else ()):
        if size >= FEW:
            changed.select(dim, (1 + number) % size).fill_(value)
    return changed


def drifting(tensor: torch.Tensor, number: int = 0) -> torch.Tensor:
    """The values begin on the other side of zero than their mean, which stays, and end as far beyond it: over all
    rows, and within each. Of inputs without a mean to speak of every second one, by its `number`, falls."""
    spread, mean = float(tensor.float().std()), float(tensor.float().mean())
    rises = mean > 0 if abs(mean) > spread / 2 else number % 2 == 0
    way = (DRIFT * spread + abs(mean)) * (1.0 if rises else -1.0)
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
    """Of a mask every third row is empty, and the one after it full; so is every third of what minus infinity blocks;
    every third distribution is all at its most probable place. Anything else as it is."""
    if not tensor.dim() or tensor.numel() < 2 or (tensor.dtype.itemsize < 2 and tensor.is_floating_point()):
        return tensor
    first = 1 if tensor.numel() > tensor.shape[-1] else 0
    if is_mask(tensor) and not is_one_hot(tensor):
        rows = _rows(tensor)
        rows[first::EVERY], rows[first + 1 :: EVERY] = 0, 1
        return rows.reshape(tensor.shape)
    if tensor.is_floating_point() and bool(torch.isneginf(tensor).any()):
        rows = _rows(tensor)
        rows[first::EVERY] = -math.inf
        return rows.reshape(tensor.shape)
    if _is_distribution(tensor):
        rows = _rows(tensor)
        some = rows[first::EVERY]
        rows[first::EVERY] = torch.zeros_like(some).scatter_(1, some.argmax(1, keepdim=True), 1)
        return rows.reshape(tensor.shape)
    return tensor


def bare_corner(tensor: torch.Tensor) -> torch.Tensor:
    """The first element of each matrix is zero, where the tensor holds matrices of as many rows as columns."""
    if tensor.dim() < 2 or tensor.shape[-1] != tensor.shape[-2] or tensor.shape[-1] < 2:
        return tensor
    changed = tensor.clone()
    changed[..., 0, 0] = 0
    return changed


def bare_later(tensor: torch.Tensor) -> torch.Tensor:
    """The second row of each matrix begins with the first two elements of the first, so that elimination meets a zero
    after its first step."""
    if tensor.dim() < 2 or tensor.shape[-1] != tensor.shape[-2] or tensor.shape[-1] < 3:
        return tensor
    changed = tensor.clone()
    changed[..., 1, :2] = changed[..., 0, :2]
    return changed


def near_one(tensor: torch.Tensor) -> torch.Tensor:
    """Rows that differ from the first one by little."""
    rows = _rows(tensor) if tensor.dim() > 1 else tensor
    return (rows[:1] + NEARNESS * (rows - rows[:1])).to(tensor.dtype).reshape(tensor.shape)


def path(ends: torch.Tensor) -> torch.Tensor:
    """Edges, as two rows or two columns of nodes, that are one path through all nodes, and one of them again and again.
    No edge stands near the one that goes on from it, so that who takes them in turn gets along no faster. Anything else
    as it is."""
    if not is_coded(ends) or ends.dim() != 2 or 2 not in ends.shape:
        return ends
    nodes, edges = int(ends.max()) + 1, ends.numel() // 2
    if nodes < FEW or edges < nodes:
        return ends
    order = (torch.arange(nodes, device=ends.device) * _stride(nodes)) % nodes
    number = torch.arange(nodes - 1, device=ends.device)
    number[(number * _stride(nodes - 1)) % (nodes - 1)] = number.clone()
    number = number[torch.arange(edges, device=ends.device).clamp_(max=nodes - 2)]
    found = torch.stack((order[number], order[number + 1])).to(ends.dtype)
    return found if ends.shape[0] == 2 else found.T.contiguous()


def successors(table: torch.Tensor) -> torch.Tensor:
    """A table of each node's successors in which there is one path through all nodes, which all of a node's successors
    go on with. Anything else as it is."""
    if not is_coded(table) or table.dim() != 2 or 2 in table.shape or int(table.max()) >= len(table) >= FEW:
        return table
    order = (torch.arange(len(table), device=table.device) * _stride(len(table))) % len(table)
    found = torch.empty_like(table)
    found[order] = order.roll(-1).to(table.dtype)[:, None]
    return found


def _stride(count: int) -> int:
    """The golden section of a number, or a little more: it has no divisor in common with it."""
    return next(step for step in range(round(0.618 * count), count + 1) if math.gcd(step, count) == 1)


def meeting(
    tensor: torch.Tensor, numbers: Sequence[float], generator: torch.Generator, share: float = MET
) -> torch.Tensor:
    """Some values, or such a share of them, are these numbers; each of them is there."""
    flat = tensor.clone().reshape(-1)
    places = torch.randperm(len(flat), generator=generator)[: max(len(numbers), int(share * len(flat)))]
    values = torch.tensor(numbers, dtype=torch.float64)[torch.arange(len(places)) % len(numbers)]
    flat[places.to(flat.device)] = values.to(flat)
    return flat.reshape(tensor.shape)


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with one row for each along the last dimension."""
    return tensor.clone().reshape(-1, tensor.shape[-1])


def is_mask(tensor: torch.Tensor) -> bool:
    return tensor.dtype == torch.bool or bool(((tensor == 0) | (tensor == 1)).all())


def is_one_hot(tensor: torch.Tensor) -> bool:
    """Whether each row of a mask has a single place."""
    several = tensor.dim() > 1 and tensor.shape[-1] > 2 and tensor.numel() > tensor.shape[-1]
    return several and bool(((tensor != 0).sum(-1) == 1).all())


def _is_distribution(tensor: torch.Tensor) -> bool:
    if not tensor.is_floating_point() or tensor.shape[-1] < 2 or bool((tensor < 0).any()):
        return False
    return bool(((tensor.float().sum(-1) - 1).abs() < SUM).all())
