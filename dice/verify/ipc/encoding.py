"""How messages cross a channel: as JSON objects, read back as the class that is expected, and checked on arrival.

An object holds the message's fields, and under `event` the name of its class in snake case. A trusted process is taken
at its word as far as its types go (`read`); what a stranger's code says is cut, cleaned, and made empty where it is not
of the field's type (`claim`).
"""

from __future__ import annotations

import functools
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from dice.verify.ipc import untrusted

EVENT = "event"
Raw = Mapping[str, object]  # a message as it came: any JSON object
M = TypeVar("M")
_READERS: dict[tuple[type, bool], dict[str, Callable[[object], object]]] = {}


class Malformed(Exception):
    """A message of a trusted process that is not what it should be."""


def name_of(kind: type) -> str:
    """`RunTrial` -> `run_trial`."""
    return _snake_case(kind.__name__)


@functools.cache
def _snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def to_json(message: Any) -> dict[str, object]:
    """A message as a JSON object."""
    return {EVENT: name_of(type(message)), **_plain(message)}


def _plain(message: Any) -> dict[str, object]:
    return {item.name: _plain_value(getattr(message, item.name)) for item in fields(message)}


def _plain_value(value: Any) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(value)
    return [_plain_value(item) for item in value] if isinstance(value, list | tuple) else value


def is_a(raw: object, kind: type) -> bool:
    return isinstance(raw, Mapping) and raw.get(EVENT) == name_of(kind)


def read(raw: object, kind: type[M]) -> M:
    """A trusted process's message. Raises `Malformed`."""
    if not isinstance(raw, Mapping):
        raise Malformed(f"{name_of(kind)} was expected")
    values = {}
    for name, reader in _readers(kind, strict=True).items():
        if name in raw:
            values[name] = reader(raw[name])
    try:
        return kind(**values)
    except TypeError:
        missing = [item.name for item in fields(kind) if item.name not in raw]  # type: ignore[arg-type]
        raise Malformed(f"{name_of(kind)} lacks {', '.join(missing)}") from None


def claim(raw: Raw, kind: type[M]) -> M:
    """A stranger's message: what is missing, or not of its type, is empty."""
    return kind(**{name: reader(raw.get(name)) for name, reader in _readers(kind, strict=False).items()})


def _readers(kind: type, strict: bool) -> dict[str, Callable[[object], object]]:
    """For each field of a message, what reads a value of its type."""
    known = _READERS.get((kind, strict))
    if known is None:
        hints = typing.get_type_hints(kind, include_extras=True)
        reader = _strict if strict else _lenient
        names = [item.name for item in fields(kind)]
        known = _READERS[kind, strict] = {name: functools.partial(reader, hints[name]) for name in names}
    return known


def _lenient(kind: Any, value: object) -> object:
    """The value as one of the types that a claim may have, whatever it is."""
    if kind is object:
        return value
    if kind is bool:
        return value is True
    if kind is str:
        return untrusted.text(value) if isinstance(value, str) else ""
    if typing.get_origin(kind) is typing.Annotated:  # a text of other length
        return untrusted.text(value, kind.__metadata__[0]) if isinstance(value, str) else ""
    if kind is int:
        return value if type(value) is int else 0
    if kind is float:
        return value if type(value) is float else 0.0
    if kind == int | None:
        return value if type(value) is int else None
    if kind == tuple[str, ...]:
        return untrusted.texts(value)
    if kind == tuple[int, ...]:
        return tuple(untrusted.integers(value))
    if kind == tuple[float, ...]:
        return tuple(untrusted.floats(value))
    if kind == dict[str, int]:
        return untrusted.counts(value)
    if kind == dict[str, str]:
        return untrusted.texts_by_name(value)
    raise TypeError(f"no claim may be a {kind}")


def _strict(kind: Any, value: object) -> object:
    """The value, with lists as tuples and objects as classes. Raises `Malformed` where it is of another type."""
    origin = typing.get_origin(kind)
    if kind is object or kind is Any:
        return value
    if origin is typing.Annotated:
        return _strict(kind.__origin__, value)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_strict(typing.get_args(kind)[0], item) for item in value)
    if is_dataclass(kind):
        return read(value, kind)  # type: ignore[arg-type]
    if origin is dict and isinstance(value, dict):
        return value
    if origin is typing.Literal and value in typing.get_args(kind):
        return value
    if origin is types.UnionType and any(_is(one, value) for one in typing.get_args(kind)):
        return value
    if origin is None and _is(kind, value):
        return value
    raise Malformed(f"{str(value)[:50]!r} is no {kind}")


def _is(kind: Any, value: object) -> bool:
    if kind is float:
        return type(value) in (int, float)
    return type(value) is kind or (kind is types.NoneType and value is None)
