"""The module of a printed file: its class, its docstrings, `forward` and its helpers."""

from __future__ import annotations

import random
import re

from dice.synth.problem.printing.init import argument_docs, init_method
from dice.synth.problem.printing.page import Page, names
from dice.synth.problem.rewrites import divided, hoisted, opened
from dice.synth.problem.tensors import Input, as_tuple
from dice.synth.tables.docstrings import RETURNS, documented, remark

# Names of a module that does the work of `Model`.
_BLOCKS = ("Block", "Core", "Layer", "FusedBlock", "Head", "Inner", "SubModule", "Cell", "Stage", "Unit", "Op")
# Attributes of a class that are never used.
_IDLE = ("expansion = 1", "version = 2", "num_calls = 0", "is_fused = False", "expansion: int = 4", "eps_floor = 1e-6")


def model(page: Page) -> str:
    """The module that is asked for, and the module or function that does its work, where there is one."""
    constructor, rng = page.problem.constructor, page.dice("model")
    is_wrapped = rng.random() < 0.03
    name = rng.choice(_BLOCKS) if is_wrapped else "Model"
    lines = [f"class {name}(nn.Module):"]
    docstring, documents_arguments = _class_docstring(page, rng)
    lines += docstring
    lines += _class_attributes(page, rng)
    if constructor.lines or constructor.shared_lines or constructor.arguments or rng.random() < 0.8:
        lines += init_method(page, name, documents_arguments=not documents_arguments)
    method, body = _body(page, rng)
    if rng.random() < 0.1:
        body = "\n\n".join(body).split("\n")
    above: list[str] = []
    if not method:
        above, method, body = _helper(page, rng, body)
    lines += method
    lines += [f"    def forward(self, {page.forward_signature()}){page.result_hint()}:"]
    lines += _forward_docstring(page, rng)
    lines += [f"        {line}" for line in body]
    if is_wrapped:
        lines += _wrapper(page, rng, name)
    return page.fill("\n".join(line.rstrip() for line in [*above, *lines]))


def _class_docstring(page: Page, rng: random.Random) -> tuple[list[str], bool]:
    """The lines of the class's docstring, and whether they describe the constructor's arguments."""
    kind = rng.choices(("", "short", "long"), (3, 5, 2.5))[0]
    has_arguments = kind == "long" and rng.random() < 0.4
    if not kind:
        return [], False
    arguments = page.problem.constructor.arguments if has_arguments else ()
    lines = documented(rng, kind, page.problem.title, argument_docs(page, arguments), "", page.docs, "    ")
    if rng.random() < 0.25:
        lines.append("")
    return lines, has_arguments


def _class_attributes(page: Page, rng: random.Random) -> list[str]:
    """Numbers that are attributes of the class; seldom one that is never used."""
    held = [f"    {name} = {text}" for name, text in page.problem.constructor.class_constants.items()]
    if rng.random() < 0.015:
        held.append(f"    {rng.choice(_IDLE)}")
    return [*held, ""] if held else []


def _body(page: Page, rng: random.Random) -> tuple[list[str], list[str]]:
    """A method that holds the first statements, or nothing, and the statements of `forward`."""
    problem, inputs = page.problem, page.problem.tensors.inputs
    first = inputs[0]
    body = [page.fill(line) for line in problem.forward.lines]
    taken = {*problem.names.taken, *re.findall(r"\w+", "\n".join(body)), "dim"}
    for _ in range(rng.choices((0, 1, 2), (88, 9, 3))[0]):
        body = hoisted(rng, body, taken)
    method: list[str] = []
    if rng.random() < 0.05:
        inner, body, called = divided(rng, body, [item.name for item in inputs], taken)
        method = [*(f"    {line}" for line in inner), ""] if called else []
    if rng.random() < 0.05:
        is_float = first.make.startswith(("torch.rand(", "torch.randn("))
        taken |= {*re.findall(r"\w+", "\n".join(body))}
        body = opened(rng, body, first.name, len(first.shape), is_float, taken)
    return method, [*_checks(page), *body]


def _helper(page: Page, rng: random.Random, body: list[str]) -> tuple[list[str], list[str], list[str]]:
    """All statements moved into a function above the class, or into a method: function, method, rest of `forward`."""
    inputs = page.problem.tensors.inputs
    helper = rng.choices(("", "method", "function"), (92, 5, 3))[0]
    if not helper:
        return [], [], body
    needs_self = "self." in "".join(body) or "self" in [item.name for item in inputs]
    is_method = helper == "method" or needs_self
    called = rng.choice(("_compute", "_transform", "_run") if is_method else ("compute", "fused", "computed"))
    signature, result, given = page.forward_signature(), page.result_hint(), names(inputs)
    if is_method:
        head = f"    def {called}(self, {signature}){result}:"
        return [], [head, *(f"        {line}" for line in body), ""], [f"return self.{called}({given})"]
    head = f"def {called}({signature}){result}:"
    return [head, *(f"    {line}" for line in body), "", ""], [], [f"return {called}({given})"]


def _forward_docstring(page: Page, rng: random.Random) -> list[str]:
    kind = rng.choices(("", "short", "long"), (3, 4, 3))[0]
    if not kind:
        return []
    inputs = [
        (item.name, "torch.Tensor" if item.shape else "float", _input_words(rng, item))
        for item in page.problem.tensors.inputs
    ]
    title, result = page.problem.title, rng.choice(RETURNS)
    return documented(rng, f"forward {kind}", title, inputs, result, page.docs, "        ")


def _input_words(rng: random.Random, item: Input) -> str:
    shape = f" of shape {as_tuple(item.shape)}"
    return f"{remark(rng, 'input')}{shape if rng.random() < 0.5 else ''}"


def _checks(page: Page) -> list[str]:
    """Seldom an assertion about the shapes of the inputs."""
    rng, inputs = page.dice("checks"), page.problem.tensors.inputs
    if rng.random() >= 0.04:
        return []
    first = inputs[0]
    if len(inputs) == 2 and first.shape == inputs[1].shape:
        one, two = first.name, inputs[1].name
        words = rng.choice(("", ", 'shapes differ'", f', f"{{{one}.shape}} != {{{two}.shape}}"'))
        return [f"assert {one}.shape == {two}.shape{words}"]
    rank = len(first.shape)
    return [f'assert {first.name}.dim() == {rank}, f"expected {rank} dimensions, got {{{first.name}.dim()}}"']


def _wrapper(page: Page, rng: random.Random, name: str) -> list[str]:
    """The module that is asked for, where its work is done by another module."""
    attribute = rng.choice(("block", "layer", "module", "op", "inner", "core", name.lower()))
    return [
        "",
        "",
        "class Model(nn.Module):",
        f"    def __init__({page.init_signature()}):",
        f"        {rng.choice(('super().__init__()', 'super(Model, self).__init__()'))}",
        f"        self.{attribute} = {name}({names(page.problem.constructor.arguments)})",
        "",
        f"    def forward(self, {page.forward_signature()}){page.result_hint()}:",
        f"        return self.{attribute}({names(page.problem.tensors.inputs)})",
    ]
