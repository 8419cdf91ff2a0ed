"""How much of the reference's work a kernel file took over from PyTorch. Without PyTorch: the supervisor uses it.

Each operator that PyTorch computes in the reference either runs in the candidate, too, or was replaced. Calls are told
apart by their family and by what they cost, so that one of two layers is not taken for the other. One that PyTorch
computes for the file by other operators, which come to the same at heart (`execution/essence.py`), was not replaced: a
kernel that divides what PyTorch exponentiated and added up is no softmax, and one that takes the root of what PyTorch
multiplied out no distance. A convolution that PyTorch computes by Fourier transforms is left to it as a convolution is,
however much less the transforms cost. So is a factorisation of a matrix that it computes by another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dice.verdict import Replaced
from dice.verify.ipc.operator_counts import (
    COMPLEX_PRODUCT,
    DECOMPOSITION,
    NO_ESSENCE,
    TRANSFORM,
    OperatorCounts,
    is_passing,
)

LEAST_SHARE = 0.01  # of the reference's time: a kernel that replaced less is no solution
FINISHING = 0.01  # of a call: with less, such as a last sum over partial sums, it is not left to PyTorch
SAME = 0.9  # of what a call is at heart: with so much of it in other operators, PyTorch computes it all the same
PREPARES = (0.5, 4.0)  # times what a sum costs, takes a step that only makes the elements for it
MOST_PREPARING = 3  # such as a difference, its square and a weight
ADDED = 0.01  # of the reference's work, by operators that the reference does not have


def of(
    reference: OperatorCounts,
    candidate: OperatorCounts,
    known_by: str,
    ms: Mapping[str, Sequence[float]] | None = None,
) -> Replaced:
    """What the candidate's census says of the reference's. `known_by`: "program" | "census". `ms`: what each of the
    reference's calls takes, by family and in their order; else their roofline stands for it."""
    weights: Mapping[str, Sequence[float]] = reference.costs
    is_measured = bool(ms) and {k: len(v) for k, v in (ms or {}).items()} == {k: len(v) for k, v in weights.items()}
    if is_measured and ms is not None:
        weights = ms
    operators, left, total, remaining = 0, dict[str, int](), 0.0, 0.0
    by_kind = {kind: _left(costs, _told(kind, reference, candidate)) for kind, costs in reference.costs.items()}
    _mark_transformed(by_kind, reference, candidate)
    if DECOMPOSITION in by_kind:  # one of a smaller matrix comes to the same
        by_kind[DECOMPOSITION] = [float(share > 0) for share in by_kind[DECOMPOSITION]]
    spelt_out, multiplied_out = _find_spelt_out(by_kind, reference, candidate)
    for kind, costs in reference.costs.items():
        if spelt_out and not any(reference.at_heart(kind)):  # it takes a difference or a factor of its own to spell one
            told = sorted(_told(kind, reference, candidate), reverse=True)
            by_kind[kind] = _left(costs, told[spelt_out:])
    for cost in multiplied_out:
        _mark_preparing(by_kind, reference, cost)
    for kind, shares in by_kind.items():
        operators += len(shares)
        running = sum(share >= FINISHING for share in shares)
        left |= {kind: running} if running else {}
        total += sum(weights[kind])
        remaining += sum(weight * share for weight, share in zip(weights[kind], shares, strict=True))
    return Replaced(
        operators=operators,
        replaced=operators - sum(left.values()),
        time_share=round(1 - remaining / total, 6) if total else 1.0,
        estimated=not is_measured,
        known_by=known_by,
        left=left,
        added=_added(reference, candidate),
    )


def _told(kind: str, reference: OperatorCounts, candidate: OperatorCounts) -> list[int]:
    """What the candidate's calls of a family cost. Of what only the profiler saw, or only its text says, there are no
    calls: then all that the reference has are taken to run, as far as their elements go."""
    if candidate.costs.get(kind) or not candidate.elements[kind]:
        return candidate.costs.get(kind, [])
    share = min(1.0, candidate.elements[kind] / max(1, reference.elements[kind]))
    return [round(share * cost) for cost in reference.costs[kind]]


def _left(reference: Sequence[int], candidate: Sequence[int]) -> list[float]:
    """For each of the reference's calls of one family, the part of it that PyTorch still computes for the candidate,
    whose calls are each taken for the one that is nearest to it in cost."""
    left = [0.0] * len(reference)
    free = set(range(len(reference)))
    for cost in sorted(candidate, reverse=True):
        if not free:
            break
        nearest = min(free, key=lambda place: (abs(reference[place] - cost), place))
        free.remove(nearest)
        left[nearest] = min(1.0, cost / max(1, reference[nearest]))
    return left


def _transformed(reference: OperatorCounts, candidate: OperatorCounts) -> int:
    """How many convolutions PyTorch may compute for the candidate by transforms: there, a product, and back."""
    more = {part: candidate.calls[part] - reference.calls[part] for part in (TRANSFORM, COMPLEX_PRODUCT)}
    return max(0, min(more[TRANSFORM] // 2, more[COMPLEX_PRODUCT]))


def _mark_transformed(left: dict[str, list[float]], reference: OperatorCounts, candidate: OperatorCounts) -> None:
    """Mark those convolutions and products as left to PyTorch for which it runs transforms, the dearest first: these
    cost less, and come to the same."""
    shares = left.get("contraction", [])
    costs = reference.costs.get("contraction", [])
    parts = [at for at in sorted(range(len(shares)), key=lambda at: -costs[at]) if shares[at] > 0]
    for at in parts[: _transformed(reference, candidate)]:
        shares[at] = 1.0


def _find_spelt_out(
    left: dict[str, list[float]], reference: OperatorCounts, candidate: OperatorCounts
) -> tuple[int, list[int]]:
    """Mark those of the reference's calls as left to PyTorch which it computes for the candidate by other operators:
    by what it adds up, bends or sorts beyond what it does of the same families in the reference. The dearest first.
    How many there are, and what those cost which a product adds up that makes their elements as it goes."""
    spare, found, multiplied_out = [0] * len(NO_ESSENCE), 0, list[int]()
    for kind in candidate.essences:
        for place, pair in enumerate(zip(candidate.at_heart(kind), reference.at_heart(kind), strict=True)):
            spare[place] += max(0, pair[0] - pair[1])
    calls = [(cost, kind, at) for kind, costs in reference.costs.items() for at, cost in enumerate(costs)]
    for cost, kind, at in sorted(calls, reverse=True):
        essence = reference.essences.get(kind, [])[at : at + 1]
        missing = 1 - left[kind][at]
        needed = [missing * amount for amount in (essence[0][:-1] if essence else ())]
        if missing <= 1 - SAME or not any(needed):
            continue
        if all(spare[place] >= SAME * amount for place, amount in enumerate(needed)):
            left[kind][at] = 1.0
            by_product = needed[0] > 0 and not essence[0][-1] and spare[-1] >= SAME * needed[0]
            multiplied_out += [cost] if by_product else []
            taken = [*needed, needed[0] if by_product else 0]
            spare = [max(0, round(has - amount)) for has, amount in zip(spare, taken, strict=True)]
            found += 1
    return found, multiplied_out


def _mark_preparing(left: dict[str, list[float]], reference: OperatorCounts, sum_cost: int) -> None:
    """Mark those calls that only make the elements of a sum which PyTorch computes for the candidate by a product: that
    makes them as it goes. They handle as many elements as the sum does, and are nothing at heart."""
    least, most = (share * sum_cost for share in PREPARES)
    plain = (kind for kind in reference.costs if not any(reference.at_heart(kind)))
    calls = [(kind, at) for kind in plain for at, cost in enumerate(reference.costs[kind]) if least <= cost <= most]
    for kind, at in [call for call in calls if left[call[0]][call[1]] < 1.0][:MOST_PREPARING]:
        left[kind][at] = 1.0


def _added(reference: OperatorCounts, candidate: OperatorCounts) -> tuple[str, ...]:
    """Families that PyTorch computes for the candidate and not for the reference, where that is of weight. Copies,
    sums and multiples of elements are not among them: they prepare what kernels are given."""
    total = sum(map(sum, reference.costs.values()))
    weighty = (kind for kind, costs in candidate.costs.items() if sum(costs) >= ADDED * total)
    added = {kind for kind in weighty if kind not in reference.costs and not is_passing(kind)}
    return tuple(sorted(added | ({TRANSFORM} if _transformed(reference, candidate) else set())))
