"""Every structural problem at a scale, and the folder that holds them: files, `structural.parquet`, `index.json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dice.data.sample import Sample, write_samples
from dice.data.structural.catalogue import STRUCTURES
from dice.data.structural.structure import Scale
from dice.errors import UserError
from dice.files import JsonObject
from dice.files.atomic import write_json, write_text

SOURCE, LICENCE = "structural", "Apache-2.0"


def samples(scale: Scale = "full", family: str = "") -> list[Sample]:
    """The problems in the order of their names, all or those of one model family.

    Raises `UserError` when no structure mirrors that family.
    """
    found = [
        Sample(
            problem=structure.source(variant, scale),
            name=structure.name(variant),
            source=SOURCE,
            origin=structure.main,
            licence=LICENCE,
            family=variant.mirror.family,
            difficulty=structure.difficulty,
            meta={
                "kind": structure.kind,
                "mirrors": variant.mirror.model,
                "part": variant.mirror.part,
                "scale": scale,
                "sizes": structure.sizes(variant, scale),
            },
        )
        for structure in STRUCTURES
        for variant in structure.variants
    ]
    known = sorted({sample.family for sample in found})
    wanted = family.casefold()
    if wanted and wanted not in map(str.casefold, known):
        raise UserError(f"There is no family {family}; there are {', '.join(known)}.")
    kept = [sample for sample in found if not wanted or sample.family.casefold() == wanted]
    return sorted(kept, key=lambda sample: sample.name)


def write(out: Path, problems: Sequence[Sample]) -> JsonObject:
    """Write the set to a folder, each file whole or not at all, and give the index. A second run changes nothing.

    Raises `UserError` where the folder holds Python files that are not of the set.
    """
    names = {f"{problem.name}.py" for problem in problems}
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; --out names a folder.")
    strange = next((path.name for path in sorted(out.glob("*.py")) if path.name not in names), None)
    if strange is not None:
        raise UserError(f"{out} holds {strange}, which is not of this set; give an empty folder.")
    out.mkdir(parents=True, exist_ok=True)
    for problem in problems:
        write_text(out / f"{problem.name}.py", problem.problem)
    write_samples(out / "structural.parquet", problems)
    index = summarise(problems)
    write_json(out / "index.json", index)
    return index


def summarise(problems: Sequence[Sample]) -> JsonObject:
    """Counts by kind, family and difficulty, and one entry per problem."""
    return {
        "problems": len(problems),
        "structures": len({problem.origin for problem in problems}),
        "kinds": _count(problem.meta["kind"] for problem in problems),
        "families": _count(problem.family for problem in problems),
        "difficulties": _count(problem.difficulty for problem in problems),
        "index": [_entry(problem) for problem in problems],
    }


def _entry(problem: Sample) -> dict[str, object]:
    return {
        "name": problem.name,
        "file": f"{problem.name}.py",
        "id": problem.as_problem().id,
        "structure": problem.origin,
        "family": problem.family,
        "difficulty": problem.difficulty,
        **problem.meta,
    }


def _count(values: Any) -> dict[str, int]:
    return dict(sorted(Counter(values).items()))
