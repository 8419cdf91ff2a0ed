"""Where problems come from: task files, folders of them, and tables with a source column."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dice.errors import UserError
from dice.problem import Problem, problem_files

COLUMNS = ("problem", "pytorch_code", "code")  # the first that a table has
NAMES = ("name", "id", "problem_id", "task_id", "uuid")
TABLES = (".parquet", ".jsonl", ".json")


def read_problems(paths: Sequence[Path], column: str = "") -> list[Problem]:
    """Every problem of the paths, in order, unchecked: a problem that is broken is for the audit to report.

    A path is a task file, a folder with task files anywhere below it, or a table (`.parquet`, `.json`, `.jsonl`) whose
    source text is in `column`, by default the first of `COLUMNS` that it has. Raises `UserError` in one sentence.
    """
    problems = [problem for path in paths for problem in _read(path, column)]
    if not problems:
        raise UserError(f"There is no problem in {', '.join(map(str, paths))}.")
    return problems


def _read(path: Path, column: str) -> Iterator[Problem]:
    if not path.exists():
        raise UserError(f"There is no file or folder {path}.")
    if path.is_dir():
        files = [file for file in problem_files(path) if file.name != "__init__.py"]
        yield from (Problem.from_file(file, check=False) for file in files)
    elif path.suffix == ".py":
        yield Problem.from_file(path, check=False)
    elif path.suffix in TABLES:
        for number, row in enumerate(_rows(path), start=1):
            yield _problem(row, path, number, column)
    else:
        raise UserError(f"{path} is no set of problems: give a folder, or a .py, .parquet, .json or .jsonl file.")


def _rows(path: Path) -> Iterator[Any]:
    if path.suffix == ".parquet":
        yield from _parquet_rows(path)
        return
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".jsonl":
            yield from (json.loads(line) for line in text.split("\n") if line.strip())
            return
        value = json.loads(text)
    except ValueError as error:
        raise UserError(f"{path} cannot be read as {path.suffix[1:]}: {str(error).splitlines()[0]}.") from None
    if isinstance(value, dict) and all(isinstance(row, dict) for row in value.values()):
        value = [{"name": name} | row for name, row in value.items()]
    if not isinstance(value, list):
        raise UserError(f"{path} must hold a list of problems, or an object of them by name.")
    yield from value


def _parquet_rows(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        for batch in pq.ParquetFile(path).iter_batches():
            yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path} cannot be read as parquet: {str(error).splitlines()[0]}.") from None


def _problem(row: Any, path: Path, number: int, column: str) -> Problem:
    where = f"{path}, row {number},"
    if not isinstance(row, dict):
        raise UserError(f"{where} is not an object with named columns.")
    found = column or next((name for name in COLUMNS if name in row), "")
    if not found or found not in row:
        wanted = f"column `{column}`" if column else f"column of source text ({', '.join(COLUMNS)})"
        raise UserError(f"{where} has no {wanted}; its columns are: {', '.join(map(str, row)) or 'none'}.")
    if not isinstance(row[found], str):
        raise UserError(f"{where} holds no text in `{found}`.")
    name = next((str(row[key]) for key in NAMES if row.get(key) is not None), f"{path.stem} {number}")
    level = row.get("level")
    digits = str(level).removeprefix("level") if level is not None else ""
    return Problem(row[found], name=name, level=int(digits) if digits.isdigit() else None)
