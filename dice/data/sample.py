"""`Sample`: one row of a data set on its way to training, and the Parquet files that hold such rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dice.errors import UserError
from dice.files.atomic import replacing
from dice.files.bounded import check_file, parse_json
from dice.kernel import Kernel
from dice.problem import Problem
from dice.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Sample:
    """A problem, usually with a kernel and the text that led to it, with where it comes from and what was measured.

    Texts are kept as published. `""` means that the source has none: `kernel` of a problem alone, `problem` of a
    pair whose prompt held none that could be found, `licence` where none is stated.
    """

    problem: str = ""  # PyTorch source: Model, get_inputs, get_init_inputs
    kernel: str = ""  # Python source that defines ModelNew
    prompt: str = ""  # as published
    response: str = ""  # as published: reasoning and kernel
    reasoning: str = ""  # the part of the response before its kernel
    name: str = ""
    source: str = ""  # the adapter that read it, see dice/data/sources
    origin: str = ""  # where in the source: file and row
    licence: str = ""  # SPDX identifier
    family: str = ""  # operator family or model family, where known
    difficulty: str = ""  # "single" | "fusion" | "model"
    verdict: Verdict | None = None  # as measured here, with timings
    meta: dict[str, Any] = field(default_factory=dict)  # what else the source says, e.g. its own speed-up

    @property
    def id(self) -> str:
        """Of the texts alone: equal samples of two sources have equal ids."""
        return sha256("\0".join((self.problem, self.kernel, self.response)).encode("utf-8", "replace")).hexdigest()[:16]

    @property
    def speedup(self) -> float | None:
        """Over eager PyTorch; None where it was not measured or the kernel is not correct."""
        verdict = self.verdict
        return verdict.timing.speedup if verdict and verdict.correct and verdict.timing else None

    def as_problem(self) -> Problem:
        return Problem(self.problem, name=self.name or self.id, difficulty=self.difficulty or None)

    def as_kernel(self) -> Kernel:
        return Kernel(self.kernel, name=self.name or self.id)

    def measured(self, verdict: Verdict) -> Sample:
        return replace(self, verdict=verdict)


GROUP = 1024  # samples of one row group of a Parquet file

_SCHEMA = pa.schema([(one.name, pa.string()) for one in fields(Sample)])


def write_samples(path: Path, samples: Iterable[Sample], notes: dict[str, Any] | None = None) -> None:
    """Write a Parquet file whole or not at all; `verdict` and `meta` are JSON text. `notes` go into its metadata.

    Samples are taken and written a group at a time; `notes` are read after the last, so that they may count them.
    """
    rest = iter(samples)
    with replacing(path) as temporary, pq.ParquetWriter(temporary, _SCHEMA, compression="zstd") as writer:
        while group := [_row(sample) for sample in islice(rest, GROUP)]:
            writer.write_table(pa.Table.from_pylist(group, schema=_SCHEMA))
        writer.add_key_value_metadata({"dice": json.dumps(notes or {}, sort_keys=True)})


def read_samples(path: Path) -> Iterator[Sample]:
    """The samples of a file that `write_samples` wrote. Raises `UserError` for any other file."""
    check_file(path)
    try:
        with pq.ParquetFile(path) as file:
            missing = [name for name in _SCHEMA.names if name not in file.schema_arrow.names]
            if missing:
                raise UserError(f"{path} holds no samples of ours: it lacks the columns {', '.join(missing)}.")
            for batch in file.iter_batches(batch_size=256, columns=_SCHEMA.names):
                yield from map(_sample, batch.to_pylist())
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path} cannot be read as parquet: {str(error).splitlines()[0].rstrip('.')}.") from None
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise UserError(f"{path} holds a row that is no sample of ours: {error}.") from None


def is_sample_file(path: Path) -> bool:
    """Whether `write_samples` may have written it: Parquet with our columns."""
    try:
        return path.suffix == ".parquet" and path.is_file() and set(_SCHEMA.names) <= set(pq.read_schema(path).names)
    except (pa.ArrowException, OSError):
        return False


def read_sets(paths: Sequence[Path]) -> Iterator[Sample]:
    """The samples of several files, and of all Parquet files directly in folders, in name order. Raises `UserError`."""
    for path in paths:
        yield from (sample for file in sample_files(path) for sample in read_samples(file))


def sample_files(path: Path) -> list[Path]:
    """The file itself, or the Parquet files of a folder. Raises `UserError` where there is none."""
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not files:
        raise UserError(f"The folder {path} holds no .parquet file.")
    return files


def _row(sample: Sample) -> dict[str, str]:
    row = {one.name: getattr(sample, one.name) for one in fields(Sample)}
    verdict = "" if sample.verdict is None else json.dumps(asdict(sample.verdict), sort_keys=True)
    return row | {"verdict": verdict, "meta": json.dumps(sample.meta, sort_keys=True)}


def _sample(row: dict[str, str]) -> Sample:
    """Raises `ValueError` or `TypeError` for what `_row` did not write."""
    for name, value in row.items():
        if not isinstance(value, str):
            raise TypeError(f"its {name} is not text")
    verdict = Verdict.from_json(parse_json(row["verdict"])) if row["verdict"] else None
    return Sample(**row | {"verdict": verdict, "meta": parse_json(row["meta"])})  # type: ignore[arg-type]
