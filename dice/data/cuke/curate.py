"""Curation: candidates in, rules one after the other, what is left out. Nothing is written here."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from dice.data.cuke.candidates import PARTS, Candidate, CurationSettings
from dice.data.cuke.rules import rules
from dice.data.decontaminate import Index
from dice.data.outcomes import ranked, speedups
from dice.data.sample import Sample

EXAMPLES = 5  # removed samples, and reasons, that the report shows for each rule


@dataclass(frozen=True, slots=True)
class Removed:
    """A candidate that is out: by which rule, and why."""

    candidate: Candidate
    rule: str
    why: str


@dataclass(frozen=True, slots=True)
class Curation:
    """What became of all candidates: `kept` in order, `removed` in the order of the rules."""

    settings: CurationSettings
    benchmarks: str  # hash of what is kept out
    kept: tuple[Candidate, ...]
    removed: tuple[Removed, ...]


def candidates(measured: Iterable[Sample], structural: Iterable[Sample], settings: CurationSettings) -> list[Candidate]:
    """Assign every sample to its part of the set."""
    found = [Candidate(sample, "base" if sample.source in settings.base else "fast") for sample in measured]
    return found + [Candidate(sample, "structural") for sample in structural]


def curate(given: Sequence[Candidate], settings: CurationSettings, index: Index | None = None) -> Curation:
    """Apply every rule. The result is the same in whatever order the candidates are given."""
    left = sorted(given, key=lambda candidate: candidate.rank)
    removed: list[Removed] = []
    for name, (_, rule) in rules(index).items():
        gone = rule(left, settings)
        removed += [Removed(left[number], name, gone[number]) for number in sorted(gone)]
        left = [candidate for number, candidate in enumerate(left) if number not in gone]
    kept = sorted(left, key=lambda one: (PARTS.index(one.part), one.sample.id, one.sample.source, one.sample.origin))
    return Curation(settings, index.digest if index else "", tuple(kept), tuple(removed))


def report_on(curation: Curation) -> dict[str, object]:
    """Counts that add up: `rows_in` is `kept` and the rows of every rule."""
    by_rule: dict[str, list[Removed]] = defaultdict(list)
    for one in curation.removed:
        by_rule[one.rule].append(one)
    kept = curation.kept
    return {
        "settings": asdict(curation.settings),
        "benchmarks": curation.benchmarks,
        "rows_in": len(kept) + len(curation.removed),
        "kept": len(kept),
        "removed": {
            name: {"rows": len(by_rule[name]), "what": what} | _details(by_rule[name])
            for name, (what, _) in rules(None).items()
        },
        "checked": ranked(map(checked, kept)),
        "parts": {part: len([one for one in kept if one.part == part]) for part in PARTS},
        "sources": _sources(curation),
        "licences": ranked(one.sample.licence or "not stated" for one in kept),
        "difficulties": ranked(one.sample.difficulty or "not labelled" for one in kept),
        "families": ranked(one.sample.family or "not stated" for one in kept),
        "speedup": speedups(one.sample for one in kept),
    }


def checked(candidate: Candidate) -> str:
    """What is known of a kernel: "correct", or, of one that was kept as it is, what else its verdict says, or
    "not verified"."""
    verdict = candidate.sample.verdict
    return verdict.outcome if verdict is not None and verdict.outcome != "infra_error" else "not verified"


def _details(removed: Sequence[Removed]) -> dict[str, object]:
    """By source, the commonest reasons, and a few examples."""
    shown = [
        {"id": s.id, "name": s.name, "source": s.source, "origin": s.origin, "why": one.why}
        for one, s in ((one, one.candidate.sample) for one in removed[:EXAMPLES])
    ]
    reasons = [(why, count) for why, count in ranked(one.why for one in removed).items() if count > 1]
    return {
        "by_source": ranked(one.candidate.sample.source or "(none)" for one in removed),
        "reasons": dict(reasons[:EXAMPLES]),
        "examples": shown,
    }


def _sources(curation: Curation) -> dict[str, dict[str, int]]:
    rows_in = Counter(one.sample.source for one in curation.kept)
    kept = Counter(rows_in)
    rows_in.update(one.candidate.sample.source for one in curation.removed)
    return {source or "(none)": {"in": rows_in[source], "kept": kept[source]} for source in sorted(rows_in)}
