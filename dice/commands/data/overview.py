"""`dice data inspect SET`: a data set at a glance, in the terminal and as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from dice.commands.progress import share_bar
from dice.data.outcomes import BUCKETS
from dice.data.overview.stats import PAPER_SHARES, Lengths, Overview, gather, most_common, shares, worst_first
from dice.data.sample import Sample
from dice.data.sources import ImportReport, Input, read
from dice.errors import UserError
from dice.files.atomic import write_text
from dice.terminal import Console
from dice.verify.audit.findings import KINDS, Audit

if TYPE_CHECKING:
    from dice.commands.data.inspect import Inspect

TOP = 12  # families shown
WIDTH = 22  # cells of the longest bar
LINES = 40  # of a sample's text in the terminal
SPARKS = " \u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"


def show(args: Inspect, inputs: Sequence[Input], audits: Mapping[str, Audit]) -> dict[str, Any]:
    """Show the set; with `--json` nothing is printed. Returns the JSON form. `audits` is by the problem's id."""
    from dice.data.overview.page import to_page
    from dice.model.checkpoint import resolve_model
    from dice.model.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_folder(resolve_model(args.tokenizer))
    report = ImportReport()
    with share_bar("reading") as progress:
        glance = gather(read(inputs, report, progress=progress), tokenizer.encode, audits, args.seed)
    if not report.rows:
        raise UserError(f"There are no rows in {', '.join(map(str, args.paths))}.")
    if args.html is not None:
        title = ", ".join(path.name for path in args.paths)
        _write(args.html, to_page(title, glance, report, args.tokenizer, args.show))
    if not args.json:
        _show(Console(), args, glance, report)
    return glance.to_json() | {"rows": report.to_json()}


def _write(path: Path, text: str) -> None:
    if path.is_dir():
        raise UserError(f"{path} is a folder; give --html the name of a page.")
    write_text(path, text)


def _show(console: Console, args: Inspect, glance: Overview, report: ImportReport) -> None:
    for sample in glance.drawn[: args.show]:  # first, so that the numbers are what is left on the screen
        console.print(_panel(sample))
    for part in (_sources(glance, report), *_holdings(glance), _lengths(glance, args.tokenizer), *_measured(glance)):
        if part is not None and part.row_count:
            console.print(part)
    kinds = {"pairs": glance.pairs, "problems alone": glance.problems, "kernels alone": glance.kernels}
    named = ", ".join(f"{count} {name}" for name, count in kinds.items() if count)
    console.print(f"{glance.samples} samples ({named}), {glance.samples - glance.distinct} repeat another one")
    if args.html is not None:
        console.print(f"page written to {args.html}", soft_wrap=True)


def _panel(sample: Sample) -> Panel:
    facts = " / ".join(filter(None, (sample.source, sample.origin, sample.family, sample.difficulty)))
    parts: list[Text | Syntax] = []
    for title, text in (("problem", sample.problem), ("kernel", sample.kernel)):
        lines = text.split("\n")
        if text:
            left = f", {len(lines) - LINES} more lines" if len(lines) > LINES else ""
            parts += [
                Text(f"{title}{left}", style="dim"),
                Syntax("\n".join(lines[:LINES]), "python", theme="ansi_dark"),
            ]
    return Panel(Group(*parts), title=Text(f"{sample.name or sample.id}: {facts}"))


def _sources(glance: Overview, report: ImportReport) -> Table:
    table = Table("source", "licence", "samples", "rows that were lost or lessened")
    for (source, licence), count in glance.sources.most_common():
        counts = report.sources.get(source)
        notes = [f"{number} dropped: {reason}" for reason, number in counts.dropped.most_common()] if counts else []
        notes += [f"{number} kept, but {reason}" for reason, number in counts.remarks.most_common()] if counts else []
        table.add_row(source, licence or "not stated", str(count), "\n".join(notes))
    return table


def _holdings(glance: Overview) -> list[Table]:
    tables = []
    for title, counter in (("family", glance.families), ("difficulty", glance.difficulties)):
        if set(counter) - {""}:
            table = Table(title, "samples", "")
            found = most_common(counter, TOP)
            largest = max(count for _, count in found)
            for name, count in found:
                table.add_row(name or "not stated", str(count), _bar(count / largest))
            tables.append(table)
    return tables


def _lengths(glance: Overview, tokenizer: str) -> Table | None:
    if not glance.lengths:
        return None
    drawn = f"{len(glance.drawn)} random samples" if len(glance.drawn) < glance.samples else "every sample"
    table = Table("tokens", "median", "90%", "longest", "", title=f"lengths by the tokenizer of {tokenizer}, {drawn}")
    for part, one in glance.lengths.items():
        table.add_row(part, str(one.median), str(one.p90), str(one.longest), _spark(one))
    return table


def _measured(glance: Overview) -> list[Table]:
    tables = []
    if glance.speedups:
        table = Table("speed-up over eager", "samples", "%", "Table 12, %", "", title="correct pairs that were timed")
        found = shares(glance.speedups, BUCKETS)
        largest = max(share for _, _, share in found)
        for (name, count, share), paper in zip(found, PAPER_SHARES, strict=True):
            table.add_row(name, str(count), f"{share:.1f}", f"{paper:.1f}", _bar(share / largest))
        tables.append(table)
    for title, counter in (("outcome", glance.outcomes), ("deception", glance.deceptions)):
        table = Table(title, "samples")
        for name, count in counter.most_common():
            table.add_row(name, str(count))
        tables.append(table)
    if glance.audited:
        worst = ", ".join(f"{count} {name or 'without findings'}" for name, count in worst_first(glance.severities))
        table = Table("finding", "meaning", "samples", title=f"audit, {glance.audited} samples: {worst}")
        for name, count in glance.flags.most_common():
            table.add_row(name, KINDS[name], str(count))
        tables.append(table)
    return tables


def _bar(share: float) -> str:
    return "\u2588" * max(1, round(WIDTH * share)) if share > 0 else ""


def _spark(lengths: Lengths) -> str:
    highest = max(lengths.bins.values())
    return "".join(SPARKS[-(-count * (len(SPARKS) - 1) // highest)] for count in lengths.bins.values())
