"""The problem side: builds one PyTorch file in KernelBench's form, in one of very many ways of writing it.

A `Script` is filled by a family (inputs, parameters, statements of `forward`) and remembers, next to the text, what the
kernel needs to know: constructor arguments, parameters and scalars. All randomness is drawn while it is filled, or
follows from `printing`, so that `render` (see `page.py`) is a pure function and the same text can be printed with large
or with small shapes.
"""

from __future__ import annotations

import functools
import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from dice.data.synth.chain import ChainState, Step, cuda_number, draw_scalars, python_number, renumbered
from dice.data.synth.habits import IN_PLACE_LAYER, in_place
from dice.data.synth.layers import DEFAULTS, written
from dice.data.synth.names import RESERVED, after_class, composed
from dice.data.synth.operators import OPERATORS, Operator, Spelling, spelling
from dice.data.synth.page import printed
from dice.data.synth.phrasing import ATTRIBUTE_NAMES, DIMENSION_NAMES, INPUT_NAMES, SCALAR_NAMES, TEMPORARIES

MAX_LARGE_ELEMENTS = 2**28


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
    default: str  # what the signature shows, not always `value`; empty: nothing


@dataclass(slots=True)
class Input:
    name: str
    shape: list[str]  # empty for a number
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
        self.sources: dict[str, str] = {}  # where ModelNew has a scalar from, if not from an attribute of that name
        self.constants: dict[str, str] = {}  # further constants of the file
        self.class_constants: dict[str, str] = {}  # attributes of the class
        self.modules: dict[str, str] = {}  # expression -> attribute, of layers without parameters
        self.forms: dict[str, Spelling] = {}  # of operators that occur several times
        self.names: set[str] = set()
        self.flow = "fresh" if keep_inputs else rng.choices(("reassign", "nested", "fresh"), (4, 3, 2))[0]
        self.taste = rng.choice(_TASTES)
        self.named_dimensions = rng.random() < 0.85
        self.upper = rng.random() < 0.1  # BATCH_SIZE = 16
        self.conventional = rng.random() < 0.35  # the first name of each pool, as long as it is free
        self.invention = rng.choices((0.0, 0.1, 0.4, 0.9), (4, 3, 2, 1.2))[0]  # rate of names that no pool holds
        self.after_class = rng.choice((0.1, 0.5, 0.9))  # rate of attributes that are called like their class
        self.home = rng.choices(("text", "attribute", "constant", "class"), (82, 9, 6, 3))[0]  # of other numbers
        self.argument_rate = rng.choice((0.0, 0.0, 0.2, 0.5, 0.9))  # of numbers that the kernel is given
        self.settings = rng.choices((0.0, 0.4, 1.0), (4, 2, 4))[0]  # rate of numbers that are written into the kernel
        self.constant_rate = rng.choice((0.1, 0.5, 0.95))
        self.shared_names = rng.random() < 0.6  # of constructor arguments and the constants they are given
        self.keywords = rng.random() < 0.4
        self.positional = rng.random() < 0.25  # settings of a layer that others write as keywords
        self.comments = rng.choices(("", "before", "after"), (84, 10, 6))[0]
        self.in_place = rng.random() < 0.3
        self.contained = rng.random() < 0.15  # activations in an nn.Sequential
        self.printing = rng.random()
        self.sampler = rng.choices(("torch.randn({shape})", "torch.rand({shape})"), (6, 4))[0]

    # --- names, sizes, numbers ------------------------------------------------------------------------------------

    def fresh(self, pool: Sequence[str], *, passed: bool = False, upper: bool = False) -> str:
        """A name that is not in use: of the pool, with a number when all are; now and then one of no pool.

        `passed`: to the kernel, where some names have a meaning. `upper`: in capital letters.
        """
        pool = [name.upper() for name in pool] if upper else pool
        if passed:
            pool = [name for name in pool if name not in RESERVED] or pool
        free = [name for name in pool if name not in self.names]
        usual = self.conventional and pool[0] not in self.names
        name = pool[0] if usual else self.rng.choice(free) if free else ""
        if self.rng.random() < self.invention:
            made = composed(self.rng).upper() if upper else composed(self.rng)
            name = name if made in self.names or made in RESERVED or (passed and len(made) < 4) else made
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
        name = self.fresh(DIMENSION_NAMES[role], upper=self.upper) if named else None
        self.dimensions.append(Dimension(name, small, large, step))
        return f"@{len(self.dimensions) - 1}@"

    def small(self, mark: str) -> int:
        return self.dimensions[int(mark.strip("@"))].small

    def argument(self, pool: Sequence[str], value: str, hint: str, *, passed: bool = False) -> str:
        """A constructor argument; `value` is a literal or has dimensions' marks. Returns its name.

        `passed`: to the kernel, where some names have a meaning.
        """
        taken = {item.name for item in self.arguments}
        mark = _MARK.fullmatch(value)
        constant_name = self.dimensions[int(mark[1])].name if mark else None
        is_number = "@" not in value
        if constant_name and self.shared_names and not self.upper and constant_name not in taken:
            name = constant_name
        else:
            name = self.fresh(pool, passed=passed)
        constant = not mark and self.rng.random() < self.constant_rate
        default = value if is_number and (value == "None" or self.rng.random() < 0.45) else ""
        if is_number and not passed and value != "None" and self.rng.random() < 0.4:
            default = DEFAULTS.get(pool[0].removeprefix("conv_").removeprefix("pool_"), default)
        self.arguments.append(Argument(name, value, hint, constant, default))
        return name

    def setting(self, role: str, text: str, *, stored: bool = False, owner: str = "") -> str:
        """A number that the kernel has written into it; the problem may give it to the constructor.

        `owner`: the layer it belongs to. Returns how `__init__`, or `forward` where it is `stored`, spells it.
        """
        if self.rng.random() >= self.settings:
            return text
        known = next((item.name for item in self.arguments if item.name == role and item.value == text), "")
        if known and not stored:
            return known
        pool = SCALAR_NAMES.get(role, (role,))
        pool = (role,) if self.rng.random() < 0.6 else pool
        pool = (f"{owner}_{role}",) if owner and role in self.names else pool
        kinds = {"(": "tuple", "T": "bool", "F": "bool"}
        name = self.argument(pool, text, kinds.get(text[0], "float" if "." in text or "e-" in text else "int"))
        if stored:
            self.init.append(f"self.{name} = {name}")
        return f"self.{name}" if stored else name

    def stored(self, text: str) -> str:
        """`text` with numbers and switches of its keywords given to the constructor, where that is the habit."""
        return _SWITCH.sub(lambda match: f"{match[1]}={self.setting(match[1], match[2], stored=True)}", text)

    def scalar(self, role: str, value: float | int, *, hint: str = "float", may_be_argument: bool = True) -> Scalar:
        """A number: written where it is used, given to the constructor, or kept under a name of its own."""
        text = python_number(value, self.rng) if hint == "float" else str(value)
        cuda = cuda_number(value) if hint == "float" else str(value)
        pool = SCALAR_NAMES[role]
        if may_be_argument and self.rng.random() < self.argument_rate:
            name = self.argument(pool, text, hint, passed=True)
            kept = self.fresh(pool, passed=True) if self.rng.random() < 0.12 else name
            self.runtime_scalar(kept, hint, name)
            return Scalar(f"self.{kept}", name, kept)
        home = "attribute" if role == "scale" and self.home == "text" and self.rng.random() < 0.06 else self.home
        match home:
            case "attribute" if may_be_argument:
                name = self.fresh(pool, passed=True)
                self.runtime_scalar(name, hint, self._derived(role) or text)
                return Scalar(f"self.{name}", f"self.{name}", name)
            case "constant":
                name = self.fresh(pool, upper=True)
                self.constants[name] = text
                return Scalar(name, name, cuda)
            case "class":
                name = self.fresh(pool)
                self.class_constants[name] = text
                return Scalar(f"self.{name}", f"self.{name}", cuda)
        return Scalar(text, text, cuda)

    def _derived(self, role: str) -> str:
        """A factor that follows from a size, such as `1 / math.sqrt(hidden_size)`."""
        sizes = [item.name for item in self.arguments if _MARK.fullmatch(item.value)]
        width = self.inputs[0].shape[-1] if self.inputs and not sizes else ""
        if role != "scale" or not (sizes or _MARK.fullmatch(width)) or self.rng.random() < 0.3:
            return ""
        sizes = sizes or [self.argument(("d_k", "dim", "head_dim", "d", "width", "dim_head"), width, "int")]
        form = self.rng.choice(("{} ** -0.5", "1.0 / math.sqrt({})", "1 / {} ** 0.5", "1.0 / {}", "{}**-0.5"))
        return form.format(self.rng.choice(sizes))

    def runtime_scalar(self, name: str, ctype: str, value: str) -> None:
        """An attribute that the host function takes."""
        self.shared_init.append(f"self.{name} = {value}")
        self.scalars[name] = ctype

    # --- inputs, parameters, modules ------------------------------------------------------------------------------

    def input(self, role: str, shape: list[str], make: str | None = None) -> Value:
        """A tensor argument of `forward`; `make` is an expression with {shape}."""
        name = self.fresh(INPUT_NAMES[role])
        self.inputs.append(Input(name, shape, make or self.sampler))
        return Value(name)

    def attribute(self, role: str, expression: str, *, shared: bool, name: str = "") -> str:
        """`self.<name> = expression` in `__init__`; shared ones (parameters) are repeated in ModelNew."""
        known = self.modules.get(expression, "") if not shared else ""
        if known and self.rng.random() < 0.8:
            return known
        called = after_class(self.rng, expression) if self.rng.random() < self.after_class else ""
        called = name or called
        name = self.fresh([called] if called and called not in self.names else ATTRIBUTE_NAMES[role])
        line = f"self.{name} = {written(self, expression)}"
        (self.shared_init if shared else self.init).append(line)
        if not shared:
            self.modules[expression] = f"self.{name}"
        return f"self.{name}"

    def parameter(self, role: str, sizes: str) -> str:
        """A parameter of those sizes, `a, b` or `(a, b)`, with random or constant values."""
        factor = self.rng.choice(("0.1", "0.02", "0.5", "1e-2"))
        made = self.rng.choices(
            (
                f"torch.randn({sizes})",
                f"torch.rand({sizes})",
                f"torch.randn({sizes}) * {factor}",
                f"{factor} * torch.ones({sizes})",
                f"torch.ones({sizes})",
                f"torch.empty({sizes}).uniform_(-1, 1)",
                f"torch.empty({sizes})",
            ),
            (8, 4, 2, 1, 1, 0.7, 1.5),
        )[0]
        attribute = self.attribute(role, f"nn.Parameter({made})", shared=True)
        if made == f"torch.empty({sizes})":
            start = self.rng.choice(
                ("normal_({})", "normal_({}, std=0.5)", "uniform_({})", "normal_({}, mean=0.0, std=1.0)")
            )
            self.shared_init.append(f"nn.init.{start.format(attribute)}")
        return attribute

    # --- forward ---------------------------------------------------------------------------------------------------

    def bind(self, value: Value, comment: str = "") -> Value:
        """Give the expression a name (a statement of `forward`), unless it has one."""
        if value.is_name:
            return value
        name = self.inputs[0].name if self.flow == "reassign" else self.fresh(TEMPORARIES)
        if self.comments == "before" and comment:
            self.body.append(f"# {comment}")
        after = f"  # {comment}" if self.comments == "after" and comment else ""
        self.body.append(f"{name} = {value.text}{after}")
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

    def kept(self, value: Value) -> Value:
        """The value under a second name, for later."""
        name = self.fresh(("identity", "residual", "original", "shortcut", "skip", "x_orig", "before", "saved"))
        copy = self.rng.choice(("", "", ".clone()", ".clone().detach()", ".detach()"))
        self.in_place = self.in_place and copy.startswith(".clone")
        self.body.append(f"{name} = {value.text}{copy}")
        return Value(name)

    def idle(self, value: Value) -> Value:
        """Seldom a layer that does nothing, as dropout in evaluation."""
        if self.rng.random() >= 0.05:
            return value
        layers = ["nn.Dropout(0.0)", "nn.Dropout(p=0.0)", "nn.Dropout(p=0)", "nn.Identity()"]
        if self.rng.random() < 0.3:
            layers = [f"nn.Dropout({self.argument(('dropout', 'p_drop', 'drop_rate', 'dropout_p'), '0.0', 'float')})"]
        attribute = self.attribute("dropout", self.rng.choice(layers), shared=False)
        return self.apply(f"{attribute}({{x}})", value, "dropout")

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
        steps: list[Step] = []
        modules = [form for name in names for form in _modules(name)[:1]]
        if self.contained and numbers is None and len(names) == len(modules) > 1:
            return self._container(value, names, modules, state)
        for index, name in enumerate(names):
            operator = OPERATORS[name]
            given = numbers[index] if numbers is not None else None
            lines, made = len(self.body), len(self.init)
            fresh = index > 0 or (lines > 0 and _LAYER.match(self.body[-1]))  # not what the caller passed, nor a view
            value, step = self._operator(value, operator, state, given)
            if self.in_place and fresh and len(self.body) == lines + 1:
                self.body[-1] = in_place(self.body[-1])
                if len(self.init) == made + 1:
                    self._flag()
            state = state.after(operator)
            steps.append(step)
        return value, steps

    def _flag(self) -> None:
        """The layer made last works in place, where its only use is `x = self.act(x)`."""
        layer = IN_PLACE_LAYER.fullmatch(self.init[-1])
        if layer and re.fullmatch(rf"(\w+) = {re.escape(layer[1])}\(\1\)", self.body[-1]):
            self.init[-1] = f"{layer[1]} = {layer[2]}({layer[3]}{', ' * bool(layer[3])}inplace=True)"
            self.modules = {text: name for text, name in self.modules.items() if name != layer[1]}

    def _container(
        self, value: Value, names: Sequence[str], forms: Sequence[Spelling], state: ChainState
    ) -> tuple[Value, list[Step]]:
        """The chain as one `nn.Sequential`."""
        parts, steps = [], []
        for name, form in zip(names, forms, strict=True):
            operator = OPERATORS[name]
            drawn = zip(operator.scalars, draw_scalars(self.rng, operator, state), strict=True)
            scalars = [self.scalar(role, number) for role, number in drawn]
            parts.append(form.text.format(**dict(zip("ab", (scalar.init for scalar in scalars), strict=False))))
            steps.append(Step(operator, tuple(scalar.cuda for scalar in scalars)))
            state = state.after(operator)
        attribute = self.attribute("network", f"nn.Sequential({', '.join(parts)})", shared=False)
        return self.apply(f"{attribute}({{x}})", value, "activations"), steps

    def _operator(
        self, value: Value, operator: Operator, state: ChainState, given: tuple[float, ...] | None
    ) -> tuple[Value, Step]:
        if operator.jumps:  # rounding or comparing numbers of [0, 1) leaves next to nothing of them
            for item in [item for item in self.inputs if item.name == value.text] or self.inputs:
                item.make = item.make.replace("torch.rand({shape})", "torch.randn({shape})")
        plain = operator.plain and given in (None, operator.defaults) and self.rng.random() < 0.4
        form = self._pick(operator.plain if plain else operator.spellings)
        if given is not None:  # the same operator again is written as before
            form = self.forms.setdefault(operator.name, form)
            plain = form in operator.plain
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
        if form.kind == "call" and form.text.endswith("({x})") and self.rng.random() < 0.04:
            attribute = self.attribute("activation", form.text.removesuffix("({x})"), shared=False)
            return self.apply(f"{attribute}({{x}})", value, operator.phrase), step
        text = renumbered(self.rng, form.text)
        return self.apply(form if text == form.text else _parsed(text), value, operator.phrase, **fields), step

    def _pick(self, forms: Sequence[Spelling]) -> Spelling:
        weights = [self.taste[form.kind] if "(" in form.text else 1.5 for form in forms]
        return self.rng.choices(forms, weights)[0]

    def settle(self) -> None:
        """Sizes are final: some become defaults, the same for small and large; the arguments may change order."""
        for item in self.arguments:
            mark = _MARK.fullmatch(item.value)
            if mark and self.rng.random() < 0.04:
                dimension = self.dimensions[int(mark[1])]
                dimension.large = dimension.small
                item.value = item.default = str(dimension.small)
        if self.rng.random() < 0.15:
            self.rng.shuffle(self.arguments)

    def finish(self, value: Value) -> None:
        """`return`, either of the expression or of a named result."""
        self.settle()
        last = self.body[-1] if self.body else ""
        if not value.is_name and self.rng.random() < 0.2:
            value = self.bind(value)
        elif value.is_name and last.startswith(f"{value.text} = ") and "  #" not in last and self.rng.random() < 0.5:
            value = Value(self.body.pop().removeprefix(f"{value.text} = "), False, False)
        self.body.append(f"return {value.text}")

    # --- printing ----------------------------------------------------------------------------------------------------

    def render(self, *, large: bool = False) -> str:
        """The file's text, with the large or the small shapes."""
        if large:
            self._limit_large()
        return printed(self, large)

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
    def text(self) -> str:
        """Whatever may mention a dimension."""
        shapes = [text for item in self.inputs for text in (*item.shape, item.make)]
        values = [item.value for item in self.arguments]
        return "\n".join([*shapes, *values, *self.body, *self.init, *self.shared_init])

    def has_default(self, item: Argument) -> bool:
        """Python allows a default only when every later argument has one."""
        return all(later.default for later in self.arguments[self.arguments.index(item) :])

    @property
    def kept_init(self) -> list[str]:
        """The lines of `__init__` that ModelNew repeats; it has none of the other constants."""
        names = self.constants | {f"self.{name}": text for name, text in self.class_constants.items()}
        lines = self.shared_init
        for name, text in names.items():
            lines = [re.sub(rf"(?<![\w.]){re.escape(name)}\b", text, line) for line in lines]
        return lines

    @property
    def constructor(self) -> str:
        """The constructor's arguments as ModelNew declares them."""
        parts = (f"{item.name}={item.default}" if self.has_default(item) else item.name for item in self.arguments)
        return ", ".join(["self", *parts])


_MARK = re.compile(r"@(\d+)@")
_SWITCH = re.compile(r"\b(unbiased|correction|p|ord)=(True|False|\d+)")
_LAYER = re.compile(r"\w+ = self\.\w+\(")
_TASTES = (
    {"call": 6.0, "method": 1.0, "module": 1.0, "formula": 0.6},
    {"call": 1.5, "method": 0.5, "module": 6.0, "formula": 0.3},
    {"call": 2.0, "method": 5.0, "module": 0.5, "formula": 0.5},
    {"call": 3.0, "method": 2.0, "module": 2.0, "formula": 2.0},
)


def _modules(name: str) -> list[Spelling]:
    return [form for form in OPERATORS[name].spellings if form.kind == "module"]


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> Spelling:
    """A family's template, classified."""
    return spelling(text)
