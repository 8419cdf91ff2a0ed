"""A kernel file's `forward` as a program: what is left of its Python once it has run without data.

A program is a list of steps over values. A step is an operator of PyTorch's, a call of a function that one of the
file's libraries binds, or a wait for the GPU; its arguments are constants, inputs, parameters by name, *literals*
(tensors that the file made on the host, whose bytes cross in a file) and what earlier steps gave. It is JSON, comes
from a process that runs a stranger's Python, and is checked here before anything acts on it: names, types, counts, and
that each value is there when it is used.

Terms, as JSON: `null`, truth values, integers, finite floats and texts stand for themselves, a list for a list. All
else is an object with one key:

| key | stands for |
|---|---|
| `input`, `literal`, `value` | a tensor, by its number |
| `state` | a parameter or buffer, by its name |
| `tuple`, `dict` | a list of terms; a list of pairs of a text and a term |
| `float`, `complex` | "nan", "inf" or "-inf"; two floats |
| `dtype`, `layout`, `memory_format`, `device` | PyTorch's values, by their names |
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

MOST_STEPS = 20_000
MOST_TERMS = 400_000
MAX_DEPTH = 8
MAX_TEXT = 4096
LARGEST = 1 << 63  # of integers
WAIT = "wait"  # in place of an operator: until the GPU has done all that it has to
_OPERATOR = re.compile(r"aten::\w{1,80}(\.\w{1,80})?")
_FUNCTION = re.compile(r"[A-Za-z_]\w{0,200}")
_NAMED = {
    "float": re.compile(r"-?inf|nan"),
    "dtype": re.compile(r"\w{1,20}"),
    "layout": re.compile(r"strided"),
    "memory_format": re.compile(r"contiguous_format|preserve_format|channels_last|channels_last_3d"),
    "device": re.compile(r"cuda|cpu"),
}
LEAVES = ("input", "literal", "value", "state")


class NoProgram(Exception):
    """What was sent is not a program; the message says why."""


@dataclass(frozen=True, slots=True)
class Step:
    """`operator`: PyTorch's, such as `aten::add.Tensor`, or `WAIT`; "" where function `function` of library `library`
    is called. `arguments`, `options`: terms. `gives`: what comes back, a term in which a number counts the values so
    far: one that is there already is what an operator has written to. `line`: of the kernel file."""

    operator: str
    library: int
    function: str
    arguments: tuple[object, ...]
    options: Mapping[str, object]
    gives: object
    line: int


@dataclass(frozen=True, slots=True)
class State:
    """A parameter or buffer of the file's model. `literal`: the number of its value, -1 where the reference has one of
    this name and shape."""

    dtype: str
    shape: tuple[int, ...]
    parameter: bool
    literal: int


@dataclass(frozen=True, slots=True)
class Program:
    """`inputs`: how many tensors it takes; `literals`: how many come with it. `output`: a term."""

    inputs: int
    literals: int
    state: Mapping[str, State]
    steps: tuple[Step, ...]
    output: object

    @property
    def calls(self) -> int:
        """How many steps are calls of the file's own functions."""
        return sum(not step.operator for step in self.steps)

    def to_json(self) -> dict[str, object]:
        state = {name: [one.dtype, list(one.shape), one.parameter, one.literal] for name, one in self.state.items()}
        steps = [
            [one.operator, one.library, one.function, list(one.arguments), dict(one.options), one.gives, one.line]
            for one in self.steps
        ]
        return {
            "inputs": self.inputs,
            "literals": self.literals,
            "state": state,
            "steps": steps,
            "output": self.output,
        }


def read(raw: object, libraries: int) -> Program:
    """A program that was sent, whose calls name one of so many libraries. Raises `NoProgram`."""
    return _Reader(raw, libraries).program()


class _Reader:
    def __init__(self, raw: object, libraries: int):
        self._raw: Mapping[object, object] = raw if isinstance(raw, dict) else {}
        self._libraries = libraries
        self._inputs = self._literals = self._values = self._terms = 0
        self._state: dict[str, State] = {}

    def program(self) -> Program:
        self._inputs = _count(self._raw.get("inputs"), 1 << 12)
        self._literals = _count(self._raw.get("literals"), 1 << 12)
        self._state = dict(self._states(self._raw.get("state")))
        rows = self._raw.get("steps")
        if not isinstance(rows, list) or len(rows) > MOST_STEPS:
            raise NoProgram(f"no list of at most {MOST_STEPS} steps")
        steps = tuple(map(self._step, rows))
        output = self._raw.get("output")
        self._check(output, 0)
        return Program(self._inputs, self._literals, self._state, steps, output)

    def _states(self, raw: object) -> Iterator[tuple[str, State]]:
        for name, one in raw.items() if isinstance(raw, dict) else ():
            match one:
                case [str(dtype), list(shape), bool(parameter), int(literal)] if _is_shape(shape):
                    if not (_NAMED["dtype"].fullmatch(dtype) and -1 <= literal < self._literals):
                        raise NoProgram(f"a malformed parameter {str(name)[:80]}")
                    yield _text(name), State(dtype, tuple(shape), parameter, literal)
                case _:
                    raise NoProgram(f"a malformed parameter {str(name)[:80]}")

    def _step(self, raw: object) -> Step:
        match raw:
            case [str(operator), int(library), str(function), list(arguments), dict(options), gives, int(line)]:
                pass
            case _:
                raise NoProgram("a malformed step")
        if operator == WAIT and (arguments or options or gives is not None):
            raise NoProgram("a step that waits, and has arguments")
        if operator not in ("", WAIT) and not _OPERATOR.fullmatch(operator):
            raise NoProgram(f"a step by {operator[:80]}, which is no operator of PyTorch's")
        if not operator and not (0 <= library < self._libraries and _FUNCTION.fullmatch(function)):
            raise NoProgram("a call of a function that no library binds")
        for term in (*arguments, *options.values()):
            self._check(term, 0)
        for name in options:
            _text(name)
        self._define(gives)
        return Step(operator, library, function, tuple(arguments), options, gives, line)

    def _define(self, gives: object) -> None:
        """What a step gives: values that are new are numbered in order."""
        for number in _values_of(gives):
            if number == self._values:
                self._values += 1
        self._check(gives, 0)

    def _check(self, term: object, depth: int) -> None:
        self._terms += 1
        if self._terms > MOST_TERMS or depth > MAX_DEPTH:
            raise NoProgram("a program of too many terms")
        if term is None or isinstance(term, bool):
            return
        match term:
            case int():
                if abs(term) > LARGEST:
                    raise NoProgram("an integer of more than 64 bits")
            case float():
                if not math.isfinite(term):
                    raise NoProgram("a float that is not finite")
            case str():
                _text(term)
            case list():
                for item in term:
                    self._check(item, depth + 1)
            case dict() if len(term) == 1:
                self._check_named(*next(iter(term.items())), depth)
            case _:
                raise NoProgram("a malformed term")

    def _check_named(self, key: object, value: object, depth: int) -> None:
        limits = {"input": self._inputs, "literal": self._literals, "value": self._values}
        if key in limits and type(value) is int and 0 <= value < limits[str(key)]:
            return
        if key == "state" and isinstance(value, str) and value in self._state:
            return
        if key == "tuple" and isinstance(value, list):
            self._check(value, depth)
            return
        if key == "dict" and isinstance(value, list) and all(isinstance(one, list) and len(one) == 2 for one in value):
            for name, term in value:
                _text(name)
                self._check(term, depth + 1)
            return
        if key == "complex" and isinstance(value, list) and len(value) == 2 and all(type(x) is float for x in value):
            return
        if key in _NAMED and isinstance(value, str) and _NAMED[str(key)].fullmatch(value):
            return
        raise NoProgram(f"a malformed term {str(key)[:40]}")


def leaves(term: object, depth: int = 0) -> Iterator[tuple[str, object]]:
    """The tensors that a term names, as their kind and number or name. Raises `NoProgram` for one nested too deeply."""
    if depth > 2 * MAX_DEPTH:
        raise NoProgram("a term nested too deeply")
    if isinstance(term, list | tuple):
        for item in term:
            yield from leaves(item, depth + 1)
    elif isinstance(term, dict):
        for key, value in term.items():
            if key in LEAVES:
                yield key, value
            elif key in ("tuple", "dict"):
                yield from leaves(value, depth + 1)


def _values_of(term: object) -> Iterator[int]:
    for kind, value in leaves(term):
        if kind == "value" and type(value) is int:
            yield value


def _count(value: object, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise NoProgram("a malformed count")
    return value


def _is_shape(shape: list[object]) -> bool:
    return len(shape) <= 64 and all(type(extent) is int and 0 <= extent < 1 << 48 for extent in shape)


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise NoProgram("a malformed text")
    return value
