"""`dice data structural`: write the structural problems, or say what there is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from rich.table import Table
from tyro.conf import arg

from dice.errors import UserError
from dice.files import JsonObject
from dice.terminal import Console


@dataclass
class Structural:
    """Write the structural problems: building blocks of mainstream language models, at several of their dimensions.

    Example: dice data structural --out structural
    """

    out: Annotated[Path | None, arg(aliases=["-o"])] = None
    """Folder for a file per problem, structural.parquet and index.json."""
    scale: Literal["full", "reduced"] = "full"
    """full: dimensions worth a GPU; reduced: the same text with small ones, for a CPU."""
    family: str = ""
    """Only the problems that mirror this model family, such as "Llama 3"."""
    list: bool = False
    """Print what there is, and write nothing unless --out is given."""
    json: bool = False
    """Print the index as JSON."""

    def run(self) -> int:
        from dice.data.structural.build import samples, summarise, write

        if self.out is None and not self.list:
            raise UserError("Give --out, a folder for the problems, or --list.")
        problems = samples(self.scale, self.family)
        index = summarise(problems) if self.out is None else write(self.out, problems)
        if self.json:
            print(json.dumps(index))
            return 0
        if self.list:
            _show(index)
        print(
            f"{index['problems']} problems of {index['structures']} structures, {len(index['families'])} model families"
        )
        if self.out is not None:
            print(f"written to {self.out}; counts in {self.out / 'index.json'}")
        return 0


def _show(index: JsonObject) -> None:
    kinds = Table("kind", "problems", "structures")
    for kind, count in index["kinds"].items():
        structures = sorted({entry["structure"] for entry in index["index"] if entry["kind"] == kind})
        kinds.add_row(kind, str(count), ", ".join(structures))
    families = ", ".join(f"{family} ({count})" for family, count in index["families"].items())
    console = Console()
    console.print(kinds)
    console.print(f"families: {families}", highlight=False)
