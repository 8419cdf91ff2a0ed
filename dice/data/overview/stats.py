"""The numbers of a data set, gathered in one pass over its samples."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dice.data.outcomes import BUCKETS, bucket
from dice.data.sample import Sample
from dice.verify.audit.findings import SEVERITIES, Audit

# Speed-up over eager PyTorch in the paper's Table 12: its shares (%) of the cudaLLM SFT set, by `outcomes.BUCKETS`.
PAPER_SHARES = (14.0, 52.0, 18.0, 6.9, 3.5, 5.6)
PARTS = ("problem", "prompt", "reasoning", "kernel", "response")
RESERVOIR = 1000  # samples drawn at random: their lengths in tokens are measured, and some of them shown
STEPS_PER_DOUBLING = 4  # bins of a length histogram between one length and twice that length

Encode = Callable[[str], Sequence[int]]


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of one part of the samples drawn."""

    count: int
    median: int
    p90: int
    longest: int
    bins: Mapping[int, int]  # lower edge -> samples; empty bins between are there

    @classmethod
    def of(cls, values: Sequence[int]) -> Lengths:
        ordered = sorted(values)
        steps = [_step(value) for value in ordered]
        counts = Counter(steps)
        bins = {_edge(step): counts[step] for step in range(steps[0], steps[-1] + 1)}
        at = len(ordered) - 1
        return cls(len(ordered), ordered[at // 2], ordered[round(0.9 * at)], ordered[-1], bins)


@dataclass(slots=True)
class Overview:
    """What `gather` found. Counters are by value; "" stands for what the set does not say."""

    seed: int = 0
    samples: int = 0
    distinct: int = 0
    pairs: int = 0
    problems: int = 0  # alone
    kernels: int = 0  # alone
    sources: Counter[tuple[str, str]] = field(default_factory=Counter)  # (source, licence)
    families: Counter[str] = field(default_factory=Counter)
    difficulties: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    deceptions: Counter[str] = field(default_factory=Counter)
    speedups: Counter[str] = field(default_factory=Counter)  # by `BUCKETS`
    audited: int = 0  # samples whose problem the audit knows
    severities: Counter[str] = field(default_factory=Counter)  # of those
    flags: Counter[str] = field(default_factory=Counter)
    drawn: list[Sample] = field(default_factory=list)
    lengths: dict[str, Lengths] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        sources = [{"source": name, "licence": licence, "samples": n} for (name, licence), n in self.sources.items()]
        simple = ("samples", "distinct", "pairs", "problems", "kernels", "audited")
        counters = ("families", "difficulties", "outcomes", "deceptions", "severities", "flags")
        lengths = {
            part: {"samples": one.count, "median": one.median, "p90": one.p90, "longest": one.longest}
            for part, one in self.lengths.items()
        }
        return (
            {name: getattr(self, name) for name in simple}
            | {"sources": sources}
            | {name: dict(getattr(self, name).most_common()) for name in counters}
            | {"speedups": {name: self.speedups[name] for name in BUCKETS} if self.speedups else {}, "tokens": lengths}
        )


def gather(
    samples: Iterable[Sample], encode: Encode, audits: Mapping[str, Audit] | None = None, seed: int = 0
) -> Overview:
    """Look at every sample once. `audits` is by the id of the problem; `seed` decides which samples are drawn."""
    overview, rng, ids = Overview(seed), random.Random(seed), set[str]()
    for sample in samples:
        _count(overview, sample, audits or {})
        ids.add(sample.id)
        place = rng.randrange(overview.samples)  # reservoir sampling: every sample so far is as likely to stay
        if len(overview.drawn) < RESERVOIR:
            overview.drawn.insert(place, sample)
        elif place < RESERVOIR:
            overview.drawn[place] = sample
    overview.distinct = len(ids)
    for part in PARTS:
        texts = [text for text in (getattr(sample, part) for sample in overview.drawn) if text]
        if texts:
            overview.lengths[part] = Lengths.of([len(encode(text)) for text in texts])
    return overview


def _count(overview: Overview, sample: Sample, audits: Mapping[str, Audit]) -> None:
    overview.samples += 1
    if sample.problem and sample.kernel:
        overview.pairs += 1
    if not sample.kernel:
        overview.problems += 1
    if not sample.problem:
        overview.kernels += 1
    overview.sources[sample.source, sample.licence] += 1
    overview.families[sample.family] += 1
    overview.difficulties[sample.difficulty] += 1
    if sample.verdict is not None:
        overview.outcomes[sample.verdict.outcome] += 1
        overview.deceptions.update(set(sample.verdict.deceptions))
    if sample.speedup is not None:
        overview.speedups[bucket(sample.speedup)] += 1
    audit = audits.get(sample.as_problem().id) if sample.problem and audits else None
    if audit is not None:
        overview.audited += 1
        overview.severities[audit.severity] += 1
        overview.flags.update(audit.kinds())


def shares(counter: Mapping[str, int], names: Sequence[str]) -> list[tuple[str, int, float]]:
    """(name, count, percent) for each of `names`."""
    total = max(1, sum(counter.values()))
    return [(name, counter.get(name, 0), 100 * counter.get(name, 0) / total) for name in names]


def most_common(counter: Counter[str], top: int, rest: str = "others") -> list[tuple[str, int]]:
    """The `top` largest, and what is left in one line."""
    found = counter.most_common()
    others = sum(count for _, count in found[top:])
    return [*found[:top], (rest, others)] if others else found


def worst_first(severities: Mapping[str, int]) -> list[tuple[str, int]]:
    return [(name, severities[name]) for name in (*SEVERITIES, "") if severities.get(name)]


def _step(tokens: int) -> int:
    return math.floor(STEPS_PER_DOUBLING * math.log2(max(1, tokens)) + 1e-9)


def _edge(step: int) -> int:
    return math.ceil(2 ** (step / STEPS_PER_DOUBLING) - 1e-9)
