"""Which files a path stands for: a table, a task file, or a folder of either."""

from __future__ import annotations

from pathlib import Path

from dice.errors import UserError
from dice.files.bounded import check_file
from dice.files.tables import SUFFIXES
from dice.problem import problem_files

# What libraries and our own commands write beside the rows of a data set.
_BESIDE = frozenset({"dataset_info.json", "dataset_infos.json", "state.json", "corpus.json", "report.json"})


def is_table(file: Path) -> bool:
    return file.suffix in SUFFIXES and file.name not in _BESIDE and not file.name.startswith(".")


def files_of(path: Path) -> list[Path]:
    """The files to read for a path, in order.

    Of a folder: its task files if there are any, else its tables. Of a synthetic corpus only the training pairs: the
    others are there to test on. Raises `UserError`.
    """
    if not path.exists():
        raise UserError(f"There is no file or folder {path}.")
    tables = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
    if not path.is_dir():
        if path.suffix in (*SUFFIXES, ".py"):
            check_file(path)
            return [path]
        raise UserError(f"{path} is no set of problems or pairs: give a folder, or a .py, {tables} file.")
    below = path / "train" if (path / "corpus.json").is_file() else path
    tasks = [file for file in problem_files(path) if file.name != "__init__.py"]  # in KernelBench's order
    found = tasks or sorted(filter(is_table, below.rglob("*")))
    if not found:
        raise UserError(f"There is no problem in {path}: neither a task file (.py) nor a {tables} file.")
    return found
