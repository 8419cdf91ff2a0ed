"""What a problem is tried on: its own draws, and the same values changed, in a plan that a candidate cannot foresee.

Benchmarks draw nearly everything from [0, 1), where ReLU is the identity. Changing values keeps what kernels may rely
on: whole-number and probability-like floats (labels, masks, distributions) and integers keep their own draw. The
families, each used only where the reference itself stays finite and as exact as on its own inputs:

| family | values | shows |
|---|---|---|
| `given` | the problem's own draw, another in each trial | |
| `centred` | moved to mean zero; zeros stay zero, order stays | missing signs: identity for ReLU |
| `scaled` | times 3 | hard-coded ranges, homogeneity |
| `small` | divided by 32 | a forgotten epsilon, or another |
| `large` | centred, times 200 or more: the largest reaches 400 | overflow in exp, softmax without its maximum |
| `large as drawn` | the same, not centred: where `large` does not suit, and first for float16 | sums that overflow |
| `rather large` | centred, times 20: where neither suits | loops that end too early |
| `ties` | rounded to few values, the ends of some rows alike | zero variance, equal keys, a look at a few values |
| `zeros` | zero | division by norms, forgotten biases |
| `offset` | moved to minus 30 times their spread; zeros stay zero | a maximum that begins at zero |
| `offset above` | the same on the other side, where `offset` does not suit | |
| `below sentinels` | minus 2^27 to minus 2^29, where the reference takes maxima or minima | a maximum from -1e4 |
| `above sentinels` | the same above zero, for minima | |
| `below sentinels, all different` | from minus 6e8 to minus 3e8, where equal values do not suit; and above | |
| `far below, near together` | 16 wide below minus 1.2e5, for softmax of what no product gives | a softmax from -1e4 |
| `opposed` | 60 spreads, or 30, above and below zero in turns, before softmax of a product | attention's, too |
| `far below zero`, `far above zero` | the same by 1,000 times their spread | a label only: variance as the |
| | | difference of two means |
| `input i amplified` | input i times 10 to 10,000 | kernels that ignore an input of little influence |
| `input i with other values` | where all draws leave it alike (`steady.py`) | kernels that ignore it |
| `past N` | moved by 2 N, where the reference compares with N and no draw decides otherwise | a branch left out |
| `halves` | multiples of powers of two, before what rounds | halves that are rounded away from zero |
| `leaning` | moved up by 3 times their spread, before sigmoids | gates that are open: a memory that is cut short |
| `striped` | the largest at every 32nd place, before orders | candidates that are left out lane by lane |
| `chained` | square matrices of one path, where operators come again and again | too few steps of a loop |
| `turned far` | up to 30,000, before sines | an angle that is brought near zero too roughly |
| `beyond whole numbers` | up to 1e10, before what rounds | a float that is rounded through an int |
| `drifting` | rising or falling, before decisions on sums | a decision by a part of the values |
| `even` | multiples of one power of two | |
| `rearranged` | the same in another order, the ends of rows as before | answers remembered by a sum or by ends |
| `not finite` | a NaN and two infinities among the problem's own | a label only: what the reference makes of them |
| `NaN and infinite` | the same, where the reference asks for them | kernels that do not ask |

Values that a draw seldom holds are in `seldom.py`, and those that inputs seldom have in common in `pairs.py`.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from dice.verify.execution import own_numbers, pairs, seldom, steady
from dice.verify.execution.changes import (
    ABOVE,
    ABOVE_APART,
    BELOW,
    BELOW_APART,
    BEYOND_WHOLE,
    CHAINED,
    CHANGES,
    FAR_ABOVE,
    FAR_BELOW,
    HALVES,
    LARGE_AS_DRAWN,
    LEANING,
    OF_ALL,
    OFFSET,
    OFFSET_ABOVE,
    RATHER_LARGE,
    STRIPED,
    TOGETHER,
    TURNED,
    is_formed,
    offset,
)
from dice.verify.execution.gathered import is_counted
from dice.verify.ipc.messages import FEW, Step
from dice.verify.ipc.operator_counts import DECOMPOSITION
from dice.verify.tensors import transport, trees

AMPLIFY = (10.0, 100.0, 1e3, 1e4)
SHRINK = (0.1, 0.01, 1e-3, 1e-4, 1e-6)  # caps and thresholds matter when they are small
SAMPLE = 1 << 16  # elements looked at to tell measurements from labels
NUDGE = 4.0  # roundings
OPPOSED, OPPOSED_NEARER = "opposed", "opposed nearer"
_OPPOSED = {OPPOSED: 60.0, OPPOSED_NEARER: 30.0}  # spreads: a product of 64 such numbers is a sentinel, and rounds well
AWAY_FROM_ZERO = (
    TOGETHER,
    OPPOSED,
    OPPOSED_NEARER,
    OFFSET,
    OFFSET_ABOVE,
    FAR_BELOW,
    FAR_ABOVE,
)  # families in which a rounding weighs more
NOT_FINITE, ONE_NAN = "not finite", "one nan"
ASKED_FOR, ASKED_FOR_ONE = "NaN and infinite", "NaN among the"
_ONE_NAN = {NOT_FINITE: ONE_NAN, ASKED_FOR: ASKED_FOR_ONE}
_ELSE = {  # families, and what is tried where they do not suit
    **_ONE_NAN,
    **{BELOW: BELOW_APART, ABOVE: ABOVE_APART, OFFSET: OFFSET_ABOVE, FAR_BELOW: FAR_ABOVE, OPPOSED: OPPOSED_NEARER},
}
PAST = "past "  # and the number with which the reference compares
NEAR_AN_END = 0.1  # of the range of shares
OUTLYING_ELEMENTS = 1 << 19  # of inputs, that are looked at for a row's end which is left out
OFTEN = 6  # calls of one operator: a loop, whose steps may be too few
SPARSE = 4096  # of so many elements one is another's: a sample of them stays what it was
# Families of operators that begin somewhere and keep what is larger, or smaller.
_OF_ITS_KIND = {seldom.HOLLOW: seldom.hollow, seldom.FROM_ONE: seldom.from_one_on}  # see for themselves what it is
_OF_CODES = {
    seldom.FLAT: seldom.flat,
    seldom.SINGLE: seldom.single,
    seldom.DISTINCT_ROWS: seldom.distinct_rows,
    seldom.NESTED: seldom.nested,
    seldom.LEFT_OUT: seldom.left_out,
    seldom.LOWER: seldom.lower,
}
_SOFTMAXES = frozenset({"softmax", "log_softmax", "logsumexp", "logcumsumexp"})
_MINIMA = frozenset({"max", "argmin", "cummin", "sort", "topk", "kthvalue", "median", "mode"})  # "max": amin, too
_MINIMA |= {"scatter_reduce", "index_reduce", "segment_reduce"}
_POOLS = {f"{form}{dims}" for dims in ("2d", "3d") for form in ("max_pool", "adaptive_max_pool", "fractional_max_pool")}
_MAXIMA = frozenset({"argmax", "cummax", "embedding_bag", *_POOLS, *(f"{pool}_with_indices" for pool in _POOLS)})
_ROUNDINGS = frozenset({"round"})
_GATES = frozenset({"sigmoid", "lstm", "gru", "lstm_cell", "gru_cell"})
_ORDERS = frozenset({"sort", "topk", "kthvalue", "median"})
_CHOICES = _ORDERS | {"argmax", "argmin", "max"}
_SINES = frozenset({"sin", "cos", "tan"})
_WHOLE = frozenset({"floor", "ceil", "trunc", "frac", "round", "remainder", "fmod", "floor_divide"})
_AGGREGATES = frozenset({"sum", "var", "norm", "linalg_vector_norm", "median"})
_SPREADS = frozenset({"var", "std", "norm", "linalg_vector_norm", "max", "sum"})
_NEAR = frozenset({"eq", "le", "abs"})  # of which `isclose` is made
# Operators that have a pole or an edge at zero or one.
POLES = frozenset({"log", "log2", "log10", "log1p", "logit", "binary_cross_entropy", "xlogy", "entr", "kl_div"})
POLES |= {"atanh", "acos", "asin", "erfinv", "rsqrt", "reciprocal", "acosh"}
# Operators that ask whether a value is finite; the last two where they compare a tensor with itself, as isfinite does.
COMPARING = frozenset({"gt", "ge", "lt", "le"})
ASKING = frozenset({"isnan", "isinf", "isposinf", "isneginf", "nan_to_num", "nansum", "nanmedian", "eq", "ne"})
ROTATED = ("large", "ties", "zeros", OFFSET)  # one of them per plan where trials are dear, all where they are cheap


def plan(
    trials: int,
    seed: int,
    amplified: Sequence[tuple[int, float]] = (),
    varied: Sequence[tuple[int, str]] = (),
    beyond: Sequence[str] = (),
    *,
    fresh: bool = False,
    stretched: bool = False,
    cheap: bool = False,
    rare: Sequence[str] = (),
) -> tuple[Step, ...]:
    """The trials of one verification, in an order that follows from the secret `seed`.

    `fresh`: the model has parameters worth a second draw, and gets that trial (as the first, so that the model of its
    own seed is made once). `stretched`: and another one, in which they are large. `cheap`: extra trials cost next to
    nothing. `amplified`: inputs of little influence, and by how much to amplify them. `varied`: what all draws leave
    alike, by its place among `steady.leaves`, and the kind of other values for it. `beyond`: families that are
    `beyond_sentinels`. `rare`: those of what a draw seldom holds.
    """
    draw = random.Random(seed)
    rotated = draw.sample(ROTATED, len(ROTATED))
    families = ["given", "centred", *(["fresh"] if fresh else []), "scaled", rotated[0]]
    families += ["given"] * (trials - len(families))
    if trials > len(ROTATED) + 3:
        families[1 - len(rotated) :] = rotated[1:]
    steps = [Step(f"trial {number}", family) for number, family in enumerate(families[:trials])]
    used = {step.family for step in steps}
    if trials > 1:
        more = (*((*rotated, "small") if cheap else ()), *rare)
        steps += [Step(f"extra {family}", family, core=False) for family in more if family not in used]
    steps += [Step(f"extra {family}", family, core=False) for family in beyond]
    for index, factor in amplified:
        steps.append(Step(f"extra {index}", f"input {index} amplified", core=False, index=index, factor=factor))
    for place, kind in varied:
        family = f"input {place} with other values: {kind}"
        steps.append(Step(f"extra {place} {kind}", family, core=False, place=place, kind=kind))
    draw.shuffle(steps)
    first = [Step(step.name, "given", fresh=True) for step in steps if step.family == "fresh"]
    if stretched and first:
        first.append(Step("extra stretched", "given", core=False, fresh=True, stretched=True))
    return (*first, *(step for step in steps if step.family != "fresh"))


def rare(drawn: Any, cheap: bool) -> tuple[str, ...]:
    """Those of `seldom.FAMILIES` that these inputs have another form for. Where trials are not `cheap`, there are
    outliers, masks and whole numbers, and masks alone where they are dear."""
    tensors = transport.tensors(drawn)
    families: tuple[str, ...] = seldom.FAMILIES
    if not cheap and trees.elements(drawn) > OUTLYING_ELEMENTS:
        families = (seldom.HOLLOW,) if any(tensor.dtype == torch.bool for tensor in tensors) else ()
    elif not cheap:
        coded = any(map(seldom.is_coded, tensors))
        families = (seldom.HOLLOW, seldom.OUTLIERS, seldom.FROM_ONE, *([seldom.LEVEL] if coded else []))
    return tuple(one for one in families if trees.changed(vary(drawn, Step("", one)), drawn))


def beyond_sentinels(families: Collection[str], measured: int) -> tuple[str, ...]:
    """Families of values beyond any that a maximum or a minimum may begin at, for a reference that has PyTorch compute
    these families of operators on so many measured inputs. Where a softmax may follow on a product, as far as roundings
    allow: of values far apart it takes one, and those of the product decide which."""
    if _SOFTMAXES.intersection(families):
        return (TOGETHER,) if "contraction" not in families else (OPPOSED,) if measured > 1 else ()
    if _MINIMA.intersection(families):
        return BELOW, ABOVE
    return (BELOW,) if _MAXIMA.intersection(families) else ()


def decisive(
    families: Collection[str],
    asks: bool,
    bounds: Collection[float] = (),
    met: Mapping[int, Collection[float]] | None = None,
    ordered: Collection[int] = (),
    repeated: int = 0,
) -> tuple[str, ...]:
    """Families of values between which the operators of a reference decide, and which a draw seldom holds. `asks`: of
    an input whether it is finite. `bounds`: numbers of which all values that it compared with them lie on one side.
    `met`: numbers with which inputs are compared as they are, by the input's index. `ordered`: the inputs of which the
    places of the largest are asked for, as they are. `repeated`: how often it calls the operator that it calls most."""
    halves = (HALVES,) if _ROUNDINGS.intersection(families) else ()
    drifting = (seldom.DRIFTING,) if COMPARING.intersection(families) and _AGGREGATES.intersection(families) else ()
    meetings = (f"{seldom.MEETING}{index}: {' '.join(map(str, found))}" for index, found in (met or {}).items())
    near = (f"{seldom.NEAR_TIES}{index}" for index in ordered)
    spreads = bounds if _SPREADS.intersection(families) else ()
    return (
        *halves,
        *drifting,
        *near,
        *([LEANING] if _GATES.intersection(families) else []),
        *([STRIPED, seldom.IN_ORDER] if _ORDERS.intersection(families) else []),
        *([seldom.NEAR_ONE] if _CHOICES.intersection(families) else []),
        *([TURNED] if _SINES.intersection(families) else []),
        *([BEYOND_WHOLE] if _WHOLE.intersection(families) else []),
        *([CHAINED, pairs.DELAYED] if repeated >= OFTEN else []),
        *([seldom.BARE_CORNER, seldom.BARE_LATER] if DECOMPOSITION in families else []),
        *([pairs.NEARLY_EQUAL] if _NEAR.issubset(families) else []),
        *(f"{seldom.SPREAD}{bound:g}" for bound in spreads),
        *([ASKED_FOR] if asks else []),
        *(f"{PAST}{bound:g}" for bound in bounds),
        *meetings,
    )


def vary(inputs: Any, step: Step, seed: int = 0) -> Any:
    """The inputs with the step's family applied. `seed` decides the values where others are drawn."""
    if step.kind:
        return steady.replaced(inputs, step.place, step.kind, seed)
    if step.index >= 0:
        return _at(inputs, step.index, lambda tensor: tensor * step.factor)
    if step.own:
        return _with_own_numbers(inputs, step.own, seed)
    if away := _OPPOSED.get(step.family):
        return _opposed(inputs, away)
    if step.family in (*_ONE_NAN, *_ONE_NAN.values()):
        return _spoiled(inputs, seed, step.family in _ONE_NAN.values())
    if step.family in seldom.FAMILIES:
        return _with_seldom(inputs, step.family)
    if step.family.startswith(seldom.MEETING):
        index, *numbers = step.family.removeprefix(seldom.MEETING).replace(":", "").split()
        generator = torch.Generator().manual_seed(seed)
        return _at(inputs, int(index), lambda tensor: seldom.meeting(tensor, [*map(float, numbers)], generator))
    if step.family.startswith(seldom.NEAR_TIES):
        return _at(inputs, int(step.family.removeprefix(seldom.NEAR_TIES)), seldom.with_near_ties)
    if step.family.startswith(seldom.SPREAD):
        wanted = 2 * abs(float(step.family.removeprefix(seldom.SPREAD)))
        return _measured(inputs, lambda tensor: tensor * (wanted / max(float(tensor.float().std()), 1e-30)))
    if step.family == seldom.DRIFTING:
        count = itertools.count()
        return _measured(inputs, lambda one: one if is_formed(one) else seldom.drifting(one, next(count)))
    if step.family == CHAINED:
        inputs = pairs.along_a_path(inputs)
    if step.family in OF_ALL:
        return transport.map_tensors(OF_ALL[step.family], inputs)
    if step.family in (pairs.DELAYED, pairs.NEARLY_EQUAL):
        return pairs.varied(inputs, step.family, is_free)
    if step.family.startswith(PAST):
        distance = 2 * float(step.family.removeprefix(PAST))
        return _measured(inputs, lambda tensor: tensor + distance)
    change = CHANGES.get(step.family)
    return inputs if change is None else _measured(inputs, change)


def _with_seldom(inputs: Any, family: str) -> Any:
    """Each input with the values of one of `seldom.FAMILIES`, where it is of the kind that has them."""
    before: list[torch.Tensor] = []
    count = itertools.count()

    def change(tensor: torch.Tensor) -> torch.Tensor:
        number = next(count)
        if family in _OF_ITS_KIND:
            return _OF_ITS_KIND[family](tensor)
        if family in _OF_CODES:
            return _OF_CODES[family](tensor) if seldom.is_coded(tensor) else tensor
        measured = is_free(tensor) and not tensor.is_complex() and bool(tensor.dim()) and not is_formed(tensor)
        counted = tensor.is_floating_point() and is_counted(tensor) and not steady.is_distinct(tensor)
        if family == seldom.LEVEL:
            return seldom.level(tensor, number) if measured or counted or seldom.is_coded(tensor) else tensor
        if family == seldom.ALIKE and (measured or not tensor.is_floating_point()):
            other = next((one for one in before if seldom.is_alike(tensor, one)), None)
            before.append(tensor)
            return tensor if other is None else seldom.with_rows_of(tensor, other)
        if family == seldom.EMPTY and (measured or counted):
            return seldom.empty(tensor, number)
        return seldom.with_outliers(tensor, number) if family == seldom.OUTLIERS and measured else tensor

    return transport.map_tensors(change, inputs)


def _with_own_numbers(inputs: Any, numbers: Sequence[float], seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)

    def change(tensor: torch.Tensor) -> torch.Tensor:
        change = own_numbers.in_measured if is_free(tensor) else own_numbers.in_coded
        return change(tensor, numbers, generator)

    return transport.map_tensors(change, inputs)


def _measured(inputs: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    return transport.map_tensors(lambda tensor: _changed(change, tensor) if is_free(tensor) else tensor, inputs)


def alternatives(step: Step, in_half: bool) -> tuple[Step, ...]:
    """What to try for a step, in this order: large values are centred in one form and not in the other; what is far
    from zero is below or above it; of values that are not finite there are several, or one. `in_half`: the problem's
    inputs are float16."""
    if step.family in _ELSE:
        return (step, replace(step, family=_ELSE[step.family]))
    if step.family != "large":
        return (step,)
    forms = (step, replace(step, family=LARGE_AS_DRAWN))
    return (*(forms[::-1] if in_half else forms), replace(step, family=RATHER_LARGE))


def _changed(change: Callable[[torch.Tensor], torch.Tensor], tensor: torch.Tensor) -> torch.Tensor:
    """Of complex numbers both parts change alike."""
    if tensor.is_complex():
        return torch.view_as_complex(change(torch.view_as_real(tensor).contiguous()))
    return change(tensor)


def disturb(inputs: Any, index: int | None = None) -> Any:
    """Other inputs of the same kind, for input `index` or for all: floats times a factor in [0.5, 1.5) for each
    element, everything else in another order. Draws from the global generator of the tensors' device."""
    if index is not None:
        return _at(inputs, index, _disturb)
    return transport.map_tensors(_disturb, inputs)


def flipped(inputs: Any, index: int) -> Any:
    """The same with the signs of input `index` changed at every second place: magnitudes say nothing of what only asks
    for signs."""

    def flip(tensor: torch.Tensor) -> torch.Tensor:
        signs = torch.ones(tensor.numel(), dtype=tensor.dtype, device=tensor.device)
        signs[::2] = -1
        return tensor * signs.reshape(tensor.shape)

    return _at(inputs, index, flip)


def exchanged(inputs: Any, others: Any, index: int) -> Any:
    """The same with the input `index` of another draw, where that is of its form."""
    tensors = transport.tensors(others)

    def other(tensor: torch.Tensor) -> torch.Tensor:
        there = tensors[index] if index < len(tensors) else tensor
        return there if (there.shape, there.dtype) == (tensor.shape, tensor.dtype) else tensor

    return _at(inputs, index, other)


def mixed(step: Step, seed: int, draws: Sequence[Any]) -> Any:
    """Of each measured input the first half, and the second of another draw, where there is one; the rest as it is. Of
    the family `FEW` only one element of some thousands is another's, and `seed` decides where."""
    tensors = iter(transport.tensors(draws[1:]))
    generator = torch.Generator().manual_seed(seed)

    def mix(tensor: torch.Tensor) -> torch.Tensor:
        other = next(tensors, tensor)
        if not is_free(tensor) or (other.shape, other.dtype) != (tensor.shape, tensor.dtype):
            return tensor
        count = tensor.numel()
        places = torch.arange(count // 2, count)
        if step.family == FEW:
            places = torch.randint(count, (-(-count // SPARSE),), generator=generator)
        taken = torch.zeros(count, dtype=torch.bool).index_fill(0, places, True)
        return torch.where(taken.reshape(tensor.shape).to(tensor.device), other, tensor)

    return transport.map_tensors(mix, draws[0])


def nudge(inputs: Any, usual: Any) -> Any:
    """The floats of `inputs`, each off by some roundings of the values at the same place of `usual`."""
    values = iter(transport.tensors(usual))

    def off(tensor: torch.Tensor) -> torch.Tensor:
        value = next(values)
        if not tensor.is_floating_point() or tensor.dtype.itemsize < 2:
            return tensor
        return tensor + NUDGE * torch.finfo(tensor.dtype).eps * value

    return transport.map_tensors(off, inputs)


def _disturb(tensor: torch.Tensor) -> torch.Tensor:
    if not (is_free(tensor) or is_scalar(tensor)):
        flat = tensor.reshape(-1)
        # Of floats of eight bits there is no `roll` on a GPU.
        flat = flat.view(torch.uint8).roll(1).view(tensor.dtype) if tensor.dtype.itemsize == 1 else flat.roll(1)
        return flat.reshape(tensor.shape)
    return torch.rand_like(tensor).add_(0.5).mul_(tensor)


def _spoiled(inputs: Any, seed: int, once: bool) -> Any:
    """The inputs with a NaN and both infinities at places of each measured one, or with a NaN in the first alone."""
    generator = torch.Generator().manual_seed(seed)
    count = iter(range(1 << 30))

    def spoil(tensor: torch.Tensor) -> torch.Tensor:
        if not is_free(tensor) or tensor.is_complex() or (once and next(count)):
            return tensor
        values = torch.tensor([math.nan] if once else [math.nan, math.inf, -math.inf])
        places = torch.randperm(tensor.numel(), generator=generator)[: len(values)]
        flat = tensor.clone().reshape(-1)
        flat[places.to(flat.device)] = values[: len(places)].to(flat)
        return flat.reshape(tensor.shape)

    return transport.map_tensors(spoil, inputs)


def _at(inputs: Any, index: int, change: Any) -> Any:
    count = iter(range(1 << 30))
    return transport.map_tensors(lambda tensor: change(tensor) if next(count) == index else tensor, inputs)


def unusable(tensor: torch.Tensor) -> str:
    """Why this tensor cannot be an input, or ""."""
    if tensor.is_meta:
        return "without values, which no kernel can be given"
    if tensor.dtype in (torch.uint16, torch.uint32, torch.uint64):
        return f"of dtype {tensor.dtype}, with which PyTorch can compute too little for its values to be varied"
    return "" if tensor.layout == torch.strided else f"of layout {tensor.layout}, which no kernel can be given"


def is_free(tensor: torch.Tensor) -> bool:
    """Whether the values look like measurements, not like labels, masks, distributions or unit vectors."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if not tensor.is_floating_point() or tensor.numel() < 2 or tensor.dtype.itemsize < 2:
        return False
    flat = tensor.reshape(-1)
    sample = flat[:: max(1, flat.numel() // SAMPLE)].float()
    if bool((sample == sample.round()).all()):
        return False
    rows = tensor.reshape(-1, tensor.shape[-1])
    some = rows[:: max(1, len(rows) * rows.shape[1] // SAMPLE)].float()
    ones = ((found - 1).abs() < 1e-3 for found in (some.sum(dim=-1), some.norm(dim=-1)))
    return rows.shape[1] < 2 or not any(map(bool, (one.all() for one in ones)))


def is_share(tensor: torch.Tensor) -> bool:
    """Whether its values look like shares or probabilities: between zero and one, and near to both."""
    if not is_free(tensor) or tensor.is_complex():
        return False
    least, most = (float(value) for value in tensor.float().aminmax())
    return 0 <= least < NEAR_AN_END and 1 - NEAR_AN_END < most <= 1


def is_scalar(tensor: torch.Tensor) -> bool:
    """Whether it is one measured number."""
    return tensor.is_floating_point() and tensor.numel() == 1 and tensor.dtype.itemsize > 1


def _opposed(inputs: Any, spreads: float) -> Any:
    signs = itertools.cycle((1.0, -1.0))

    def move(tensor: torch.Tensor) -> torch.Tensor:
        return _changed(lambda part: offset(part, next(signs) * spreads), tensor) if is_free(tensor) else tensor

    return transport.map_tensors(move, inputs)
