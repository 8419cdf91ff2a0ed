"""What some of PyTorch's operators are made of where PyTorch itself has one call for them, or writes them so that no
rule can follow: what scatters here gathers, each place of the result looking for what belongs to it.

That takes as many comparisons as there are places times elements, so it is for sizes where a GPU does not notice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from dice.optimize.trace.recurrent import CELLS, LAYERS

aten = torch.ops.aten
MOST_COMPARISONS = 1 << 26
Tensor = torch.Tensor


def _afford(comparisons: int) -> None:
    if comparisons > MOST_COMPARISONS:
        raise NotImplementedError("more comparisons than a GPU does unnoticed")


def _places(size: int, like: Tensor, dim: int, rank: int) -> Tensor:
    """0 to `size` along one of so many dimensions."""
    shape = [1] * rank
    shape[dim] = size
    return torch.arange(size, device=like.device).reshape(shape)


# ---- scattering -----------------------------------------------------------------------------------------------------


def _scattered(x: Tensor, dim: int, index: Tensor, source: Tensor) -> tuple[Tensor, Tensor, int]:
    """For each place of `x` along `dim` and each entry of the index whether it goes there, the entries, and the
    dimension that they are in."""
    dim %= x.dim()
    source = source[tuple(slice(extent) for extent in index.shape)]
    missing = [0 if at == dim else x.shape[at] - index.shape[at] for at in range(x.dim())]
    if any(missing):  # there is no entry for these places: an index that is nowhere
        pads = [one for extent in reversed(missing) for one in (0, extent)]
        index, source = F.pad(index, pads, value=-1), F.pad(source, pads)
    _afford(x.numel() * index.shape[dim])
    wanted = index.unsqueeze(dim) == _places(x.shape[dim], x, dim, x.dim() + 1)
    return wanted, source, dim


def _scatter(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """The last of the entries that go to a place."""
    wanted, source, dim = _scattered(x, dim, index, source)
    last = torch.where(wanted, _places(index.shape[dim], x, dim + 1, x.dim() + 1), -1).amax(dim + 1)
    return torch.where(last >= 0, torch.gather(source, dim, last.clamp(min=0)), x)


def _scatter_value(x: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    wanted, _, dim = _scattered(x, dim, index, index)
    return torch.where(wanted.any(dim + 1), torch.full((), value, dtype=x.dtype, device=x.device), x)


def _scatter_add(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return _scatter_reduce(x, dim, index, source, "sum")


def _scatter_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    wanted, source, dim = _scattered(x, dim, index, source)
    entries = source.unsqueeze(dim)
    if reduce in ("sum", "mean"):
        found = torch.where(wanted, entries, 0).sum(dim + 1, dtype=x.dtype)
        found = found + x if include_self else found
    elif reduce == "prod":
        found = torch.where(wanted, entries, 1).prod(dim + 1, dtype=x.dtype)
        found = found * x if include_self else found
    else:
        kind = torch.finfo(x.dtype) if x.is_floating_point() else torch.iinfo(x.dtype)
        low: Any = -math.inf if x.is_floating_point() else kind.min
        high: Any = math.inf if x.is_floating_point() else kind.max
        is_max = reduce == "amax"
        filled = torch.where(wanted, entries, low if is_max else high)
        found = filled.amax(dim + 1) if is_max else filled.amin(dim + 1)
        if include_self:
            return torch.maximum(found, x) if is_max else torch.minimum(found, x)
    if reduce == "mean":
        count = (wanted.sum(dim + 1) + int(include_self)).clamp(min=1)
        found = found / count if x.is_floating_point() else torch.div(found, count, rounding_mode="floor")
    return found if include_self else torch.where(wanted.any(dim + 1), found, x)


def _index_put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Tensor:
    given = [(at, one) for at, one in enumerate(indices) if one is not None]
    if len(given) == 1 and given[0][1].dtype == torch.bool:
        return _masked_put(x, given[0][0], given[0][1], values, accumulate)
    first, count = given[0][0], len(given)
    if [at for at, _ in given] != list(range(first, first + count)):
        raise NotImplementedError("indices apart")
    wide = torch.broadcast_tensors(*(one for _, one in given))
    lead, sizes, rest = x.shape[:first], x.shape[first : first + count], x.shape[first + count :]
    flat = torch.zeros_like(wide[0])
    for size, one in zip(sizes, wide, strict=True):
        flat = flat * size + torch.where(one < 0, one + size, one)
    entries = values.expand(*lead, *flat.shape, *rest).reshape(*lead, flat.numel(), *rest)
    rows, flat = x.reshape(*lead, math.prod(sizes), *rest), flat.reshape(-1)
    _afford(rows.numel() * flat.numel())
    wanted = _places(rows.shape[first], x, 0, 2) == flat
    if accumulate and x.is_floating_point():
        matrix = wanted.to(x.dtype)
        summed = torch.matmul(matrix, entries.reshape(*lead, flat.numel(), math.prod(rest)))
        return (rows + summed.reshape(rows.shape)).reshape(x.shape)
    if accumulate:
        raise NotImplementedError("a sum of whole numbers")
    found = _last_rows(rows, wanted, first, entries)
    return found.reshape(x.shape)


def _last_rows(rows: Tensor, wanted: Tensor, dim: int, entries: Tensor) -> Tensor:
    """`wanted`: by places and entries. Whole rows of the entries go to places along `dim`."""
    last = torch.where(wanted, _places(wanted.shape[1], rows, 1, 2), -1).amax(1)
    shape = [-1 if at == dim else 1 for at in range(rows.dim())]
    return torch.where(last.reshape(shape) >= 0, entries.index_select(dim, last.clamp(min=0)), rows)


def _masked_put(x: Tensor, at: int, mask: Tensor, values: Tensor, accumulate: bool) -> Tensor:
    rest = x.dim() - at - mask.dim()
    if values.dim() > rest and not (values.dim() == rest + 1 and values.shape[0] == 1) and values.numel() != 1:
        raise NotImplementedError("as many values as the mask has places")
    wide = values.reshape(values.shape[values.dim() - rest :] if values.dim() > rest else values.shape)
    mask = mask.reshape(*mask.shape, *(1,) * rest)
    return torch.where(mask, x + wide if accumulate else wide, x)


# ---- order ----------------------------------------------------------------------------------------------------------


def _rank(x: Tensor, dim: int, descending: bool) -> Tensor:
    """How many stand before each element in order: those that are less, and equal ones that come before. What is not a
    number is more than all numbers."""
    size = x.shape[dim]
    _afford(x.numel() * size)
    own, other = x.unsqueeze(dim + 1), x.unsqueeze(dim)
    less, same = (other > own if descending else other < own), other == own
    if x.is_floating_point():
        nan, others_nan = own.isnan(), other.isnan()
        less = less | ((others_nan & ~nan) if descending else (nan & ~others_nan))
        same = same | (nan & others_nan)
    rank = x.dim() + 1
    is_before = _places(size, x, dim + 1, rank) < _places(size, x, dim, rank)
    return (less | (same & is_before)).sum(dim + 1)


def _ordered(x: Tensor, dim: int, descending: bool, places: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The elements that stand at some places in order, and where they are: the first of equal ones first. PyTorch's
    `topk`, `kthvalue` and `median` may name any of them."""
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    dim %= x.dim()
    rank = _rank(x, dim, descending).unsqueeze(dim)
    wanted = rank == _places(len(places), x, dim, x.dim() + 1) + places[0]
    index = torch.where(wanted, _places(x.shape[dim], x, dim + 1, x.dim() + 1), 0).amax(dim + 1)  # which is one alone
    return torch.gather(x, dim, index), index


def _sort(x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    return _ordered(x, dim, descending, range(x.shape[dim] if x.dim() else 1))


def _stable_sort(x: Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    return _sort(x, dim, descending)


def _topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Tensor, Tensor]:
    return _ordered(x, dim, largest, range(k))


def _kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    values, index = _ordered(x, dim, False, range(k - 1, k))
    return (values, index) if keepdim else (values.squeeze(dim), index.squeeze(dim))


def _median(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _kthvalue(x, (x.shape[dim] + 1) // 2, dim, keepdim)


def _searchsorted(
    values: Tensor,
    x: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """How many of a row's values come before each element."""
    if sorter is not None:
        values = torch.gather(values, -1, sorter)
    _afford(x.numel() * values.shape[-1])
    values, one = values.unsqueeze(-2) if values.dim() > 1 else values, x.unsqueeze(-1)
    before = values <= one if right or side == "right" else values < one
    return before.sum(-1, dtype=torch.int32 if out_int32 else torch.int64)


def _searchsorted_number(values: Tensor, x: Any, **options: Any) -> Tensor:
    return _searchsorted(values, torch.full((), x, dtype=values.dtype, device=values.device), **options)


# ---- others ---------------------------------------------------------------------------------------------------------


def _as_strided(x: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None) -> Tensor:
    """Of a tensor whose elements lie in a row: each at its place in it."""
    first = 0 if offset is None else offset - int(x.storage_offset())
    last = first + sum((extent - 1) * step for extent, step in zip(size, stride, strict=True))
    if not x.is_contiguous() or not 0 <= first <= last < x.numel():
        raise NotImplementedError("it reads memory that is not the tensor's, or in another order")
    places = torch.full((), first, device=x.device)
    for dim, (extent, step) in enumerate(zip(size, stride, strict=True)):
        places = places + _places(extent, x, dim, len(size)) * step
    return x.reshape(-1)[places]


def _embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = -1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Modes: 0 the sum, 1 the mean, 2 the maximum. Only the first result is anything that somebody reads."""
    entries = F.embedding(indices, weight)
    _afford(offsets.numel() * entries.numel())
    numbers = torch.arange(indices.numel(), device=indices.device)
    begins = offsets[:-1] if include_last_offset else offsets
    begun = (numbers >= begins.unsqueeze(1)).sum(0)  # how many bags begin until here: those before it have ended
    wanted = begun == torch.arange(1, begins.numel() + 1, device=indices.device).unsqueeze(1)
    if padding_idx is not None and padding_idx >= 0:
        wanted = wanted & (indices != padding_idx)
    if mode == 2:
        highest = torch.where(wanted.unsqueeze(-1), entries, -math.inf).amax(1)
        return torch.where(wanted.any(1, keepdim=True), highest, 0), offsets, offsets, offsets
    shares = wanted.to(weight.dtype)
    if per_sample_weights is not None:
        shares = shares * per_sample_weights
    found = torch.matmul(shares, entries)
    if mode == 1:
        found = found / wanted.sum(1, keepdim=True).clamp(min=1)
    return found, offsets, offsets, offsets


def _cdist(x: Tensor, y: Tensor, p: float = 2.0, compute_mode: int | None = None) -> Tensor:
    return torch.linalg.vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), p, -1)


def _pdist(x: Tensor, p: float = 2.0) -> Tensor:
    """Pair k is of rows i and j, i below j, in order."""
    n = x.shape[0]
    k = torch.arange(n * (n - 1) // 2, device=x.device)
    i = ((2 * n - 1 - ((2 * n - 1) ** 2 - 8 * k).to(torch.float64).sqrt()) * 0.5).floor().to(torch.int64)
    j = k - i * (2 * n - 1 - i) // 2 + i + 1
    return torch.linalg.vector_norm(x[i] - x[j], p, -1)


def _bilinear(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    outs, first, second = weight.shape
    turned = weight.permute(1, 0, 2).reshape(first, outs * second)
    found = (torch.matmul(x, turned).reshape(*x.shape[:-1], outs, second) * y.unsqueeze(-2)).sum(-1)
    return found if bias is None else found + bias


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    over = [at for at in range(v.dim()) if at != dim % v.dim()] if dim != -1 else list(range(v.dim()))
    return v * (g / torch.linalg.vector_norm(v, 2, over, keepdim=True))


def _copysign(x: Tensor, y: Tensor) -> Tensor:
    return torch.where((y < 0) | ((y == 0) & (1 / y < 0)), -x.abs(), x.abs())


def _multilabel_margin(x: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    """A row's targets are those before its first -1. PyTorch's own parts for this take those after it, too."""
    classes = x.shape[-1]
    is_target = (target < 0).cumsum(-1) == 0
    chosen = torch.where(is_target, target, -1).unsqueeze(-2)
    is_other = ~(chosen == torch.arange(classes, device=x.device).unsqueeze(-1)).any(-1)
    apart = 1 - torch.gather(x, -1, torch.where(is_target, target, 0)).unsqueeze(-1) + x.unsqueeze(-2)
    counts = is_target.unsqueeze(-1) & is_other.unsqueeze(-2)
    loss = torch.where(counts, apart.clamp(min=0), 0).sum((-2, -1)) / classes
    return loss if reduction == 0 else loss.mean() if reduction == 1 else loss.sum()


OWN: dict[Any, Callable[..., Any]] = {
    **CELLS,
    **LAYERS,
    aten.scatter.src: _scatter,
    aten.scatter.value: _scatter_value,
    aten.scatter_add.default: _scatter_add,
    aten.scatter_reduce.two: _scatter_reduce,
    aten.index_put.default: _index_put,
    aten._unsafe_index_put.default: _index_put,
    aten.sort.default: _sort,
    aten.sort.stable: _stable_sort,
    aten.topk.default: _topk,
    aten.kthvalue.default: _kthvalue,
    aten.median.default: lambda x: _median(x.reshape(-1), 0)[0],
    aten.median.dim: _median,
    aten._embedding_bag.default: _embedding_bag,
    aten._embedding_bag_forward_only.default: _embedding_bag,
    aten.searchsorted.Tensor: _searchsorted,
    aten.searchsorted.Scalar: _searchsorted_number,
    aten.as_strided.default: _as_strided,
    aten.cdist.default: _cdist,
    aten.pdist.default: _pdist,
    aten.bilinear.default: _bilinear,
    aten.multilabel_margin_loss.default: _multilabel_margin,
    aten._weight_norm.default: _weight_norm,
    aten.copysign.Tensor: _copysign,
}
