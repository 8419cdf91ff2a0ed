"""`dice data structural`: write the structural problems, or say what there is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rich.table import Table

from dice.data.structural.build import samples, summarise, write
from dice.errors import UserError
from dice.terminal import Console

if TYPE_CHECKING:
    from dice.cli_data import Structural


def run(args: Structural) -> int:
    if args.out is None and not args.list:
        raise UserError("Give --out, a folder for the problems, or --list.")
    problems = samples(args.scale, args.family)
    index = summarise(problems) if args.out is None else write(args.out, problems)
    if args.json:
        print(json.dumps(index))
        return 0
    if args.list:
        _show(index)
    print(f"{index['problems']} problems of {index['structures']} structures, {len(index['families'])} model families")
    if args.out is not None:
        print(f"written to {args.out}; counts in {args.out / 'index.json'}")
    return 0


def _show(index: dict[str, Any]) -> None:
    kinds = Table("kind", "problems", "structures")
    for kind, count in index["kinds"].items():
        structures = sorted({entry["structure"] for entry in index["index"] if entry["kind"] == kind})
        kinds.add_row(kind, str(count), ", ".join(structures))
    families = ", ".join(f"{family} ({count})" for family, count in index["families"].items())
    console = Console()
    console.print(kinds)
    console.print(f"families: {families}", highlight=False)
