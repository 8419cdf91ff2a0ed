"""`Kernel`: one candidate answer, a Python file that defines `ModelNew` and compiles CUDA C++ with `load_inline`."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dice import cpp, syntax
from dice.files import JsonObject
from dice.problem import read_source

_AFTER_GLOBAL = re.compile(r"\b__global__\b(?P<rest>[^;{]*)", re.DOTALL)
_CALL_LIKE = re.compile(r"(?<!\w)[^\WA-Za-z_]*([A-Za-z_]\w*)\s*\(")  # tried once a word: a word may be very long
_PYBIND_DEF = re.compile(r'\.\s*def\s*\(\s*"([^"]+)"')
_NOT_A_NAME = frozenset(
    {"__launch_bounds__", "__maxnreg__", "__cluster_dims__", "__attribute__", "__align__", "decltype"}
)


class SplitError(ValueError):
    """The kernel has no single core; the message says why."""


@dataclass(frozen=True, slots=True)
class KernelParts:
    """The three components of the paper's Fig. 4. `prefix + core + suffix` is the source, byte for byte."""

    prefix: str
    core: str
    suffix: str


@dataclass(frozen=True, slots=True)
class Kernel:
    """A candidate's source text. Nothing is executed; a source that is not valid Python is still a `Kernel`.

    A source larger than `syntax.MAX_SOURCE`, or nested deeper than `syntax.MAX_DEPTH`, counts as not valid. Whatever
    the source is, each answer about it takes time in proportion to its length.
    """

    source: str
    name: str = "kernel"

    @property
    def id(self) -> str:
        return hashlib.sha256(self.source.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    @property
    def defines_model_new(self) -> bool:
        """Whether a module-level `ModelNew` is bound: a class, an alias, or an import."""
        tree = _parse(self.source)
        return tree is not None and binds_model_new(tree)

    @property
    def cuda_sources(self) -> tuple[str, ...]:
        """The values of the string literals that hold a `__global__` function, in file order."""
        tree = _parse(self.source)
        return () if tree is None else cuda_texts(tree)

    @property
    def global_functions(self) -> tuple[str, ...]:
        """Names of the `__global__` functions defined or declared in the CUDA sources, in order, without repeats."""
        return functions_of(self.cuda_sources)

    @property
    def bound_functions(self) -> tuple[str, ...]:
        """Names the extension exports to Python: `functions=[...]` of `load_inline` and pybind's `m.def("...")`."""
        tree = _parse(self.source)
        if tree is None:
            return ()
        names = [name for node in ast.walk(tree) if isinstance(node, ast.keyword) for name in _functions_argument(node)]
        names += [name for text in cuda_texts(tree) for name in _PYBIND_DEF.findall(text)]
        return tuple(dict.fromkeys(names))

    def split(self) -> KernelParts:
        """Cut the source into prefix, core and suffix (paper Fig. 4).

        The core is the CUDA C++: the assignment `name = \"\"\"...\"\"\"` whose string holds a `__global__` function,
        or the literal alone where it is written inside a call. Several such strings form one core when nothing
        but other string assignments stands between them. Raises `SplitError` otherwise.
        """
        tree = _parse(self.source)
        if tree is None:
            raise SplitError("the kernel is not valid Python")
        literals = _cuda_literals(tree)
        if not literals:
            raise SplitError("the kernel has no string with a __global__ function")
        owners = _owners(tree, literals)
        if len(owners) > 1 and not _adjacent(tree, owners[0], owners[-1]):
            raise SplitError("the CUDA source is spread over several places with other code between them")
        raw = self.source.encode("utf-8", "surrogatepass")
        try:
            start, end = _span(raw, owners[0])[0], _span(raw, owners[-1])[1]
            parts = [part.decode("utf-8", "surrogatepass") for part in (raw[:start], raw[start:end], raw[end:])]
        except (IndexError, UnicodeDecodeError):  # CPython 3.11 misplaces what stands inside f-strings
            raise SplitError("the place of the CUDA source in the file cannot be told") from None
        if start > end:
            raise SplitError("the place of the CUDA source in the file cannot be told")
        return KernelParts(*parts)

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: JsonObject) -> Kernel:
        return cls(**data)

    @classmethod
    def from_file(cls, path: str | Path) -> Kernel:
        """Read a kernel file. Raises `ProblemError` with a sentence for the user when it cannot be read."""
        path = Path(path)
        return cls(read_source(path, "kernel"), name=path.stem)


def global_functions(cuda_source: str) -> tuple[str, ...]:
    """Names of the `__global__` functions in CUDA C++ text; comments and string literals do not count."""
    code = cpp.blank(cuda_source)
    names = []
    for match in _AFTER_GLOBAL.finditer(code):
        calls = (name for name in _CALL_LIKE.findall(match["rest"]) if name not in _NOT_A_NAME)
        names += [name for name in [next(calls, None)] if name]
    return tuple(dict.fromkeys(names))


def functions_of(cuda_sources: Iterable[str]) -> tuple[str, ...]:
    """Names of the `__global__` functions in several texts, in order, without repeats."""
    return tuple(dict.fromkeys(name for text in cuda_sources for name in global_functions(text)))


def cuda_texts(tree: ast.Module) -> tuple[str, ...]:
    """`Kernel.cuda_sources` of a file that is parsed already."""
    return tuple(map(_text, _cuda_literals(tree)))


def binds_model_new(tree: ast.Module) -> bool:
    """`Kernel.defines_model_new` of a file that is parsed already."""
    return any(_binds(node, "ModelNew") for node in ast.walk(tree))


def _parse(source: str) -> ast.Module | None:
    try:
        return syntax.parse(source)
    except (SyntaxError, ValueError):
        return None


def _binds(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.ClassDef):
        return node.name == name
    if isinstance(node, ast.Assign):
        return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
    if isinstance(node, ast.ImportFrom | ast.Import):
        return any((alias.asname or alias.name) == name for alias in node.names)
    return False


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    assert isinstance(node, ast.JoinedStr)
    pieces = (part.value for part in node.values if isinstance(part, ast.Constant))
    return "".join(str(piece) for piece in pieces)


def _cuda_literals(tree: ast.Module) -> list[ast.expr]:
    found: list[ast.expr] = []
    inside_fstring = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        is_string = isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
        if not is_string or id(node) in inside_fstring:
            continue
        assert isinstance(node, ast.Constant | ast.JoinedStr)
        text = _text(node)
        if "__global__" in text and "__global__" in cpp.blank(text):
            found.append(node)
    return sorted(found, key=lambda node: (node.lineno, node.col_offset))


def _owners(tree: ast.Module, literals: list[ast.expr]) -> list[ast.expr | ast.stmt]:
    """For each literal the assignment that holds nothing but it, else the literal itself."""
    held = {id(node.value): node for node in ast.walk(tree) if isinstance(node, ast.Assign | ast.AnnAssign)}
    return [held.get(id(literal), literal) for literal in literals]


def _adjacent(tree: ast.Module, first: ast.expr | ast.stmt, last: ast.expr | ast.stmt) -> bool:
    body: list[ast.stmt] = tree.body
    if first not in body or last not in body:
        return False
    between = body[body.index(first) : body.index(last) + 1]
    return all(
        isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant | ast.JoinedStr) for node in between
    )


def _span(raw: bytes, node: ast.expr | ast.stmt) -> tuple[int, int]:
    """Byte offsets of a node. `ast` counts lines by \\n, \\r\\n and \\r, and columns in UTF-8 bytes."""
    line_starts = [0]
    line_starts += [match.end() for match in re.finditer(rb"\r\n|\r|\n", raw)]
    assert node.end_lineno is not None and node.end_col_offset is not None
    start = line_starts[node.lineno - 1] + node.col_offset
    return start, line_starts[node.end_lineno - 1] + node.end_col_offset


def _functions_argument(keyword: ast.keyword) -> list[str]:
    if keyword.arg != "functions":
        return []
    value = keyword.value
    elements: list[Any] = [value]
    if isinstance(value, ast.List | ast.Tuple):
        elements = list(value.elts)
    if isinstance(value, ast.Dict):
        elements = list(value.keys)
    return [node.value for node in elements if isinstance(node, ast.Constant) and isinstance(node.value, str)]
