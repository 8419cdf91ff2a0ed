"""The text of one kernel: its parameters, its lines without what nobody reads, and what it stores."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from textwrap import indent

from dice.optimize.templates.emitter import Emitter, computed, storage
from dice.optimize.templates.values import Value

THREADS = 256  # of a block, as a rule

# CUDA's fmaxf and fminf drop NaN, and PyTorch's maximum, clamp, amax and pooling keep it.
NAN_KEEPING = {"max": "larger", "min": "smaller"}
_KEEPS_NAN = {
    name: f"template <typename T> __device__ T {name}(T a, T b) {{\n    return a != a || a {sign} b ? a : b;\n}}"
    for name, sign in (("larger", ">"), ("smaller", "<"))
}


@dataclass(frozen=True, slots=True)
class KernelText:
    """`inputs`: names of the tensors it reads and their dtypes; `stored`: what it writes. `launch`: grid and block.
    `helpers`: device functions that it calls, by name. `steps`: how often it is launched, each time with the number `t`
    of the launch; 0: once, without."""

    name: str
    code: str
    inputs: dict[str, str]
    stored: tuple[Value, ...]
    launch: str
    helpers: dict[str, str]
    steps: int = 0


@dataclass(frozen=True, slots=True)
class Store:
    """A value and the name of the tensor that it goes to."""

    value: Value
    name: str


class Constants:
    """The numbers of one kernel that may be others without another result: each has a name in its source, so that
    they can be read, and tuned by measurement (`tuning/`)."""

    def __init__(self, kernel: str):
        self._suffix = kernel.rpartition("_kernel")[2]  # a region's other kernels have numbers of their own
        self._lines: list[str] = []

    def name(self, stem: str, value: int | str) -> str:
        """Define one; its name in the source."""
        self._lines.append(f"constexpr int {stem}{self._suffix} = {value};")
        return f"{stem}{self._suffix}"

    def above(self, code: str) -> str:
        return "\n".join([*self._lines, "", code])


def blocks(count: int, each: str) -> str:
    """How many blocks it takes, as C++: one for every `each` of `count`. The sum of both may be no number of C++'s."""
    return f"({count} - 1) / {each} + 1"


def indented(lines: Sequence[str], levels: int = 1) -> list[str]:
    """Each line of these, which may be several lines themselves, further in."""
    return [f"{'    ' * levels}{part}" for line in lines for part in line.split("\n")]


def function(
    name: str,
    e: Emitter,
    stores: Sequence[Store],
    body: Sequence[str],
    launch: str,
    helpers: dict[str, str],
    constants: Constants,
    bounds: str = "",
    steps: int = 0,
) -> KernelText:
    """`bounds`: the threads of a block, and how many blocks are to fit, so that each has few enough registers."""
    # What is stored is a tensor of its own, so what is read may be read before.
    parameters = [f"const {storage(dtype)}* __restrict__ {tensor}" for tensor, dtype in e.inputs.items()]
    parameters += [f"{storage(store.value.dtype)}* __restrict__ {store.name}" for store in stores]
    parameters += ["int t"] if steps else []
    text = "\n".join(without_idle(body))
    limit = f"__launch_bounds__({bounds}) " if bounds else ""
    code = f"__global__ void {limit}{name}({', '.join(parameters)}) {{\n{indent(text, '    ')}\n}}"
    called = set(_NAME.findall("\n".join([code, *helpers.values()])))
    helpers = {one: text for one, text in _KEEPS_NAN.items() if one in called} | helpers
    values = tuple(store.value for store in stores)
    return KernelText(name, constants.above(code), dict(e.inputs), values, launch, helpers, steps)


_DEFINITION = re.compile(r"\s*(?:int|float|double|bool|int64_t|Vector<[\w:]+, \d+>) ([vi]\d+) = (.*);")
_NAME = re.compile(r"[A-Za-z_]\w*")
_SIMPLE = re.compile(r"\w+(\[\w+\])?|\w+ [-+*] [\w.]+")


def without_idle(lines: Sequence[str]) -> list[str]:
    """The lines without names that nothing reads, and with what is read once, by the next line, written there."""
    kept = [line for text in lines for line in text.split("\n")]
    while True:
        counts = Counter(name for line in kept for name in _NAME.findall(line))
        idle = [
            place for place, line in enumerate(kept) if (found := _DEFINITION.fullmatch(line)) and counts[found[1]] == 1
        ]
        if not idle:
            break
        gone = set(idle)
        kept = [line for place, line in enumerate(kept) if place not in gone]
    place = 0
    while place + 1 < len(kept):
        found = _DEFINITION.fullmatch(kept[place])
        following = kept[place + 1]
        if found and counts[found[1]] == 2 and _SIMPLE.fullmatch(found[2]) and _takes(following, found[1]):
            text = found[2] if _plain(following, found[1]) or " " not in found[2] else f"({found[2]})"
            kept[place : place + 2] = [_NAME.sub(partial(_swapped, found[1], text), following)]
            place = max(0, place - 1)
        else:
            place += 1
    return kept


def _swapped(name: str, text: str, match: re.Match[str]) -> str:
    return text if match[0] == name else match[0]


def _takes(line: str, name: str) -> bool:
    """Whether the line is a statement of its own that reads the name."""
    return bool(re.search(rf"\b{name}\b", line)) and not line.lstrip().startswith(("for ", "if ", "while "))


def _plain(line: str, name: str) -> bool:
    """Whether the name stands alone: all of an index, or all that is assigned."""
    return f"[{name}]" in line or line.endswith(f"= {name};")


def as_stored(store: Store, text: str) -> str:
    """A computed number in the type of the tensor that it goes to."""
    kept = storage(store.value.dtype)
    return text if kept == computed(store.value.dtype) else f"static_cast<{kept}>({text})"


def stored(store: Store, text: str, flat: str) -> str:
    return f"{store.name}[{flat}] = {as_stored(store, text)};"
