"""`Problem`: a PyTorch module to replace, in KernelBench's form."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from dice import syntax
from dice.errors import UserError
from dice.files import JsonObject
from dice.files.bounded import LONGEST_SOURCE, read_text

REQUIRED_FUNCTIONS = ("get_inputs", "get_init_inputs")


def not_a_list(function: str, kind: str) -> str:
    """What is wrong with arguments of another type, in the same words wherever it is found out."""
    return f"{function}() returned a {kind}, not a list: arguments are passed by position"


class ProblemError(UserError, ValueError):
    """The text is not a usable problem; the message is one sentence for the user."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A PyTorch reference to replace.

    `source` is a Python file that defines `class Model(nn.Module)`, `get_inputs()` (a list of the positional
    arguments of `forward`) and `get_init_inputs()` (those of the constructor): KernelBench's task contract.
    """

    source: str
    name: str = "problem"
    level: int | None = None
    difficulty: str | None = None

    @property
    def id(self) -> str:
        """Content hash: two problems with the same source are the same problem."""
        return hashlib.sha256(self.source.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    def check(self) -> Problem:
        """Return self, or raise `ProblemError` when the contract is not met. Nothing is executed."""
        try:
            tree = syntax.parse(self.source)
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None)
            where = f", line {line}" if line else ""
            raise ProblemError(f"{self.name} is not valid Python{where}: {getattr(error, 'msg', error)}.") from None
        defined = set(_defined_names(tree))
        if "Model" not in defined:
            raise ProblemError(f"{self.name} defines no class `Model`: a problem needs `class Model(nn.Module)`.")
        for function in REQUIRED_FUNCTIONS:
            if function not in defined:
                raise ProblemError(f"{self.name} defines no function `{function}()`: a problem needs one.")
            if _returns_dict(tree, function):
                raise ProblemError(f"{self.name} cannot run: {not_a_list(function, 'dict')}.")
        return self

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: JsonObject) -> Problem:
        return cls(**data)

    @classmethod
    def from_file(cls, path: str | Path, check: bool = True) -> Problem:
        """Read one KernelBench task file. Raises `ProblemError` with a sentence for the user."""
        path = Path(path)
        level = re.fullmatch(r"level(\d+)", path.parent.name)
        source = read_source(path, "problem")
        problem = cls(source, name=path.stem, level=int(level.group(1)) if level else None)
        return problem.check() if check else problem


def load_problems(folder: str | Path) -> Iterator[Problem]:
    """Every problem below `folder`. Raises `ProblemError` at the first that is not one."""
    for path in problem_files(folder):
        yield Problem.from_file(path)


def problem_files(folder: str | Path) -> list[Path]:
    """The Python files below `folder`, in KernelBench's order (level, then leading number, then name)."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ProblemError(f"There is no folder {folder}.")
    return sorted(folder.rglob("*.py"), key=_natural_order)


def read_source(path: Path, what: str) -> str:
    """Text of a source file as stored: newlines kept, a byte order mark left out, as Python does.

    Raises `ProblemError` with a sentence for the user, at once, whatever the path leads to.
    """
    try:
        return read_text(path, LONGEST_SOURCE)
    except UserError as error:
        raise ProblemError(str(error)) from None
    except (FileNotFoundError, NotADirectoryError):
        raise ProblemError(f"There is no {what} file {path}.") from None
    except IsADirectoryError:
        raise ProblemError(f"{path} is a folder; give the {what} file itself.") from None
    except OSError as error:
        raise ProblemError(f"Cannot read {path}: {error.strerror}.") from None


def _defined_names(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)


def _returns_dict(tree: ast.Module, function: str) -> bool:
    """Whether the function's text says that it gives arguments by name. An empty dict names none, so it may pass."""
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function]
    returned = [node.value for one in found[-1:] for node in ast.walk(one) if isinstance(node, ast.Return)]
    return any(isinstance(value, ast.Dict) and value.keys for value in returned)


def _natural_order(path: Path) -> list[tuple[int, int, str]]:
    parts = re.split(r"(\d+)", str(path))
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]
