"""Read data sets: every row becomes a `Sample` or is counted with the reason why not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path

from dice.data.sample import Sample, is_sample_file, read_samples
from dice.data.sources.catalogue import NAMES, OWN, SOURCES, Source, find_source
from dice.data.sources.columns import SAMPLED, detect, lookup
from dice.data.sources.convert import Unusable, convert, usable_problem
from dice.data.sources.files import files_of
from dice.data.sources.hub import fetch, looks_like_id, named_sources
from dice.errors import UserError
from dice.files.tables import Row, read_rows
from dice.problem import Problem

LEVEL = re.compile("[0-9]{1,9}")
Progress = Callable[[float, int], None]  # the share of all bytes, the rows read


@dataclass(slots=True)
class Counts:
    """What became of the rows of one data set: `rows == kept + dropped`, each dropped one under its reason."""

    rows: int = 0
    pairs: int = 0  # problem and kernel
    problems: int = 0  # a problem alone
    kernels: int = 0  # a kernel whose problem is not known
    dropped: Counter[str] = field(default_factory=Counter)
    remarks: Counter[str] = field(default_factory=Counter)  # of rows that were kept, but not whole
    licence: str = ""

    @property
    def kept(self) -> int:
        return self.pairs + self.problems + self.kernels

    def keep(self, sample: Sample, remark: str = "") -> None:
        if sample.problem and sample.kernel:
            self.pairs += 1
        if not sample.kernel:
            self.problems += 1
        if not sample.problem:
            self.kernels += 1
        if remark:
            self.remarks[remark] += 1

    def to_json(self) -> dict[str, object]:
        numbers = {name: getattr(self, name) for name in ("rows", "kept", "pairs", "problems", "kernels", "licence")}
        return numbers | {"dropped": dict(self.dropped.most_common()), "remarks": dict(self.remarks.most_common())}


@dataclass(slots=True)
class ImportReport:
    """Counts by data set, and which column of each file was taken for what."""

    sources: dict[str, Counts] = field(default_factory=dict)
    columns: dict[str, dict[str, str]] = field(default_factory=dict)

    def of(self, source: str, licence: str) -> Counts:
        return self.sources.setdefault(source, Counts(licence=licence))

    @property
    def rows(self) -> int:
        return sum(counts.rows for counts in self.sources.values())

    @property
    def kept(self) -> int:
        return sum(counts.kept for counts in self.sources.values())

    def to_json(self) -> dict[str, object]:
        parts = {name: counts.to_json() for name, counts in self.sources.items()}
        return {"rows": self.rows, "kept": self.kept, "sources": parts, "columns": self.columns}


@dataclass(frozen=True, slots=True)
class Input:
    """One file, and the data set that it is part of."""

    file: Path
    source: Source
    licence: str


def resolve(texts: Sequence[str], source: str = "", licence: str = "") -> list[Input]:
    """The files behind paths, names of known sets and ids on the hub, in order.

    A local file belongs to the set `source`, or to the known set that its path tells of, or is one's own. Raises
    `UserError`, or `MachineError` where the hub is needed and cannot be reached.
    """
    if source and source not in SOURCES and source != OWN.name:
        raise UserError(f"There is no source {source}; the known ones are {', '.join(SOURCES)}.")
    chosen = OWN if source == OWN.name else SOURCES.get(source)
    found: list[Input] = []
    for text in texts:
        path = Path(text).expanduser()
        if not path.exists() and (named_sources(text) or looks_like_id(text)):
            for one in fetch(text):
                found += [Input(file, chosen or one.source, licence or one.licence) for file in one.files]
            continue
        for file in files_of(path):
            one_source = chosen or find_source(file)
            found.append(Input(file, one_source, licence or one_source.licence))
    return found


def read(
    inputs: Sequence[Input], report: ImportReport, limit: int | None = None, progress: Progress | None = None
) -> Iterator[Sample]:
    """The samples of the files, in order, from at most `limit` rows; `report` is complete when the last was taken.

    Raises `UserError` for a file that cannot be read, and for one of which no column can be used.
    """
    sizes = [max(1, one.file.stat().st_size) for one in inputs]
    before = 0
    for one, size in zip(inputs, sizes, strict=True):

        def show(share: float, before: int = before, size: int = size) -> None:
            if progress is not None:
                progress((before + share * size) / sum(sizes), report.rows)

        left = None if limit is None else limit - report.rows
        if left is None or left > 0:
            yield from _read_file(one, report, left, show)
            show(1.0)
        before += size


def _read_file(one: Input, report: ImportReport, left: int | None, show: Callable[[float], None]) -> Iterator[Sample]:
    if one.file.suffix == ".py":
        yield from _task_file(one, report)
    elif is_sample_file(one.file):
        for sample in islice(read_samples(one.file), left):
            counts = report.of(sample.source, sample.licence)
            counts.rows += 1
            counts.keep(sample)
            yield sample
    else:
        yield from _table(one, report, left, show)


def _task_file(one: Input, report: ImportReport) -> Iterator[Sample]:
    counts = report.of(one.source.name, one.licence)
    counts.rows += 1
    problem = Problem.from_file(one.file, check=False)
    source, flaw = usable_problem(problem.source)
    if flaw:
        counts.dropped[flaw] += 1
        return
    sample = Sample(
        source,
        name=problem.name,
        source=one.source.name,
        origin=f"{one.file.parent.name}/{one.file.name}",
        licence=one.licence,
        difficulty=one.source.difficulty.get(str(problem.level), ""),
        meta={} if problem.level is None else {"level": problem.level},
    )
    counts.keep(sample)
    yield sample


def _table(one: Input, report: ImportReport, left: int | None, show: Callable[[float], None]) -> Iterator[Sample]:
    rows = islice(read_rows(one.file, progress=show), left)
    first = list(islice(rows, SAMPLED))
    if not first:
        return
    found = detect([row.values for row in first], one.source)
    if not found.usable:
        raise UserError(f"Nothing in {one.file} can be used: {found.missing()}.")
    report.columns[str(one.file)] = dict(found.layout)
    counts = report.of(one.source.name, one.licence)
    for row in chain(first, rows):
        counts.rows += 1
        try:
            converted = convert(row, found.layout, one.source, one.licence)
        except Unusable as reason:
            counts.dropped[str(reason)] += 1
            continue
        counts.keep(converted.sample, converted.remark)
        yield converted.sample


def holds_kernels(one: Input) -> bool:
    """Whether the first rows of a file hold kernels or answers, and not problems alone."""
    if one.file.suffix == ".py":
        return False
    if is_sample_file(one.file):
        return any(sample.kernel for sample in islice(read_samples(one.file), SAMPLED))
    rows = [row.values for row in islice(read_rows(one.file), SAMPLED)]
    layout = detect(rows, one.source).layout
    paths = [layout[role] for role in ("kernel", "response", "messages", "middle") if role in layout]
    return any(lookup(row, path) for row in rows for path in paths)


def read_problems(paths: Sequence[Path], column: str = "") -> list[Problem]:
    """Every problem of the paths, in order, unchecked: a problem that is broken is for the audit to report.

    A path is a task file, a table, or a folder of either. The source text of a table is in `column`, by default the
    first of the usual names (`NAMES["problem"]`) that the row has. Raises `UserError` in one sentence.
    """
    problems: list[Problem] = []
    for file in (file for path in paths for file in files_of(path)):
        if file.suffix == ".py":
            problems.append(Problem.from_file(file, check=False))
        elif is_sample_file(file) and not column:
            problems += (sample.as_problem() for sample in read_samples(file) if sample.problem)
        else:
            problems += (_problem_of(row, column) for row in read_rows(file))
    if not problems:
        raise UserError(f"There is no problem in {', '.join(map(str, paths))}.")
    return problems


def _problem_of(row: Row, column: str) -> Problem:
    names = (column,) if column else NAMES["problem"]
    found = next((value for value in (lookup(row.values, name) for name in names) if value is not None), None)
    if found is None:
        wanted = f"column `{column}`" if column else f"column of source text ({', '.join(names)})"
        raise UserError(f"{row.where}, has no {wanted}; its columns are: {', '.join(map(str, row.values)) or 'none'}.")
    if not isinstance(found, str):
        raise UserError(f"{row.where}, holds no text where its problem should be.")
    name = next((str(one) for one in (lookup(row.values, key) for key in NAMES["name"]) if one is not None), "")
    level = str(next((one for one in (lookup(row.values, key) for key in NAMES["level"]) if one is not None), ""))
    digits = level.removeprefix("level")
    return Problem(found, name or f"{row.file.stem} {row.number}", int(digits) if LEVEL.fullmatch(digits) else None)
