"""Styles of products: einsum, the operator and the function, linear layers by their weights."""

from __future__ import annotations

import ast
import random
import re

from dice.synth.wide.spelling import ranks
from dice.synth.wide.text import Text, Work, atom, called, fresh, is_tensor, tensors

_LETTERS = (("i", "j", "k"), ("m", "k", "n"), ("a", "b", "c"), ("s", "d", "e"), ("t", "c", "o"))


def einsum(work: Work, rng: random.Random) -> Work | None:
    """A product as `torch.einsum`."""
    text = Text(work.problem)
    known, rank = tensors(text, text.forward), ranks(text)
    for node in ast.walk(text.forward):
        operands = _product(node, known)
        if operands is None:
            continue
        subscripts = _subscripts(rng, node, operands, rank)
        if subscripts:
            first, second = (_unturned(item)[0] for item in operands)
            space = rng.choice((" ", "", ""))
            form = subscripts.replace(",", f",{space}").replace("->", f"{space}->{space}")
            quote = rng.choice("'\"")
            text.replace(node, f"torch.einsum({quote}{form}{quote}, {text.of(first)}, {text.of(second)})")
            return Work(text.result(), work.kernel)
    return None


def _product(node: ast.AST, known: set[str]) -> tuple[ast.expr, ast.expr] | None:
    """The operands of a product of two tensors."""
    match node:
        case ast.BinOp(op=ast.MatMult(), left=left, right=right):
            return left, right
        case ast.Call(args=[left, right], keywords=[]) if called(node) in ("torch.matmul", "torch.mm", "torch.bmm"):
            return left, right
        case ast.Call(func=ast.Attribute(value=left, attr="matmul" | "mm" | "bmm"), args=[right], keywords=[]):
            return (left, right) if is_tensor(left, known) else None
    return None


def _unturned(node: ast.expr) -> tuple[ast.expr, bool]:
    """The operand without a transposition of its last two dimensions, and whether there was one."""
    match node:
        case ast.Attribute(value=inner, attr="mT" | "T"):
            return inner, True
        case ast.Call(func=ast.Attribute(value=inner, attr="t"), args=[]):
            return inner, True
        case ast.Call(func=ast.Attribute(value=inner, attr="transpose")) if ast.unparse(node).endswith(
            ("(-2, -1)", "(-1, -2)")
        ):
            return inner, True
    return node, False


def _subscripts(rng: random.Random, node: ast.AST, operands: tuple[ast.expr, ast.expr], rank: dict[str, int]) -> str:
    """The subscripts of the product, where the ranks of its operands are known; else empty."""
    i, j, k = rng.choice(_LETTERS)
    (first, first_turned), (second, second_turned) = map(_unturned, operands)
    left, right = (f"{j}{i}" if first_turned else f"{i}{j}"), (f"{k}{j}" if second_turned else f"{j}{k}")
    name = called(node).split(".")[-1]
    if name == "mm":
        return f"{left},{right}->{i}{k}"
    if name == "bmm":
        return f"b{left},b{right}->b{i}{k}" if "b" not in i + j + k else f"z{left},z{right}->z{i}{k}"
    if not isinstance(first, ast.Name) or not isinstance(second, ast.Name):
        return ""
    ranks_of = rank.get(first.id, 0), rank.get(second.id, 0)
    if ranks_of == (2, 2):
        return f"{left},{right}->{i}{k}"
    if min(ranks_of) < 2:
        return ""
    dots = ["..." if number > 2 else "" for number in ranks_of]
    return f"{dots[0]}{left},{dots[1]}{right}->...{i}{k}"


def product_forms(work: Work, rng: random.Random) -> Work | None:
    """`a @ b`, `torch.matmul(a, b)` and `a.matmul(b)` for one another."""
    text = Text(work.problem)
    for function in text.working:
        known = tensors(text, function)
        for node in ast.walk(function):
            operands = _product(node, known)
            if operands is not None:
                left, right = (text.of(item) for item in operands)
                first, second = (atom(text.of(item), item) for item in operands)
                forms = [f"({first} @ {second})", f"torch.matmul({left}, {right})", f"{first}.matmul({right})"]
                forms.append(f"torch.matmul({left}, other={right})")
                text.replace(node, rng.choice([form for form in forms if form.strip("()") != text.of(node)]))
                return Work(text.result(), work.kernel)
    return None


def _linears(text: Text) -> dict[str, ast.Call]:
    """Attributes that are `nn.Linear` and are used only by calls of them."""
    found = {}
    for name, statement in text.made().items():
        value = statement.value
        uses = text.uses(name)
        calls = [node for node in ast.walk(text.model) if isinstance(node, ast.Call) and node.func in uses]
        plain = isinstance(value, ast.Call) and called(value) == "nn.Linear" and len(text.classes) == 1
        if plain and len(calls) == len(uses) > 0 and all(len(node.args) == 1 and not node.keywords for node in calls):
            found[name] = value
    return found  # type: ignore[return-value]


def functional_linear(work: Work, rng: random.Random) -> Work | None:
    """`F.linear(x, self.fc.weight, self.fc.bias)` for `self.fc(x)`."""
    text = Text(work.problem)
    layers = _linears(text)
    if not layers:
        return None
    name = rng.choice(sorted(layers))
    uses = text.uses(name)
    calls = [node for node in ast.walk(text.model) if isinstance(node, ast.Call) and node.func in uses]
    path, form = f"self.{name}", rng.choice(("{x}, {p}.weight, {p}.bias", "{x}, weight={p}.weight, bias={p}.bias"))
    outer = [node for node in calls if not any(other is not node and node in ast.walk(other) for other in calls)]
    for node in outer:
        operand = text.of(node.args[0])
        text.replace(node, f"nn.functional.linear({form.format(x=operand, p=path)})")
    if len(outer) != len(calls) or not re.search(
        r"^(import torch\.nn as nn|from torch import .*\bnn\b)", text.text, re.M
    ):
        return None
    changed = text.result()
    if re.search(r"^(import torch\.nn\.functional as F|from torch\.nn import functional as F)$", changed, re.M):
        changed = changed.replace("nn.functional.linear(", "F.linear(")
    return Work(changed, work.kernel)


def explicit_weights(work: Work, rng: random.Random) -> Work | None:
    """A linear layer as parameters of the module itself, in both files."""
    text, kernel = Text(work.problem), Text(work.kernel)
    layers, made = _linears(text), kernel.made()
    names = [name for name in sorted(layers) if name in made and text.of(layers[name]) == kernel.of(made[name].value)]
    names = [name for name in names if len(layers[name].args) >= 2 or len(layers[name].keywords) >= 2]
    if not names:
        return None
    name = rng.choice(names)
    settings = dict(zip(("in_features", "out_features", "bias"), map(text.of, layers[name].args), strict=False))
    settings |= {item.arg or "": text.of(item.value) for item in layers[name].keywords}
    if settings.get("bias", "True") not in ("True", "False") or not {"in_features", "out_features"} <= set(settings):
        return None
    taken = text.taken | kernel.taken
    weight = fresh(rng, ("weight", "w", "W", f"{name}_weight", "kernel_w", f"w_{name}"), taken)
    bias = fresh(rng, ("bias", "b", f"{name}_bias", f"b_{name}", "offset_b"), {*taken, weight})
    sizes = f"{settings['out_features']}, {settings['in_features']}"
    start = rng.choice(
        (f"torch.randn({sizes}) * 0.1", f"torch.randn({sizes}) / 8", f"torch.empty({sizes}).uniform_(-0.1, 0.1)")
    )
    lines = [f"self.{weight} = nn.Parameter({start})"]
    has_bias = settings.get("bias", "True") == "True"
    if has_bias:
        made_bias = rng.choice(("torch.zeros({})", "torch.randn({}) * 0.1", "torch.rand({})")).format(
            settings["out_features"]
        )
        lines.append(f"self.{bias} = nn.Parameter({made_bias})")
    form = rng.choice(("linear", "operator", "einsum"))
    if "torch.nn" not in work.problem and "nn." not in work.problem:
        return None
    for file in (text, kernel):
        _by_weights(file, name, lines, (weight, bias if has_bias else ""), form if file is text else "linear")
    try:
        return Work(text.result(), kernel.result())
    except SyntaxError:
        return None


def _by_weights(file: Text, name: str, lines: list[str], state: tuple[str, str], form: str) -> None:
    """The layer's uses by its parameters, and its parameters in place of it."""
    weight, bias = state
    file.instead(file.made()[name], *lines)
    calls = {id(node.func): node for node in ast.walk(file.model) if isinstance(node, ast.Call)}
    parents = {id(node.value): node for node in ast.walk(file.model) if isinstance(node, ast.Attribute)}
    for use in file.uses(name):
        call, outer = calls.get(id(use)), parents.get(id(use))
        if call is not None:
            start, end = file.span(call)[0], file.span(call.args[0])[0]
            operand = call.args[0]
            file._edit(start, end, _opening(form, weight, operand, file))
            close = file.span(call)[1]
            file._edit(file.span(operand)[1], close, _closing(form, weight, bias, operand))
        elif outer is not None and outer.attr in ("weight", "bias"):
            file.replace(
                outer,
                f"self.{weight if outer.attr == 'weight' else bias}" if outer.attr == "weight" or bias else "None",
            )


def _opening(form: str, weight: str, operand: ast.expr, file: Text) -> str:
    wrap = "" if isinstance(operand, ast.Name | ast.Attribute | ast.Call | ast.Subscript) else "("
    return {"linear": "nn.functional.linear(", "operator": f"({wrap}", "einsum": "(torch.einsum('...i,oi->...o', "}[
        form
    ]


def _closing(form: str, weight: str, bias: str, operand: ast.expr) -> str:
    wrap = "" if isinstance(operand, ast.Name | ast.Attribute | ast.Call | ast.Subscript) else ")"
    added = f" + self.{bias}" if bias else ""
    return {
        "linear": f", self.{weight}{f', self.{bias}' if bias else ''})",
        "operator": f"{wrap} @ self.{weight}.t(){added})",
        "einsum": f", self.{weight}){added})",
    }[form]
