"""The glance as one HTML page: no script, no network, light or dark as the reader's machine is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from dice.data.audit.findings import KINDS
from dice.data.glance.stats import (
    PAPER_SHARES,
    Glance,
    Lengths,
    most_common,
    shares,
    worst_first,
)
from dice.data.highlight import as_html, runs
from dice.data.outcomes import BUCKETS
from dice.data.sample import Sample
from dice.data.sources import Report

TOP = 14  # families shown
_STYLE = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1f2328;--soft:#656d76;--line:#d8dee4;--card:#f6f8fa;--bar:#2f81f7;
--other:#9aa4af;--good:#1a7f37;--warn:#9a6700;--bad:#cf222e;--k:#cf222e;--t:#8250df;--f:#6639ba;--s:#0a3069;--n:#0550ae;
--c:#6e7781;--p:#953800}
@media(prefers-color-scheme:dark){:root{--bg:#0d1117;--fg:#e6edf3;--soft:#8d96a0;--line:#30363d;--card:#161b22;
--bar:#4493f8;--other:#6e7681;--good:#3fb950;--warn:#d29922;--bad:#f85149;--k:#ff7b72;--t:#d2a8ff;--f:#d2a8ff;
--s:#a5d6ff;--n:#79c0ff;--c:#8b949e;--p:#ffa657}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif}
main{max-width:1080px;margin:0 auto;padding:36px 20px 80px}
h1{font-size:26px;margin:0 0 4px;overflow-wrap:anywhere}h2{font-size:18px;margin:40px 0 12px}
p,.soft{color:var(--soft)}p{margin:4px 0 12px}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(130px,1fr));gap:12px;margin:22px 0}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px 16px}
.card b{display:block;font-size:24px;font-variant-numeric:tabular-nums}
.two{display:grid;grid-template-columns:repeat(auto-fit,minmax(320px,1fr));gap:8px 44px}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
.wide{overflow-x:auto}
th{text-align:left;font-weight:600;color:var(--soft);font-size:13px}
td,th{padding:6px 12px 6px 0;border-bottom:1px solid var(--line);vertical-align:top}
td.n,th.n{text-align:right}
.bars{display:grid;grid-template-columns:minmax(70px,auto) 1fr auto;gap:5px 12px;align-items:center}
.bars span{white-space:nowrap;overflow:hidden;text-overflow:ellipsis;max-width:220px}
.bars em{font-style:normal;color:var(--soft);font-variant-numeric:tabular-nums;text-align:right}
.track{position:relative;height:16px;background:var(--card);border-radius:4px}
.track div{height:100%;border-radius:4px;background:var(--bar);min-width:1px}
.track u{position:absolute;top:-3px;bottom:-3px;width:2px;background:var(--fg)}
.histograms{display:grid;grid-template-columns:repeat(auto-fit,minmax(300px,1fr));gap:20px 36px}
svg{display:block;width:100%;height:auto}svg rect{fill:var(--bar)}svg text{fill:var(--soft);font:10px system-ui}
svg line{stroke:var(--line)}
details{border:1px solid var(--line);border-radius:10px;margin:10px 0;overflow:hidden}
summary{cursor:pointer;padding:10px 14px;background:var(--card)}summary .soft{font-size:13px}
details details{border:0;border-top:1px solid var(--line);border-radius:0;margin:0}
details details summary{background:none;font-size:13px;color:var(--soft)}
pre{margin:0;padding:12px 16px;overflow-x:auto;font:12.5px/1.5 ui-monospace,monospace;tab-size:4}
pre.text{white-space:pre-wrap;overflow-wrap:anywhere}
i{font-style:normal}.K{color:var(--k)}.T{color:var(--t)}.F,.B{color:var(--f)}.S{color:var(--s)}
.N{color:var(--n)}.C{color:var(--c)}.M{color:var(--p)}
.good{color:var(--good)}.warn{color:var(--warn)}.bad{color:var(--bad)}
"""
_COLOURS = {"correct": "good", "": "good", "note": "soft", "warn": "warn", "reject": "bad"}


def to_page(title: str, glance: Glance, report: Report, tokenizer: str, shown: int) -> str:
    """`tokenizer` is the name of what lengths are counted with; `shown` how many of the samples drawn to show whole."""
    samples = [_sample(one, opened=number == 0) for number, one in enumerate(glance.drawn[:shown])]
    parts = [
        f"<h1>{escape(title)}</h1><p>{_head(glance, report)}</p>",
        _cards(glance),
        _section("Where it comes from", _sources(glance, report)),
        _section("What it holds", _holdings(glance)),
        _section("Lengths in tokens", _lengths(glance, tokenizer)),
        _section("Speed-up over eager PyTorch", _speedups(glance)),
        _section("Verdicts", _verdicts(glance)),
        _section("Audit of the problems", _audit(glance)),
        _section("Random samples", "".join(samples)),
    ]
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
    body = f"<main>{''.join(parts)}</main>"
    return (
        f'<!doctype html><html lang="en"><head>{head}<title>{escape(title)}</title><style>{_STYLE}</style></head>'
        f"<body>{body}</body></html>\n"
    )


def _section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>{content}</section>" if content else ""


def _head(glance: Glance, report: Report) -> str:
    dropped = report.rows - report.kept
    lost = f", {dropped:,} of {report.rows:,} rows could not be used" if dropped else ""
    twins = glance.samples - glance.distinct
    return f"{glance.samples:,} samples{lost}" + (f", {twins:,} repeat another one" if twins else "") + "."


def _cards(glance: Glance) -> str:
    numbers = {"pairs": glance.pairs, "problems alone": glance.problems, "kernels alone": glance.kernels}
    if glance.outcomes:
        numbers |= {"measured": glance.outcomes.total(), "correct": glance.outcomes["correct"]}
    cards = (f'<div class="card"><b>{count:,}</b>{name}</div>' for name, count in numbers.items() if count)
    return f'<div class="cards">{"".join(cards)}</div>'


def _sources(glance: Glance, report: Report) -> str:
    rows = []
    for (source, licence), count in glance.sources.most_common():
        counts = report.sources.get(source)
        dropped = counts.dropped.most_common() if counts else []
        remarks = counts.remarks.most_common() if counts else []
        notes = [f"{number:,} dropped: {reason}" for reason, number in dropped]
        notes += [f"{number:,} kept, but {reason}" for reason, number in remarks]
        stated = escape(licence) if licence else '<span class="warn">not stated</span>'
        text = "<br>".join(map(escape, notes))
        rows.append((escape(source) or "not stated", stated, f"{count:,}", f'<span class="soft">{text}</span>'))
    return _table(("source", "licence", "#samples", "rows that were lost or lessened"), rows)


def _holdings(glance: Glance) -> str:
    parts = []
    for title, counter in (("family", glance.families), ("difficulty", glance.difficulties)):
        if set(counter) - {""}:
            found = most_common(counter, TOP)
            largest = max(count for _, count in found)
            bars = ((name or "not stated", 100 * count / largest, f"{count:,}", None) for name, count in found)
            parts.append(f"<div><p>By {title}</p>{_bars(bars)}</div>")
    return f'<div class="two">{"".join(parts)}</div>' if parts else ""


def _lengths(glance: Glance, tokenizer: str) -> str:
    if not glance.lengths:
        return ""
    drawn = len(glance.drawn)
    who = f"{drawn:,} samples drawn at random" if drawn < glance.samples else "every sample"
    charts = "".join(f"<div>{_histogram(part, one)}</div>" for part, one in glance.lengths.items())
    return f'<p>By the tokenizer of {escape(tokenizer)}, of {who}.</p><div class="histograms">{charts}</div>'


def _histogram(part: str, lengths: Lengths) -> str:
    width, height, highest = 300, 64, max(lengths.bins.values())
    step = min(width / len(lengths.bins), 24)
    bars, labels = [], []
    every = -(-len(lengths.bins) // 7)
    for index, (edge, count) in enumerate(lengths.bins.items()):
        tall = max(height * count / highest, 1.0 if count else 0.0)
        tip = f"<title>{count} from {edge} tokens</title>"
        x = f"{index * step + 0.5:.1f}"
        bars.append(
            f'<rect x="{x}" y="{height - tall:.1f}" width="{step - 1:.1f}" height="{tall:.1f}" rx="1.5">{tip}</rect>'
        )
        if index % every == 0:
            labels.append(f'<text x="{x}" y="{height + 12}">{_short(edge)}</text>')
    line = f'<line x1="0" x2="{width}" y1="{height}" y2="{height}"/>'
    caption = f"median {lengths.median:,}, 90% below {lengths.p90:,}, longest {lengths.longest:,}"
    drawing = "".join((line, *bars, *labels))
    svg = f'<svg viewBox="0 0 {width} {height + 16}" role="img" aria-label="{part}">{drawing}</svg>'
    return f'<b>{part}</b> <span class="soft">{caption}</span>{svg}'


def _short(number: int) -> str:
    return str(number) if number < 1000 else f"{number / 1000:.2g}k" if number < 10_000 else f"{number // 1000}k"


def _speedups(glance: Glance) -> str:
    if not glance.speedups:
        return ""
    paper = dict(zip(BUCKETS, PAPER_SHARES, strict=True))
    found = shares(glance.speedups, BUCKETS)
    largest = max(*(share for _, _, share in found), *PAPER_SHARES)
    bars = (
        (name, 100 * share / largest, f"{count:,}, {share:.1f}%", 100 * paper[name] / largest)
        for name, count, share in found
    )
    text = f"{glance.speedups.total():,} correct pairs that were timed. The marks are the paper's Table 12 (cudaLLM)."
    return f"<p>{text}</p>{_bars(bars)}"


def _verdicts(glance: Glance) -> str:
    if not glance.outcomes:
        return ""
    rows = [_coloured(name, count) for name, count in glance.outcomes.most_common()]
    outcomes = _table(("outcome", "#samples"), rows)
    kinds = [(escape(name), f"{count:,}") for name, count in glance.deceptions.most_common()]
    deceptions = _table(("deception", "#samples"), kinds) if kinds else ""
    return f'<div class="two"><div>{outcomes}</div><div>{deceptions}</div></div>'


def _audit(glance: Glance) -> str:
    if not glance.audited:
        return ""
    worst = [_coloured(name, count, name or "nothing found") for name, count in worst_first(glance.severities)]
    flags = [(escape(name), KINDS[name], f"{count:,}") for name, count in glance.flags.most_common()]
    text = f"The audit knows the problems of {glance.audited:,} samples."
    left, right = _table(("worst", "#samples"), worst), _table(("finding", "meaning", "#samples"), flags)
    return f"<p>{text}</p>{left}<br>{right if flags else ''}"


def _coloured(name: str, count: int, label: str = "") -> tuple[str, str]:
    return f'<span class="{_COLOURS.get(name, "bad")}">{escape(label or name)}</span>', f"{count:,}"


def _sample(sample: Sample, opened: bool) -> str:
    facts = [sample.source, sample.origin, sample.family, sample.difficulty]
    if sample.verdict is not None:
        facts.append(sample.verdict.outcome)
    if sample.speedup is not None:
        facts.append(f"{sample.speedup:.2f}x")
    head = (
        f"<b>{escape(sample.name or sample.id)}</b> <span class='soft'>{escape(' / '.join(filter(None, facts)))}</span>"
    )
    parts = []
    for title, text, coloured in (
        ("problem", sample.problem, True),
        ("reasoning", sample.reasoning, False),
        ("kernel", sample.kernel, True),
        ("prompt", sample.prompt, False),
        ("response", sample.response if not sample.kernel else "", False),
    ):
        if text:
            code = f"<pre>{as_html(text, runs(text))}</pre>" if coloured else f'<pre class="text">{escape(text)}</pre>'
            parts.append(_details(title, code, coloured))
    return _details(head, "".join(parts), opened)


def _details(summary: str, content: str, opened: bool) -> str:
    return f"<details{' open' if opened else ''}><summary>{summary}</summary>{content}</details>"


def _bars(bars: Iterable[tuple[str, float, str, float | None]]) -> str:
    """(label, length in percent, text, where a mark is or None)."""
    rows = []
    for label, length, text, mark in bars:
        tick = "" if mark is None else f'<u style="left:{mark:.1f}%"></u>'
        track = f'<div class="track"><div style="width:{length:.1f}%"></div>{tick}</div>'
        rows.append(f"<span>{escape(label)}</span>{track}<em>{escape(text)}</em>")
    return f'<div class="bars">{"".join(rows)}</div>'


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """`#` before a heading: a column of numbers. Cells are HTML."""
    numeric = [name.startswith("#") for name in head]

    def line(cells: Sequence[str], tag: str) -> str:
        marks = [' class="n"' if number else "" for number in numeric]
        return "".join(f"<{tag}{mark}>{cell}</{tag}>" for cell, mark in zip(cells, marks, strict=True))

    lines = [line([name.removeprefix("#") for name in head], "th"), *(line(row, "td") for row in rows)]
    return f'<div class="wide"><table>{"".join(f"<tr>{one}</tr>" for one in lines)}</table></div>'
