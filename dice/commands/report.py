"""`dice report RUN...`: what runs came to, as tables, figures and a page; or one problem of them."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from dice.commands.arguments import Protocol, Replaced
from dice.errors import UserError
from dice.files.atomic import write_text
from dice.terminal import Console

if TYPE_CHECKING:
    from dice.evaluate.report import Report

SUFFIX = {"markdown": "report.md", "latex": "report.tex", "html": "report.html"}


@dataclass
class ReportCommand:
    """Show what runs of `dice eval` came to: tables, figures, one page; or one problem of them.

    Example: dice report run -o report
    """

    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN...", help_behavior_hint="")] = ()
    """Folders that dice eval wrote. The first is what the others are compared with."""
    output: Annotated[Path | None, arg(aliases=["-o"])] = None
    """Folder to write to: every format and figure, or the one of --format. Without it the report is printed."""
    protocol: tuple[Protocol, ...] = ()
    """Only these, the strictest first (default: all that judged anything)."""
    replaced: Replaced = "any"
    """What counts as solved: a right kernel for any part of the reference, or for all of its operators."""
    format: Literal["terminal", "markdown", "latex", "html"] = "terminal"
    case: str | None = None
    """Show one problem instead, by its name: reference, kernel, verdicts, time against the roofline, trace. "deceptive"
    without a run shows the shipped samples of deceptive kernels."""
    table: Literal[4, 5, 6, 7, 9, 11] | None = None
    """Show this table of the paper instead, the RUNs' own rows with their intervals above the published ones."""
    references: bool = True
    """Show the problems' own code beside the kernels. Without it the page can be passed on where problems may not."""
    json: bool = False
    """Print one JSON object instead of text."""

    def run(self) -> int:
        if self.case is not None:
            return _case(self, self.case)
        if self.table is not None:
            return _paper_table(self, self.table)
        if not self.runs:
            raise UserError("Give at least one RUN folder, or --case deceptive for the shipped samples.")
        from dice.evaluate.report import gather

        report = gather(self.runs, self.protocol, self.replaced)
        if not self.references:
            report = report.without_references()
        if self.json:
            print(json.dumps(report.to_json()))
        if self.output is not None:
            write_all(report, self.output, self.format)
        elif not self.json:
            _print(report, self.format)
        return 0


def _print(report: Report, form: str) -> None:
    from dice.evaluate.report import printing
    from dice.evaluate.report.tables import all_tables

    if form == "terminal":
        console = Console()
        for table in all_tables(report):
            if console.is_terminal and table.key.startswith("failures_by_stage"):
                continue  # the causes below say the stage
            printing.show(console, table)
    else:
        sys.stdout.write(_text(report, form))


def _text(report: Report, form: str) -> str:
    if form == "html":
        from dice.evaluate.report.page import render

        return render(report)
    from dice.evaluate.report import printing
    from dice.evaluate.report.tables import all_tables

    write = printing.latex if form == "latex" else printing.markdown
    return "\n".join(write(table) for table in all_tables(report))


def write_all(report: Report, folder: Path, form: str = "terminal") -> None:
    """Every format and figure, or the one format that was asked for."""
    from dice.evaluate.report.figures import draw_all, save

    folder.mkdir(parents=True, exist_ok=True)
    for name, file in SUFFIX.items():
        if form in (name, "terminal"):
            _write(folder / file, _text(report, name))
    if form == "terminal":
        _write(folder / "report.json", json.dumps(report.to_json(), indent=1) + "\n")
        for path in save(draw_all(report), folder / "figures"):
            print(f"wrote {path}", file=sys.stderr)


def _write(path: Path, text: str) -> None:
    write_text(path, text)
    print(f"wrote {path}", file=sys.stderr)


def _paper_table(args: ReportCommand, number: int) -> int:
    """One table of the paper, beside runs where there are any."""
    from dice.evaluate.report import gather, printing
    from dice.evaluate.report.tables import paper_table

    if args.format == "html":
        raise UserError("A table of the paper is printed for a terminal, as Markdown or as LaTeX.")
    table = paper_table(number, gather(args.runs, args.protocol, args.replaced) if args.runs else None)
    form = "markdown" if args.format == "terminal" and args.output is not None else args.format
    if args.json:
        names = [name for name, _ in table.columns]
        print(json.dumps({"title": table.title, "rows": [dict(zip(names, row, strict=True)) for row in table.rows]}))
    elif form == "terminal":
        printing.show(Console(), table)
    else:
        text = (printing.latex if form == "latex" else printing.markdown)(table)
        if args.output is None:
            sys.stdout.write(text)
        else:
            _write(args.output / SUFFIX[form].replace("report", f"table_{number}"), text)
    return 0


def _case(args: ReportCommand, problem: str) -> int:
    """One problem of the runs, or the shipped deceptive samples."""
    from dice.evaluate.report import case, gather

    if problem == case.DECEPTIVE and not args.runs:
        title, cases = "Deceptive kernels", case.shipped_cases()
    elif args.runs:
        title, cases = problem, case.cases_of(gather(args.runs, args.protocol, args.replaced), problem)
    else:
        raise UserError("Give the RUN folder that the problem was answered in, or --case deceptive alone.")
    if args.json:
        print(json.dumps({"cases": [asdict(one) for one in cases]}))
    elif args.format == "terminal" and args.output is None:
        console = Console()
        for one in cases:
            case.show(console, one)
    else:
        form = "html" if args.format == "terminal" else args.format
        text = (
            case.html(cases, title) if form == "html" else {"markdown": case.markdown, "latex": case.latex}[form](cases)
        )
        if args.output is None:
            sys.stdout.write(text)
        else:
            _write(args.output / SUFFIX[form].replace("report", "case"), text)
    return 0
