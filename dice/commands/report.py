"""`dice report RUN...`: what runs came to, as tables, figures and a page; or one problem of them."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from dice.data.whole import write_text
from dice.errors import UserError
from dice.evaluate.report import Report, case, gather, printing
from dice.evaluate.report.tables import all_tables
from dice.terminal import Console

if TYPE_CHECKING:
    from dice.cli import Report as Arguments

SUFFIX = {"markdown": "report.md", "latex": "report.tex", "html": "report.html"}


def run(args: Arguments) -> int:
    if args.case is not None:
        return _case(args, args.case)
    if not args.runs:
        raise UserError("Give at least one RUN folder, or --case deceptive for the shipped samples.")
    report = gather(args.runs, args.protocol)
    if not args.references:
        report = report.without_references()
    if args.json:
        print(json.dumps(report.to_json()))
    if args.output is not None:
        write_all(report, args.output, args.format)
    elif not args.json:
        _print(report, args.format)
    return 0


def _print(report: Report, form: str) -> None:
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


def _case(args: Arguments, problem: str) -> int:
    """One problem of the runs, or the shipped deceptive samples."""
    if problem == case.DECEPTIVE and not args.runs:
        title, cases = "Deceptive kernels", case.shipped_cases()
    elif args.runs:
        title, cases = problem, case.cases_of(gather(args.runs, args.protocol), problem)
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
