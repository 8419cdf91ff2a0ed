"""`Constructor`: the arguments, lines and numbers of a problem's `__init__`, and what ModelNew repeats of them."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from dice.synth.problem.chain import cuda_number, python_number
from dice.synth.problem.layers import DEFAULTS
from dice.synth.problem.names import Names
from dice.synth.problem.style import Style
from dice.synth.problem.tensors import MARK, Tensors
from dice.synth.tables.phrasing import SCALAR_NAMES

_SWITCH = re.compile(r"\b(unbiased|correction|p|ord)=(True|False|\d+)")
_FACTOR_SIZES = ("d_k", "dim", "head_dim", "d", "width", "dim_head")  # names of the size that a factor follows from


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number of the problem: its text in `forward`, in `__init__`, and in CUDA."""

    forward: str
    init: str
    cuda: str


@dataclass(slots=True)
class Argument:
    """One constructor argument. `value` is the text that `get_init_inputs` returns for it."""

    name: str
    value: str
    hint: str
    constant: bool  # is `value` a literal that gets a module-level name
    default: str  # what the signature shows, not always `value`; empty: nothing


class Constructor:
    """One problem's `__init__`, and the numbers that could be written there."""

    def __init__(self, rng: random.Random, style: Style, names: Names, tensors: Tensors) -> None:
        self.rng = rng
        self.style = style
        self.names = names
        self.tensors = tensors
        self.arguments: list[Argument] = []
        self.lines: list[str] = []  # of the problem's `__init__` alone
        self.shared_lines: list[str] = []  # the kernel needs these too: parameters, scalars
        self.scalars: dict[str, str] = {}  # name -> C++ type of the scalars ModelNew passes to its kernel, in order
        self.sources: dict[str, str] = {}  # where ModelNew has a scalar from, if not from an attribute of that name
        self.constants: dict[str, str] = {}  # further constants of the file
        self.class_constants: dict[str, str] = {}  # attributes of the class

    def argument(self, pool: Sequence[str], value: str, hint: str, *, passed: bool = False) -> str:
        """A constructor argument; `value` is a literal or has dimensions' marks. Returns its name.

        `passed`: to the kernel, where some names have a meaning.
        """
        taken = {item.name for item in self.arguments}
        mark = MARK.fullmatch(value)
        constant_name = self.tensors.size(value).name if mark else None
        is_number = "@" not in value
        if constant_name and self.style.shared_names and not self.style.upper_case and constant_name not in taken:
            name = constant_name
        else:
            name = self.names.fresh(pool, passed=passed)
        constant = not mark and self.rng.random() < self.style.constant_rate
        default = value if is_number and (value == "None" or self.rng.random() < 0.45) else ""
        if is_number and not passed and value != "None" and self.rng.random() < 0.4:
            default = DEFAULTS.get(pool[0].removeprefix("conv_").removeprefix("pool_"), default)
        self.arguments.append(Argument(name, value, hint, constant, default))
        return name

    def setting(self, role: str, text: str, *, stored: bool = False, owner: str = "") -> str:
        """A number that the kernel has written into it; the problem may give it to the constructor.

        `owner`: the layer it belongs to. Returns how `__init__`, or `forward` where it is `stored`, spells it.
        """
        if self.rng.random() >= self.style.setting_rate:
            return text
        known = next((item.name for item in self.arguments if item.name == role and item.value == text), "")
        if known and not stored:
            return known
        pool = SCALAR_NAMES.get(role, (role,))
        pool = (role,) if self.rng.random() < 0.6 else pool
        pool = (f"{owner}_{role}",) if owner and role in self.names.taken else pool
        kinds = {"(": "tuple", "T": "bool", "F": "bool"}
        name = self.argument(pool, text, kinds.get(text[0], "float" if "." in text or "e-" in text else "int"))
        if stored:
            self.lines.append(f"self.{name} = {name}")
        return f"self.{name}" if stored else name

    def stored(self, text: str) -> str:
        """`text` with numbers and switches of its keywords given to the constructor, where that is the style."""
        return _SWITCH.sub(lambda match: f"{match[1]}={self.setting(match[1], match[2], stored=True)}", text)

    def scalar(self, role: str, value: float | int, *, hint: str = "float", may_be_argument: bool = True) -> Scalar:
        """A number: written where it is used, given to the constructor, or kept under a name of its own."""
        text = python_number(value, self.rng) if hint == "float" else str(value)
        cuda = cuda_number(value) if hint == "float" else str(value)
        pool = SCALAR_NAMES[role]
        if may_be_argument and self.rng.random() < self.style.argument_rate:
            name = self.argument(pool, text, hint, passed=True)
            kept = self.names.fresh(pool, passed=True) if self.rng.random() < 0.12 else name
            self._runtime_scalar(kept, hint, name)
            return Scalar(f"self.{kept}", name, kept)
        home = self.style.home
        home = "attribute" if role == "scale" and home == "text" and self.rng.random() < 0.06 else home
        match home:
            case "attribute" if may_be_argument:
                name = self.names.fresh(pool, passed=True)
                self._runtime_scalar(name, hint, self._factor_of_size(role) or text)
                return Scalar(f"self.{name}", f"self.{name}", name)
            case "constant":
                name = self.names.fresh(pool, upper=True)
                self.constants[name] = text
                return Scalar(name, name, cuda)
            case "class":
                name = self.names.fresh(pool)
                self.class_constants[name] = text
                return Scalar(f"self.{name}", f"self.{name}", cuda)
        return Scalar(text, text, cuda)

    def _factor_of_size(self, role: str) -> str:
        """A factor that follows from a size, such as `1 / math.sqrt(hidden_size)`; empty where there is none."""
        sizes = [item.name for item in self.arguments if MARK.fullmatch(item.value)]
        inputs = self.tensors.inputs
        width = inputs[0].shape[-1] if inputs and not sizes else ""
        if role != "scale" or not (sizes or MARK.fullmatch(width)) or self.rng.random() < 0.3:
            return ""
        sizes = sizes or [self.argument(_FACTOR_SIZES, width, "int")]
        form = self.rng.choice(("{} ** -0.5", "1.0 / math.sqrt({})", "1 / {} ** 0.5", "1.0 / {}", "{}**-0.5"))
        return form.format(self.rng.choice(sizes))

    def _runtime_scalar(self, name: str, ctype: str, value: str) -> None:
        """An attribute that the host function takes."""
        self.shared_lines.append(f"self.{name} = {value}")
        self.scalars[name] = ctype

    def settle(self) -> None:
        """Sizes are final: some become defaults, the same for small and large; the arguments may change order."""
        for item in self.arguments:
            if MARK.fullmatch(item.value) and self.rng.random() < 0.04:
                dimension = self.tensors.size(item.value)
                dimension.large = dimension.small
                item.value = item.default = str(dimension.small)
        if self.rng.random() < 0.15:
            self.rng.shuffle(self.arguments)

    def has_default(self, item: Argument) -> bool:
        """Python allows a default only when every later argument has one."""
        return all(later.default for later in self.arguments[self.arguments.index(item) :])

    @property
    def kernel_lines(self) -> list[str]:
        """The lines of `__init__` that ModelNew repeats; it has none of the file's other constants."""
        names = self.constants | {f"self.{name}": text for name, text in self.class_constants.items()}
        lines = self.shared_lines
        for name, text in names.items():
            lines = [re.sub(rf"(?<![\w.]){re.escape(name)}\b", text, line) for line in lines]
        return lines

    @property
    def kernel_signature(self) -> str:
        """The constructor's arguments as ModelNew declares them."""
        parts = (f"{item.name}={item.default}" if self.has_default(item) else item.name for item in self.arguments)
        return ", ".join(["self", *parts])
