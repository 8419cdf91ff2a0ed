"""Is this output the reference's output? Structure, shape, dtype, NaN and infinities, then values.

Protocols (tolerances for |actual - expected|, element by element):
- `dice`: `tol * |expected| + max(tol * rms(expected), 10 * noise)` with `tol` by dtype (`TOLERANCE`). `noise` is
  how far the reference itself is from its own float64 evaluation, so a badly conditioned problem asks no more of a
  kernel than of PyTorch; that term never exceeds `NOISE_CAP * rms(expected)`. Integers and booleans must be equal.
- `kernelbench`: 1e-4 absolute and relative for float32, 1e-2 for half precision (KernelBench since 2025-12).
- `kernelbench-v0` and `dice-paper`: 1e-2 absolute and relative (KernelBench before, and the paper).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

TOLERANCE = {
    torch.float64: 1e-7,
    torch.complex128: 1e-7,
    torch.float32: 1e-4,
    torch.complex64: 1e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 2e-2,
}
NOISE_MARGIN = 10.0
SMALLEST = 1e-9  # differences below this are rounding of values of order one, whatever the expected output
NOISE_CAP = 1e-2
_HALF = (torch.float16, torch.bfloat16)
_DEFAULT_TOLERANCE = 5e-2  # 8-bit floats


@dataclass(frozen=True, slots=True)
class Comparison:
    """`message` says what differs first, in one sentence; the errors are the largest over all finite elements."""

    equal: bool
    message: str = ""
    errors: tuple[str, ...] = ()
    max_abs_error: float = 0.0
    max_rel_error: float = 0.0


@dataclass(frozen=True, slots=True)
class _Leaf:
    path: str
    expected: Any
    actual: Any
    exact: Any  # the reference in float64, or None


def compare(expected: Any, actual: Any, protocol: str = "dice", exact: Any = None) -> Comparison:
    """Compare a candidate's output with the reference's. `exact` is the reference evaluated in float64, if known."""
    leaves: list[_Leaf] = []
    mismatch = _pair("output", expected, actual, exact, leaves)
    if mismatch:
        return Comparison(False, mismatch, (mismatch,))
    results = [_compare_leaf(leaf, protocol) for leaf in leaves]
    failed = [result for result in results if not result.equal]
    return Comparison(
        equal=not failed,
        message=failed[0].message if failed else "",
        errors=tuple(error for result in failed for error in result.errors),
        max_abs_error=max((result.max_abs_error for result in results), default=0.0),
        max_rel_error=max((result.max_rel_error for result in results), default=0.0),
    )


def same_values(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors hold the same values, NaN included."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())


def _pair(path: str, expected: Any, actual: Any, exact: Any, leaves: list[_Leaf]) -> str:
    """Walk both trees together; return why they differ in structure, or "" after appending the leaves."""
    if isinstance(expected, list | tuple):
        if not isinstance(actual, list | tuple):
            return f"{path} should hold {len(expected)} values, but is {_kind(actual)}."
        if len(actual) != len(expected):
            return f"{path} should hold {len(expected)} values, not {len(actual)}."
        keys: Iterator[Any] = iter(range(len(expected)))
    elif isinstance(expected, dict):
        if not isinstance(actual, dict) or set(actual) != set(expected):
            found = sorted(actual) if isinstance(actual, dict) else _kind(actual)
            return f"{path} should be a dict with keys {sorted(expected)}, but is {found}."
        keys = iter(expected)
    else:
        if isinstance(expected, torch.Tensor) != isinstance(actual, torch.Tensor):
            return f"{path} should be {_kind(expected)}, but is {_kind(actual)}."
        leaves.append(_Leaf(path, expected, actual, exact))
        return ""
    for key in keys:
        part = exact[key] if exact is not None else None
        mismatch = _pair(f"{path}[{key!r}]", expected[key], actual[key], part, leaves)
        if mismatch:
            return mismatch
    return ""


def _compare_leaf(leaf: _Leaf, protocol: str) -> Comparison:
    if isinstance(leaf.expected, torch.Tensor):
        return _compare_tensors(leaf, protocol)
    expected, actual = leaf.expected, leaf.actual
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (expected, actual))
    if numbers and (isinstance(expected, float) or isinstance(actual, float)):
        one, other = (torch.tensor(float(value), dtype=torch.float64) for value in (expected, actual))
        return _compare_values(leaf.path, one, other, torch.float32, protocol, None)
    if type(expected) is type(actual) and expected == actual:
        return Comparison(True)
    message = f"{leaf.path} should be {expected!r}, but is {actual!r}."
    return Comparison(False, message, (message,))


def _compare_tensors(leaf: _Leaf, protocol: str) -> Comparison:
    expected, actual = leaf.expected, leaf.actual
    for what, wanted, found in (
        ("shape", tuple(expected.shape), tuple(actual.shape)),
        ("dtype", expected.dtype, actual.dtype),
    ):
        if wanted != found:
            message = f"{leaf.path} has the wrong {what}: expected {wanted}, got {found}."
            return Comparison(False, message, (message,))
    dtype = expected.dtype
    if not dtype.is_floating_point and not dtype.is_complex:
        return _compare_exact(leaf.path, expected, actual)
    exact = leaf.exact
    if dtype.is_complex:
        expected, actual = torch.view_as_real(expected), torch.view_as_real(actual)
        exact = torch.view_as_real(exact) if isinstance(exact, torch.Tensor) and exact.is_complex() else None
    if not isinstance(exact, torch.Tensor) or exact.shape != expected.shape:
        exact = None
    return _compare_values(leaf.path, expected, actual, dtype, protocol, exact)


def _compare_exact(path: str, expected: torch.Tensor, actual: torch.Tensor) -> Comparison:
    differs = expected != actual
    count = int(differs.sum())
    if not count:
        return Comparison(True)
    difference = (expected.double() - actual.double()).abs()
    worst = float(difference.max())
    return _mismatch(path, differs, expected, actual, worst, math.inf, "")


def _compare_values(
    path: str,
    expected: torch.Tensor,
    actual: torch.Tensor,
    dtype: torch.dtype,
    protocol: str,
    exact: torch.Tensor | None,
) -> Comparison:
    expected, actual = expected.double(), actual.double()
    finite = expected.isfinite()
    difference = (actual - expected).abs_()
    if bool(finite.all()) and bool(difference.isfinite().all()):
        special = None  # the usual case, spared the masks
        rtol, atol = _tolerances(expected, dtype, protocol, exact)
    else:
        special = torch.where(finite, actual.isfinite(), _same_special(expected, actual))
        rtol, atol = _tolerances(expected[finite], dtype, protocol, exact[finite] if exact is not None else None)
        difference[~(finite & actual.isfinite())] = 0.0
    size = expected.abs().nan_to_num_(0.0, posinf=0.0)
    differs = difference > size * rtol + atol
    if special is not None:
        differs |= ~special
    worst = float(difference.max()) if difference.numel() else 0.0
    # Relative to the element, but to no less than the absolute tolerance: zeros have no relative error.
    floor = max(atol, torch.finfo(torch.float64).tiny)
    relative = float((difference / size.clamp_min_(floor)).max()) if worst else 0.0
    if not bool(differs.any()):
        return Comparison(True, max_abs_error=worst, max_rel_error=relative)
    allowed = f" (allowed {atol:.3g} + {rtol:.3g} * |expected|)"
    return _mismatch(path, differs, expected, actual, worst, relative, allowed)


def _same_special(expected: torch.Tensor, actual: torch.Tensor) -> torch.Tensor:
    """Where both are NaN, or the same infinity."""
    return torch.where(expected.isnan(), actual.isnan(), expected == actual)


def _tolerances(
    finite: torch.Tensor, dtype: torch.dtype, protocol: str, exact: torch.Tensor | None
) -> tuple[float, float]:
    if protocol == "kernelbench":
        tolerance = 1e-2 if dtype in _HALF else 1e-4
        return tolerance, tolerance
    if protocol in ("kernelbench-v0", "dice-paper"):
        return 1e-2, 1e-2
    if protocol != "dice":
        raise ValueError(f"unknown protocol {protocol!r}")
    tolerance = TOLERANCE.get(dtype, _DEFAULT_TOLERANCE)
    if not finite.numel():
        return tolerance, 0.0
    rms = float(finite.square().mean().sqrt())
    noise = 0.0
    if exact is not None:
        error = (finite - exact.double()).abs().nan_to_num(0.0, posinf=0.0)
        noise = min(NOISE_MARGIN * float(error.max()), NOISE_CAP * rms)
    return tolerance, max(tolerance * rms, noise, SMALLEST)


def _mismatch(
    path: str,
    differs: torch.Tensor,
    expected: torch.Tensor,
    actual: torch.Tensor,
    worst: float,
    relative: float,
    allowed: str,
) -> Comparison:
    count, total = int(differs.sum()), differs.numel()
    first = tuple(int(i) for i in differs.nonzero()[0])
    want, got = expected[first].item(), actual[first].item()
    place = f"{path}[{', '.join(map(str, first))}]" if first else path
    message = f"{count} of {total} values of {path} are wrong; the first is {place}: "
    message += f"expected {want:.6g}, got {got:.6g}{allowed}."
    if math.isnan(got) and not math.isnan(want):
        nans = int((actual.isnan() & ~expected.isnan()).sum())
        message += f" {nans} are NaN: memory that was never written, or an undefined operation."
    return Comparison(False, message, (message,), worst, relative)


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return "None" if value is None else f"a {type(value).__name__}"
