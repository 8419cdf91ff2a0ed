"""Choose what goes into each set, and count what does not and why. Nothing is written here."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from dice.data.decontaminate import THRESHOLD, Index, fingerprint
from dice.data.near_duplicates import Neighbours
from dice.data.outcomes import ranked
from dice.data.rl.ranking import Ranked, Ranker
from dice.data.sample import Sample
from dice.kernel import KernelParts, SplitError
from dice.verify.audit.findings import Audit

EXAMPLES = 10  # dropped samples that the report shows for each reason
FULL = "not needed: the set is full"
AUDITED_AT_ONCE = 256  # problems between two looks at whether the set is full
# Findings of an audit that keep a problem out besides those of severity "reject": it cannot be verified in reasonable
# time, or has no single right answer.
UNUSABLE = ("too_large", "too_slow", "random_forward", "audit_failed")
Auditor = Callable[[Sequence[Sample]], list[Audit]]


@dataclass
class Tally:
    """Rows in, rows out by reason. `rows_in` is `kept` and all that was dropped."""

    rows_in: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[dict[str, str]]] = field(default_factory=lambda: defaultdict(list))

    def drop(self, sample: Sample, reason: str, why: str) -> None:
        self.dropped[reason] += 1
        if len(self.examples[reason]) < EXAMPLES:
            origin = f"{sample.source} {sample.origin}".strip()
            self.examples[reason].append({"id": sample.id, "name": sample.name, "origin": origin, "why": why})

    def to_json(self) -> dict[str, object]:
        removed = {
            reason: {"rows": count, "examples": self.examples[reason]} for reason, count in ranked(self.dropped).items()
        }
        return {"rows_in": self.rows_in, "kept": self.kept, "removed": removed}


@dataclass(frozen=True, slots=True)
class Infilling:
    """A verified kernel with its core set apart: `prefix + core + suffix` is the kernel, byte for byte."""

    ranked: Ranked
    parts: KernelParts


def infilling(
    samples: Iterable[Sample], count: int, ranker: Ranker, index: Index | None = None
) -> tuple[list[Infilling], Tally]:
    """Up to `count` verified pairs, split, distinct by their problems, easy to hard."""
    tally = Tally()
    chosen: dict[str, tuple[Sample, KernelParts]] = {}
    drawn = _drawn(samples, tally)
    distinct = _Distinct(drawn, index)
    for sample in drawn:
        reason, why = _unverified(sample)
        parts = None
        if not reason:
            parts, reason = _split(sample)
        if not reason:
            reason, why = distinct.objection(sample)
        if not reason and len(chosen) == count:
            reason = FULL
        if reason:
            tally.drop(sample, reason, why)
        elif parts:
            distinct.take(sample)
            chosen[sample.id] = sample, parts
    tally.kept = len(chosen)
    ranked = ranker.rank(sample for sample, _ in chosen.values())
    return [Infilling(one, chosen[one.sample.id][1]) for one in ranked], tally


def generation(
    samples: Iterable[Sample], count: int, ranker: Ranker, auditor: Auditor, index: Index | None = None
) -> tuple[list[Ranked], Tally]:
    """Up to `count` distinct problems that passed the audit, easy to hard. No more are audited than it takes."""
    tally = Tally()
    drawn = _drawn(samples, tally)
    distinct = _Distinct(drawn, index)
    candidates: list[Sample] = []
    for sample in drawn:
        reason, why = distinct.objection(sample)
        if reason:
            tally.drop(sample, reason, why)
        else:
            distinct.take(sample)
            candidates.append(sample)
    kept: list[Sample] = []
    while candidates and len(kept) < count:
        batch, candidates = candidates[:AUDITED_AT_ONCE], candidates[AUDITED_AT_ONCE:]
        for sample, audit in zip(batch, auditor(batch), strict=True):
            reason, why = unusable(audit)
            if reason:
                tally.drop(sample, reason, why)
            elif len(kept) == count:
                tally.drop(sample, FULL, "")
            else:
                kept.append(sample)
    for sample in candidates:
        tally.drop(sample, FULL, "")
    tally.kept = len(kept)
    return ranker.rank(kept), tally


def unusable(audit: Audit) -> tuple[str, str]:
    """The finding that keeps a problem out, and its sentence; "" for none."""
    for found in audit.findings:
        if found.severity == "reject" or found.kind in UNUSABLE:
            return f"audit: {found.kind}", found.message
    return "", ""


def _unverified(sample: Sample) -> tuple[str, str]:
    """Why it is no correct and honest pair; "" when it is one."""
    if not sample.kernel:
        return "no kernel", ""
    if sample.verdict is None or not sample.verdict.about_kernel:
        return "not measured", ""
    return ("", "") if sample.verdict.correct else (f"not correct: {sample.verdict.outcome}", sample.verdict.message)


def _split(sample: Sample) -> tuple[KernelParts | None, str]:
    """As published, where the source says which part is the core (`meta["core"]`: begin and end), else as we do."""
    published = sample.meta.get("core")
    if isinstance(published, list) and len(published) == 2:
        begin, end = published
        return KernelParts(sample.kernel[:begin], sample.kernel[begin:end], sample.kernel[end:]), ""
    try:
        return sample.as_kernel().split(), ""
    except SplitError as error:
        return None, f"cannot be split: {error}"


class _Distinct:
    """Objects to problems of a benchmark, and to those that nearly repeat one that was taken."""

    def __init__(self, samples: Sequence[Sample], index: Index | None):
        self._index = index
        self._prints = {one.problem: fingerprint(one.as_problem()) for one in samples}
        self._neighbours = Neighbours(THRESHOLD, (found.shingles for found in self._prints.values()))
        self._taken: list[Sample] = []

    def objection(self, sample: Sample) -> tuple[str, str]:
        """(reason, sentence); "" for none."""
        match = self._index.find(sample.as_problem()) if self._index else None
        if match:
            return "in a benchmark", f"{match.kind} of {match.benchmark}, {match.similarity:.0%}"
        near = self._neighbours.find(self._prints[sample.problem].shingles)
        if not near:
            return "", ""
        other = self._taken[near[0].number]
        kind = "repeats another problem" if other.problem == sample.problem else "nearly repeats another problem"
        return kind, f"{near[0].similarity:.0%} {other.name or other.id}"

    def take(self, sample: Sample) -> None:
        self._neighbours.add(self._prints[sample.problem].shingles)
        self._taken.append(sample)


def _drawn(samples: Iterable[Sample], tally: Tally) -> list[Sample]:
    """The samples that have a problem, in an order by hash: random in effect, and the same on every machine."""
    # Samples of equal texts have equal hashes. Of these a verified one comes first, then one that states a difficulty.
    found = sorted(
        samples,
        key=lambda one: (
            hashlib.sha256(one.id.encode()).digest(),
            one.source,
            one.origin,
            _unverified(one)[0],
            not one.difficulty,
            one.difficulty,
        ),
    )
    tally.rows_in = len(found)
    for sample in found:
        if not sample.problem:
            tally.drop(sample, "no problem", "")
    return [sample for sample in found if sample.problem]
