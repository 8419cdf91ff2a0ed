"""From a class of `modules/` to the text of a problem: the class, what it uses, sizes, inputs.

Modules are read as text and never imported, so that a problem looks as its module was written, and making problems
needs no PyTorch. The class becomes `Model`; classes and functions it uses come before it, each after what it uses.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MODULES = Path(__file__).parent / "modules"
LIMIT = 120  # columns


@dataclass(frozen=True, slots=True)
class ModuleSource:
    """One class or function of `modules/`. `uses`: the names of others there that it needs, in order of their use."""

    name: str
    text: str
    doc: str
    uses: tuple[str, ...]
    parameters: tuple[str, ...]  # of a class: what its constructor takes without a default
    optional: tuple[str, ...]  # and with one


@functools.cache
def load_modules() -> Mapping[str, ModuleSource]:
    """Every class and function by name. Names are unique over all files."""
    found: dict[str, tuple[ast.ClassDef | ast.FunctionDef, str]] = {}
    for path in sorted(MODULES.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                if node.name in found:
                    raise ValueError(f"two modules are called {node.name}")
                found[node.name] = (node, "\n".join(text.splitlines()[node.lineno - 1 : node.end_lineno]))
    return {name: _module(node, text, found) for name, (node, text) in found.items()}


def _module(node: ast.ClassDef | ast.FunctionDef, text: str, known: Mapping[str, object]) -> ModuleSource:
    used = [name.id for name in ast.walk(node) if isinstance(name, ast.Name) and name.id in known]
    required, optional = _parameters(node)
    return ModuleSource(node.name, text, ast.get_docstring(node) or "", tuple(dict.fromkeys(used)), required, optional)


def _parameters(node: ast.ClassDef | ast.FunctionDef) -> tuple[tuple[str, ...], tuple[str, ...]]:
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            names = [argument.arg for argument in method.args.args[1:]]
            count = len(names) - len(method.args.defaults)
            return tuple(names[:count]), tuple(names[count:])
    return (), ()


def needed(name: str) -> tuple[str, ...]:
    """The module and all that it uses, directly or not, each after what it uses."""
    order: dict[str, None] = {}

    def visit(one: str) -> None:
        for used in load_modules()[one].uses:
            if used not in order and used != one:
                visit(used)
        order.setdefault(one)

    visit(name)
    return tuple(order)


def write_problem(main: str, about: str, inputs: Sequence[str], sizes: Mapping[str, int | float]) -> str:
    """The source of one problem. `about` ends the docstring of `Model`; `inputs` are expressions for `get_inputs`.

    `sizes`: module-level constants in their order; those that the constructor takes are what `get_init_inputs` gives.
    """
    modules = load_modules()
    *helpers, _ = needed(main)
    body = [modules[name].text for name in helpers] + [_as_model(modules[main], about)]
    body.append("\n".join(f"{name} = {value!r}" for name, value in sizes.items()))
    body.append(f"def get_inputs():\n{_returned(inputs)}")
    body.append(f"def get_init_inputs():\n{_returned(_arguments(modules[main], sizes))}")
    text = "\n\n\n".join(body) + "\n"
    return "\n".join(_imports(text)) + "\n\n\n" + text


def _arguments(module: ModuleSource, sizes: Mapping[str, int | float]) -> list[str]:
    """Names of the constructor's positional arguments; an optional one only if all before it are given too."""
    missing = [name for name in module.parameters if name not in sizes]
    if missing:
        raise ValueError(f"{module.name} needs {', '.join(missing)}")
    given = list(module.parameters)
    for name in module.optional:
        if name not in sizes:
            break
        given.append(name)
    return given


def _as_model(module: ModuleSource, about: str) -> str:
    text = re.sub(rf"^class {module.name}\b", "class Model", module.text)
    quotes = '"""'
    before, doc, after = text.split(quotes, 2)
    lines = [doc.rstrip(), "", f"    {about}", "    "]
    return quotes.join((before, "\n".join(lines), after))


def _imports(text: str) -> Iterator[str]:
    if re.search(r"\bmath\.", text):
        yield "import math\n"
    yield "import torch"
    yield "import torch.nn as nn"
    if re.search(r"\bF\.", text):
        yield "import torch.nn.functional as F"


def _returned(items: Sequence[str]) -> str:
    line = f"    return [{', '.join(items)}]"
    if len(line) <= LIMIT:
        return line
    return "\n".join(["    return [", *(f"        {item}," for item in items), "    ]"])
