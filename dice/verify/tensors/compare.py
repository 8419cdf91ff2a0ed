"""Is this output the reference's output? Structure, shape, dtype, NaN and infinities, then values.

The calibrated comparison (protocol `dice`) asks of floats:
1. Element by element, |actual - expected| <= `tol * |expected| + max(tol * rms, 10 * noise)` with `tol` by dtype
   (`TOLERANCE`) and rms over the expected output. `noise` is how far the reference is from its own evaluation in
   float64, but at most `NOISE_CAP * rms`. Elements far smaller than the rest are held to their own rms. Outputs in
   float64 are held to float64's rounding, unless the reference itself computes some of them in less.
2. Where that fails, an output that is about as near to float64 as the reference's own passes: a badly conditioned
   problem (cancellation to nothing, a threshold hit by rounding) asks no more of a kernel than of PyTorch.
3. A few elements may be off by `SLACK_MARGIN` times what the reference's own are when its inputs are off by a rounding
   (`input_rounding.py`): whether it came out near to float64 there is luck.
4. The output follows the inputs: its rms error is a small part of the `effect`, the rms change that other inputs make
   to the reference's output. Without this, a constant passes for softmax over many classes, or for a network whose
   biases outweigh its input.
5. No column, row or channel is lost that is small beside the rest (`slices.py`).
Integers, booleans and everything that is no number must be equal.

KernelBench's comparison is `torch.allclose` on one tensor, with its asymmetries (see `protocols.py`).
Long because what is right and what is not is to be read in one place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dice.verify.protocols import protocol_named
from dice.verify.tensors import near, slices, transport

TOLERANCE = {
    torch.float64: 1e-12,  # thousands of roundings, as a sum in another order takes; one of float32 is 6e-8
    torch.complex128: 1e-12,
    torch.float32: 1e-4,
    torch.complex64: 1e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 2e-2,
}
_DEFAULT_TOLERANCE = 5e-2  # 8-bit floats
MIXED = 1e-7  # for an output in float64 of a reference that computes in float32
NOISE_MARGIN = 10.0
NOISE_CAP = 1e-2
NEAR = 1e-3
SLACK_MARGIN = 64.0  # sums taken one by one round as often as they have terms; PyTorch's, taken in blocks, do not
SMALLEST = 1e-9  # differences below this are rounding of values of order one, whatever the expected output
SMALLEST_DOUBLE = 1e-15  # the same where all is computed in float64
NO_WORSE_COUNT, NO_WORSE_RMS = 4.0, 3.0  # times as many stray elements, times the rms error of the reference itself
NO_WORSE = "about as far from float64 as the reference itself is"
EFFECT_PART = 0.2  # of the effect of the inputs may be missing
# Roundings of the output's rms that a kernel may be off by beside a tiny effect: as many as sums of millions of values
# in another order may cost, unless the reference's own noise was measured on more than a few elements.
ROUNDINGS, ROUNDINGS_MEASURED, ROUNDINGS_HALF, MEASURED = 32.0, 4.0, 2.0, 64
SMALL_PART, SMALL_SHARE = 1e-3, 1e-2  # elements under this part of the rms, when there is this share of them
SMALL_ROUNDINGS = 32.0  # of the rms: intermediate values as large as the rest leave as much in a small element


@dataclass(frozen=True, slots=True)
class Comparison:
    """`message` says what differs first, in one sentence; the errors are the largest over all finite elements.

    `labels`: what is remarkable without being wrong. `share`: of the elements that are wrong, where each is a number.
    """

    equal: bool
    message: str = ""
    errors: tuple[str, ...] = ()
    max_abs_error: float = 0.0
    max_rel_error: float = 0.0
    labels: tuple[str, ...] = ()
    share: float = 1.0
    tolerance: str = ""  # what the values with the largest error may differ by, in words


@dataclass(frozen=True, slots=True)
class _Leaf:
    path: str
    expected: Any
    actual: Any
    exact: Any  # the reference in float64, or None
    effect: float | None = None
    rounding: float | None = None
    slack: Any = None
    double: bool = False
    tf32: bool = False


def compare(
    expected: Any,
    actual: Any,
    protocol: str = "dice",
    exact: Any = None,
    effects: Sequence[float | None] = (),
    roundings: Sequence[float | None] = (),
    slacks: Sequence[torch.Tensor | None] = (),
    double: bool = False,
    tf32: bool = False,
) -> Comparison:
    """Compare a candidate's output with the reference's.

    `exact` is the reference evaluated in float64, if known; `effects`, for each tensor of the expected output in
    order, how far other inputs move it (rms), and `roundings`, how far inputs that are off by a rounding do; `slacks`,
    the same element by element, from float64 (`input_rounding.py`). `double`: the reference computes nothing in less
    than float64. `tf32`: it multiplies in TF32, and `exact` is its output in full float32. Raises `ValueError` for an
    unknown protocol.
    """
    tolerance = protocol_named(protocol).tolerance
    if tolerance is not None:
        return _kernelbench(expected, actual, tolerance)
    leaves: list[_Leaf] = []
    mismatch = _pair("output", expected, actual, exact, leaves, (iter(effects), iter(roundings), iter(slacks)))
    if mismatch:
        return Comparison(False, mismatch, (mismatch,))
    results = [_compare_leaf(replace(leaf, double=double, tf32=tf32)) for leaf in leaves]
    failed = [result for result in results if not result.equal]
    farthest = max(results, key=lambda result: result.max_abs_error, default=Comparison(True))
    return Comparison(
        equal=not failed,
        message=failed[0].message if failed else "",
        errors=tuple(error for result in failed for error in result.errors),
        max_abs_error=farthest.max_abs_error,
        max_rel_error=max((result.max_rel_error for result in results), default=0.0),
        share=max((result.share for result in failed), default=0.0),
        tolerance=farthest.tolerance,
    )


def _kernelbench(expected: Any, actual: Any, tolerance: float) -> Comparison:
    """`torch.allclose(expected, actual)`, which scales the relative tolerance by the candidate's values."""
    for value, owner in ((expected, "the reference"), (actual, "the kernel")):
        if not isinstance(value, torch.Tensor):
            message = f"KernelBench compares single tensors, and {owner} returned {_kind(value)}."
            return Comparison(False, message, (message,))
    mismatch = _wrong_form("output", expected, actual)
    if mismatch:
        return Comparison(False, mismatch, (mismatch,))
    allowed = f"{tolerance:g} + {tolerance:g} * |value|"
    sums = near.sums(expected, actual)
    if sums is not None and sums.worst <= tolerance:
        return Comparison(True, "", (), sums.worst, near.relative(actual, expected, tolerance), tolerance=allowed)
    wrong, first, worst, relative = 0, 0, 0.0, 0.0
    flat, other = expected.reshape(-1), actual.reshape(-1)
    for start in range(0, flat.numel(), near.STRETCH):
        one, two = flat[start : start + near.STRETCH], other[start : start + near.STRETCH]
        differs = ~torch.isclose(one, two, rtol=tolerance, atol=tolerance)
        count = int(differs.sum())
        first = start + int(differs.nonzero()[0]) if count and not wrong else first
        wrong += count
        one, two = _widened(one), _widened(two)
        difference = (one - two).abs().nan_to_num_(0.0, posinf=0.0)  # not in place, which is not for complex numbers
        worst = max(worst, float(difference.max()))
        relative = max(relative, float((difference / two.abs().nan_to_num_(0.0).clamp_min_(tolerance)).max()))
    if not wrong:
        return Comparison(True, max_abs_error=worst, max_rel_error=relative, tolerance=allowed)
    place = tuple(int(i) for i in torch.unravel_index(torch.tensor(first), expected.shape))
    nans = int(other.isnan().sum()) if other.is_floating_point() else 0
    values = flat[first].item(), other[first].item()
    return _mismatch("output", f"{wrong} of {flat.numel()}", place, *values, allowed, nans, worst, relative)


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def stray_share(expected: torch.Tensor, exact: torch.Tensor) -> float:
    """The share of elements that are not what float64 says, by the tolerance of the tensor's dtype."""
    if expected.shape != exact.shape or not expected.numel():
        return 0.0 if expected.shape == exact.shape else 1.0
    if not expected.is_floating_point():
        return float((expected != exact).float().mean())
    tolerance = _tolerance(expected.dtype, double=False)
    squares = sum(float(part.double().square().sum()) for part, _ in near.pairs(expected, exact))
    floor = tolerance * math.sqrt(squares / expected.numel())
    stray = 0
    for part, other in near.pairs(expected, exact):
        part = part.double()
        stray += int(((part - other.double()).abs() > part.abs() * tolerance + floor).sum())
    return stray / expected.numel()


def allowed(expected: torch.Tensor, rms: float, dtype: torch.dtype) -> torch.Tensor:
    """What each of these elements may differ by, of an output with this rms of which nothing else is known."""
    tolerance = _tolerance(dtype, double=False)
    return _Bounds(tolerance, max(_absolute(tolerance, rms, None), SMALLEST)).allowed(expected.abs())


def is_near(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of floats differ by less than a thousandth of what they hold (rms)."""
    off = rms_difference(one, other)
    return off is not None and off <= NEAR * float(one.abs().double().square().mean().sqrt())


def rms_difference(one: torch.Tensor, other: torch.Tensor) -> float | None:
    """Root of the mean squared difference of two tensors of floats, infinite where they are not alike; else None."""
    if not (one.is_floating_point() or one.is_complex()) or not one.numel():
        return None
    if one.shape != other.shape:
        return math.inf
    squares, count = 0.0, 0
    for part, others in near.pairs(one, other):
        difference = (part.to(others.dtype) - others).abs().double()
        finite = difference.isfinite()
        squares, count = squares + float(difference[finite].square().sum()), count + int(finite.sum())
    return math.sqrt(squares / count) if count else 0.0


def _pair(
    path: str, expected: Any, actual: Any, exact: Any, leaves: list[_Leaf], known: tuple[Iterator[Any], ...]
) -> str:
    """Walk both trees together; return why they differ in structure, or "" after appending the leaves."""
    expected, actual, exact = map(transport.opened, (expected, actual, exact))
    if isinstance(expected, list | tuple):
        if not isinstance(actual, list | tuple):
            return f"{path} should hold {len(expected)} values, but is {_kind(actual)}."
        if len(actual) != len(expected):
            return f"{path} should hold {len(expected)} values, not {len(actual)}."
        keys: Iterator[Any] = iter(range(len(expected)))
    elif isinstance(expected, dict):
        # In the program of a kernel keys are texts.
        expected, actual, exact = (_by_text(one) if isinstance(one, dict) else one for one in (expected, actual, exact))
        if not isinstance(actual, dict) or set(actual) != set(expected):
            found = sorted(actual) if isinstance(actual, dict) else _kind(actual)
            return f"{path} should be a dict with keys {sorted(expected)}, but is {found}."
        keys = iter(expected)
    else:
        if isinstance(expected, torch.Tensor) != isinstance(actual, torch.Tensor):
            return f"{path} should be {_kind(expected)}, but is {_kind(actual)}."
        tensor = isinstance(expected, torch.Tensor)
        effect, rounding, slack = (next(each, None) if tensor else None for each in known)
        leaves.append(_Leaf(path, expected, actual, exact, effect, rounding, slack))
        return ""
    for key in keys:
        part = exact[key] if exact is not None else None
        mismatch = _pair(f"{path}[{key!r}]", expected[key], actual[key], part, leaves, known)
        if mismatch:
            return mismatch
    return ""


def _by_text(value: dict[Any, Any]) -> dict[str, Any]:
    return {str(key): item for key, item in value.items()}


def _compare_leaf(leaf: _Leaf) -> Comparison:
    if isinstance(leaf.expected, torch.Tensor):
        return _compare_tensors(leaf)
    expected, actual = leaf.expected, leaf.actual
    numbers = all(isinstance(v, int | float | complex) and not isinstance(v, bool) for v in (expected, actual))
    if numbers and type(expected) is type(actual) and not isinstance(expected, int):
        one, other = (torch.view_as_real(torch.tensor(value, dtype=torch.complex128)) for value in (expected, actual))
        return _compare_values(_Leaf(leaf.path, one, other, None), torch.float32)
    if type(expected) is type(actual) and expected == actual:
        return Comparison(True)
    message = f"{leaf.path} should be {expected!r}, but is {actual!r}."
    return Comparison(False, message, (message,))


def _wrong_form(path: str, expected: torch.Tensor, actual: torch.Tensor) -> str:
    for what, wanted, found in (
        ("shape", tuple(expected.shape), tuple(actual.shape)),
        ("dtype", expected.dtype, actual.dtype),
    ):
        if wanted != found:
            return f"{path} has the wrong {what}: expected {wanted}, got {found}."
    return ""


def _compare_tensors(leaf: _Leaf) -> Comparison:
    expected, actual, exact = leaf.expected, leaf.actual, leaf.exact
    mismatch = _wrong_form(leaf.path, expected, actual)
    if mismatch:
        return Comparison(False, mismatch, (mismatch,))
    dtype = expected.dtype
    if not dtype.is_floating_point and not dtype.is_complex:
        return _compare_exact(leaf)
    if not isinstance(exact, torch.Tensor) or exact.shape != expected.shape or exact.is_complex() != dtype.is_complex:
        exact = None
    if dtype.is_complex:
        expected, actual = torch.view_as_real(expected), torch.view_as_real(actual)
        exact, leaf = torch.view_as_real(exact) if exact is not None else None, replace(leaf, slack=None)
    return _compare_values(replace(leaf, expected=expected, actual=actual, exact=exact), dtype)


def _compare_exact(leaf: _Leaf) -> Comparison:
    expected, actual, exact = leaf.expected, leaf.actual, leaf.exact
    differs = expected != actual
    count = int(differs.sum())
    if not count:
        return Comparison(True)
    difference = (expected.double() - actual.double()).abs()
    worst = float(difference.max())
    # An index or a comparison may fall the other way by rounding, as often as it does for the reference itself.
    known = isinstance(exact, torch.Tensor) and exact.shape == expected.shape
    if known and int((actual != exact).sum()) <= NO_WORSE_COUNT * int((expected != exact).sum()):
        return Comparison(True, max_abs_error=worst, tolerance=NO_WORSE)
    place = tuple(int(i) for i in differs.nonzero()[0])
    want, got = expected[place].item(), actual[place].item()
    return _mismatch(leaf.path, f"{count} of {differs.numel()}", place, want, got, "no difference", 0, worst, math.inf)


def _all_near(leaf: _Leaf, dtype: torch.dtype) -> Comparison | None:
    """Where no difference is as large as what is allowed everywhere; None where it takes a closer look."""
    sums = near.sums(leaf.expected, leaf.actual) if leaf.exact is None and leaf.slack is None else None
    if sums is None:
        return None
    totals = _Totals(sums.count, sums.size_squares, sums.difference_squares, worst=sums.worst)
    bounds = _bounds(leaf, totals, dtype)
    if sums.worst > bounds.atol or _lost_effect(leaf, totals, dtype) or _lost_slice(leaf, totals, dtype)[0]:
        return None
    relative = near.relative(leaf.expected, leaf.actual, bounds.atol)
    return Comparison(True, "", (), sums.worst, relative, tolerance=bounds.words(bounds.atol))


def _compare_values(leaf: _Leaf, dtype: torch.dtype) -> Comparison:
    if (equal := _all_near(leaf, dtype)) is not None:
        return equal
    totals = _Totals()
    for part in _parts(leaf):
        totals.add(part)
    bounds = _bounds(leaf, totals, dtype)
    found = _Found()
    for part in _parts(leaf):
        found.add(part, bounds)
    errors = (totals.worst, found.relative)
    if found.specials or (found.wrong and not found.no_worse(totals)):
        index = found.first
        place = tuple(int(i) for i in torch.unravel_index(torch.tensor(index), leaf.expected.shape))
        want, got = (float(value.reshape(-1)[index]) for value in (leaf.expected, leaf.actual))
        atol = bounds.small_atol if 0 < abs(want) < bounds.small else bounds.atol
        allowed = bounds.words(atol)
        count = f"{found.wrong} of {leaf.expected.numel()}"
        wrong = _mismatch(leaf.path, count, place, want, got, allowed, found.nans, *errors)
        return wrong if found.specials else replace(wrong, share=found.wrong / leaf.expected.numel())
    slack = "" if leaf.slack is None else f", or {SLACK_MARGIN:g} times what rounding the inputs changes"
    allowed = (NO_WORSE if found.wrong else bounds.words(bounds.atol)) + slack
    lost, share = _lost_effect(leaf, totals, dtype), 1.0
    if not lost:
        lost, share = _lost_slice(leaf, totals, dtype)
    return Comparison(not lost, lost, (lost,) if lost else (), *errors, share=share, tolerance=allowed)


@dataclass(frozen=True, slots=True)
class _Part:
    """A stretch of a leaf in float64. What is not finite is zero in `size`, `difference` and `noise`."""

    start: int
    expected: torch.Tensor
    actual: torch.Tensor
    finite: torch.Tensor  # where the expected values are
    size: torch.Tensor  # |expected|
    difference: torch.Tensor  # |actual - expected|
    noise: torch.Tensor | None  # |exact - expected|
    error: torch.Tensor | None  # |actual - exact|
    slack: torch.Tensor | None


def _parts(leaf: _Leaf) -> Iterator[_Part]:
    """The leaf in stretches, so that its float64 copies need little memory."""
    values = (leaf.expected, leaf.actual, leaf.exact, leaf.slack)
    flat = [None if value is None else value.reshape(-1) for value in values]
    for start in range(0, leaf.expected.numel(), near.STRETCH):
        expected, actual, exact, slack = (None if v is None else v[start : start + near.STRETCH].double() for v in flat)
        assert expected is not None and actual is not None
        finite = expected.isfinite()
        yield _Part(
            start,
            expected,
            actual,
            finite,
            expected.abs().nan_to_num_(0.0, posinf=0.0),
            (actual - expected).abs_().nan_to_num_(0.0, posinf=0.0),
            (exact - expected).abs_().nan_to_num_(0.0, posinf=0.0) if exact is not None else None,
            (actual - exact).abs_().nan_to_num_(0.0, posinf=0.0) if exact is not None else None,
            slack,
        )


@dataclass
class _Totals:
    """Sums over all elements."""

    count: int = 0  # finite expected values
    size_squares: float = 0.0
    difference_squares: float = 0.0
    noise_squares: float = 0.0
    error_squares: float = 0.0
    worst: float = 0.0
    noise: float | None = None  # the largest; None where it is not known

    def add(self, part: _Part) -> None:
        self.count += int(part.finite.sum())
        self.size_squares += _squares(part.size)
        self.difference_squares += _squares(part.difference)
        self.worst = max(self.worst, float(part.difference.max()))
        if part.noise is not None and part.error is not None:
            self.noise = max(self.noise or 0.0, float(part.noise.max()))
            self.noise_squares += _squares(part.noise)
            self.error_squares += _squares(part.error)

    def rms(self, squares: float) -> float:
        return math.sqrt(squares / self.count) if self.count else 0.0


@dataclass(frozen=True, slots=True)
class _Bounds:
    """What is allowed: `rtol * |expected|` and `atol`, or `small_atol` for elements below `small`."""

    rtol: float
    atol: float
    small: float = 0.0
    small_atol: float = 0.0

    def words(self, atol: float) -> str:
        return f"{atol:.3g} + {self.rtol:.3g} * |expected|"

    def allowed(self, size: torch.Tensor) -> torch.Tensor:
        if not self.small:
            return size * self.rtol + self.atol
        # Numbers as tensors of the sizes' type: they may be too large for float32, which plain ones would become.
        small_atol, atol = size.new_tensor(self.small_atol), size.new_tensor(self.atol)
        return size * self.rtol + torch.where((size > 0) & (size < self.small), small_atol, atol)


def _bounds(leaf: _Leaf, totals: _Totals, dtype: torch.dtype) -> _Bounds:
    tolerance = _tolerance(dtype, leaf.double)
    smallest = SMALLEST_DOUBLE if leaf.double and _is_double(dtype) else SMALLEST
    rms = totals.rms(totals.size_squares)
    atol = max(_absolute(tolerance, rms, totals.noise), smallest, NOISE_MARGIN * (leaf.rounding or 0.0))
    if totals.noise is None:
        return _Bounds(tolerance, atol)
    small, squares, count, noise = SMALL_PART * rms, 0.0, 0, 0.0
    for part in _parts(leaf):
        mask = (part.size > 0) & (part.size < small)
        squares, count = squares + _squares(part.size[mask]), count + int(mask.sum())
        assert part.noise is not None
        noise = max(noise, float((part.noise * mask).max()))
    if count < max(2, SMALL_SHARE * totals.count):
        return _Bounds(tolerance, atol)
    floor = SMALL_ROUNDINGS * torch.finfo(dtype).eps * rms
    small_atol = max(_absolute(tolerance, math.sqrt(squares / count), noise), floor, smallest)
    return _Bounds(tolerance, atol, small, min(small_atol, atol))


def _absolute(tolerance: float, rms: float, noise: float | None) -> float:
    return max(tolerance * rms, min(NOISE_MARGIN * (noise or 0.0), NOISE_CAP * rms))


@dataclass
class _Found:
    """Elements that are not what was expected."""

    wrong: int = 0
    specials: int = 0  # NaN or infinite on one side only
    nans: int = 0
    first: int = -1
    relative: float = 0.0
    strays: int = 0  # farther from float64 than allowed
    own_strays: int = 0  # of the reference itself

    def add(self, part: _Part, bounds: _Bounds) -> None:
        allowed = bounds.allowed(part.size)
        if part.slack is not None:
            allowed = torch.maximum(allowed, SLACK_MARGIN * part.slack)
        same_special = torch.where(part.expected.isnan(), part.actual.isnan(), part.expected == part.actual)
        special = ~torch.where(part.finite, part.actual.isfinite(), same_special)
        wrong = (part.difference > allowed) | special
        # Relative to the element, but to no less than the absolute tolerance: zeros have no relative error.
        floor = max(bounds.atol, torch.finfo(torch.float64).tiny)
        self.relative = max(self.relative, float((part.difference / part.size.clamp(min=floor)).max()))
        count = int(wrong.sum())
        if count and self.first < 0:
            self.first = part.start + int(wrong.nonzero()[0])
        self.wrong, self.specials = self.wrong + count, self.specials + int(special.sum())
        self.nans += int((part.actual.isnan() & ~part.expected.isnan()).sum()) if count else 0
        if count and part.noise is not None and part.error is not None:
            self.strays += int((part.error > allowed).sum())
            self.own_strays += int((part.noise > allowed).sum())

    def no_worse(self, totals: _Totals) -> bool:
        """Whether the output is about as near to float64 as the reference's own."""
        if totals.noise is None or self.strays > NO_WORSE_COUNT * self.own_strays:
            return False
        return totals.error_squares <= NO_WORSE_RMS**2 * totals.noise_squares


def _squares(values: torch.Tensor) -> float:
    return float(values.square().sum())


def _is_double(dtype: torch.dtype) -> bool:
    return dtype in (torch.float64, torch.complex128)


def _tolerance(dtype: torch.dtype, double: bool) -> float:
    if _is_double(dtype) and not double:
        return MIXED
    return TOLERANCE.get(dtype, _DEFAULT_TOLERANCE)


def _lost_effect(leaf: _Leaf, totals: _Totals, dtype: torch.dtype) -> str:
    """Why the output does not follow the inputs, or ""."""
    if not leaf.effect or not totals.count:
        return ""
    squares = (totals.size_squares, totals.difference_squares, totals.noise_squares)
    rms, error, own = (totals.rms(value) for value in squares)
    roundings = ROUNDINGS_MEASURED if totals.noise is not None and totals.count >= MEASURED else ROUNDINGS
    rounding = (roundings if dtype.itemsize >= 4 else ROUNDINGS_HALF) * torch.finfo(dtype).eps * rms
    if error <= (allowed := max(EFFECT_PART * leaf.effect, NOISE_MARGIN * own, rounding)):
        return ""
    return (
        f"{leaf.path} does not follow the inputs: its error of {error:.3g} (rms, allowed {allowed:.3g}) is too large"
        f" beside the {leaf.effect:.3g} by which other inputs change it; values of about {rms:.3g} hide it."
    )


def _lost_slice(leaf: _Leaf, totals: _Totals, dtype: torch.dtype) -> tuple[str, float]:
    """Why a column, a row or a channel is wrong by itself, or "", and which part of them is."""
    tolerance = _tolerance(dtype, leaf.double)
    known = leaf.exact, leaf.slack, tolerance, totals.worst
    lost, share = slices.lost(leaf.expected, leaf.actual, *known, tf32=leaf.tf32)
    others = f"; values of about {totals.rms(totals.size_squares):.3g} hide it."
    return (f"{leaf.path}{lost}{others}" if lost else ""), share


def _mismatch(
    path: str,
    count: str,
    place: tuple[int, ...],
    want: complex,
    got: complex,
    allowed: str,
    nans: int,
    worst: float,
    relative: float,
) -> Comparison:
    where = f"{path}[{', '.join(map(str, place))}]" if place else path
    message = f"{count} values of {path} are wrong; the first is {where}: "
    message += f"expected {want:.6g}, got {got:.6g} (allowed {allowed})."
    if nans:
        message += f" {nans} are NaN: memory that was never written, or an undefined operation."
    return Comparison(False, message, (message,), worst, relative, tolerance=allowed)


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return "None" if value is None else f"a {type(value).__name__}"
