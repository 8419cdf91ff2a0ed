"""A region's kernel file as a part of another file: its sources and functions under names of their own, and what its
`ModelNew.forward` does as a plain function of tensors.

The text stays the author's, names apart. What cannot be had so is refused with a reason: a model that keeps tensors of
its own, packs weights when it is made, or runs layers of PyTorch's.
"""

from __future__ import annotations

import ast
import io
import re
import textwrap
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dice import syntax
from dice.kernel import Kernel
from dice.optimize.whole.extension import Extension


class NotInlined(Exception):
    """The kernel file cannot be put into another one; the message ends a sentence."""


@dataclass(frozen=True, slots=True)
class Inlined:
    """`text`: sources, what builds them, and the function; `imports`: lines that it needs besides."""

    function: str
    text: str
    imports: tuple[str, ...]


def inlined(
    kernel: Kernel,
    paths: Sequence[str],
    number: int,
    numbers: Mapping[str, str] | None = None,
    extension: Extension | None = None,
    handle: str = "",
) -> Inlined:
    """The file as part `number` of another one. `paths`: how its model reaches the tensors that the function takes
    after its inputs (`linear.weight`); `numbers`: what it may read besides (`norm.eps`). `extension`: its own, where
    that is a part of one that others share, which is called `handle`; without, it builds its own. Raises `NotInlined`.
    """
    try:
        tree = syntax.parse(kernel.source)
    except (SyntaxError, ValueError):
        raise NotInlined("it is not valid Python") from None
    model = next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "ModelNew"), None)
    if model is None:
        raise NotInlined("its ModelNew is not a class of its own")
    methods = {node.name: node for node in model.body if isinstance(node, ast.FunctionDef)}
    if "forward" not in methods or set(methods) - {"__init__", "forward"}:
        raise NotInlined("its ModelNew has methods of its own")
    kept = [node for node in tree.body if node is not model and not isinstance(node, ast.Import | ast.ImportFrom)]
    if any(isinstance(node, ast.If) for node in kept):
        raise NotInlined("it has statements at its top that are neither sources nor functions")
    imports = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    if extension is not None:
        kept = [node for node in kept if node.lineno not in extension.statements]
    renamed = {name: f"{name}_{number}" for name in _bound(kept)}
    if extension is not None:
        renamed |= {f"{extension.handle}.{name}": f"{handle}.{new}" for name, new in extension.outside.items()}
    constants = _constants(methods.get("__init__"), paths) | dict(numbers or {})
    function = f"region_{number}"
    parts = [_renamed(_text(kernel.source, node), renamed) for node in kept]
    parts = [extension.text, *parts] if extension is not None else [_unique_extension(part, number) for part in parts]
    parts.append(_function(kernel.source, methods["forward"], function, paths, constants, renamed))
    return Inlined(function, "\n\n".join(parts), tuple(imports))


def _bound(nodes: Iterable[ast.stmt]) -> list[str]:
    names = []
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        for one in ast.walk(node) if isinstance(node, ast.Assign | ast.AnnAssign) else ():
            if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
                names.append(one.id)
    return list(dict.fromkeys(names))


def _constants(init: ast.FunctionDef | None, paths: Sequence[str]) -> dict[str, str]:
    """What `self.name` stands for where the constructor sets it to a name of the file or to a number."""
    found: dict[str, str] = {}
    heads = {path.split(".")[0] for path in paths}
    for node in init.body if init else ():
        if isinstance(node, ast.Expr):
            continue  # super().__init__(), docstrings, buffers
        match node:
            case ast.Assign(targets=[ast.Attribute(value=ast.Name("self"), attr=name)], value=value):
                if name in heads:
                    continue
                if isinstance(value, ast.Name | ast.Constant) or _is_number(value):
                    found[name] = ast.unparse(value)
            case _:
                raise NotInlined("its constructor does more than to make what the region has")
    return found


def _is_number(value: ast.expr) -> bool:
    return isinstance(value, ast.UnaryOp | ast.BinOp) and not any(
        isinstance(one, ast.Name | ast.Call | ast.Attribute) for one in ast.walk(value)
    )


def _text(source: str, node: ast.stmt) -> str:
    found = ast.get_source_segment(source, node)
    assert found is not None
    return found


def _function(
    source: str,
    forward: ast.FunctionDef,
    name: str,
    paths: Sequence[str],
    constants: Mapping[str, str],
    renamed: Mapping[str, str],
) -> str:
    """`forward` as a function of its inputs and the tensors at `paths`."""
    arguments = forward.args
    if arguments.vararg or arguments.kwarg or arguments.kwonlyargs:
        raise NotInlined("its forward takes a variable number of arguments")
    inputs = [one.arg for one in arguments.args[1:]]
    names = {path: _parameter(path, inputs) for path in paths}
    lines = source.splitlines()
    first = forward.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and len(forward.body) > 1:
        first = forward.body[1]
    if first.lineno == forward.lineno:
        body = _text(source, first)
    else:
        body = textwrap.dedent("\n".join(lines[first.lineno - 1 : forward.end_lineno]))
    body = _without_self(body, names, constants)
    clashing = {
        local: outside for local, outside in renamed.items() if local not in inputs and local not in names.values()
    }
    body = _renamed(body, clashing)
    shown = ", ".join((*inputs, *names.values()))
    return f"def {name}({shown}):\n{textwrap.indent(body, '    ')}"


def _parameter(path: str, taken: Sequence[str]) -> str:
    name = path.replace(".", "_")
    return f"{name}_" if name in taken else name


def _without_self(body: str, names: Mapping[str, str], constants: Mapping[str, str]) -> str:
    def swap(match: re.Match[str]) -> str:
        parts = match[1].split(".")
        for length in range(len(parts), 0, -1):
            path = ".".join(parts[:length])
            found = names.get(path) or constants.get(path)
            if found is not None:
                return ".".join((found, *parts[length:]))
        raise NotInlined(f"its forward uses self.{match[1]}, which is no tensor of the region's")

    text = re.sub(r"(?<![\w.])self\.([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)", swap, body)
    if re.search(r"(?<![\w.])self(?!\w)", text):
        raise NotInlined("its forward passes itself on")
    return text


def _renamed(text: str, names: Mapping[str, str]) -> str:
    """The text with names replaced, `name.attribute` among them: neither attributes of others nor keywords of calls,
    nor anything within strings."""
    if not names:
        return text
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, IndentationError, SyntaxError):
        raise NotInlined("its text cannot be read word by word") from None
    lines = text.splitlines(keepends=True)
    changes = []
    depth = 0
    for index, token in enumerate(tokens):
        if token.type == tokenize.OP:
            depth += (token.string in "([{") - (token.string in ")]}")
        if token.type != tokenize.NAME:
            continue
        before = tokens[index - 1].string if index else ""
        after = tokens[index + 1].string if index + 1 < len(tokens) else ""
        last = tokens[index + 2] if after == "." and index + 2 < len(tokens) else token
        dotted = f"{token.string}.{last.string}"
        if before != "." and dotted in names and last.end[0] == token.start[0]:
            changes.append((token.start, last.end, names[dotted]))
        elif before != "." and token.string in names and not (depth and after == "="):
            changes.append((token.start, token.end, names[token.string]))
    for (row, start), (_, end), new in reversed(changes):
        line = lines[row - 1]
        lines[row - 1] = line[:start] + new + line[end:]
    return "".join(lines)


def _unique_extension(text: str, number: int) -> str:
    """PyTorch builds an extension in a folder of its name: two of one name would be one."""
    return (
        re.sub(r"""(\bname\s*=\s*)(["'])(\w+)\2""", rf"\1\2\3_{number}\2", text, count=1)
        if "load_inline" in text
        else text
    )
