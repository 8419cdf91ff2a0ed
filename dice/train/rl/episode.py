"""`Episode`: one response of one step, from the prompt to its advantage; and the Parquet files that keep them all."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dice.decode.trace import Trace
from dice.errors import UserError
from dice.files import JsonObject
from dice.files.atomic import write_parquet
from dice.kernel import Kernel
from dice.problem import Problem
from dice.train.rl.config import Stage
from dice.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Episode:
    """The prompt's ids are in the trace. `kernel` is None where the response held none.

    `reward` is None where the verdict says nothing about the kernel, `advantage` also where the group's rewards were
    all equal: neither was trained on.
    """

    step: int
    stage: Stage
    group: int
    sample: int
    problem: Problem
    trace: Trace
    kernel: Kernel | None
    verdict: Verdict
    reward: float | None
    advantage: float | None


_SCHEMA = pa.schema(
    [
        ("step", pa.int32()), ("stage", pa.string()), ("group", pa.int32()), ("sample", pa.int32()),
        ("name", pa.string()), ("outcome", pa.string()), ("reward", pa.float64()), ("advantage", pa.float64()),
        ("problem", pa.string()), ("kernel", pa.string()), ("verdict", pa.string()), ("trace", pa.string()),
    ]
)  # fmt: skip
_PLAIN = ("step", "stage", "group", "sample", "reward", "advantage")


def write_episodes(folder: Path, step: int, episodes: Iterable[Episode]) -> Path:
    """`folder/step-00000012.parquet`, whole or not at all. `problem`, `verdict` and `trace` are JSON text."""
    path = folder / f"step-{step:08d}.parquet"
    write_parquet(path, pa.Table.from_pylist([_row(episode) for episode in episodes], schema=_SCHEMA))
    return path


def read_episodes(path: Path) -> Iterator[Episode]:
    """The episodes of one file, or of all of a run's folder in the order of their steps. Raises `UserError`."""
    files = sorted(path.glob("step-*.parquet")) if path.is_dir() else [path]
    for file in files:
        try:
            batches = pq.ParquetFile(file).iter_batches(batch_size=256, columns=_SCHEMA.names)
            for batch in batches:
                yield from map(_episode, batch.to_pylist())
        except (pa.ArrowException, OSError, KeyError) as error:
            raise UserError(f"{file} holds no episodes: {str(error).splitlines()[0]}.") from None


def _row(episode: Episode) -> dict[str, object]:
    return {name: getattr(episode, name) for name in _PLAIN} | {
        "name": episode.problem.name,
        "outcome": episode.verdict.outcome,
        "problem": json.dumps(episode.problem.to_json()),
        "kernel": None if episode.kernel is None else episode.kernel.source,
        "verdict": json.dumps(asdict(episode.verdict)),
        "trace": json.dumps(episode.trace.to_json(compact=True)),
    }


def _episode(row: JsonObject) -> Episode:
    return Episode(
        **{name: row[name] for name in _PLAIN},
        problem=Problem.from_json(json.loads(row["problem"])),
        trace=Trace.from_json(json.loads(row["trace"])),
        kernel=None if row["kernel"] is None else Kernel(row["kernel"]),
        verdict=Verdict.from_json(json.loads(row["verdict"])),
    )
