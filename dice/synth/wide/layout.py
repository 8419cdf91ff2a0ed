"""Styles of a file that leave its statements as they are: imports, hints, docstrings, remarks, the call of `super`."""

from __future__ import annotations

import ast
import random
import re

from dice.synth.tables.docstrings import documented
from dice.synth.wide.text import Text, Work, given

_F_IMPORTS = ("import torch.nn.functional as F", "from torch.nn import functional as F")
_STEPS = ("compute", "apply the operation", "transform", "main computation", "next step", "combine", "update the value")
_TODO = (
    "TODO: try in half precision",
    "NOTE: inputs are contiguous",
    "see the paper",
    "not fused on purpose",
    "slow path",
)
_BANNERS = ("model", "Model definition", "Layers", "inputs", "Configuration", "benchmark inputs")
_TITLES = ("a module", "one layer of the network", "the operation", "a block", "part of the model", "the forward pass")


def imports(work: Work, rng: random.Random) -> Work | None:
    """Other ways to import the same names, with the uses that follow from them."""
    forms = [_functional_through_nn, _base_class_alone, _names_alone, _functional_from_nn]
    rng.shuffle(forms)
    for form in forms:
        changed = form(work.problem, rng)
        if changed and changed != work.problem:
            ast.parse(changed)
            return Work(changed, work.kernel)
    return None


def _functional_through_nn(text: str, rng: random.Random) -> str:
    """`nn.functional.relu` for `F.relu`."""
    line = _import_of_functions(text)
    if not line or not re.search(r"^(import torch\.nn as nn|from torch import .*\bnn\b)", text, re.MULTILINE):
        return ""
    return re.sub(r"(?<![\w.])F\.(?=\w)", "nn.functional.", text.replace(f"{line}\n", "", 1))


def _functional_from_nn(text: str, rng: random.Random) -> str:
    """The import of F in its other form, or a name of its own for it."""
    line = _import_of_functions(text)
    if not line:
        return ""
    if rng.random() < 0.3 and not re.search(r"\bfn\b", text):
        return re.sub(r"(?<![\w.])F\.(?=\w)", "fn.", text.replace(line, "import torch.nn.functional as fn", 1))
    return text.replace(line, _F_IMPORTS[1 - _F_IMPORTS.index(line)], 1)


def _import_of_functions(text: str) -> str:
    """The line that imports F, where F is only used as `F.name`; else empty."""
    line = next((line for line in _F_IMPORTS if line in text.split("\n")), "")
    return "" if re.search(r"(?<![\w.])F\b(?!\.)", text.replace(line, "", 1)) else line


def _base_class_alone(text: str, rng: random.Random) -> str:
    """`class Model(Module)`, and `Parameter` where it occurs."""
    if not re.search(r"(?<![\w.])nn\.Module\b", text):
        return ""
    names = ["Module", *(["Parameter"] if "nn.Parameter(" in text else [])]
    text = re.sub(r"(?<![\w.])nn\.(Module|Parameter)\b", r"\1", text)
    return _with_import(text, f"from torch.nn import {', '.join(names)}")


def _names_alone(text: str, rng: random.Random) -> str:
    """`Linear(...)` for `nn.Linear(...)`, or `relu(x)` for `F.relu(x)`, with imports of these names."""
    tree = Text(text)
    for prefix, module in rng.sample((("nn", "torch.nn"), ("F", "torch.nn.functional")), 2):
        found = re.findall(rf"(?<![\w.]){prefix}\.(\w+)", text)
        names = sorted({name for name in found if name not in ("functional", "Module", "Parameter", "init", "utils")})
        if names and not set(names) & (tree.taken - _attributes(tree, prefix)):
            text = re.sub(rf"(?<![\w.]){prefix}\.({'|'.join(names)})\b", r"\1", text)
            return _with_import(text, f"from {module} import {', '.join(names)}")
    return ""


def _attributes(text: Text, prefix: str) -> set[str]:
    """Names that occur as `prefix.name` and in no other way."""
    nodes = [node for node in ast.walk(text.tree) if isinstance(node, ast.Attribute)]
    of_prefix = {node.attr for node in nodes if isinstance(node.value, ast.Name) and node.value.id == prefix}
    others = {node.attr for node in nodes if not (isinstance(node.value, ast.Name) and node.value.id == prefix)}
    return of_prefix - others


def _with_import(text: str, line: str) -> str:
    tree = Text(text)
    tree.require(line)
    return tree.result()


def super_form(work: Work, rng: random.Random) -> Work | None:
    """`super(Model, self).__init__()`, `super().__init__()` or `nn.Module.__init__(self)`: another one than before."""
    text = Text(work.problem)
    init = text.method("__init__")
    call = next((node for node in ast.walk(init or text.model) if _is_super(node)), None)
    if init is None or call is None:
        return None
    forms = {"super(Model, self).__init__()", "super().__init__()", "super(self.__class__, self).__init__()"}
    forms |= {"nn.Module.__init__(self)"} if re.search(r"class Model\(nn\.Module\)", work.problem) else set()
    text.replace(call, rng.choice(sorted(forms - {text.of(call)})))
    return Work(text.result(), work.kernel)


def _is_super(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "__init__"


def hints(work: Work, rng: random.Random) -> Work | None:
    """Type hints taken away, or given in one of the usual forms, where the inputs are tensors."""
    text = Text(work.problem)
    arguments = text.forward.args.args[1:]
    tensors = given(text)
    if len(tensors) < len(arguments) or not all(tensors) or text.forward.args.vararg:
        return None
    bare = [item for item in arguments if item.annotation is None]
    if not bare and text.forward.returns is None:
        return None
    known = "Tensor" in re.findall(r"^from torch import (.*)$", work.problem, re.MULTILINE)
    hint = rng.choice(
        ("torch.Tensor", "torch.Tensor", '"torch.Tensor"', "torch.FloatTensor", "Tensor" if known else "Any")
    )
    for item in arguments:
        if bare and item.annotation is None:
            text.replace(item, f"{item.arg}: {hint}")
        elif not bare:
            text.replace(item, item.arg)
    if hint == "Any" and bare:
        text.require("from typing import Any")
    return Work(text.result(), work.kernel)


def docstrings(work: Work, rng: random.Random) -> Work | None:
    """Another docstring for the class: the shapes, a formula in words, an example, or the arguments of `forward`."""
    text = Text(work.problem)
    names = text.inputs or ["x"]
    margin = "    "
    forms = (
        [f'"""Maps `{names[0]}` to the result.', "", "Shape:", f"    - {names[0]}: :math:`(N, *)`", '"""'],
        ["r'''", f"y = f({', '.join(names)})", "'''"],
        [f'"""{rng.choice(_TITLES).capitalize()}: `{", ".join(names)}` -> `out`."""'],
        ['"""', "Example::", "", "    >>> model = Model()", f"    >>> y = model({', '.join(names)})", '"""'],
        [
            line.removeprefix(margin)
            for line in documented(
                rng,
                "forward long",
                rng.choice(_TITLES),
                [(name, "Tensor", "one of the inputs") for name in names],
                "Tensor",
                rng.choice(("google", "numpy", "sphinx", "plain")),
                margin,
            )
        ],
    )
    lines = rng.choice(forms)
    first = text.model.body[0]
    is_text = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    if is_text:
        text.instead(first, *lines)
    else:
        text.above(first, *lines, "")
    return Work(text.result(), work.kernel)


def comments(work: Work, rng: random.Random) -> Work | None:
    """Remarks: numbered steps, banners between sections, trailing notes."""
    text = Text(work.problem)
    kind = rng.choice(("steps", "banners", "notes"))
    if kind == "steps":
        body = [node for node in text.forward.body if not isinstance(node, ast.Expr)]  # not the docstring
        for number, statement in enumerate(body, 1):
            form = rng.choice((f"# {number}. {rng.choice(_STEPS)}", f"# step {number}", f"# {rng.choice(_STEPS)}"))
            text.above(statement, form)
    elif kind == "banners":
        length = rng.choice((20, 40, 60))
        for node in (text.model, text.function("get_inputs")):
            line = rng.choice(("-", "=", "#")) * length
            text.above(node, f"# {line}", f"# {rng.choice(_BANNERS)}", f"# {line}")
    else:
        lines = work.problem.split("\n")
        rows = [node.end_lineno or 0 for node in ast.walk(text.model) if isinstance(node, ast.Assign | ast.Return)]
        rows = [row for row in rows if "#" not in lines[row - 1]]
        for row in rng.sample(rows, min(len(rows), 2)):
            lines[row - 1] += f"  # {rng.choice((*_STEPS, *_TODO))}"
        return Work("\n".join(lines), work.kernel) if rows else None
    return Work(text.result(), work.kernel)


def main_block(work: Work, rng: random.Random) -> Work | None:
    """A block that tries the module when the file is run."""
    name = rng.choice(("model", "m", "net", "module"))
    lines = [
        f"    {name} = Model(*get_init_inputs())",
        f"    out = {name}(*get_inputs())",
        f"    print({rng.choice(('out', 'type(out)'))})",
    ]
    return Work(work.problem.rstrip("\n") + '\n\n\nif __name__ == "__main__":\n' + "\n".join(lines) + "\n", work.kernel)
