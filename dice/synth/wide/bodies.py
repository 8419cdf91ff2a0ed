"""Styles of how `forward` is divided: helpers, names for parts, loops and conditions over constants, look-ups."""

from __future__ import annotations

import ast
import random
import re

from dice.synth.problem.rewrites import hoisted
from dice.synth.wide.numbers import with_argument
from dice.synth.wide.text import BARE, Function, Text, Work, atom, called, fresh, is_own, is_tensor, statements, tensors

_HELPERS = (
    "_op",
    "_inner",
    "activate",
    "_step",
    "calc",
    "_fn",
    "_score",
    "_combine",
    "_update",
    "process",
    "_act",
)
_PARAMETERS = ("t", "v", "h", "inp", "value", "z", "u", "e")
_FLAGS = ("use_op", "enabled", "apply_it", "with_op", "do_transform", "active_op", "training_like", "fused_like")
_MODES = ("mode", "kind", "variant", "op_type", "strategy")
_WORDS = ("default", "standard", "full", "simple", "main", "exact", "plain", "base")
_VALUES = ("hidden", "tmp", "val", "res", "mid", "inter", "feat", "acc", "cur", "first_part")
Place = tuple[ast.Assign | ast.Return, ast.expr]


def _parts(text: Text) -> list[Place]:
    """Expressions of `forward` that are one tensor made from named values."""
    known = tensors(text, text.forward)
    return [
        (statement, node)
        for statement in statements(text.forward)
        for node in ast.walk(statement)
        if isinstance(node, ast.Call | ast.BinOp)
        and is_tensor(node, known)
        and not any(isinstance(item, ast.Lambda | ast.comprehension | ast.Starred) for item in ast.walk(node))
    ]


def _extracted(work: Work, rng: random.Random, kind: str) -> Work | None:
    """A part of `forward` as a function of the values that it reads."""
    text = Text(work.problem)
    places = [
        (statement, node)
        for statement, node in _parts(text)
        if kind == "method" or not any(is_own(item) for item in ast.walk(node))
    ]
    if not places:
        return None
    statement, node = rng.choice(places)
    read = {item.id for item in ast.walk(node) if isinstance(item, ast.Name)} & _locals(text.forward)
    values = sorted(read)
    if not values:
        return None
    taken = text.taken
    name = fresh(rng, _HELPERS, taken)
    called_so = values if rng.random() < 0.4 else _renamed(rng, values, taken)
    written = text.of(node)
    for old, new in zip(values, called_so, strict=True):
        written = re.sub(rf"(?<![\w.]){old}\b(?!=[^=])", new, written)
    hint = rng.choice(("", ": torch.Tensor")) if kind != "lambda" else ""
    arguments = ", ".join(f"{item}{hint}" for item in called_so)
    given = ", ".join(values)
    match kind:
        case "method":
            text.member(f"def {name}(self, {arguments}):", f"    return {written}")
            text.replace(node, f"self.{name}({given})")
        case "static":
            text.member("@staticmethod", f"def {name}({arguments}):", f"    return {written}")
            text.replace(node, f"{rng.choice(('self', 'Model'))}.{name}({given})")
        case "file":
            text.constant(f"def {name}({arguments}):", f"    return {written}")
            text.replace(node, f"{name}({given})")
        case "nested":
            text.above(statement, f"def {name}({arguments}):", f"    return {written}", "")
            text.replace(node, f"{name}({given})")
        case "lambda":
            text.above(statement, f"{name} = lambda {arguments}: {written}")
            text.replace(node, f"{name}({given})")
    return Work(text.result(), work.kernel)


def _locals(function: Function) -> set[str]:
    stored = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return stored | {item.arg for item in function.args.args} - {"self"}


def _renamed(rng: random.Random, values: list[str], taken: set[str]) -> list[str]:
    """Names of a helper's parameters."""
    names: list[str] = []
    for _ in values:
        names.append(fresh(rng, _PARAMETERS, {*taken, *names}))
    return names


def helper_method(work: Work, rng: random.Random) -> Work | None:
    """A part of `forward` in a method of its own."""
    return _extracted(work, rng, "method")


def static_method(work: Work, rng: random.Random) -> Work | None:
    """A part of `forward` in a static method."""
    return _extracted(work, rng, "static")


def file_function(work: Work, rng: random.Random) -> Work | None:
    """A part of `forward` in a function of the file."""
    return _extracted(work, rng, "file")


def nested_function(work: Work, rng: random.Random) -> Work | None:
    """A part of `forward` in a function inside of it."""
    return _extracted(work, rng, "nested")


def local_lambda(work: Work, rng: random.Random) -> Work | None:
    """A part of `forward` in a lambda."""
    return _extracted(work, rng, "lambda")


def _flat(function: Function) -> bool:
    """Whether the body is one statement a line, without nesting."""
    return all(
        isinstance(node, ast.Assign | ast.Return | ast.Expr) and node.lineno == node.end_lineno
        for node in function.body
    )


def named_parts(work: Work, rng: random.Random) -> Work | None:
    """Parts of long expressions under names of their own."""
    text = Text(work.problem)
    if not _flat(text.forward):
        return None
    body = [text.of(node) for node in text.forward.body if not isinstance(node, ast.Expr)]
    changed = body
    for _ in range(rng.choice((1, 2, 3))):
        changed = hoisted(rng, changed, text.taken)
    if changed == body:
        return None
    for node in text.forward.body[:-1]:
        if not isinstance(node, ast.Expr):
            text.instead(node)
    text.instead(text.forward.body[-1], *changed)
    return Work(text.result(), work.kernel)


def inlined(work: Work, rng: random.Random) -> Work | None:
    """A value that is used once stands where it is used."""
    text = Text(work.problem)
    body = text.forward.body
    known = tensors(text, text.forward)
    choices = []
    for first, second in zip(body, body[1:], strict=False):
        if not isinstance(first, ast.Assign) or len(first.targets) != 1 or not isinstance(first.targets[0], ast.Name):
            continue
        if not isinstance(second, ast.Assign | ast.Return) or first.lineno != first.end_lineno:
            continue
        name = first.targets[0].id
        uses = [
            node
            for node in ast.walk(text.forward)
            if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
        ]
        inside = [node for node in ast.walk(second.value or second) if node in uses]
        stores = (
            {name}
            if isinstance(second, ast.Return)
            else {
                item.id for item in ast.walk(second) if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store)
            }
        )
        later = [node for node in uses if node.lineno > (second.end_lineno or 0)]
        changes = re.search(r"[a-z]_\(|inplace", text.of(second))
        if len(inside) == 1 and is_tensor(first.value, known) and not changes and (not later or stores == {name}):
            choices.append((first, inside[0]))
    if not choices:
        return None
    first, use = rng.choice(choices)
    text.instead(first)
    text.replace(use, atom(text.of(first.value), first.value))
    return Work(text.result(), work.kernel)


def method_chain(work: Work, rng: random.Random) -> Work | None:
    """A chain of methods over several lines in parentheses."""
    text = Text(work.problem)
    for statement in statements(text.forward):
        value = statement.value
        links, node = [], value
        while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if isinstance(node.func.value, ast.Name) and node.func.value.id in BARE:
                break
            links.append(node)
            node = node.func.value
        if len(links) >= 2 and value is not None and statement.lineno == statement.end_lineno:
            start, end = text.span(value)
            cuts = [text.span(link.func.value)[1] for link in links if isinstance(link.func, ast.Attribute)]
            pieces = [text.text[a:b] for a, b in zip([start, *reversed(cuts)], [*reversed(cuts), end], strict=True)]
            head = "return (" if isinstance(statement, ast.Return) else f"{text.of(statement.targets[0])} = ("
            if all(piece.startswith(".") for piece in pieces[1:]):
                text.instead(statement, head, *(f"    {piece}" for piece in pieces), ")")
                return Work(text.result(), work.kernel)
    return None


def loop_over_functions(work: Work, rng: random.Random) -> Work | None:
    """`f(g(x))` as a loop over (g, f)."""
    text = Text(work.problem)
    known = tensors(text, text.forward)
    for statement in statements(text.forward):
        node, names = statement.value, []
        while isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords and _is_function(node):
            names.append(text.of(node.func))
            node = node.args[0]
        if not names or node is None or not is_tensor(node, known):
            continue
        taken = text.taken
        step = fresh(rng, ("fn", "f", "op", "act", "layer"), taken)
        value = fresh(rng, _VALUES, taken)
        items = ", ".join(reversed(names)) + ("," if len(names) == 1 else "")
        lines = [f"{value} = {text.of(node)}", f"for {step} in ({items}):", f"    {value} = {step}({value})"]
        is_return = isinstance(statement, ast.Return)
        last = f"return {value}" if is_return else f"{text.of(statement.targets[0])} = {value}"  # type: ignore[union-attr]
        text.instead(statement, *lines, last)
        return Work(text.result(), work.kernel)
    return None


def _is_function(node: ast.Call) -> bool:
    name = called(node)
    return name.startswith(("torch.", "F.", "self.")) and name.count(".") == 1


def condition(work: Work, rng: random.Random) -> Work | None:
    """A statement under a condition on a constant: a flag of the file, class or constructor, or a mode by name."""
    text = Text(work.problem)
    init = text.method("__init__")
    choices = [
        node for node in statements(text.forward) if isinstance(node, ast.Assign) and node.lineno == node.end_lineno
    ]
    choices = [node for node in choices if "#" not in text.text.split("\n")[node.lineno - 1]]
    if not choices or len(text.classes) > 1:
        return None
    statement = rng.choice(choices)
    taken = text.taken
    home = rng.choice(("file", "class", "attribute", "argument", "mode")) if init else rng.choice(("file", "class"))
    kernel = work.kernel
    flag = fresh(rng, _MODES if home == "mode" else _FLAGS, taken)
    test = f"self.{flag}"
    if home == "file":
        test = flag.upper()
        if test in taken:
            return None
        text.constant(f"{test} = True")
    elif home == "class":
        text.member(f"{flag} = True")
    elif home == "attribute":
        text.below(init.body[-1], f"self.{flag} = True")  # type: ignore[union-attr]
    elif home == "argument":
        text.signature(init, f"{flag}=True")  # type: ignore[arg-type]
        text.below(init.body[-1], f"self.{flag} = {flag}")  # type: ignore[union-attr]
        kernel = with_argument(kernel, f"{flag}=True")
    else:
        word = rng.choice(_WORDS)
        text.signature(init, f'{flag}="{word}"')  # type: ignore[arg-type]
        text.below(init.body[-1], f"self.{flag} = {flag}")  # type: ignore[union-attr]
        kernel = with_argument(kernel, f'{flag}="{word}"')
        test = f'self.{flag} == "{word}"'
    target = text.of(statement.targets[0])
    others = ("raise NotImplementedError", 'raise ValueError("unknown setting")', f"{target} = {text.inputs[0]}")
    text.instead(statement, f"if {test}:", f"    {text.of(statement)}", "else:", f"    {rng.choice(others)}")
    return Work(text.result(), kernel)


def by_name(work: Work, rng: random.Random) -> Work | None:
    """A function of one argument looked up by its name: in a dictionary of the file, or with getattr."""
    text = Text(work.problem)
    init = text.method("__init__")
    known = tensors(text, text.forward)
    choices = [
        node
        for node in ast.walk(text.forward)
        if isinstance(node, ast.Call) and re.fullmatch(r"(torch|F)\.\w+", called(node)) and is_tensor(node, known)
    ]
    if not choices or init is None:
        return None
    node = rng.choice(choices)
    module, function = called(node).split(".")
    taken = text.taken
    attribute = fresh(rng, ("act", "fn", "op", "activation", "func", "nonlin"), taken)
    if rng.random() < 0.5:
        text.below(init.body[-1], f'self.{attribute} = getattr({module}, "{function}")')
    else:
        table = fresh(rng, ("FUNCTIONS", "ACTIVATIONS", "OPS", "REGISTRY"), taken)
        other = rng.choice([name for name in ("relu", "tanh", "sigmoid", "exp") if name != function])
        items = [f'"{function}": {module}.{function}', f'"{other}": torch.{other}']
        rng.shuffle(items)
        text.constant(f"{table} = {{{', '.join(items)}}}")
        text.below(init.body[-1], f'self.{attribute} = {table}["{function}"]')
    text.replace(node.func, f"self.{attribute}")
    return Work(text.result(), work.kernel)


def unpacked(work: Work, rng: random.Random) -> Work | None:
    """Attributes under local names at the top of `forward`."""
    text = Text(work.problem)
    loads = [node for node in ast.walk(text.forward) if is_own(node) and isinstance(node.ctx, ast.Load)]  # type: ignore[attr-defined]
    made = text.made()
    names = sorted({node.attr for node in loads if isinstance(node, ast.Attribute) and node.attr in made})
    taken = text.taken - set(names)
    chosen = [name for name in names if name not in taken and name not in _locals(text.forward)]
    if not chosen:
        return None
    chosen = chosen[: rng.choice((1, 2, 3))]
    first = text.forward.body[0]
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    left, right = ", ".join(chosen), ", ".join(f"self.{name}" for name in chosen)
    (text.below if is_text else text.above)(first, f"{left} = {right}")
    for name in chosen:
        for node in text.uses(name, text.forward):
            text.replace(node, name)
    return Work(text.result(), work.kernel)


def renamed(work: Work, rng: random.Random) -> Work | None:
    """Other names for the values between."""
    text = Text(work.problem)
    arguments = {item.arg for item in text.forward.args.args}
    values = sorted(_locals(text.forward) - arguments)
    if not values or any(
        isinstance(node, ast.Lambda | Function) for node in ast.walk(text.forward) if node is not text.forward
    ):
        return None
    taken = text.taken
    for value in values:
        new = fresh(rng, _VALUES, taken)
        taken.add(new)
        for node in ast.walk(text.forward):
            if isinstance(node, ast.Name) and node.id == value:
                text.replace(node, new)
    return Work(text.result(), work.kernel)
