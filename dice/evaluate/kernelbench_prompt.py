"""KernelBench's own one-shot prompt, read word for word from a checkout of KernelBench that the user names.

Nothing of theirs is kept here and none of their code is run. A checkout holds the prompt in one of two forms:

    src/prompt_constructor.py              until late 2025, the form of the paper's time. Its constants and the
                                           f-strings of `prompt_generate_custom_cuda` are read from the syntax tree.
    src/[kernelbench/]prompts/prompts.toml since then: blocks of text, and the order in which an option joins them.

Both show one example, an element-wise addition, from files beside them. The copy in the paper's own release (folder
`evaluation`) is of the first form.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from dice.errors import UserError
from dice.files.bounded import read_text

TOMLS = ("src/kernelbench/prompts/prompts.toml", "src/prompts/prompts.toml")  # newest form first
CONSTRUCTOR = "src/prompt_constructor.py"
SHOWN = ("src/prompts/model_ex_add.py", "src/prompts/model_new_ex_add.py")  # what the old form shows
FUNCTION = "prompt_generate_custom_cuda"
LEVELS_ABOVE = 3  # of a folder of problems, at which the checkout that it is part of may begin


@dataclass(frozen=True, slots=True)
class KernelBenchPrompt:
    """`file`: where its text stands in the checkout. `render`: from a problem's source to the prompt."""

    file: str
    render: Callable[[str], str]

    @property
    def label(self) -> str:
        """What a run says of its prompt: the form, and a hash of the text around the problem."""
        return f"{self.file}, {sha256(self.render('').encode()).hexdigest()[:16]}"


def find_checkout(problems: Path) -> Path | None:
    """The checkout of KernelBench that a folder of problems is part of, or None."""
    place = problems.resolve()
    for folder in (place, *list(place.parents)[:LEVELS_ABOVE]):
        if any((folder / name).is_file() for name in (*TOMLS, CONSTRUCTOR)):
            return folder
    return None


def choose_prompt(asked: str, checkout: Path | None, problems: Path, published: bool) -> KernelBenchPrompt | None:
    """KernelBench's prompt where it is asked for, or where nothing else is (`asked` is "auto") and either a checkout is
    named or a `published` row is evaluated on problems that are part of one; else None. Raises `UserError`."""
    if asked not in ("auto", "kernelbench"):
        if checkout is not None:
            raise UserError(f"--kernelbench says where --prompt kernelbench is read from, not --prompt {asked}.")
        return None
    if checkout is None and (published or asked == "kernelbench"):
        checkout = find_checkout(problems)
    if checkout is None and asked == "kernelbench":
        raise UserError(f"{problems} is part of no checkout of KernelBench: name one by --kernelbench.")
    return None if checkout is None else read_prompt(checkout)


def read_prompt(checkout: Path) -> KernelBenchPrompt:
    """The one-shot prompt of a checkout. Raises `UserError`, naming the file that is missing or what it lacks."""
    if not checkout.is_dir():
        raise UserError(f"{checkout} is no folder; --kernelbench takes a checkout of KernelBench.")
    for name in TOMLS:
        if (checkout / name).is_file():
            found = KernelBenchPrompt(name, _from_toml(checkout, name))
            break
    else:
        if not (checkout / CONSTRUCTOR).is_file():
            raise UserError(f"{checkout} is no checkout of KernelBench: it has no {TOMLS[0]} and no {CONSTRUCTOR}.")
        found = KernelBenchPrompt(CONSTRUCTOR, _from_constructor(checkout))
    marker = "the source of the problem stands here"
    if marker not in found.render(marker):
        raise UserError(f"{checkout / found.file} makes a prompt without the problem in it.")
    return found


def _file(checkout: Path, name: str) -> str:
    path = checkout / name
    if not path.resolve().is_relative_to(checkout.resolve()):
        raise UserError(f"{checkout} names {name}, which is outside it.")
    if not path.is_file():
        raise UserError(f"{checkout} lacks {name}, which KernelBench's one-shot prompt is made of.")
    return read_text(path)


# -- the form of a Python file -----------------------------------------------------------------------------------------


def _from_constructor(checkout: Path) -> Callable[[str], str]:
    where = checkout / CONSTRUCTOR
    try:
        tree = ast.parse(_file(checkout, CONSTRUCTOR))
    except (SyntaxError, ValueError):
        raise UserError(f"{where} is not Python.") from None
    constants = {
        node.targets[0].id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }
    function = next((one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == FUNCTION), None)
    if function is None or len(function.args.args) != 3:
        raise UserError(f"{where} has no {FUNCTION} of a problem, an example and its kernel.")
    source, *shown = (one.arg for one in function.args.args)
    fixed = constants | dict(zip(shown, (_file(checkout, name) for name in SHOWN), strict=True))

    def render(problem: str) -> str:
        return _said(function.body, fixed | {source: problem}, where)

    return render


def _said(body: list[ast.stmt], names: Mapping[str, str], where: Path) -> str:
    """What a function says that puts a text together by `=` and `+=`; its conditions, whether examples are given,
    hold."""
    text = ""
    for statement in body:
        if isinstance(statement, ast.Assign):
            text = _text(statement.value, names, where)
        elif isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
            text += _text(statement.value, names, where)
        elif isinstance(statement, ast.If):
            text += _said(statement.body, names, where)
        elif not isinstance(statement, ast.Return | ast.Assert) and not _is_docstring(statement):
            raise UserError(f"{where} makes its prompt in a way not known here: line {statement.lineno}.")
    return text


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _text(node: ast.expr, names: Mapping[str, str], where: Path) -> str:
    """The value of a string, a name of one, or an f-string of those."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part, names, where) for part in node.values)
    if isinstance(node, ast.FormattedValue) and node.conversion == -1 and node.format_spec is None:
        return _text(node.value, names, where)
    raise UserError(f"{where} makes its prompt in a way not known here: line {node.lineno}.")


# -- the form of a TOML file -------------------------------------------------------------------------------------------


def _from_toml(checkout: Path, name: str) -> Callable[[str], str]:
    where = checkout / name
    try:
        data = tomllib.loads(_file(checkout, name))
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{where} is not TOML: {error}.") from None
    entry = partial(_entry, data, where)
    words = {"backend": "CUDA", "backend_display": _string(entry("backends", "cuda", "backend_display"), where)}
    precision = _string(entry("meta", "default_precision"), where)
    words["precision_display"] = _string(entry("precision", precision, "precision_display"), where)

    def filled(*path: str, more: Mapping[str, str] | None = None, strip: bool = True) -> str:
        text = _string(entry(*path), where)
        return _filled(text.strip() if strip else text, words | dict(more or {}), where)

    cuda, shared = entry("backends", "cuda"), entry("shared")
    before = cuda.get("few_shot_example_arch") or _entry(shared, where, "few_shot_example_arch")
    codes = [_file(checkout, _string(one, where)) for one in (before, entry("backends", "cuda", "one_shot_new_arch"))]
    common = ("templates", "common")
    pair = {"example_label": "Example:", "input_code": codes[0], "output_code": codes[1]}
    shown = {
        "examples_intro": filled(*common, "example_intro_one_shot"),
        "examples_entries": filled(*common, "example_entry_template", more=pair).strip(),
    }
    order = entry("options", "one_shot", "components")

    def render(problem: str) -> str:
        parts = []
        for one in order:
            own = isinstance(one, str) and one in ("problem_statement", "instruction")
            more = {**shown, "ref_arch_src": problem}
            parts.append(filled("shared", one, strip=False) if own else filled(*common, one, more=more) + "\n")
        return "\n".join(parts).strip() + "\n"

    return render


def _entry(data: Any, where: Path, *path: str) -> Any:
    for step in path:
        if not isinstance(data, Mapping) or step not in data:
            raise UserError(f"{where} has no entry {'.'.join(map(str, path))}.")
        data = data[step]
    return data


def _string(value: Any, where: Path) -> str:
    if not isinstance(value, str):
        raise UserError(f"{where} has {value!r:.60} where a text should be.")
    return value


def _filled(template: str, words: Mapping[str, str], where: Path) -> str:
    try:
        return template.format(**words)
    except (LookupError, ValueError, AttributeError):
        raise UserError(f"{where} has a block with a placeholder not known here: {template.strip()[:60]!r}.") from None
