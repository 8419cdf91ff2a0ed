"""The overview as one HTML page (`page.html`): no script, no network, light or dark as the reader's machine is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from dice.data.outcomes import BUCKETS
from dice.data.overview.stats import PAPER_SHARES, Lengths, Overview, most_common, shares, worst_first
from dice.data.sample import Sample
from dice.data.sources import ImportReport
from dice.files.highlight import as_html, runs
from dice.files.templates import render
from dice.verify.audit.findings import KINDS

TEMPLATE = Path(__file__).parent / "page.html"
TOP = 14  # families shown
WIDTH, HEIGHT, WIDEST_BAR = 300, 64, 24  # of a histogram, in units of its drawing
LABELS = 7  # of a histogram's bars at most, so that they do not touch
COLOURS = {"correct": "good", "": "good", "note": "soft", "warn": "warn", "reject": "bad"}  # of others: "bad"


@dataclass(frozen=True, slots=True)
class Bar:
    """`length` and `mark` (of a value to compare with, None without one) are in percent of the longest."""

    label: str
    length: float
    text: str
    mark: float | None = None


@dataclass(frozen=True, slots=True)
class HistogramBar:
    x: float
    width: float
    height: float
    edge: int
    count: int
    label: str  # below the bar; "" where there is no room


@dataclass(frozen=True, slots=True)
class Histogram:
    part: str
    lengths: Lengths
    bars: tuple[HistogramBar, ...]
    width: int = WIDTH
    height: int = HEIGHT


def to_page(title: str, overview: Overview, report: ImportReport, tokenizer: str, shown: int) -> str:
    """`tokenizer` is the name of what lengths are counted with; `shown` how many of the samples drawn to show whole."""
    drawn = len(overview.drawn)
    return render(
        TEMPLATE,
        title=title,
        overview=overview,
        rows=report.rows,
        dropped=report.rows - report.kept,
        repeated=overview.samples - overview.distinct,
        cards=_cards(overview),
        sources=list(_sources(overview, report)),
        holdings=list(_holdings(overview)),
        tokenizer=tokenizer,
        measured=f"{drawn:,} samples drawn at random" if drawn < overview.samples else "every sample",
        histograms=[_histogram(part, lengths) for part, lengths in overview.lengths.items()],
        speedups=_speedups(overview),
        severities=worst_first(overview.severities),
        colours=COLOURS,
        meanings=KINDS,
        shown=[_sample(one) for one in overview.drawn[:shown]],
    )


def _cards(overview: Overview) -> list[tuple[str, int]]:
    numbers = {"pairs": overview.pairs, "problems alone": overview.problems, "kernels alone": overview.kernels}
    if overview.outcomes:
        numbers |= {"measured": overview.outcomes.total(), "correct": overview.outcomes["correct"]}
    return [(name, count) for name, count in numbers.items() if count]


def _sources(overview: Overview, report: ImportReport) -> Iterator[dict[str, object]]:
    for (source, licence), count in overview.sources.most_common():
        counts = report.sources.get(source)
        dropped = counts.dropped.most_common() if counts else []
        remarks = counts.remarks.most_common() if counts else []
        notes = [f"{number:,} dropped: {reason}" for reason, number in dropped]
        notes += [f"{number:,} kept, but {reason}" for reason, number in remarks]
        yield {"name": source, "licence": licence, "count": count, "notes": notes}


def _holdings(overview: Overview) -> Iterator[tuple[str, list[Bar]]]:
    for title, counter in (("family", overview.families), ("difficulty", overview.difficulties)):
        if set(counter) - {""}:
            found = most_common(counter, TOP)
            largest = max(count for _, count in found)
            yield title, [Bar(name or "not stated", 100 * count / largest, f"{count:,}") for name, count in found]


def _histogram(part: str, lengths: Lengths) -> Histogram:
    step, highest = min(WIDTH / len(lengths.bins), WIDEST_BAR), max(lengths.bins.values())
    every = -(-len(lengths.bins) // LABELS)  # one label for so many bars
    bars = tuple(
        HistogramBar(
            x=index * step + 0.5,
            width=step - 1,
            height=max(HEIGHT * count / highest, 1.0) if count else 0.0,
            edge=edge,
            count=count,
            label="" if index % every else _short(edge),
        )
        for index, (edge, count) in enumerate(lengths.bins.items())
    )
    return Histogram(part, lengths, bars)


def _short(number: int) -> str:
    return str(number) if number < 1000 else f"{number / 1000:.2g}k" if number < 10_000 else f"{number // 1000}k"


def _speedups(overview: Overview) -> list[Bar]:
    if not overview.speedups:
        return []
    paper = dict(zip(BUCKETS, PAPER_SHARES, strict=True))
    found = shares(overview.speedups, BUCKETS)
    largest = max(*(share for _, _, share in found), *PAPER_SHARES)
    return [
        Bar(name, 100 * share / largest, f"{count:,}, {share:.1f}%", 100 * paper[name] / largest)
        for name, count, share in found
    ]


def _sample(sample: Sample) -> dict[str, object]:
    facts = [sample.source, sample.origin, sample.family, sample.difficulty]
    if sample.verdict is not None:
        facts.append(sample.verdict.outcome)
    if sample.speedup is not None:
        facts.append(f"{sample.speedup:.2f}x")
    code = [("problem", sample.problem), ("kernel", sample.kernel)]
    styled = {title: Markup(as_html(text, runs(text))) for title, text in code if text}  # escaped by `as_html`
    plain = {"reasoning": sample.reasoning, "prompt": sample.prompt}
    plain["response"] = sample.response if not sample.kernel else ""
    texts = [
        {"title": title, "opened": title in styled, "html": styled.get(title), "plain": plain.get(title)}
        for title in ("problem", "reasoning", "kernel", "prompt", "response")
        if title in styled or plain.get(title)
    ]
    return {"name": sample.name or sample.id, "facts": " / ".join(filter(None, facts)), "texts": texts}
