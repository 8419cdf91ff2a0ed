"""`dice data import`: data sets, published or one's own, into one file of samples."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from dice.commands.arguments import at_least, spare
from dice.data.sources import SOURCES, Report, read, resolve
from dice.data.sources.reader import Progress as Show
from dice.errors import UserError
from dice.terminal import Console

if TYPE_CHECKING:
    from dice.cli_data import Import


def run(args: Import) -> int:
    """0 when at least one row was kept, else 1."""
    if args.list:
        return _list(args.json)
    if not args.sources:
        raise UserError("Give at least one SOURCE: a file, a folder, a known source (see --list) or an id on the hub.")
    if args.output is None:
        raise UserError("Say where the samples go: -o samples.parquet.")
    if args.output.suffix != ".parquet":
        raise UserError(f"{args.output} must be a .parquet file.")
    at_least(1, limit=args.limit)
    from dice.data.sample import write_samples

    inputs = resolve(args.sources, args.source, args.licence)
    spare((one.file for one in inputs), args.output)
    report, notes = Report(), dict[str, Any]()

    def samples() -> Iterator[Any]:
        with showing("importing") as show:
            yield from read(inputs, report, args.limit, show)
        if not report.rows:
            raise UserError(f"There are no rows in {', '.join(args.sources)}.")
        notes["import"] = report.to_json()["sources"]

    write_samples(args.output, samples(), notes)
    if args.json:
        print(json.dumps(report.to_json() | {"output": str(args.output)}))
    else:
        _show(Console(), report, args)
    return 0 if report.kept else 1


@contextmanager
def showing(what: str) -> Iterator[Show]:
    """A bar on stderr over the bytes to read, with the rows read each second and the time left."""
    columns = (
        TextColumn(what, markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
    )
    with Progress(*columns, TimeRemainingColumn(), console=Console(file=sys.stderr)) as bar:
        task = bar.add_task(what, total=1.0, rate="")

        def show(share: float, rows: int) -> None:
            elapsed = bar.tasks[task].elapsed or 0.0
            rate = f"{rows} rows, {rows / elapsed:.0f}/s" if elapsed > 0.5 else f"{rows} rows"
            bar.update(task, completed=share, rate=rate)

        yield show


def _list(as_json: bool) -> int:
    if as_json:
        rows = []
        for one in SOURCES.values():
            columns = {role: list(one.names(role)) for role in ("problem", "kernel", "prompt", "response", "messages")}
            head = {"name": one.name, "hub": one.hub, "licence": one.licence, "files": list(one.files)}
            rows.append(head | {"about": one.about, "columns": columns})
        print(json.dumps(rows))
        return 0
    table = Table("source", "licence", "on the hub", "what", "columns looked for first", show_lines=True)
    for one in SOURCES.values():
        files = "\n".join((one.hub or "not there", *one.files))
        roles = ("problem", "kernel", "prompt", "response")
        names = "\n".join(f"{role}: {', '.join(one.names(role)[:2])}" for role in roles)
        table.add_row(one.name, one.licence or "not stated", files, one.about, names)
    console = Console()
    console.print(table)
    console.print("Columns under other names are told by what they hold.")
    return 0


def _show(console: Console, report: Report, args: Import) -> None:
    table = Table("source", "licence", "rows", "pairs", "problems alone", "kernels alone", "dropped")
    for name, counts in report.sources.items():
        numbers = (counts.rows, counts.pairs, counts.problems, counts.kernels, counts.dropped.total())
        table.add_row(name or "not stated", counts.licence or "not stated", *map(str, numbers))
    console.print(table)
    for name, counts in report.sources.items():
        for what, reasons in (("dropped", counts.dropped), ("kept, but", counts.remarks)):
            for reason, count in reasons.most_common():
                console.print(f"{name}: {count} {what}: {reason}", soft_wrap=True)
    console.print(f"{report.kept} of {report.rows} rows written to {args.output}", soft_wrap=True)
