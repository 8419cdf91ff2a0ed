"""The extension of one kernel file as a part of an extension that several files share.

A file that has one `load_inline` call at its top, with plain texts as sources, gives its CUDA source in a namespace of
its own and the declarations of its functions; calls that were made with the same options become one. So a module with
many kernels is built once, and each kernel's source still stands where the kernel is called.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dice import syntax
from dice.kernel import Kernel
from dice.optimize.whole.namespaces import NotShared, Prototype, prototypes, within
from dice.optimize.whole.streams import on_current_stream

_POSITIONAL = ("name", "cpp_sources", "cuda_sources")
_DROPPED = ("name", "cpp_sources", "cuda_sources", "functions", "verbose")
_DEFAULTS = {"with_cuda": (True, None), "is_python_module": (True,), "extra_cflags": ([], [""]), "extra_ldflags": ([],)}


@dataclass(frozen=True, slots=True)
class Extension:
    """`handle`: the name by which the file calls it. `outside`: what its functions are called in the shared one.
    `options`: other arguments of the call, as Python. `statements`: lines of the file that `text` stands for."""

    number: int
    handle: str
    text: str
    outside: Mapping[str, str]
    options: tuple[str, ...]
    statements: frozenset[int]


def extension_of(kernel: Kernel, number: int) -> Extension:
    """The extension of a kernel file as part `number` of a shared one. Raises `NotShared`."""
    try:
        body = syntax.parse(kernel.source).body
    except (SyntaxError, ValueError):
        raise NotShared("is not valid Python") from None
    statement, handle, given = _call(body)
    texts = {name: (node, value) for name, node, value in _texts(body)}
    functions = _functions(given.get("functions"))
    cuda, used = _source(given.get("cuda_sources"), texts)
    declared, also = _source(given.get("cpp_sources"), texts)
    known = prototypes(declared)
    missing = next((name for name in functions if name not in known), None)
    if missing is not None:
        raise NotShared(f"does not declare {missing} in its C++ source")
    own = [known[name] for name in functions]
    outside = {name: f"{name}_{number}" for name in functions}
    gone = {node.lineno for node in (statement, *(texts[name][0] for name in (*used, *also)))}
    _require_unused([node for node in body if node.lineno not in gone], {*used, *also}, handle)
    inner = within(f"region_{number}", on_current_stream(cuda), own, outside)
    text = _written(inner, own, outside, number)
    return Extension(number, handle, text, outside, _options(given), frozenset(gone))


def shared_call(name: str, handle: str, parts: Sequence[Extension]) -> str:
    """The one `load_inline` call, which binds `handle`, for extensions of the same options."""
    functions = [f'"{name}"' for part in parts for name in part.outside.values()]
    lines = [
        f'name="{name}",',
        f"cpp_sources=[{', '.join(f'cpp_source_{part.number}' for part in parts)}],",
        f"cuda_sources=[{', '.join(f'cuda_source_{part.number}' for part in parts)}],",
        f"functions=[{', '.join(functions)}],",
        *(f"{option}," for option in parts[0].options),
    ]
    return "\n".join([f"{handle} = load_inline(", *(f"    {line}" for line in lines), ")"])


def _written(cuda: str, own: Sequence[Prototype], outside: Mapping[str, str], number: int) -> str:
    declarations = "\n".join(one.declared(outside[one.name]) for one in own)
    return f"cuda_source_{number} = {_literal(cuda)}\n\ncpp_source_{number} = {_literal(declarations)}"


def _literal(text: str) -> str:
    """A text that is C++ as Python that reads as it does."""
    if '"""' in text or text.endswith("\\"):
        raise NotShared("has quotes that Python would end its text at")
    if "\n" not in text and not {"\\", '"'} & set(text):
        return f'"{text}"'
    return f'{"r" if chr(92) in text else ""}"""\n{text}\n"""'


# ---- the file ------------------------------------------------------------------------------------------------------


def _call(body: Sequence[ast.stmt]) -> tuple[ast.stmt, str, dict[str, ast.expr]]:
    """The statement that builds, the name that it binds, and the call's arguments by name."""
    found = []
    for node in body:
        for one in ast.walk(node):
            if isinstance(one, ast.Call) and ast.unparse(one.func).rpartition(".")[2] in ("load_inline", "load"):
                found.append((node, one))
    if len(found) != 1:
        raise NotShared("builds something other than one extension")
    statement, call = found[0]
    match statement:
        case ast.Assign(targets=[ast.Name(handle)], value=value) if value is call:
            pass
        case _:
            raise NotShared("does not build its extension at its top")
    given = dict(zip(_POSITIONAL, call.args, strict=False)) | {one.arg: one.value for one in call.keywords if one.arg}
    if len(call.args) > len(_POSITIONAL) or any(one.arg is None for one in call.keywords):
        raise NotShared("builds its extension with arguments that are not written down")
    return statement, handle, given


def _texts(body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.stmt, str]]:
    for node in body:
        match node:
            case ast.Assign(targets=[ast.Name(name)], value=ast.Constant(str(value))):
                yield name, node, value


def _source(given: ast.expr | None, texts: Mapping[str, tuple[ast.stmt, str]]) -> tuple[str, list[str]]:
    """A source's text, and the names that it was given by."""
    parts = given.elts if isinstance(given, ast.List | ast.Tuple) else [given]
    found, names = [], []
    for part in parts:
        match part:
            case ast.Constant(str(value)):
                found.append(value)
            case ast.Name(name) if name in texts:
                found.append(texts[name][1])
                names.append(name)
            case _:
                raise NotShared("puts its sources together when it is run")
    return "\n".join(found), names


def _functions(given: ast.expr | None) -> list[str]:
    parts = given.elts if isinstance(given, ast.List | ast.Tuple) else [given]
    names = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    if not names or len(names) != len(parts):
        raise NotShared("does not list the functions of its extension")
    return names


def _options(given: Mapping[str, ast.expr]) -> tuple[str, ...]:
    options = []
    for name, node in sorted(given.items()):
        if name in _DROPPED:
            continue
        try:
            value = ast.literal_eval(node)
        except ValueError:
            raise NotShared(f"builds its extension with a {name} that is not written down") from None
        if value not in _DEFAULTS.get(name, ()) and value is not None:
            options.append(f"{name}={value!r}")
    return tuple(options)


def _require_unused(kept: Sequence[ast.stmt], sources: set[str], handle: str) -> None:
    """Sources may be read by the build alone, and the extension not before the file has been run."""
    for node in kept:
        runs_now = not isinstance(node, ast.FunctionDef | ast.ClassDef)
        for one in ast.walk(node):
            if isinstance(one, ast.Name) and (one.id in sources or one.id == handle and runs_now):
                raise NotShared(f"uses {one.id} when it is run")
