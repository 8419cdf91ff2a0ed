"""Styles of where a number stands: in place, at the top of the file, in the class, the constructor, a property."""

from __future__ import annotations

import ast
import random

from dice.synth.wide.text import Function, Text, Work, fresh

_UPPER = ("ALPHA", "SCALE", "FACTOR", "VALUE", "COEFF", "C0", "SLOPE", "OFFSET", "_CONST", "K_VALUE", "GAIN")
_LOWER = ("alpha", "factor", "coeff", "amount", "const", "slope_value", "c0", "level", "strength", "setting")


def _numbers(text: Text, *, constructor: bool) -> list[ast.Constant]:
    """Floating-point numbers in expressions of the model's methods; `constructor`: those of `__init__` as well."""
    methods = [node for node in text.model.body if isinstance(node, Function)]
    methods = [node for node in methods if constructor or node.name != "__init__"]
    found = []
    for method in methods:
        if any(isinstance(item, ast.Name) and item.id == "staticmethod" for item in method.decorator_list):
            continue
        for statement in method.body:
            found += [node for node in ast.walk(statement) if isinstance(node, ast.Constant) and _is_float(node)]
    return found


def _is_float(node: ast.Constant) -> bool:
    return isinstance(node.value, float)


def module_constant(work: Work, rng: random.Random) -> Work | None:
    """A number of the model as a constant of the file."""
    text = Text(work.problem)
    found = _numbers(text, constructor=True)
    if not found:
        return None
    node = rng.choice(found)
    name = fresh(rng, _UPPER, text.taken)
    text.constant(f"{name} = {text.of(node)}")
    text.replace(node, name)
    return Work(text.result(), work.kernel)


def settings_dict(work: Work, rng: random.Random) -> Work | None:
    """All numbers of the methods in one dictionary of the file."""
    text = Text(work.problem)
    found = _numbers(text, constructor=False)
    if not found:
        return None
    name = fresh(rng, ("CONFIG", "config", "PARAMS", "cfg", "SETTINGS", "HPARAMS"), text.taken)
    keys: dict[str, str] = {}
    for node in found:
        number = text.of(node)
        if number not in keys:
            keys[number] = fresh(rng, _LOWER, {*text.taken, *keys.values()})
        text.replace(node, f'{name}["{keys[number]}"]')
    if rng.random() < 0.5:
        text.constant(f"{name} = {{{', '.join(f'{chr(34)}{key}{chr(34)}: {number}' for number, key in keys.items())}}}")
    else:
        text.constant(f"{name} = dict({', '.join(f'{key}={number}' for number, key in keys.items())})")
    return Work(text.result(), work.kernel)


def class_constant(work: Work, rng: random.Random) -> Work | None:
    """A number of a method as an attribute of the class."""
    text = Text(work.problem)
    found = _numbers(text, constructor=True)
    if not found:
        return None
    node = rng.choice(found)
    name = fresh(rng, (*_UPPER, *_LOWER), text.taken)
    first = text.model.body[0]
    line = f"{name}{rng.choice(('', ': float'))} = {text.of(node)}"
    is_text = isinstance(first, ast.Expr)
    (text.below if is_text else text.above)(first, *(["", line] if is_text else [line, ""]))
    text.replace(node, f"{rng.choice(('self', 'self', 'Model'))}.{name}")
    return Work(text.result(), work.kernel)


def attribute_number(work: Work, rng: random.Random) -> Work | None:
    """A number of `forward` as an attribute that the constructor sets."""
    text = Text(work.problem)
    found, init = _numbers(text, constructor=False), text.method("__init__")
    if not found or init is None:
        return None
    node = rng.choice(found)
    name = fresh(rng, _LOWER, text.taken)
    text.below(_base_made(init), f"self.{name} = {text.of(node)}")
    text.replace(node, f"self.{name}")
    return Work(text.result(), work.kernel)


def constructor_default(work: Work, rng: random.Random) -> Work | None:
    """A number of `forward` as a constructor argument with that default; the kernel's constructor takes it, too."""
    text = Text(work.problem)
    found, init = _numbers(text, constructor=False), text.method("__init__")
    if not found or init is None or init.args.kwonlyargs or len(text.classes) > 1:
        return None
    node = rng.choice(found)
    name = fresh(rng, _LOWER, text.taken)
    hint = rng.choice((": float = ", "="))
    kernel = with_argument(work.kernel, f"{name}={node.value!r}")
    text.signature(init, f"{name}{hint}{text.of(node)}")
    text.below(_base_made(init), f"self.{name} = {name}")
    text.replace(node, f"self.{name}")
    return Work(text.result(), kernel)


def _base_made(init: Function) -> ast.stmt:
    """The statement after which attributes can be set: the methods that a constructor calls read some."""
    return next((node for node in init.body if ".__init__(" in ast.unparse(node)), init.body[-1])


def with_argument(kernel: str, argument: str) -> str:
    """The kernel's file with one more argument of ModelNew's constructor."""
    text = Text(kernel)
    init = text.method("__init__")
    if init is None:
        text.member(f"def __init__(self, {argument}):", "    super().__init__()")
    else:
        text.signature(init, argument)
    return text.result()


def number_property(work: Work, rng: random.Random) -> Work | None:
    """A number, or an attribute that holds one, behind a property."""
    text = Text(work.problem)
    found = _numbers(text, constructor=False)
    if not found:
        return None
    node = rng.choice(found)
    name = fresh(rng, _LOWER, text.taken)
    hint = rng.choice(("", " -> float"))
    remark = ['    """A fixed number of the model."""'] if rng.random() < 0.3 else []
    text.member("@property", f"def {name}(self){hint}:", *remark, f"    return {text.of(node)}")
    text.replace(node, f"self.{name}")
    return Work(text.result(), work.kernel)


def local_constant(work: Work, rng: random.Random) -> Work | None:
    """A number of `forward` under a name in front of the statement that uses it."""
    text = Text(work.problem)
    places = [
        (statement, node)
        for statement in text.forward.body
        if isinstance(statement, ast.Assign | ast.Return)
        for node in ast.walk(statement)
        if isinstance(node, ast.Constant) and _is_float(node)
    ]
    if not places:
        return None
    statement, node = rng.choice(places)
    name = fresh(rng, _LOWER, text.taken)
    text.above(statement, f"{name} = {text.of(node)}")
    text.replace(node, name)
    return Work(text.result(), work.kernel)


def literal_sizes(work: Work, rng: random.Random) -> Work | None:
    """Constants of the file that only `get_inputs` and `get_init_inputs` use: their numbers in place, or in a tuple."""
    text = Text(work.problem)
    users = {
        node.id
        for part in text.tree.body
        if isinstance(part, Function | ast.ClassDef)
        and getattr(part, "name", "") not in ("get_inputs", "get_init_inputs")
        for node in ast.walk(part)
        if isinstance(node, ast.Name)
    }
    others = [node for node in text.tree.body if isinstance(node, ast.Assign)]
    held = {
        node.targets[0].id: node
        for node in others
        if len(node.targets) == 1 and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Constant)
    }
    names = [name for name in held if name not in users]
    read = {item.id for node in others for item in ast.walk(node.value) if isinstance(item, ast.Name)}
    names = [name for name in names if name not in read]
    if not names:
        return None
    for name in names:
        text.instead(held[name])
        for node in ast.walk(text.tree):
            if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
                text.replace(node, text.of(held[name].value))
    return Work(text.result(), work.kernel)
