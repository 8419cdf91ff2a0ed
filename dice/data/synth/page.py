"""Printing: a filled `Script` as a file, in one of very many layouts.

Every choice follows from the script's `printing` number and the section's name, never from sizes: the small and the
large problem are one text with other numbers.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dice.data.synth.docstrings import RETURNS, documented, remark
from dice.data.synth.habits import divided, hoisted, opened, wrapped

if TYPE_CHECKING:
    from dice.data.synth.script import Argument, Input, Script

MAX_LINE = 84
_F = re.compile(r"(?<![\w.])F\.")
_BLOCKS = ("Block", "Core", "Layer", "FusedBlock", "Head", "Inner", "SubModule", "Cell", "Stage", "Unit", "Op")
_IDLE = ("expansion = 1", "version = 2", "num_calls = 0", "is_fused = False", "expansion: int = 4", "eps_floor = 1e-6")
_OTHER_SAMPLERS = (
    "torch.randn({shape}) * 0.5",
    "0.5 * torch.randn({shape})",
    "torch.rand({shape}) * 2 - 1",
    "torch.rand({shape}) - 0.5",
    "torch.empty({shape}).uniform_(-1, 1)",
    "torch.empty({shape}).normal_()",
)
_SAMPLER = re.compile(r"torch\.(randn|rand)\(\{shape\}\)")


def printed(script: Script, large: bool) -> str:
    """The file's text, with the large or the small shapes."""
    return _Page(script, large).text()


class _Page:
    def __init__(self, script: Script, large: bool) -> None:
        self.script = script
        self.large = large
        rng = self.dice("file")
        self.hints = rng.random() < 0.45
        self.stored = rng.random() < 0.15  # self.name = name for every argument
        self.tensor = rng.choices(("torch.Tensor", "Tensor"), (9, 1))[0]
        self.docs = rng.choice(("google", "google", "google", "numpy", "sphinx", "plain"))
        self.gap = rng.choice(("\n\n", "\n\n\n"))

    def dice(self, section: str) -> random.Random:
        return random.Random(f"{self.script.printing}:{section}")

    def fill(self, text: str) -> str:
        return self.script.fill(text, self.large)

    def text(self) -> str:
        rng = self.dice("layout")
        model, constants = self._model(), self._constants()
        middle = [constants, model] if rng.random() < 0.25 else [model, constants]
        body = self.gap.join(section for section in (*middle, self._functions()) if section)
        if rng.random() < 0.07:
            body = _F.sub("torch.nn.functional.", body)
        if rng.random() < 0.04:
            body = re.sub(r"(?<![\w.])nn\.", "torch.nn.", body)
        return f"{self._imports(body)}{self.gap}{body}\n"

    # --- imports and constants ----------------------------------------------------------------------------------------

    def _imports(self, body: str) -> str:
        rng = self.dice("imports")
        lines = ["import torch", rng.choices(("import torch.nn as nn", "from torch import nn"), (8, 2))[0]]
        if _F.search(body) or rng.random() < 0.12:
            forms = ("import torch.nn.functional as F", "from torch.nn import functional as F")
            lines.append(rng.choices(forms, (9, 1))[0])
        if ": Tensor" in body or "-> Tensor" in body:
            lines.append("from torch import Tensor")
        if "math." in body or rng.random() < 0.03:
            lines.insert(rng.choice((0, len(lines))), "import math")
        if rng.random() < 0.03:
            lines.insert(0, f"from typing import {rng.choice(('Tuple', 'List', 'Optional, Tuple'))}")
        title = self.script.title
        if rng.random() < 0.05:
            lines.insert(0, rng.choice((f"# {title}", f'"""{title[:1].upper()}{title[1:]}."""')))
        return "\n".join(lines)

    def _constants(self) -> str:
        script, rng = self.script, self.dice("constants")
        form = rng.choices(("lines", "together", "chained"), (7, 2, 1.5))[0]
        sizes: dict[str, int] = {}
        lines: list[str] = []
        for index, item in enumerate(script.dimensions):
            computed, turned = rng.random() < 0.08, rng.random() < 0.5
            if item.name is None or f"@{index}@" not in script.text:
                continue
            value = item.large if self.large else item.small
            base = next(
                (name for name, size in sizes.items() if 1 < size < value <= 4 * size and value % size == 0), ""
            )
            if computed and base:
                ratio = value // sizes[base]
                lines.append(f"{item.name} = {f'{base} * {ratio}' if turned else f'{ratio} * {base}'}")
            elif form == "chained" and lines and lines[-1].endswith(f"= {value}"):
                lines[-1] = f"{lines[-1].removesuffix(str(value))}{item.name} = {value}"
            elif form == "together" and sizes and lines and lines[-1].count(",") < 6 and lines[-1].count("=") == 1:
                left, right = lines[-1].split(" = ")
                lines[-1] = f"{left}, {item.name} = {right}, {value}"
            else:
                lines.append(f"{item.name} = {value}")
            if not computed:
                sizes[item.name] = value
        lines += [f"{item.name} = {self.fill(item.value)}" for item in script.arguments if item.constant]
        lines += [f"{name} = {text}" for name, text in script.constants.items()]
        if not lines:
            return ""
        if rng.random() < 0.06 and "dim" not in script.names:
            lines.insert(rng.randrange(len(lines) + 1), "dim = 1")
        rate = rng.choice((0.0, 0.0, 0.0, 0.3))
        lines = [f"{line}  # {remark(rng, 'size')}" if rng.random() < rate else line for line in lines]
        if rng.random() < 0.15:
            lines.insert(0, f"# {remark(rng, 'constants')}")
        return "\n".join(lines)

    # --- the model --------------------------------------------------------------------------------------------------

    def _model(self) -> str:
        script, rng = self.script, self.dice("model")
        wraps = rng.random() < 0.03
        name = rng.choice(_BLOCKS) if wraps else "Model"
        lines = [f"class {name}(nn.Module):"]
        kind = rng.choices(("", "short", "long"), (3, 5, 2.5))[0]
        in_class = kind == "long" and rng.random() < 0.4
        if kind:
            arguments = script.arguments if in_class else ()
            lines += documented(rng, kind, script.title, self._argument_docs(arguments), "", self.docs, "    ")
            lines += [""] * (rng.random() < 0.25)
        held = [f"{item} = {text}" for item, text in script.class_constants.items()]
        held += [rng.choice(_IDLE)] if rng.random() < 0.015 else []
        lines += [*(f"    {line}" for line in held), *([""] if held else [])]
        if script.init or script.shared_init or script.arguments or rng.random() < 0.8:
            lines += self._init(name, not in_class)
        names = [item.name for item in script.inputs]
        method, body = self._body(rng, names)
        if rng.random() < 0.1:
            body = [line for item in body for line in (item, "")][:-1]
        helper = rng.choices(("", "method", "function"), (92, 5, 3))[0] if not method else ""
        calls = "self." in "".join(body) or "self" in names
        form = "method" if helper == "function" and calls else helper
        signature = ", ".join(self._typed(item) for item in script.inputs)
        result = f" -> {self.tensor}" if self.hints else ""
        function: list[str] = []
        if form:
            called = rng.choice(
                ("_compute", "_transform", "_run") if form == "method" else ("compute", "fused", "computed")
            )
            own = "self, " if form == "method" else ""
            depth = "    " if form == "method" else ""
            function = [f"{depth}def {called}({own}{signature}){result}:", *(f"{depth}    {line}" for line in body), ""]
            body = [f"return {'self.' if own else ''}{called}({', '.join(names)})"]
        lines += function if form == "method" else method
        lines += [f"    def forward(self, {signature}){result}:"]
        kind = rng.choices(("", "short", "long"), (3, 4, 3))[0]
        if kind:
            inputs = [(item.name, self._kind(item), self._input_words(rng, item)) for item in script.inputs]
            lines += documented(
                rng, f"forward {kind}", script.title, inputs, rng.choice(RETURNS), self.docs, "        "
            )
        lines += [f"        {line}" for line in body]
        lines += self._wrapper(rng, name, signature, result) if wraps else []
        above = function + [""] if form == "function" else []
        return self.fill("\n".join(line.rstrip() for line in [*above, *lines]))

    def _kind(self, item: Input) -> str:
        return "torch.Tensor" if item.shape else "float"

    def _typed(self, item: Input) -> str:
        return f"{item.name}: {self.tensor if item.shape else 'float'}" if self.hints else item.name

    def _body(self, rng: random.Random, names: Sequence[str]) -> tuple[list[str], list[str]]:
        """A method that holds the first statements, or nothing, and the statements of `forward`."""
        script, first = self.script, self.script.inputs[0]
        body = [self.fill(line) for line in script.body]
        taken = {*script.names, *re.findall(r"\w+", "\n".join(body)), "dim"}
        for _ in range(rng.choices((0, 1, 2), (88, 9, 3))[0]):
            body = hoisted(rng, body, taken)
        method: list[str] = []
        if rng.random() < 0.05:
            inner, body, called = divided(rng, body, names, taken)
            method = [*(f"    {line}" for line in inner), ""] if called else []
        if rng.random() < 0.05:
            is_float = first.make.startswith(("torch.rand(", "torch.randn("))
            taken |= {*re.findall(r"\w+", "\n".join(body))}
            body = opened(rng, body, first.name, len(first.shape), is_float, taken)
        return method, [*self._checks(), *body]

    def _wrapper(self, rng: random.Random, name: str, signature: str, result: str) -> list[str]:
        """The module that is asked for, where its work is done by another module."""
        script = self.script
        attribute = rng.choice(("block", "layer", "module", "op", "inner", "core", name.lower()))
        made = ", ".join(["self", *map(self._argument_text, script.arguments)])
        given = ", ".join(item.name for item in script.arguments)
        called = ", ".join(item.name for item in script.inputs)
        return [
            "",
            "",
            "class Model(nn.Module):",
            f"    def __init__({made}):",
            f"        {rng.choice(('super().__init__()', 'super(Model, self).__init__()'))}",
            f"        self.{attribute} = {name}({given})",
            "",
            f"    def forward(self, {signature}){result}:",
            f"        return self.{attribute}({called})",
        ]

    def _init(self, name: str, documented_here: bool) -> list[str]:
        script, rng = self.script, self.dice("init")
        hint = " -> None" if self.hints and rng.random() < 0.4 else ""
        signature = ", ".join(["self", *map(self._argument_text, script.arguments)])
        lines = [f"    def __init__({signature}){hint}:"]
        if len(lines[0]) > MAX_LINE and rng.random() < 0.4:
            parts = "".join(f"        {part},\n" for part in signature.split(", ")) if "(" not in signature else ""
            lines = [f"    def __init__(\n{parts}    ){hint}:"] if parts else lines
        if rng.random() < (0.2 if script.arguments and documented_here else 0.06):
            lines += documented(rng, "init", "", self._argument_docs(script.arguments), "", self.docs, "        ")
        inner = [f"super({name}, self).__init__()" if rng.random() < 0.45 else "super().__init__()"]
        assigned = [*script.shared_init, *script.init]
        sizes = [item for item in script.arguments if item.hint == "int" and "@" in item.value]
        floats = [item for item in script.arguments if item.hint == "float" and item.value[:1].isdigit()]
        checked = [f"{item.name} > 0" for item in sizes] + [f"0 <= {item.name} <= 1000" for item in floats]
        if checked and rng.random() < 0.03:
            check = rng.choice(checked)
            inner.append(f"assert {check}{rng.choice(('', f', {repr(check)}', ', f' + repr('must hold: ' + check)))}")
        if self.stored:
            known = "\n".join(assigned)
            inner += [
                f"self.{item.name} = {item.name}" for item in script.arguments if f"self.{item.name} = " not in known
            ]
        inner += assigned
        inner += ["pass"] if len(inner) == 1 and rng.random() < 0.04 else []
        rate = rng.choice((0.0, 0.6))
        inner = [part for line in inner for part in (wrapped(line) if self._is_long(line, rate, rng) else [line])]
        return [*lines, *(f"        {line}" for line in inner), ""]

    def _is_long(self, line: str, rate: float, rng: random.Random) -> bool:
        return (len(self.fill(line)) > MAX_LINE or "Sequential(" in line) and rng.random() < rate

    def _argument_text(self, item: Argument) -> str:
        hint = f": {item.hint}" if self.hints else ""
        if not self.script.has_default(item):
            return item.name + hint
        return f"{item.name}{hint}{' = ' if hint else '='}{item.default}"

    def _argument_docs(self, arguments: Sequence[Argument]) -> list[tuple[str, str, str]]:
        rng = self.dice("arguments")
        docs = []
        for item in arguments:
            words = remark(rng, "argument").format(name=item.name.replace("_", " "))
            default = f" Defaults to {item.default}." if self.script.has_default(item) and rng.random() < 0.5 else ""
            docs.append((item.name, f"{item.hint}, optional" if default else item.hint, words + default))
        return docs

    def _input_words(self, rng: random.Random, item: Input) -> str:
        shape = f" of shape ({', '.join(item.shape)}{',' * (len(item.shape) == 1)})"
        return f"{remark(rng, 'input')}{shape if rng.random() < 0.5 else ''}"

    def _checks(self) -> list[str]:
        rng, inputs = self.dice("checks"), self.script.inputs
        if rng.random() >= 0.04:
            return []
        first = inputs[0]
        if len(inputs) == 2 and first.shape == inputs[1].shape:
            one, two = first.name, inputs[1].name
            words = rng.choice(("", ", 'shapes differ'", f', f"{{{one}.shape}} != {{{two}.shape}}"'))
            return [f"assert {one}.shape == {two}.shape{words}"]
        rank = len(first.shape)
        return [f'assert {first.name}.dim() == {rank}, f"expected {rank} dimensions, got {{{first.name}.dim()}}"']

    # --- inputs --------------------------------------------------------------------------------------------------

    def _functions(self) -> str:
        script, rng = self.script, self.dice("functions")
        above: list[str] = []
        shared = len({tuple(item.shape) for item in script.inputs}) == 1
        shape = self._shape(rng, script.inputs[0].shape, above) if shared else ""
        calls = [item.make.format(shape=shape) if shape else self._call(rng, item) for item in script.inputs]
        hint = rng.choice((" -> list", " -> list[torch.Tensor]")) if self.hints and rng.random() < 0.15 else ""
        lines = [*above, f"def get_inputs(){hint}:"]
        if rng.random() < 0.08:
            lines.append(f"    # {remark(rng, 'inputs')}")
        inline = f"    return [{', '.join(calls)}]"
        if len(inline) <= MAX_LINE and rng.random() < 0.6:
            lines.append(inline)
        else:
            lines += [f"    {item.name} = {call}" for item, call in zip(script.inputs, calls, strict=True)]
            lines.append(f"    return [{', '.join(item.name for item in script.inputs)}]")
        gap = [""] if len(self.gap) < 3 else ["", ""]
        lines += [*gap, f"def get_init_inputs(){' -> list' if hint else ''}:", *self._init_inputs(rng)]
        return self.fill("\n".join(lines))

    def _shape(self, rng: random.Random, shape: Sequence[str], above: list[str]) -> str:
        """The shape of all inputs as a constant, which `above` takes; empty where each is written out."""
        form = rng.choices(("", "whole", "rest"), (90, 6, 4))[0]
        if not form or len(shape) < 2:
            return ""
        kept = shape[form == "rest" :]
        name = "input_shape" if form == "rest" else rng.choice(("shape", "input_shape", "x_shape"))
        above += [f"{name} = ({', '.join(kept)}{',' * (len(kept) == 1)})", ""]
        return f"{shape[0]}, *{name}" if form == "rest" else f"*{name}"

    def _call(self, rng: random.Random, item: Input) -> str:
        """The expression that makes an input."""
        shape = ", ".join(item.shape)
        form = rng.choices(("plain", "tuple", "list", "size", "dtype"), (70, 5, 1.5, 2, 3))[0]
        if form != "plain" and item.shape and _SAMPLER.match(item.make):
            wrapped = f"[{shape}]" if form == "list" else f"({shape}{',' * (len(item.shape) == 1)})"
            shape = {"size": f"size={wrapped}", "dtype": f"{shape}, dtype=torch.float32"}.get(form, wrapped)
        make = item.make
        if make == "torch.randn({shape})" and form in ("plain", "tuple") and rng.random() < 0.05:
            make = rng.choice(_OTHER_SAMPLERS)
        return make.format(shape=shape)

    def _init_inputs(self, rng: random.Random) -> list[str]:
        """The body of `get_init_inputs`: what the signature already says may be left out at the end."""
        given = list(self.script.arguments)
        while given and given[-1].default == given[-1].value and not given[-1].constant and rng.random() < 0.6:
            given.pop()
        values = [item.name if item.constant else item.value for item in given]
        form = rng.choices(("plain", "names", "lines"), (84, 8, 8))[0]
        if values and form == "lines" and len(values) > 1:
            rows = [f"        {value},  # {item.name}" for value, item in zip(values, given, strict=True)]
            return ["    return [", *rows, "    ]"]
        names = ", ".join(item.name for item in given)
        suffix = f"  # {names}" if values and form == "names" else ""
        suffix = f"  # {remark(rng, 'init')}" if not values and rng.random() < 0.25 else suffix
        return [f"    return [{', '.join(values)}]{suffix}"]
