"""The RL sets as files, each as Parquet and as JSON in the form of the paper's released ones.

    kernel_infilling.{parquet,json}   id, level, pytorch_code, cuda_code, prefix, middle, suffix
    kernel_generation.{parquet,json}  idx, level, pytorch_code, cuda_code ("")
    report.json                       how many rows were left out and why

The Parquet files have the name, source, origin, licence and sample of every row besides.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from dice.data.rl.build import Infilling
from dice.data.rl.ranking import Ranked
from dice.files import JsonObject
from dice.files.atomic import write_json, write_parquet

INFILLING = ("id", "level", "pytorch_code", "cuda_code", "prefix", "middle", "suffix")
GENERATION = ("idx", "level", "pytorch_code", "cuda_code")
MORE = ("difficulty", "score", "sample", "name", "source", "origin", "licence")
_NUMBERS = {"id": pa.int64(), "idx": pa.int64(), "score": pa.float64()}


def write(infilling: Sequence[Infilling], generation: Sequence[Ranked], report: JsonObject, out: Path) -> None:
    """Write both sets and the report below `out`: the same bytes for the same sets."""
    _write(out / "kernel_infilling", [_infilling(n, one) for n, one in enumerate(infilling)], INFILLING)
    _write(out / "kernel_generation", [_generation(n, one) for n, one in enumerate(generation)], GENERATION)
    write_json(out / "report.json", report)


def _infilling(number: int, one: Infilling) -> dict[str, object]:
    parts = one.parts
    texts = {"prefix": parts.prefix, "middle": parts.core, "suffix": parts.suffix}
    return _common(one.ranked) | texts | {"id": number, "cuda_code": one.ranked.sample.kernel}


def _generation(number: int, one: Ranked) -> dict[str, object]:
    return _common(one) | {"idx": number, "cuda_code": ""}


def _common(one: Ranked) -> dict[str, object]:
    sample = one.sample
    known = {"difficulty": one.level, "score": one.score, "sample": sample.id, "pytorch_code": sample.problem}
    provenance = {"name": sample.name, "source": sample.source, "origin": sample.origin, "licence": sample.licence}
    return known | provenance | {"level": str(one.number)}


def _write(base: Path, rows: Sequence[JsonObject], columns: Sequence[str]) -> None:
    schema = pa.schema([(name, _NUMBERS.get(name, pa.string())) for name in (*columns, *MORE)])
    write_parquet(base.with_suffix(".parquet"), pa.Table.from_pylist(list(rows), schema=schema))
    write_json(base.with_suffix(".json"), [{name: row[name] for name in columns} for row in rows])
