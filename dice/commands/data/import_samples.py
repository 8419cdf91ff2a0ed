"""`dice data import`: data sets, published or one's own, into one file of samples."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.table import Table
from tyro.conf import Positional, arg

from dice.commands.arguments import at_least, spare
from dice.commands.progress import share_bar
from dice.errors import UserError
from dice.files import JsonObject
from dice.terminal import Console

if TYPE_CHECKING:
    from dice.data.sources import ImportReport


@dataclass
class Import:
    """Turn published data sets, or tables of your own, into one file of samples.

    Columns are told by their names, or by what they hold. Rows that cannot be used are counted with the reason.

    Example: dice data import my_pairs.jsonl -o samples.parquet --licence MIT
    """

    sources: Annotated[Positional[tuple[str, ...]], arg(metavar="SOURCE", help_behavior_hint="")] = ()
    """Files or folders (.parquet, .arrow, .jsonl, .json, task files), known sources, or ids on the Hugging Face hub."""
    output: Annotated[Path | None, arg(aliases=["-o"])] = None
    """The Parquet file to write."""
    source: str = ""
    """The known source that the files are from, where their names do not tell."""
    licence: str = ""
    """SPDX identifier of the rows' licence, for files of your own."""
    limit: int | None = None
    """Read at most this many rows."""
    list: bool = False
    """Show the known sources: id, licence, files, columns."""
    json: bool = False
    """Print the counts (or the list) as JSON."""

    def run(self) -> int:
        """0 when at least one row was kept, else 1."""
        if self.list:
            return _list(self.json)
        if not self.sources:
            raise UserError(
                "Give at least one SOURCE: a file, a folder, a known source (see --list) or an id on the hub."
            )
        if self.output is None:
            raise UserError("Say where the samples go: -o samples.parquet.")
        if self.output.suffix != ".parquet":
            raise UserError(f"{self.output} must be a .parquet file.")
        at_least(1, limit=self.limit)
        from dice.data.sample import write_samples
        from dice.data.sources import ImportReport, read, resolve

        inputs = resolve(self.sources, self.source, self.licence)
        spare((one.file for one in inputs), self.output)
        report, notes = ImportReport(), JsonObject()

        def samples() -> Iterator[Any]:
            with share_bar("importing") as show:
                yield from read(inputs, report, self.limit, show)
            if not report.rows:
                raise UserError(f"There are no rows in {', '.join(self.sources)}.")
            notes["import"] = report.to_json()["sources"]

        write_samples(self.output, samples(), notes)
        if self.json:
            print(json.dumps(report.to_json() | {"output": str(self.output)}))
        else:
            _show(Console(), report, self)
        return 0 if report.kept else 1


def _list(as_json: bool) -> int:
    from dice.data.sources import SOURCES

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


def _show(console: Console, report: ImportReport, args: Import) -> None:
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
