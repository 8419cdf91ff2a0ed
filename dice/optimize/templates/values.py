"""What a region computes, before it is decided which kernel computes it: values that know how an element is had.

`Memory` lies in a tensor. `Pointwise` and `Moved` are computed from other values wherever they are wanted. `Reduced`,
`Product` and `Scanned` need a kernel's threads to work together: within the kernel that is written, or by one of their
own before it, whose result then is a tensor (`memory`).
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dice.optimize.templates.emitter import CannotWrite, Emitter, Place, computed, is_float

HALF = {"float16": "at::Half", "bfloat16": "at::BFloat16"}
_TYPE = re.compile(r"int(64_t)? ")


class NeedsMemory(Exception):
    """The kernel under way reads a value that another kernel has to compute first."""

    def __init__(self, value: Value):
        super().__init__()
        self.value = value


Keywords = dict[str, Any]  # an operator's, by PyTorch's names: values of these, plain numbers, names


@dataclass(eq=False)
class Value:
    """`memory`: the tensor that holds it, once it was computed. `statistics`: its mean over some dimensions, the sum of
    squared distances from that and the mean by a plain sum, once somebody asked."""

    shape: tuple[int, ...]
    dtype: str
    memory: str = field(default="", init=False)
    statistics: dict[tuple[int, ...], tuple[Value, Value, Value]] = field(default_factory=dict, init=False, repr=False)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    def load(self, e: Emitter, place: Place) -> str:
        """C++ for the element at a place of this shape, in the type that is computed in."""
        known = e.on_value(self, place)
        if known is not None:
            return known
        if self.memory:
            return e.load(self.memory, self.dtype, e.flat(place), self.numel)
        key = (id(self), place.flat, place.dims)
        return e.remembered(key, lambda: self.compute(e, place))

    def compute(self, e: Emitter, place: Place) -> str:
        raise NotImplementedError

    @property
    def sources(self) -> Sequence[Value]:
        return ()


@dataclass(eq=False)
class Memory(Value):
    """A tensor that is given."""

    name: str = ""

    def __post_init__(self) -> None:
        self.memory = self.name


@dataclass(eq=False)
class Pointwise(Value):
    """`write` makes the expression of its arguments' elements, each cast to `math` first ("": as it is)."""

    arguments: tuple[Any, ...] = ()
    write: Callable[..., str] = str
    math: str = ""

    def compute(self, e: Emitter, place: Place) -> str:
        texts = []
        for argument in self.arguments:
            if isinstance(argument, Value):
                text = argument.load(e, e.broadcast(place, argument.shape))
                texts.append(cast(text, argument.dtype, self.math or argument.dtype))
            else:
                texts.append(literal(argument, self.math or self.dtype))
        text = self.write(*texts)
        if self.dtype in HALF:  # rounds after each operator, as PyTorch does
            text = f"static_cast<float>({HALF[self.dtype]}({text}))"
        return e.let(computed(self.dtype), text)

    @property
    def sources(self) -> Sequence[Value]:
        return [argument for argument in self.arguments if isinstance(argument, Value)]


@dataclass(eq=False)
class Positional(Value):
    """An expression of the indices alone: `arange`, a causal mask."""

    write: Callable[[Emitter, tuple[str, ...]], str] = lambda e, dims: "0"

    def compute(self, e: Emitter, place: Place) -> str:
        return e.let(computed(self.dtype), self.write(e, e.dims(place)))


@dataclass(eq=False)
class Moved(Value):
    """Another value's elements in another arrangement: `move` makes the place there of a place here."""

    source: Value = None  # type: ignore[assignment]
    move: Callable[[Emitter, Place], Place] = lambda e, place: place

    def compute(self, e: Emitter, place: Place) -> str:
        return self.source.load(e, self.move(e, place))

    @property
    def sources(self) -> Sequence[Value]:
        return [self.source]


@dataclass(eq=False)
class Guarded(Value):
    """Elements of one of several values, or a number: `choose` writes conditions and places.

    It gives a list of (condition, value, place), the first that holds counts, and "" always holds.
    """

    choose: Callable[[Emitter, tuple[str, ...]], list[tuple[str, Value, Place]]] = lambda e, dims: []
    fill: str = "0"
    among: tuple[Value, ...] = ()

    def compute(self, e: Emitter, place: Place) -> str:
        text = self.fill
        for condition, value, where in reversed(self.choose(e, e.dims(place))):
            otherwise = text

            def make(value: Value = value, where: Place = where) -> str:
                return cast(value.load(e, where), value.dtype, self.dtype)

            text = e.guarded(computed(self.dtype), condition, otherwise, make) if condition else make()
        return text

    @property
    def sources(self) -> Sequence[Value]:
        return self.among


@dataclass(eq=False)
class Reduced(Value):
    """`kind` (sum, prod, max, min, any, all, argmax, argmin) over dimensions of the source; its shape is what is left,
    without the reduced dimensions."""

    source: Value = None  # type: ignore[assignment]
    over: tuple[int, ...] = ()
    kind: str = "sum"
    together: Together | None = field(default=None, init=False, repr=False)

    @property
    def kept(self) -> tuple[int, ...]:
        return tuple(index for index in range(len(self.source.shape)) if index not in self.over)

    @property
    def length(self) -> int:
        return math.prod(self.source.shape[index] for index in self.over)

    def compute(self, e: Emitter, place: Place) -> str:
        text = e.on_source(self, place)
        if text is None:
            raise NeedsMemory(self)
        return text

    @property
    def sources(self) -> Sequence[Value]:
        return [self.source]


@dataclass(frozen=True, slots=True)
class Together:
    """Reductions of the same rows, which one kernel has: who needs one of them needs the others."""

    members: tuple[Reduced, ...]


@dataclass(frozen=True, slots=True)
class Softmax(Together):
    """A row's maximum, and the sum of exp(x - maximum): both can be had in one pass over the source."""

    source: Value


@dataclass(frozen=True, slots=True)
class Moments(Together):
    """The sum of a row's elements, and that of their squared distances from the mean: both can be had in one pass over
    the source. In the same pass, where that is wanted, the third: the sum of `plain`, whose distance from the row's
    first element the source is."""

    source: Value
    plain: Value


Factor = Callable[[Emitter, str, str, str], "tuple[Value, Place]"]


@dataclass(eq=False)
class Product(Value):
    """A sum of products: out[z, m, n] = sum over k of a[z, m, k] * b[z, k, n].

    `a` and `b` say which element of which value a factor is, `place` where a result goes. `fast`: along which of its
    indices memory is read, for each factor. `terms`: how many the sums of z have where that differs. `exists`: which
    z and n have a result, where not all do. `parts`: in how many each sum is made; its shape begins with them.
    `in_pairs`: results of each even n and the next one are neighbours. `among`: what the factors read.
    """

    extents: tuple[int, int, int, int] = (1, 1, 1, 1)  # z, m, n, k
    a: Factor = lambda e, z, m, k: NotImplemented
    b: Factor = lambda e, z, k, n: NotImplemented
    place: Callable[[Emitter, str, str, str], Place] = lambda e, z, m, n: Place(())
    fast: Callable[[], tuple[str, str]] = lambda: ("k", "n")
    terms: Callable[[Emitter, str], str] | None = None
    exists: Callable[[Emitter, str, str], str] = lambda e, z, n: ""
    parts: int = 1
    in_pairs: bool = False
    among: tuple[Value, ...] = ()

    def factor(self, e: Emitter, name: str, z: str, own: str, k: str) -> tuple[Value, Place]:
        """Factor `name`, a or b, for its own index and `k`."""
        return self.a(e, z, own, k) if name == "a" else self.b(e, z, k, own)

    def loaded(self, e: Emitter, name: str, z: str, own: str, k: str) -> str:
        """C++ for it, in the type of the sums."""
        value, place = self.factor(e, name, z, own, k)
        return cast(value.load(e, place), value.dtype, self.dtype)

    def compute(self, e: Emitter, place: Place) -> str:
        text = e.on_source(self, place)
        if text is None:
            raise NeedsMemory(self)
        return text

    @property
    def sources(self) -> Sequence[Value]:
        return self.among


@dataclass(frozen=True, slots=True)
class Located:
    """An element of the tensor `name` that is read as it lies there, or 0 where `condition` does not hold."""

    name: str
    dtype: str
    flat: str
    condition: str


def located(e: Emitter, value: Value, place: Place) -> Located | None:
    """Where an element lies in memory; None where it is computed."""
    dtype, conditions = value.dtype, []
    while not value.memory:
        if isinstance(value, Moved) and type(value) is Moved:  # others read indices
            place, value = value.move(e, place), value.source
        elif isinstance(value, Guarded) and value.fill in ("0", "0.0f"):
            chosen = value.choose(e, e.dims(place))
            if len(chosen) != 1:
                return None
            condition, value, place = chosen[0]
            conditions += [condition] if condition else []
        else:
            return None
    if value.dtype != dtype:
        return None
    e.inputs.setdefault(value.memory, dtype)
    return Located(value.memory, dtype, e.flat(place), " && ".join(conditions))


class Linear:
    """A sum of variables, each times a number, and a number (of the variable ""): what an index is as a rule."""

    def __init__(self, factors: Mapping[str, int]):
        self.factors = dict(factors)

    def __add__(self, other: Linear | int) -> Linear:
        given = other.factors if isinstance(other, Linear) else {"": other}
        names = {**self.factors, **given}
        return Linear({name: self.factors.get(name, 0) + given.get(name, 0) for name in names})

    __radd__ = __add__

    def __mul__(self, factor: int) -> Linear:
        if not isinstance(factor, int):
            return NotImplemented
        return Linear({name: own * factor for name, own in self.factors.items()})


def strides(lines: Sequence[str], index: str, variables: Sequence[str]) -> dict[str, int] | None:
    """What an index, of which the lines define parts, adds up to for each of the variables, and for "" what is left.
    None where it is no such sum."""
    known: dict[str, Any] = {name: Linear({name: 1}) for name in variables}
    for line in lines:
        with contextlib.suppress(SyntaxError, NameError, TypeError):  # a condition, or a division
            exec(_TYPE.sub("", line, count=1).rstrip(";"), {"int64_t": lambda one: one}, known)
    try:
        found = eval(index, {}, known)
    except NameError:  # it is made of one of those
        return None
    return found.factors if isinstance(found, Linear) else None


def runs_along(factor: Value) -> int:
    """Which of a factor's dimensions neighbours in memory lie along, 1 or 2 of three; 2 where that is not known."""
    e = Emitter()
    at = index_of(factor, e, e.at(factor.shape, ("0", "p", "q")), ("p", "q"))
    return 1 if at is not None and abs(at(1, 0) - at(0, 0)) == 1 != abs(at(0, 1) - at(0, 0)) else 2


def index_of(value: Value, e: Emitter, place: Place, names: Sequence[str]) -> Callable[..., int] | None:
    """Where the largest tensor that the value is computed of is read for an element, by the numbers that the place's
    names stand for; None where that is not known."""
    while not isinstance(value, Memory) and not value.memory:
        if isinstance(value, Moved):
            try:
                place, value = value.move(e, place), value.source
            except NeedsMemory:  # it is chosen by what is not computed yet
                return None
        elif isinstance(value, Pointwise) and value.sources:
            value = max(value.sources, key=lambda one: one.numel)
            place = e.broadcast(place, value.shape)
        else:
            return None
    result = f"int index = {e.flat(place)};"
    # An index is the same in Python, but for its type and the division.
    lines = [_TYPE.sub("", line, count=1).rstrip(";").replace("/", "//") for line in (*e.frames[0].lines, result)]
    index = "\n".join(lines)

    def at(*numbers: int) -> int:
        known = dict(zip(names, numbers, strict=True))
        exec(index, {"int64_t": int}, known)
        return known["index"]

    try:
        at(*(0 for _ in names))
    except (SyntaxError, NameError):  # an index with a condition
        return None
    return at


@dataclass(eq=False)
class Scanned(Value):
    """A running `sum`, `prod`, `max`, `min` or `logsumexp` along one dimension."""

    source: Value = None  # type: ignore[assignment]
    along: int = 0
    kind: str = "sum"

    def compute(self, e: Emitter, place: Place) -> str:
        raise NeedsMemory(self)

    @property
    def sources(self) -> Sequence[Value]:
        return [self.source]


def cast(text: str, source: str, target: str) -> str:
    """An expression of one dtype as one of another, where the types that they are computed in differ."""
    have, want = computed(source), computed(target)
    if have == want:
        return text
    if want == "bool":
        return f"({text} != 0)"
    return f"static_cast<{want}>({text})"


def literal(value: object, dtype: str) -> str:
    """A number as C++ of the type that `dtype` is computed in."""
    if isinstance(value, bool) or computed(dtype) == "bool":
        is_true = bool(value)
        return ("true" if is_true else "false") if computed(dtype) == "bool" else literal(int(is_true), dtype)
    if not isinstance(value, int | float):
        raise CannotWrite(f"there is no rule for an argument {value!r}")
    if not is_float(dtype):
        if isinstance(value, float) and not value.is_integer():
            raise CannotWrite("a fraction is used with whole numbers")
        return f"{int(value)}" if abs(value) < 1 << 31 else f"{int(value)}LL"
    number = float(value)
    end = "" if dtype == "float64" else "f"
    if math.isnan(number):
        return "NAN"
    if math.isinf(number):
        return "INFINITY" if number > 0 else "-INFINITY"
    text = repr(number)
    text = text if any(mark in text for mark in ".en") else f"{text}.0"
    return f"({text}{end})" if number < 0 else f"{text}{end}"
