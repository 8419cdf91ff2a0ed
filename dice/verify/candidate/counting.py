"""Numbers in a file's Python that rise from call to call, the time among them, and what its forward does later.

A file may count its calls and do something else from then on: keep its last answer, or leave its kernel out. How many
calls it waits for nobody knows, so the counters that are seen to rise are moved on to where many calls more would have
brought them; lists and dictionaries that grow become longer. They are looked for where Python keeps what outlives a
call: attributes of the module's parts and of the file's classes and functions, names of the file, what its functions
close over, and lists and dictionaries in these. And Python's clocks can be a day ahead.
"""

from __future__ import annotations

import contextlib
import sys
import time
import types
from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any

LEAP = 1 << 20  # calls more
LENGTHS = 1 << 12  # the same, of lists and dictionaries
LATER_S = 86_400
_CLOCKS = ("time", "monotonic", "perf_counter")
_ahead_s = [0]
Key = tuple[int, Any]
Place = tuple[float, Callable[[Any], None]]
_LENGTH = object()  # in place of a name


class _Filler(int):
    """A key that is no other's."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


class Counters:
    """The numbers that a model's file keeps. Those that rise between two looks can be moved on."""

    def __init__(self, model: Any):
        self._model = model
        self._before = self._look()
        self._moved: list[Place] = []

    def _look(self) -> dict[Key, Place]:
        return dict(_numbers(self._model))

    def move_on(self) -> None:
        """Move on whatever has risen since this was made."""
        for key, (value, put) in self._look().items():
            before = self._before.get(key)
            if before is not None and type(before[0]) is type(value) and value > before[0]:
                put(value + (value - before[0]) * (LENGTHS if key[1] is _LENGTH else LEAP))
                self._moved.append((value, put))

    def move_back(self) -> None:
        for value, put in self._moved:
            put(value)


def _numbers(model: Any) -> Iterator[tuple[Key, Place]]:
    module = sys.modules.get(type(model).__module__)
    owners: list[Any] = [vars(part) for part in model.modules()]
    kept = list(vars(module).values()) if module is not None else []
    own = [one for one in kept if getattr(one, "__module__", None) == type(model).__module__]
    owners += [vars(module)] if module is not None else []
    owners += [one for one in own if isinstance(one, type)]
    functions = [one for one in own if isinstance(one, types.FunctionType)]
    functions += [one for owner in own if isinstance(owner, type) for one in vars(owner).values()
                  if isinstance(one, types.FunctionType)]  # fmt: skip
    owners += [vars(one) for one in functions]
    for owner in owners:
        yield from _in(owner, nested=True)
    for function in functions:
        for cell in function.__closure__ or ():
            yield from _of_cell(cell)


def _in(owner: Any, nested: bool) -> Iterator[tuple[Key, Place]]:
    """The numbers in a dictionary, a list or a class, and those one level below, where lengths are among them."""
    if not nested:
        yield (id(owner), _LENGTH), (len(owner), partial(_resize, owner))
    is_class = isinstance(owner, type)
    items = list(enumerate(owner)) if isinstance(owner, list) else list((vars(owner) if is_class else owner).items())
    for name, value in items:
        if type(value) in (int, float):
            yield (id(owner), name), (value, _setter(owner, name))
        elif nested and type(value) in (dict, list) and len(value) <= 64:
            yield from _in(value, nested=False)


def _resize(container: Any, length: int) -> None:
    """More of what came in last, or none of what is too much."""
    missing, last = length - len(container), list(container)[-1] if container else None
    if isinstance(container, list):
        container[length:] = [last] * missing
        return
    for number in range(missing):
        container[_Filler(number)] = container[last]
    for key in list(container)[length:]:
        del container[key]


def _setter(owner: Any, name: Any) -> Callable[[Any], None]:
    if isinstance(owner, type):
        return lambda value: setattr(owner, name, value)
    return lambda value: owner.__setitem__(name, value)


def _of_cell(cell: Any) -> Iterator[tuple[Key, Place]]:
    try:
        value = cell.cell_contents
    except ValueError:  # a name that has no value yet
        return
    if type(value) in (int, float):
        yield (id(cell), ""), (value, lambda new: setattr(cell, "cell_contents", new))
    elif type(value) in (dict, list) and len(value) <= 64:
        yield from _in(value, nested=False)


def install_clocks() -> None:
    """Before the file's code runs."""
    for name in _CLOCKS:
        setattr(time, name, _with_lead(getattr(time, name), 1))
        setattr(time, f"{name}_ns", _with_lead(getattr(time, f"{name}_ns"), 10**9))


@contextlib.contextmanager
def later() -> Iterator[None]:
    """In the block it is a day later."""
    _ahead_s[0] = LATER_S
    try:
        yield
    finally:
        _ahead_s[0] = 0


def _with_lead(clock: Callable[[], Any], units: int) -> Callable[[], Any]:
    @wraps(clock)
    def read() -> Any:
        return clock() + _ahead_s[0] * units

    return read
