"""The problem side: builds one PyTorch file in KernelBench's form, in one of very many ways of writing it.

A `Script` is filled by a family (inputs, parameters, statements of `forward`) and remembers, next to the text, what the
kernel needs to know: constructor arguments, parameters and scalars. All randomness is drawn while it is filled, so that
`render` is a pure function and the same text can be printed with large or with small shapes.
"""

from __future__ import annotations

import functools
import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from dice.data.synth.chain import ChainState, Step, cuda_number, draw_scalars, python_number
from dice.data.synth.operators import OPERATORS, Operator, Spelling, spelling
from dice.data.synth.phrasing import (
    ATTRIBUTE_NAMES,
    CLASS_DOCS,
    CONSTANT_REMARKS,
    DIMENSION_NAMES,
    FORWARD_DOCS,
    INIT_REMARKS,
    INPUT_NAMES,
    INPUT_REMARKS,
    SCALAR_NAMES,
    TEMPORARIES,
)

# Names with a meaning in the kernels; a scalar that is passed to a kernel must not take one.
RESERVED = frozenset(
    [
        "x",
        "y",
        "z",
        "w",
        "v",
        "n",
        "i",
        "j",
        "k",
        "m",
        "s",
        "t",
        "c",
        "p",
        "b",
        "h",
        "r",
        "out",
        "D",
        "M",
        "N",
        "K",
        "C",
        "G",
        "row",
        "rows",
        "col",
        "base",
        "inner",
        "half",
        "weight",
        "bias",
        "top",
        "left",
        "sum",
        "part",
        "lane",
        "first",
        "start",
        "step",
        "size",
        "query",
        "key",
        "head",
        "index",
        "index_of",
        "length",
        "channel",
        "total",
        "limit",
        "low",
        "high",
        "count",
    ]
)
MAX_LINE = 84
MAX_LARGE_ELEMENTS = 2**25


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number of the problem: its text in `forward`, in `__init__`, and in CUDA."""

    forward: str
    init: str
    cuda: str


@dataclass(frozen=True, slots=True)
class Value:
    """A Python expression of the problem's `forward`."""

    text: str
    is_atom: bool = True
    is_name: bool = True


@dataclass(slots=True)
class Dimension:
    name: str | None  # None: printed as a literal
    small: int
    large: int
    step: int = 1  # must divide both


@dataclass(slots=True)
class Argument:
    """One constructor argument. `value` is the text that `get_init_inputs` returns for it."""

    name: str
    value: str
    hint: str
    constant: bool  # is `value` a literal that gets a module-level name
    default: bool


@dataclass(slots=True)
class Input:
    name: str
    shape: list[str]
    make: str  # expression with a {shape} field


class Script:
    """One problem being written. Texts may hold `@k@`, the k-th dimension, filled in by `render`."""

    def __init__(self, rng: random.Random, *, keep_inputs: bool = False) -> None:
        self.rng = rng
        self.title = ""
        self.dimensions: list[Dimension] = []
        self.arguments: list[Argument] = []
        self.inputs: list[Input] = []
        self.results: list[list[str]] = []  # shapes of tensors that may be larger than the inputs
        self.init: list[str] = []  # problem's __init__
        self.shared_init: list[str] = []  # lines of __init__ the kernel needs too: parameters, scalars
        self.body: list[str] = []
        self.scalars: dict[str, str] = {}  # name -> C++ type of the scalars ModelNew passes to its kernel, in order
        self.names: set[str] = set()
        self.flow = "fresh" if keep_inputs else rng.choices(("reassign", "nested", "fresh"), (4, 3, 2))[0]
        self.taste = rng.choice(_TASTES)
        self.hints = rng.random() < 0.45
        self.named_dimensions = rng.random() < 0.85
        self.argument_rate = rng.choice((0.0, 0.0, 0.2, 0.5))
        self.docs = rng.choices((0, 1, 2), (3, 4, 3))[0]
        self.class_docs = rng.choices((0, 1, 2), (3, 5, 2))[0]
        self.comments = rng.random() < 0.15
        self.constants_first = rng.random() < 0.25
        self.layout = rng.random()
        self.doc_choice = rng.random()
        self.remark = rng.random()
        self.sampler = rng.choices(("torch.randn({shape})", "torch.rand({shape})"), (6, 4))[0]

    # --- names, sizes, numbers ------------------------------------------------------------------------------------

    def fresh(self, pool: Sequence[str]) -> str:
        """A name of the pool that is not in use, with a number when all are."""
        free = [name for name in pool if name not in self.names]
        name = self.rng.choice(free) if free else ""
        number = 2
        while not name:
            candidate = f"{pool[0]}{number}"
            name = "" if candidate in self.names else candidate
            number += 1
        self.names.add(name)
        return name

    def dimension(self, role: str, small: int, large: int, step: int = 1) -> str:
        """A new size; returns its mark."""
        named = self.named_dimensions and self.rng.random() < 0.95
        name = self.fresh(DIMENSION_NAMES[role]) if named else None
        self.dimensions.append(Dimension(name, small, large, step))
        return f"@{len(self.dimensions) - 1}@"

    def small(self, mark: str) -> int:
        return self.dimensions[int(mark.strip("@"))].small

    def argument(self, pool: Sequence[str], value: str, hint: str) -> str:
        """A constructor argument; `value` is a literal or a dimension's mark. Returns its name."""
        is_literal = "@" not in value
        constant = is_literal and self.rng.random() < 0.45
        name = self.fresh([name for name in pool if name not in RESERVED])
        default = is_literal and not constant and self.rng.random() < 0.3
        self.arguments.append(Argument(name, value, hint, constant, default))
        return name

    def scalar(self, role: str, value: float | int, *, hint: str = "float", may_be_argument: bool = True) -> Scalar:
        """A number, either written where it is used or given to the constructor."""
        text, cuda = python_number(value), cuda_number(value) if hint == "float" else str(value)
        if not may_be_argument or self.rng.random() >= self.argument_rate:
            return Scalar(text, text, cuda)
        name = self.argument(SCALAR_NAMES[role], text, hint)
        self.runtime_scalar(name, hint)
        return Scalar(f"self.{name}", name, name)

    def runtime_scalar(self, name: str, ctype: str = "float") -> None:
        """A constructor argument that the host function takes."""
        self.shared_init.append(f"self.{name} = {name}")
        self.scalars[name] = ctype

    # --- inputs, parameters, modules ------------------------------------------------------------------------------

    def input(self, role: str, shape: list[str], make: str | None = None) -> Value:
        """A tensor argument of `forward`; `make` is an expression with {shape}."""
        name = self.fresh(INPUT_NAMES[role])
        self.inputs.append(Input(name, shape, make or self.sampler))
        return Value(name)

    def attribute(self, role: str, expression: str, *, shared: bool) -> str:
        """`self.<name> = expression` in `__init__`; shared ones (parameters) are repeated in ModelNew."""
        name = self.fresh(ATTRIBUTE_NAMES[role])
        line = f"self.{name} = {expression}"
        (self.shared_init if shared else self.init).append(line)
        return f"self.{name}"

    # --- forward ---------------------------------------------------------------------------------------------------

    def bind(self, value: Value, comment: str = "") -> Value:
        """Give the expression a name (a statement of `forward`), unless it has one."""
        if value.is_name:
            return value
        name = self.inputs[0].name if self.flow == "reassign" else self.fresh(TEMPORARIES)
        if self.comments and comment:
            self.body.append(f"# {comment}")
        self.body.append(f"{name} = {value.text}")
        return Value(name)

    def apply(self, text: str | Spelling, value: Value, comment: str = "", **fields: str) -> Value:
        """Put `value` into the field {x} of a template and follow the script's habit of naming results."""
        form = text if isinstance(text, Spelling) else _parsed(text)
        if form.uses > 1:
            value = self.bind(value)
        inner = value.text if value.is_atom or form.wraps else f"({value.text})"
        result = Value(form.text.format(x=inner, **fields), form.is_atom, False)
        if self.flow != "nested" or len(result.text) > 52:
            result = self.bind(result, comment)
        return result

    def chain(
        self,
        value: Value,
        names: Sequence[str],
        *,
        state: ChainState | None = None,
        numbers: Sequence[tuple[float, ...]] | None = None,
    ) -> tuple[Value, list[Step]]:
        """Apply elementwise operators in turn. Returns the value and the steps for the kernel.

        `numbers`: the operators' scalars, where they are given; else they are drawn.
        """
        state = state or ChainState()
        steps = []
        for index, name in enumerate(names):
            operator = OPERATORS[name]
            given = numbers[index] if numbers is not None else None
            value, step = self._operator(value, operator, state, given)
            state = state.after(operator)
            steps.append(step)
        return value, steps

    def _operator(
        self, value: Value, operator: Operator, state: ChainState, given: tuple[float, ...] | None
    ) -> tuple[Value, Step]:
        if operator.jumps:  # rounding or comparing numbers of [0, 1) leaves next to nothing of them
            for item in self.inputs:
                item.make = item.make.replace("torch.rand({shape})", "torch.randn({shape})")
        plain = operator.plain and given in (None, operator.defaults) and self.rng.random() < 0.4
        form = self._pick(operator.plain if plain else operator.spellings)
        if operator.name == "clamp" and value.text.startswith("-"):
            value = self.bind(value)
        drawn = given if given is not None else draw_scalars(self.rng, operator, state)
        numbers = operator.defaults if plain else drawn
        scalars = [
            self.scalar(role, number, may_be_argument=not plain)
            for role, number in zip(operator.scalars, numbers, strict=True)
        ]
        step = Step(operator, tuple(scalar.cuda for scalar in scalars))
        if form.kind == "module":
            expression = form.text.format(**dict(zip("ab", (scalar.init for scalar in scalars), strict=False)))
            role = "activation" if len(self.names) % 2 else operator.name
            attribute = self.attribute(role if role in ATTRIBUTE_NAMES else "activation", expression, shared=False)
            return self.apply(f"{attribute}({{x}})", value, operator.phrase), step
        fields = dict(zip("ab", (scalar.forward for scalar in scalars), strict=False))
        return self.apply(form, value, operator.phrase, **fields), step

    def _pick(self, forms: Sequence[Spelling]) -> Spelling:
        weights = [self.taste[form.kind] if "(" in form.text else 1.5 for form in forms]
        return self.rng.choices(forms, weights)[0]

    def finish(self, value: Value) -> None:
        """`return`, either of the expression or of a named result."""
        last = self.body[-1] if self.body else ""
        if not value.is_name and self.rng.random() < 0.2:
            value = self.bind(value)
        elif value.is_name and last.startswith(f"{value.text} = ") and self.rng.random() < 0.5:
            value = Value(self.body.pop().removeprefix(f"{value.text} = "), False, False)
        self.body.append(f"return {value.text}")

    # --- printing ----------------------------------------------------------------------------------------------------

    def render(self, *, large: bool = False) -> str:
        """The file's text, with the large or the small shapes."""
        if large:
            self._limit_large()
        head = self._imports()
        constants = self._constants(large)
        model = self._model(large)
        functions = self._functions(large)
        middle = [constants, model] if self.constants_first else [model, constants]
        sections = [section for section in (head, *middle, functions) if section]
        text = "\n\n".join(sections) if self.layout < 0.4 else sections[0] + "\n\n\n" + "\n\n".join(sections[1:])
        return text + "\n"

    def _limit_large(self) -> None:
        """Halve the longest dimensions of tensors that would not fit a GPU's memory several times over."""
        for shape in (*(item.shape for item in self.inputs), *self.results):
            used = [self.dimensions[int(match)] for text in shape for match in _MARK.findall(text)]
            while math.prod(dimension.large for dimension in used) > MAX_LARGE_ELEMENTS:
                longest = max(used, key=lambda dimension: dimension.large)
                longest.large = max(1, longest.large // 2 // longest.step) * longest.step

    def fill(self, text: str, large: bool) -> str:
        """Replace dimension marks by names or numbers."""
        return _MARK.sub(lambda match: self._dimension_text(int(match[1]), large), text)

    def _dimension_text(self, index: int, large: bool) -> str:
        dimension = self.dimensions[index]
        return dimension.name or str(dimension.large if large else dimension.small)

    @property
    def _text(self) -> str:
        """Whatever may mention a dimension."""
        shapes = [text for item in self.inputs for text in (*item.shape, item.make)]
        return "\n".join([*shapes, *(item.value for item in self.arguments), *self.body, *self.init, *self.shared_init])

    def _imports(self) -> str:
        code = "\n".join(self.init + self.shared_init + self.body + [item.make for item in self.inputs])
        lines = ["import torch", "import torch.nn as nn"]
        if "F." in code or self.layout > 0.88:
            lines.append("import torch.nn.functional as F")
        if "math." in code:
            lines.insert(0 if self.layout < 0.5 else len(lines), "import math")
        return "\n".join(lines)

    def _constants(self, large: bool) -> str:
        lines = [
            f"{item.name} = {item.large if large else item.small}"
            for index, item in enumerate(self.dimensions)
            if item.name is not None and f"@{index}@" in self._text
        ]
        lines += [f"{item.name} = {item.value}" for item in self.arguments if item.constant]
        if lines and self.remark < 0.15:
            lines.insert(0, "# " + CONSTANT_REMARKS[int(self.remark / 0.15 * len(CONSTANT_REMARKS))])
        return "\n".join(lines)

    def _model(self, large: bool) -> str:
        lines = ["class Model(nn.Module):"]
        if self.class_docs:
            lines += _docstring(CLASS_DOCS[self.class_docs - 1], self.doc_choice, self.title, [], "    ")
        needs_init = self.init or self.shared_init or self.arguments or self.layout < 0.8
        if needs_init:
            hint = " -> None" if self.hints and self.layout < 0.5 else ""
            signature = ", ".join(["self", *(self._argument_text(item, large) for item in self.arguments)])
            lines += [f"    def __init__({signature}){hint}:"]
            start = "super(Model, self).__init__()" if 0.3 < self.layout < 0.6 else "super().__init__()"
            if 0.5 < self.remark < 0.58:
                lines += ['        """', "        Initializes the module.", '        """']
            lines += [f"        {line}" for line in (start, *self.shared_init, *self.init)]
            lines += [""]
        names = [item.name for item in self.inputs]
        signature = ", ".join(["self", *(f"{name}: torch.Tensor" if self.hints else name for name in names)])
        lines += [f"    def forward({signature}){' -> torch.Tensor' if self.hints else ''}:"]
        if self.docs:
            lines += _docstring(FORWARD_DOCS[self.docs - 1], self.doc_choice, self.title, names, "        ")
        lines += [f"        {line}" for line in self.body]
        return self.fill("\n".join(lines), large)

    def _has_default(self, item: Argument) -> bool:
        """Python allows a default only when every later argument has one."""
        return all(later.default for later in self.arguments[self.arguments.index(item) :])

    def _argument_text(self, item: Argument, large: bool) -> str:
        hint = f": {item.hint}" if self.hints else ""
        if not self._has_default(item):
            return item.name + hint
        return f"{item.name}{hint}{' = ' if hint else '='}{item.value}"

    def _functions(self, large: bool) -> str:
        lines = ["def get_inputs():"]
        calls = [item.make.format(shape=", ".join(item.shape)) for item in self.inputs]
        inline = f"    return [{', '.join(calls)}]"
        if len(inline) <= MAX_LINE and self.layout < 0.6:
            lines.append(inline)
        else:
            lines += [f"    {item.name} = {call}" for item, call in zip(self.inputs, calls, strict=True)]
            lines.append(f"    return [{', '.join(item.name for item in self.inputs)}]")
        given = [] if all(item.default for item in self.arguments) and self.layout < 0.5 else self.arguments
        values = [item.name if item.constant else item.value for item in given]
        if 0.2 < self.remark < 0.3:
            lines.insert(1, f"    # {INPUT_REMARKS[int((self.remark - 0.2) * 10 * len(INPUT_REMARKS))]}")
        gap = [""] if self.layout < 0.7 else ["", ""]
        remark = INIT_REMARKS[int((self.remark - 0.3) * 4 * len(INIT_REMARKS))] if 0.3 < self.remark < 0.55 else ""
        suffix = f"  # {remark}" if remark and not values else ""
        lines += [*gap, "def get_init_inputs():", f"    return [{', '.join(values)}]{suffix}"]
        return self.fill("\n".join(lines), large)

    @property
    def constructor(self) -> str:
        """The constructor's arguments as ModelNew declares them."""
        parts = (f"{item.name}={item.value}" if self._has_default(item) else item.name for item in self.arguments)
        return ", ".join(["self", *parts])


_MARK = re.compile(r"@(\d+)@")
_TASTES = (
    {"call": 6.0, "method": 1.0, "module": 1.0, "formula": 0.6},
    {"call": 1.5, "method": 0.5, "module": 6.0, "formula": 0.3},
    {"call": 2.0, "method": 5.0, "module": 0.5, "formula": 0.5},
    {"call": 3.0, "method": 2.0, "module": 2.0, "formula": 2.0},
)


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> Spelling:
    """A family's template, classified."""
    return spelling(text)


def _docstring(choices: Sequence[str], choice: float, title: str, names: Sequence[str], indent: str) -> list[str]:
    text = choices[int(choice * len(choices))]
    arguments = "\n".join(f"    {name} (torch.Tensor): input tensor" for name in names)
    short = "\n".join(f"    {name}: Input tensor." for name in names)
    text = text.format(title=title, Title=title[:1].upper() + title[1:], arguments=arguments, short=short)
    lines = text.split("\n")
    if len(lines) == 1:
        return [f'{indent}"""{text}"""']
    return [f'{indent}"""', *(f"{indent}{line}".rstrip() for line in lines), f'{indent}"""']
