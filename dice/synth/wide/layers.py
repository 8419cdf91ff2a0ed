"""Styles of how a module holds its layers and tensors: containers, buffers, dictionaries, modules of its own.

Where a layer has parameters, its path is part of the module's state: the kernel's file holds it in the same way.
"""

from __future__ import annotations

import ast
import random

from dice.synth.wide.text import Text, Work, called, fresh, statements

Run = tuple[list[str], list[ast.Assign | ast.Return], ast.expr]
_GROUPS = ("layers", "net", "blocks", "seq", "stack", "body", "modules_", "parts", "stages", "features")
_KEYS = ("proj", "norm", "act", "main", "first", "inner", "out", "core")


def _layers(text: Text) -> dict[str, ast.Call]:
    """Attributes set once, at the first level of the constructor, to `nn.Something(...)`."""
    if len(text.classes) > 1:
        return {}
    return {
        name: statement.value
        for name, statement in text.made().items()
        if isinstance(statement.value, ast.Call)
        and called(statement.value).startswith("nn.")
        and called(statement.value) not in ("nn.Parameter", "nn.ParameterList", "nn.ParameterDict", "nn.ModuleList")
    }


def _may_move(text: Text, kernel: Text, names: list[str]) -> bool:
    """Whether both files can make these layers together, with each parameter at its place in the order of draws."""
    made, other = text.made(), kernel.made()
    init = text.method("__init__")
    if init is None or any(kernel.uses(name) and name not in other for name in names):
        return False
    rows = [made[name].lineno for name in names]
    between = [
        node
        for node in init.body
        if min(rows) <= node.lineno <= max(rows) and node not in [made[name] for name in names]
    ]
    if any("nn." in text.of(node) for node in between):
        return False
    if any(
        file.uses(name, file.method("__init__")) for file in (text, kernel) for name in names if file.method("__init__")
    ):
        return False
    if not any(name in other for name in names):
        return True
    known = {"nn", "torch", *(item.arg for item in init.args.args)} - {"self"}
    read = {node.id for name in names for node in ast.walk(made[name].value) if isinstance(node, ast.Name)}
    return read <= known


def _contained(work: Work, names: list[str], lines: list[str], flat: str, paths: dict[str, str]) -> Work | None:
    """Layers under other paths in both files: `lines` in place of the last of them in the problem's constructor, and
    `flat` in that of the kernel's file, where it has any of them: it needs all of the container to be alike."""
    text, kernel = Text(work.problem), Text(work.kernel)
    if not _may_move(text, kernel, names):
        return None
    for file, new in ((text, lines), (kernel, [flat])):
        made = file.made()
        present = [name for name in names if name in made]
        last = max((made[name] for name in present), key=lambda node: node.lineno, default=None)
        for name in present:
            file.instead(made[name], *(new if made[name] is last else []))
            file.rename(name, paths[name])
        if present and "OrderedDict(" in flat:
            file.require("from collections import OrderedDict")
    return Work(text.result(), kernel.result())


def _one_line(text: Text, node: ast.AST) -> str:
    return " ".join(text.of(node).split()).replace("( ", "(").replace(", )", ")").replace(" )", ")")


def module_dict(work: Work, rng: random.Random) -> Work | None:
    """Layers in an `nn.ModuleDict`, by name."""
    text = Text(work.problem)
    layers = _layers(text)
    if not layers:
        return None
    names = list(layers)[: rng.choice((1, 2, 3))]
    group = fresh(rng, _GROUPS, text.taken | Text(work.kernel).taken)
    keys = {name: name if rng.random() < 0.6 else f"{rng.choice(_KEYS)}{index}" for index, name in enumerate(names)}
    keys = {
        name: f"{key}_" if key in dir(dict) or key in ("training", "type", "keys") else key
        for name, key in keys.items()
    }
    quote = rng.choice(("'", '"'))
    items = [f"{quote}{keys[name]}{quote}: {_one_line(text, layers[name])}" for name in names]
    lines = [f"self.{group} = nn.ModuleDict({{", *(f"    {item}," for item in items), "})"]
    lines = [f"self.{group} = nn.ModuleDict({{{', '.join(items)}}})"] if rng.random() < 0.5 else lines
    paths = {name: f"{group}[{quote}{keys[name]}{quote}]" for name in names}
    return _contained(work, names, lines, f"self.{group} = nn.ModuleDict({{{', '.join(items)}}})", paths)


def module_list(work: Work, rng: random.Random) -> Work | None:
    """Layers in an `nn.ModuleList`, by number."""
    text = Text(work.problem)
    layers = _layers(text)
    if not layers:
        return None
    names = list(layers)[: rng.choice((1, 2, 3))]
    group = fresh(rng, _GROUPS, text.taken | Text(work.kernel).taken)
    items = [_one_line(text, layers[name]) for name in names]
    lines = [f"self.{group} = nn.ModuleList([{', '.join(items)}])"]
    if rng.random() < 0.3:
        lines = [f"self.{group} = nn.ModuleList()", *(f"self.{group}.append({item})" for item in items)]
    paths = {name: f"{group}[{index}]" for index, name in enumerate(names)}
    return _contained(work, names, lines, f"self.{group} = nn.ModuleList([{', '.join(items)}])", paths)


def _runs(text: Text) -> list[Run]:
    """Layers that are applied one after the other and nowhere else: their names, statements and the first operand."""
    layers = _layers(text)
    once = {name for name in layers if len(text.uses(name)) == 1}
    found = []
    for statement in statements(text.forward):
        names, node = [], statement.value
        while isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords and called(node)[5:] in once:
            names.append(called(node)[5:])
            node = node.args[0]
        if names and node is not None:
            found.append((list(reversed(names)), [statement], node))
    joined: list[Run] = []
    for names, where, operand in found:
        last = joined[-1] if joined else None
        if last and _follows(text, last[1][-1], where[0], operand):
            joined[-1] = ([*last[0], *names], [*last[1], *where], last[2])
        else:
            joined.append((names, where, operand))
    return joined


def _follows(text: Text, first: ast.stmt, second: ast.stmt, operand: ast.expr) -> bool:
    """Whether the second statement goes on with the value of the first, which nothing else reads."""
    body = text.forward.body
    if not isinstance(first, ast.Assign) or body.index(second) != body.index(first) + 1:
        return False
    name = text.of(first.targets[0])
    if not isinstance(operand, ast.Name) or operand.id != name:
        return False
    later = [
        node
        for node in ast.walk(text.forward)
        if isinstance(node, ast.Name) and node.id == name and node.lineno > (second.end_lineno or 0)
    ]
    overwritten = isinstance(second, ast.Assign) and text.of(second.targets[0]) == name
    return overwritten or not later


def sequential(work: Work, rng: random.Random) -> Work | None:
    """Layers that follow one another in an `nn.Sequential`: flat, nested, or with names."""
    text = Text(work.problem)
    runs = [run for run in _runs(text) if len(run[0]) > 1] or (_runs(text) if rng.random() < 0.4 else [])
    if not runs:
        return None
    names, where, operand = rng.choice(runs)
    layers, kernel = _layers(text), Text(work.kernel)
    order = list(layers)
    if [name for name in order if name in names] != names:
        return None  # their constructors would draw in another order
    group = fresh(rng, _GROUPS, text.taken | kernel.taken)
    items = [_one_line(text, layers[name]) for name in names]
    form = rng.choice(("flat", "flat", "nested", "named"))
    if form == "named":
        pairs = ", ".join(f'("{name}", {item})' for name, item in zip(names, items, strict=True))
        made = f"self.{group} = nn.Sequential(OrderedDict([{pairs}]))"
        paths = {name: f"{group}.{name}" for name in names}
    elif form == "nested":
        made = f"self.{group} = nn.Sequential(nn.Sequential({', '.join(items)}))"
        paths = {name: f"{group}[0][{index}]" for index, name in enumerate(names)}
    else:
        made = f"self.{group} = nn.Sequential({', '.join(items)})"
        paths = {name: f"{group}[{index}]" for index, name in enumerate(names)}
    wide = (
        [f"self.{group} = nn.Sequential(", *(f"    {item}," for item in items), ")"]
        if form == "flat" and rng.random() < 0.4
        else [made]
    )
    for statement in where[:-1]:
        text.instead(statement)
    last = where[-1]
    assert last.value is not None
    text.replace(last.value, f"self.{group}({text.of(operand)})")
    return _contained(Work(text.result(), work.kernel), names, wide, made, paths)


def layer_loop(work: Work, rng: random.Random) -> Work | None:
    """Layers that follow one another in an `nn.ModuleList`, applied by a loop."""
    text = Text(work.problem)
    runs = [run for run in _runs(text) if len(run[0]) > 1]
    if not runs:
        return None
    names, where, operand = rng.choice(runs)
    layers = _layers(text)
    if [name for name in layers if name in names] != names:
        return None
    taken = text.taken | Text(work.kernel).taken
    group, value = fresh(rng, _GROUPS, taken), fresh(rng, ("h", "hidden", "cur", "state_h"), taken)
    step = fresh(rng, ("layer", "module", "block", "m"), taken)
    made = f"self.{group} = nn.ModuleList([{', '.join(_one_line(text, layers[name]) for name in names)}])"
    for statement in where[:-1]:
        text.instead(statement)
    last = where[-1]
    head = "return " if isinstance(last, ast.Return) else f"{text.of(last.targets[0])} = "
    text.instead(
        last,
        f"{value} = {text.of(operand)}",
        f"for {step} in self.{group}:",
        f"    {value} = {step}({value})",
        f"{head}{value}",
    )
    paths = {name: f"{group}[{index}]" for index, name in enumerate(names)}
    return _contained(Work(text.result(), work.kernel), names, [made], made, paths)


def own_module(work: Work, rng: random.Random) -> Work | None:
    """Some layers in a module of the file, `self.block.fc`: the kernel's file defines that module, too."""
    text, kernel = Text(work.problem), Text(work.kernel)
    layers = {name: value for name, value in _layers(text).items() if len(text.uses(name)) == 1}
    calls = {
        called(node)[5:]: node for node in ast.walk(text.forward) if isinstance(node, ast.Call) and len(node.args) == 1
    }
    names = [
        name
        for name in layers
        if name in calls and not calls[name].keywords and not text.uses(name, text.method("__init__"))
    ]
    names = [name for name in names if _may_move(text, kernel, [name])]
    if not names:
        return None
    name = rng.choice(names)
    taken = text.taken | kernel.taken
    block = fresh(rng, ("Block", "Layer", "Projection", "Stage", "Unit", "SubLayer"), taken)
    block = block[:1].upper() + block[1:]
    attribute = fresh(rng, ("block", "inner", "unit", "sub", "stage", "wrapped"), taken)
    value = text.made()[name].value
    read = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
    init = text.method("__init__")
    arguments = [item.arg for item in init.args.args[1:] if item.arg in read] if init else []
    if not read <= {"nn", "torch", *arguments}:
        return None
    parameter = rng.choice(("x", "inp", "t"))
    signature = ", ".join(["self", *arguments])
    lines = [
        f"class {block}(nn.Module):",
        f"    def __init__({signature}):",
        "        super().__init__()",
        f"        self.{name} = {_one_line(text, value)}",
    ]
    text_lines = [*lines, "", f"    def forward(self, {parameter}):", f"        return self.{name}({parameter})"]
    made = f"self.{attribute} = {block}({', '.join(arguments)})"
    text.constant(*text_lines)
    text.instead(text.made()[name], made)
    text.replace(calls[name].func, f"self.{attribute}")
    if name in kernel.made():
        kernel.constant(*lines)
        kernel.instead(kernel.made()[name], made)
        kernel.rename(name, f"{attribute}.{name}")
    return Work(text.result(), kernel.result())


def _parameters(text: Text, kernel: Text) -> list[str]:
    """Parameters of the module itself that both files make by the same words and nothing in the constructor touches."""
    if len(text.classes) > 1:
        return []
    own, other = text.made(), kernel.made()
    return [
        name
        for name, statement in own.items()
        if isinstance(statement.value, ast.Call)
        and called(statement.value) == "nn.Parameter"
        and len(statement.value.args) == 1
        and not statement.value.keywords
        and name in other
        and kernel.of(other[name].value) == text.of(statement.value)
        and not text.uses(name, text.method("__init__"))
        and not kernel.uses(name, kernel.method("__init__"))
    ]


def buffer(work: Work, rng: random.Random) -> Work | None:
    """A tensor of the module as a buffer, not a parameter, in both files."""
    text, kernel = Text(work.problem), Text(work.kernel)
    names = _parameters(text, kernel)
    if not names:
        return None
    name = rng.choice(names)
    value = text.made()[name].value
    assert isinstance(value, ast.Call)
    quote = rng.choice(("'", '"'))
    line = f"self.register_buffer({quote}{name}{quote}, {text.of(value.args[0])})"
    for file in (text, kernel):
        file.instead(file.made()[name], line)
    return Work(text.result(), kernel.result())


def registered(work: Work, rng: random.Random) -> Work | None:
    """`self.register_parameter("weight", nn.Parameter(...))`, or `self.add_module("fc", nn.Linear(...))`."""
    text, kernel = Text(work.problem), Text(work.kernel)
    own = _parameters(text, kernel)
    layers = [] if own else list(_layers(text))
    if not own and not layers:
        return None
    name = rng.choice(own or layers)
    statement = text.made()[name]
    call = "register_parameter" if own else rng.choice(("add_module", "register_module"))
    text.instead(statement, f'self.{call}("{name}", {_one_line(text, statement.value)})')
    return Work(text.result(), work.kernel)


def parameter_dict(work: Work, rng: random.Random) -> Work | None:
    """Parameters of the module in an `nn.ParameterDict` or an `nn.ParameterList`, in both files."""
    text, kernel = Text(work.problem), Text(work.kernel)
    names = _parameters(text, kernel)
    if not names:
        return None
    group = fresh(rng, ("params", "weights", "tensors", "coeffs_", "table"), text.taken | kernel.taken)
    as_list = rng.random() < 0.4
    items = [text.of(text.made()[name].value) for name in names]
    if as_list:
        line = f"self.{group} = nn.ParameterList([{', '.join(items)}])"
        paths = {name: f"{group}[{index}]" for index, name in enumerate(names)}
    else:
        keys = {name: f"{name}_" if name in dir(dict) else name for name in names}
        pairs = ", ".join(f'"{keys[name]}": {item}' for name, item in zip(names, items, strict=True))
        line = f"self.{group} = nn.ParameterDict({{{pairs}}})"
        paths = {name: f'{group}["{keys[name]}"]' for name in names}
    for file in (text, kernel):
        made = file.made()
        last = max((made[name] for name in names), key=lambda node: node.lineno)
        for name in names:
            file.instead(made[name], *([line] if made[name] is last else []))
            file.rename(name, paths[name])
    return Work(text.result(), kernel.result())


def build_method(work: Work, rng: random.Random) -> Work | None:
    """The layers made in a method that the constructor calls."""
    text = Text(work.problem)
    init = text.method("__init__")
    if init is None or len(text.classes) > 1 or len(init.body) < 2:
        return None
    arguments = [item.arg for item in init.args.args[1:]]
    rest = [node for node in init.body if not isinstance(node, ast.Expr) or "super" not in text.of(node)]
    rest = [
        node
        for node in rest
        if isinstance(node, ast.Assign | ast.Expr) and not isinstance(getattr(node, "value", None), ast.Constant)
    ]
    tail = init.body[-len(rest) :] if rest else []
    if not rest or tail != rest or any(node.lineno != node.end_lineno for node in rest):
        return None
    used = {node.id for statement in rest for node in ast.walk(statement) if isinstance(node, ast.Name)}
    passed = [name for name in arguments if name in used]
    name = fresh(rng, ("_build", "_make_layers", "_init_layers", "setup", "build"), text.taken)
    lines = [f"    {text.of(node)}" for node in rest]
    for node in rest[:-1]:
        text.instead(node)
    text.instead(rest[-1], f"self.{name}({', '.join(passed)})")
    text.member(f"def {name}({', '.join(['self', *passed])}):", *lines)
    return Work(text.result(), work.kernel)
