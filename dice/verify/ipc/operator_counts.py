"""What PyTorch computed, counted, and what follows from the counts. Without PyTorch: the supervisor uses it."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dice.verify.ipc import untrusted

TOKEN_SHARE = 0.01  # of the reference's elements; less is no replacement unless it is all of an operator
PART_SHARE = 0.1  # the same, where PyTorch's operators are called as often as in the reference: some rows of each
HOST_SHARE, HOST_ELEMENTS = 0.5, 128  # of the inputs' elements read by the host
MAX_NAMES = 200
MAX_CALLS = 500  # of one family that are told apart; the last stands for all that follow
MOST = 1 << 60  # that a candidate may claim: no integer of thousands of digits

Number = TypeVar("Number", int, float)
# Elements that a call adds up, sends through curves, puts in order; and of the first those that it makes as it adds.
Essence = tuple[int, int, int, int]
NO_ESSENCE: Essence = (0, 0, 0, 0)
CONTRACTION, DECOMPOSITION = "contraction", "decomposition"
SCORE_BYTES = 8  # read and written, of an attention's score
CAST = "cast"  # between whole numbers and floats, which rounds
TRANSFORM, COMPLEX_PRODUCT = "fft", "complex product"  # parts of a convolution by Fourier transforms; counted as calls

_CONTRACTIONS: tuple[str, ...] = ("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "addr")
_CONTRACTIONS += ("outer", "linear", "matmul", "einsum", "tensordot", "bilinear", "_trilinear", "chain_matmul")
_CONTRACTIONS += ("_addmm_activation",)
_DECOMPOSITIONS: tuple[str, ...] = ("svd", "svdvals", "eig", "eigvals", "eigh", "eigvalsh", "qr", "geqrf", "matrix_exp")
_DECOMPOSITIONS += ("cholesky", "cholesky_ex", "cholesky_solve", "cholesky_inverse", "lu", "lu_factor", "lu_factor_ex")
_DECOMPOSITIONS += ("lu_solve", "lu_with_info", "ldl_factor", "ldl_factor_ex", "ldl_solve", "solve", "solve_ex", "inv")
_DECOMPOSITIONS += ("inv_ex", "inverse", "pinv", "lstsq", "det", "slogdet", "logdet", "triangular_solve")
_DECOMPOSITIONS += ("solve_triangular", "householder_product", "orgqr", "ormqr")
_SAME = {  # operators that are another's special case
    **dict.fromkeys(_CONTRACTIONS, CONTRACTION),
    **dict.fromkeys(("clamp_min", "threshold", "clamp", "clamp_max", "hardtanh", "relu6", "maximum"), "relu"),
    **dict.fromkeys(("rsub", "sub"), "add"),
    **dict.fromkeys(("amax", "amin", "aminmax", "min"), "max"),
    "div": "mul",
    "mean": "sum",
    "silu": "sigmoid",
    "var_mean": "var",
    "std": "var",
    # What takes matrices apart: one factorisation gives what another one does, but for products.
    **dict.fromkeys(_DECOMPOSITIONS, DECOMPOSITION),
    **dict.fromkeys((f"linalg_{name}" for name in _DECOMPOSITIONS), DECOMPOSITION),
}
_NO_WORK = frozenset(
    ("clone", "copy", "_to_copy", "contiguous", "detach", "alias", "lift", "lift_fresh", "fill", "zero", "resize")
    + ("set", "_unsafe_view", "_reshape_alias", "scalar_tensor", "arange", "linspace", "full", "zeros", "ones", "eye")
    + ("_local_scalar_dense", "item", "equal", "is_same_size", "random", "uniform", "normal", "bernoulli", "randperm")
    + ("record_stream", "_has_compatible_shallow_copy_type", "split", "unbind", "split_with_sizes", "pin_memory")
    + ("is_pinned", "_pin_memory", "sym_size", "sym_numel", "sym_stride", "reshape", "expand_as", "view_as", "dropout")
    + ("as_strided",)
)
_PASSING = frozenset(  # what can be done by copying elements, adding to them and taking multiples of them
    ("add", "mul", "neg", "addcmul", "addcdiv", "lerp", "cat", "stack", "flip", "roll", "repeat", "tile", "where")
    + (
        "gather",
        "index",
        "index_select",
        "index_put",
        "index_copy",
        "index_fill",
        "index_add",
        "scatter",
        "scatter_add",
    )
    + ("masked_fill", "masked_select", "masked_scatter", "constant_pad_nd", "pad", "reflection_pad1d", "embedding")
    + ("reflection_pad2d", "reflection_pad3d", "replication_pad1d", "replication_pad2d", "replication_pad3d", "take")
    + ("pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "im2col", "tril", "triu", "diag_embed", "select_scatter")
    + ("slice_scatter", "diagonal_scatter", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "real")
    + ("repeat_interleave", "rot90", "one_hot", "max_unpool2d", "max_unpool3d", "conj_physical", "complex", CAST)
)
ARITHMETIC = frozenset(("add", "mul", "neg", "addcmul", "addcdiv", "lerp"))  # among them, what is no copying
_NO_WORK_STARTS: tuple[str, ...] = ("empty", "new_", "rand", "full_like", "zeros_like", "ones_like", "is_", "sym_")
_NO_WORK_STARTS += ("resolve_", "result_")


def family(operator: str) -> str:
    """What an ATen operator (`aten.relu_.default`, `aten::mm`) counts as, "" for one that computes nothing."""
    name = operator.replace("::", ".").split(".")
    if name[0] not in ("aten", "quantized", "torchvision", "mkldnn", "prims"):
        return ""  # an operator of the file's own
    base = name[1] if len(name) > 1 else ""
    if base.startswith("__"):
        base = base.strip("_")
    base = base.removesuffix("_")
    if base in _NO_WORK or base.startswith(_NO_WORK_STARTS):
        return ""
    if "conv" in base or base.startswith(("_fft", "fft_")) or "scaled_dot_product" in base or base in _CONTRACTIONS:
        return CONTRACTION
    base = base.removeprefix("_safe").removeprefix("_").removeprefix("native_").removeprefix("cudnn_")
    return _SAME.get(base, base)


@dataclass
class OperatorCounts:
    """What PyTorch computed: elements per family (the larger of an operator's inputs and outputs), calls per family and
    for each part of a convolution by transforms, what each call costs (`operator_cost.estimated`) and is at heart
    (`essence.of`), and elements that went to the host, by PyTorch or by copies of the file's own."""

    elements: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    costs: dict[str, list[int]] = field(default_factory=dict)
    essences: dict[str, list[Essence]] = field(default_factory=dict)
    host: int = 0

    def note(self, kind: str, elements: int, cost: int, essence: Essence = NO_ESSENCE, part: str = "") -> None:
        """One call of an operator of the family `kind`. `part`: which part of a convolution by transforms it may be."""
        self.elements[kind] += elements
        self.calls.update([kind, part] if part else [kind])
        append(self.costs.setdefault(kind, []), cost)
        known = self.essences.setdefault(kind, [])
        if len(known) < MAX_CALLS:
            known.append(essence)
        else:
            known[-1] = _sum(known[-1], essence)

    def at_heart(self, kind: str) -> Essence:
        """What all calls of a family come to."""
        return functools.reduce(_sum, self.essences.get(kind, ()), NO_ESSENCE)

    def to_json(self) -> dict[str, object]:
        counts = {"elements": dict(self.elements), "calls": dict(self.calls), "host": self.host}
        calls: dict[str, Mapping[str, list[Any]]] = {"costs": self.costs, "essences": self.essences}
        return counts | {what: {kind: list(each) for kind, each in kinds.items()} for what, kinds in calls.items()}

    @classmethod
    def from_json(cls, data: object) -> OperatorCounts:
        """Of anything that a candidate may say."""
        work = cls()
        if not isinstance(data, dict):
            return work
        for key, counts in (("elements", work.elements), ("calls", work.calls)):
            told = data.get(key)
            for name, count in list(told.items())[:MAX_NAMES] if isinstance(told, dict) else ():
                counts[untrusted.text(name, 100)] = _count(count)
        told = data.get("costs")
        for name, costs in list(told.items())[:MAX_NAMES] if isinstance(told, dict) else ():
            if isinstance(costs, list):
                work.costs[untrusted.text(name, 100)] = [_count(cost) for cost in costs[:MAX_CALLS]]
        told = data.get("essences")
        for name, essences in list(told.items())[:MAX_NAMES] if isinstance(told, dict) else ():
            if isinstance(essences, list):
                work.essences[untrusted.text(name, 100)] = [_essence(one) for one in essences[:MAX_CALLS]]
        work.host = _count(data.get("host"))
        return work


def taken_apart(work: OperatorCounts, reference: OperatorCounts) -> OperatorCounts:
    """The counts with attention by one call as the products, the factor and the softmax that a reference spells out,
    where that one does. Such a call is the contraction that has curves."""
    fused = [call for call in work.essences.get(CONTRACTION, []) if call[1]]
    if not fused or not reference.elements["softmax"] or any(c[1] for c in reference.essences.get(CONTRACTION, [])):
        return work
    apart = OperatorCounts(
        Counter(work.elements), Counter(work.calls), dict(work.costs), dict(work.essences), work.host
    )
    apart.costs[CONTRACTION], apart.essences[CONTRACTION] = [], []
    calls = zip(work.costs.get(CONTRACTION, []), work.essences[CONTRACTION], strict=False)
    for cost, (sums, scores, orders, made) in calls:
        if not scores:
            append(apart.costs[CONTRACTION], cost)
            apart.essences[CONTRACTION].append((sums, scores, orders, made))
            continue
        apart.calls[CONTRACTION] -= 1
        for _ in range(2):
            apart.note(CONTRACTION, scores, cost // 2, (sums // 2, 0, 0, made // 2))
        apart.note("softmax", scores, SCORE_BYTES * scores, (2 * scores, scores, 0, 0))
        apart.note("mul", scores, SCORE_BYTES * scores)
    return apart


def append(calls: list[Number], value: Number) -> None:
    """One more call's cost or time, where not too many are told apart."""
    if len(calls) < MAX_CALLS:
        calls.append(value)
    else:
        calls[-1] += value


def by_kind(calls: Iterable[tuple[str, float]]) -> dict[str, list[float]]:
    """Times of calls, as `OperatorCounts` has their costs."""
    found: dict[str, list[float]] = {}
    for kind, ms in calls:
        append(found.setdefault(kind, []), ms)
    return found


def _count(value: object) -> int:
    return max(0, min(value, MOST)) if isinstance(value, int) else 0


def _essence(value: object) -> Essence:
    if not isinstance(value, list | tuple) or len(value) != len(NO_ESSENCE):
        return NO_ESSENCE
    sums, curves, orders, made = map(_count, value)
    return sums, curves, orders, made


def _sum(one: Essence, other: Essence) -> Essence:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2], one[3] + other[3]


def replaced_share(reference: OperatorCounts, candidate: OperatorCounts) -> float:
    """Part of the elements that PyTorch computes in the reference and no longer in the candidate; 1 where none are."""
    total = sum(reference.elements.values())
    missing = sum(max(0, count - candidate.elements[name]) for name, count in reference.elements.items())
    return missing / total if total else 1.0


def census_kind(reference: OperatorCounts, candidate: OperatorCounts, input_elements: int) -> str:
    """The kind of deception that the census shows, or ""."""
    if candidate.host > max(HOST_ELEMENTS, HOST_SHARE * input_elements, 2 * reference.host):
        return "host_compute"
    runs_all = bool(reference.elements) and all(candidate.elements[name] for name in reference.elements)
    runs_each = all(candidate.calls[name] >= count for name, count in reference.calls.items())
    share = PART_SHARE if runs_each else TOKEN_SHARE
    return "replaced_nothing" if runs_all and replaced_share(reference, candidate) < share else ""


def computes_more(reference: OperatorCounts, candidate: OperatorCounts, but_for: frozenset[str] = frozenset()) -> bool:
    """Whether PyTorch computes in the candidate what it does not in the reference, while all that it does in the
    reference and could be had by passing values on, `but_for` some, it does in the candidate, too."""
    more = any(count > reference.elements[name] for name, count in candidate.elements.items())
    passing = {name: count for name, count in reference.elements.items() if name in _PASSING - but_for}
    return more and all(candidate.elements[name] >= (1 - PART_SHARE) * count for name, count in passing.items())


def is_passing(kind: str) -> bool:
    """Whether what the family does can be done by copying elements, adding to them and taking multiples of them."""
    return kind in _PASSING


def describe(reference: OperatorCounts, candidate: OperatorCounts, muted: Mapping[str, Any]) -> dict[str, object]:
    """For `Verdict.evidence`."""
    return {
        "reference_operators": dict(reference.elements.most_common(20)),
        "pytorch_operators": dict(candidate.elements.most_common(20)),
        "replaced_share": round(replaced_share(reference, candidate), 4),
        **({"host_elements": candidate.host} if candidate.host else {}),
        **muted,
    }
