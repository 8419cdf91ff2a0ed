"""`dice library`: the kernels that were verified for regions of modules: list them, export them, forget them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from dice.errors import UserError
from dice.files.atomic import write_json, write_text

if TYPE_CHECKING:
    from dice.optimize.library import Entry, Library


@dataclass
class LibraryCommand:
    """List, export or forget the kernels that `dice optimize` has verified.

    Example: dice library list
    """

    action: Annotated[Positional[Literal["list", "export", "forget"]], arg(metavar="list|export|forget")]
    """list: what there is; export: problems and kernels as files; forget: drop the kernels of a region, or all."""
    region: Annotated[Positional[str], arg(metavar="REGION")] = ""
    """The beginning of a region's key; with forget, "all" drops everything."""
    output: Annotated[Path | None, arg(aliases=["-o"])] = None
    """With export: the folder to write."""
    json: bool = False
    """Print one JSON object instead of text."""

    def run(self) -> int:
        from dice.optimize.library import Library

        library = Library()
        if self.action == "forget":
            return self._forget(library)
        entries = [entry for entry in library.entries() if entry.key.startswith(self.region)]
        if self.action == "export":
            return self._export(library, entries)
        rows = [
            {
                "region": entry.key,
                "title": entry.title,
                "kernel": entry.kernel.id,
                "writer": entry.writer,
                "backend": entry.verdict.backend,
                "device": entry.verdict.device,
                "speedup": entry.speedup,
            }
            for entry in entries
        ]
        if self.json:
            print(json.dumps({"library": str(library.path), "kernels": rows}))
            return 0
        for row in rows:
            speed = f"{row['speedup']:.2f}x" if row["speedup"] else "-"
            print(f"{row['region']}  {row['backend']:<8}  {speed:>6}  {row['writer']:<12}  {row['title']}")
        print(f"{len(rows)} kernels in {library.path}")
        return 0

    def _export(self, library: Library, entries: list[Entry]) -> int:
        if self.output is None:
            raise UserError("Give the folder to export to: dice library export -o FOLDER.")
        if not entries:
            raise UserError(
                f"The library has no kernel for a region {self.region}." if self.region else "The library is empty."
            )
        try:
            self.output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{self.output} cannot be written: {error.strerror}.") from None
        for entry in entries:
            folder = self.output / entry.key
            problem = library.problem(entry.key)
            if problem is not None:
                write_text(folder / "problem.py", problem.source)
            write_text(folder / f"kernel_{entry.kernel.id}.py", entry.kernel.source)
            write_json(folder / f"verdict_{entry.kernel.id}_{entry.verdict.backend}.json", entry.verdict.to_json())
        if self.json:
            print(json.dumps({"exported": len(entries), "folder": str(self.output)}))
        else:
            print(f"{len(entries)} kernels written to {self.output}")
        return 0

    def _forget(self, library: Library) -> int:
        if not self.region:
            raise UserError("Say what to forget: the beginning of a region's key, or all.")
        gone = library.forget("" if self.region == "all" else self.region)
        print(json.dumps({"forgotten": gone}) if self.json else f"{gone} kernels forgotten")
        return 0 if gone else 1
