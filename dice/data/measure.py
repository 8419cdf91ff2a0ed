"""Measure pairs: each with its problem through the verifier, kept with its verdict. Resumable, sharded over machines.

Layout of the output folder, for shard 2 of 8:

    2of8.json             what was asked; a run resumes only what was asked the same way
    2of8-00000.parquet    samples with verdicts in the order of their ids, each file written whole or not at all
    2of8.verdicts.sqlite  verdicts as they come, so that a killed run loses none
    report.json           of all shards that lie in the folder

A sample that our own machinery failed on (`infra_error`) is written without a verdict and tried again by the next run.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from dice.data.outcomes import describe
from dice.data.sample import Sample, is_sample_file, read_samples, read_sets, write_samples
from dice.data.sources import ImportReport, read, resolve
from dice.errors import MachineError, UserError
from dice.files import JsonObject
from dice.files.atomic import read_json, write_json
from dice.files.journal import held
from dice.verdict import Verdict
from dice.verify import Options, Verifier

FILE_ROWS = 256  # samples of one file: what a killed run has to write again at most
SLOW_S = 15.0  # of running one emulated pair; those of a size made for the emulator take about one
OFFER_SCALE = (
    "These problems are large for the emulator; --scale 0.1 checks each at a tenth of its batch, in seconds,"
    " and another --out is needed for it."
)
UNMEASURED = "unmeasured"  # key of `Sample.meta` under which stands why our machinery failed on it
Progress = Callable[[int, int], None]  # pairs with a verdict, pairs in all


@dataclass(frozen=True, slots=True)
class Shard:
    """Which part of the samples: `number` of `count`, by their ids, so that machines need not talk to each other."""

    number: int = 1
    count: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count:
            raise UserError(f"There is no shard {self.number}/{self.count}: the first of eight is 1/8, the last 8/8.")

    @classmethod
    def parse(cls, text: str) -> Shard:
        number, slash, count = text.partition("/")
        if not (slash and number.isdecimal() and count.isdecimal()):
            raise UserError(f"A shard is written as 2/8, not {text!r}.")
        return cls(int(number), int(count))

    def holds(self, sample: Sample) -> bool:
        return int(sample.id, 16) % self.count == self.number - 1

    def __str__(self) -> str:
        return f"{self.number}of{self.count}"


def measure(
    paths: Sequence[Path],
    out: Path,
    *,
    shard: Shard = Shard(),  # noqa: B008 - frozen
    backend: str = "auto",
    options: Options | None = None,
    workers: int | None = None,
    devices: Sequence[str] | None = None,
    make_verifier: Callable[..., Verifier] | None = None,
    file_rows: int = FILE_ROWS,
    progress: Progress = lambda done, total: None,
    advise: Callable[[str], None] = lambda sentence: None,
) -> JsonObject:
    """Measure the samples of files and folders, and return the report on all of `out`.

    Files are what `dice data import` writes, or anything else that it reads, such as what `dice data synth` wrote.
    `advise` is told once, as soon as it shows, that the pairs are too large to be emulated in good time.
    Raises `UserError` when `out` holds another measurement, `MachineError` when the backend cannot run here or most
    pairs could not be measured.
    """
    options = options or Options()
    samples = sorted(filter(shard.holds, chain.from_iterable(map(_samples_of, paths))), key=_order)
    out.mkdir(parents=True, exist_ok=True)
    cache = out / f"{shard}.verdicts.sqlite"
    with held(out / f"{shard}.lock", f"Another run is measuring this shard into {out}."):
        with (make_verifier or Verifier)(backend=backend, options=options, devices=devices, cache=cache) as verifier:
            _check_request(out / f"{shard}.json", samples, file_rows, verifier.backend, options)
            shelf = _Shelf(out, str(shard), samples, file_rows)
            progress(shelf.done, shelf.total)
            advised = verifier.backend != "emulated" or options.scale is not None
            for verdict in _verdicts(verifier, shelf, workers):
                progress(shelf.done, shelf.total)
                if not advised and _is_slow(verdict):
                    advise(OFFER_SCALE)
                    advised = True
        report = report_on(out)
        write_json(out / "report.json", report)
    if 2 * shelf.failed > shelf.total:
        raise MachineError(f"Most pairs could not be measured here: {next(iter(report['unmeasured_because']))}")
    return report


def _samples_of(path: Path) -> Iterator[Sample]:
    """The samples of a file or folder, read as `dice data import` would where they are not samples yet."""
    if path.is_dir() and any(map(is_sample_file, path.glob("*.parquet"))) or is_sample_file(path):
        yield from read_sets([path])
    else:
        yield from read(resolve([str(path)]), ImportReport())


def _is_slow(verdict: Verdict) -> bool:
    """Whether a pair is too large to be emulated: refused for it, or long at it."""
    too_large = verdict.outcome == "unsupported" and "--scale" in verdict.message
    return too_large or verdict.seconds.get("run", 0.0) + verdict.seconds.get("reference", 0.0) > SLOW_S


def _verdicts(verifier: Verifier, shelf: _Shelf, workers: int | None) -> Iterator[Verdict]:
    """Each verdict that was missing goes on the shelf as it comes."""
    missing = shelf.missing
    pairs = [(shelf.samples[number].as_problem(), shelf.samples[number].as_kernel()) for number in missing]
    with closing(verifier.verify_many(pairs, workers)) as verdicts:
        for position, verdict in verdicts:
            shelf.put(missing[position], verdict)
            yield verdict


def report_on(folder: Path) -> JsonObject:
    """The report on every measured file of a folder, whichever machine wrote it."""
    unmeasured: dict[str, int] = defaultdict(int)
    samples: list[Sample] = []
    for path in sorted(folder.glob("*of*-*.parquet")):
        for sample in read_samples(path):
            samples.append(sample)
            if UNMEASURED in sample.meta:
                unmeasured[sample.meta[UNMEASURED]] += 1
    return describe(samples) | {"unmeasured_because": dict(sorted(unmeasured.items()))}


def require_complete(folder: Path) -> None:
    """Raises `UserError` for a folder whose measuring has not ended, or that lacks shards. Files by name are not held
    to this, and a sample that could not be measured is no gap."""
    requests = [path for path in sorted(folder.glob("*.json")) if re.fullmatch(r"\d+of\d+", path.stem)]
    asked = {path.stem: read_json(path) for path in requests}
    for stem, request in asked.items():
        rows = sum(pq.read_metadata(path).num_rows for path in folder.glob(f"{stem}-*.parquet"))
        if rows != request["samples"]:
            left = f"{rows} of the {request['samples']} samples of shard {stem.replace('of', '/')} are done"
            raise UserError(f"Measuring into {folder} has not ended: {left}. Run it again, or name the files to use.")
    present = {tuple(map(int, stem.split("of"))) for stem in asked}
    for _, count in sorted(present):
        for number in range(1, count + 1):
            if (number, count) not in present:
                raise UserError(f"{folder} lacks shard {number}/{count}. Add its files, or name the files to use.")


class _Shelf:
    """The samples of a shard in files of `rows` samples; a file is written when all its pairs were tried."""

    def __init__(self, out: Path, stem: str, samples: list[Sample], rows: int):
        self.samples = samples
        self.failed = 0  # tried, and our own machinery failed
        self._out, self._stem, self._rows = out, stem, rows
        self._open: dict[int, set[int]] = {}  # file -> its samples without a verdict
        for leftover in out.glob(f"{stem}-*.tmp"):  # of a run that was killed while writing
            leftover.unlink()
        for file, start in enumerate(range(0, max(1, len(samples)), rows)):
            self._take_up(file, range(start, min(start + rows, len(samples))))
        self.total = sum(map(_is_pair, samples))

    @property
    def missing(self) -> list[int]:
        return sorted(number for numbers in self._open.values() for number in numbers)

    @property
    def done(self) -> int:
        return self.total - sum(map(len, self._open.values()))

    def put(self, number: int, verdict: Any) -> None:
        sample = self.samples[number]
        if verdict.outcome == "infra_error":
            self.failed += 1
            self.samples[number] = _without_verdict(sample, verdict.message)
        else:
            self.samples[number] = _without_verdict(sample).measured(verdict)
        file = number // self._rows
        self._open[file].discard(number)
        if not self._open[file]:
            self._write(file)

    def _take_up(self, file: int, numbers: range) -> None:
        """What an earlier run wrote, and what is still to do."""
        path = self._path(file)
        if path.exists():
            self.samples[numbers.start : numbers.stop] = read_samples(path)
        else:
            self.samples[numbers.start : numbers.stop] = [_without_verdict(self.samples[number]) for number in numbers]
        todo = {n for n in numbers if _is_pair(self.samples[n]) and self.samples[n].verdict is None}
        self._open[file] = todo
        if not todo and not path.exists():
            self._write(file)

    def _write(self, file: int) -> None:
        write_samples(self._path(file), self.samples[file * self._rows : (file + 1) * self._rows])

    def _path(self, file: int) -> Path:
        return self._out / f"{self._stem}-{file:05d}.parquet"


def _is_pair(sample: Sample) -> bool:
    return bool(sample.problem and sample.kernel)


def _without_verdict(sample: Sample, why: str = "") -> Sample:
    meta = {key: value for key, value in sample.meta.items() if key != UNMEASURED}
    return replace(sample, verdict=None, meta=meta | ({UNMEASURED: why} if why else {}))


def _order(sample: Sample) -> tuple[str, str, str]:
    return sample.id, sample.source, sample.origin


def _check_request(path: Path, samples: Sequence[Sample], rows: int, backend: str, options: Options) -> None:
    """Raises `UserError` where the folder holds something else under the shard's name."""
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(repr(_without_verdict(sample)).encode("utf-8", "replace"))
    asked = {key: value for key, value in asdict(options).items() if key != "cache_dir"}
    counts = {"samples": len(samples), "file_rows": rows}
    wanted: JsonObject = counts | {"digest": digest.hexdigest()[:16], "backend": backend}
    wanted["options"] = json.loads(json.dumps(asked))
    if path.exists():
        present = read_json(path)
        changed = [key for key in wanted if present.get(key) != wanted[key]]
        if "options" in changed and isinstance(present.get("options"), dict):
            changed.remove("options")
            then, now = present["options"], wanted["options"]
            changed += [key for key in sorted({*then, *now}) if then.get(key) != now.get(key)]
        if changed:
            raise UserError(
                f"{path.parent} holds a measurement with other {', '.join(changed)}; choose another folder."
            )
    write_json(path, wanted)
