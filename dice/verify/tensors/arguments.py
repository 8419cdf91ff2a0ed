"""What a constructor is given beside tensors and plain values: classes, functions, enums, configurations.

Such a thing travels as the name by which a file knows it, since the reference's process and the candidate's have each
run a file of their own: `told` writes names down, and `meant` looks them up, those of the problem's own file in the
kernel's. What is told is trusted; it goes from the reference to candidates alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import importlib
import operator
import types
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy
import torch

from dice.verify.tensors import transport

# Packages whose classes and functions both processes have.
PACKAGES = ("builtins", "collections", "functools", "math", "numpy", "operator", "torch")
# Where PyTorch's functions are that do not know their own place.
PLACES = ("torch", "torch.nn.functional", "torch.special", "torch.linalg", "torch.fft", "math", "operator")


class Told(NamedTuple):
    """A thing by its `kind`, its `name` and what it holds."""

    told_kind: str
    told_name: str
    told_content: Any


def told(value: Any, home: types.ModuleType, depth: int = 0) -> Any:
    """The value as `transport` can write it, where that is possible; `home` is the problem's file."""
    if depth > transport.MAX_DEPTH:
        raise transport.WireError("a value nested too deeply")
    tell: Callable[[Any], Any] = functools.partial(told, home=home, depth=depth + 1)
    if isinstance(value, torch.nn.Parameter):
        return Told("parameter", "", [value.detach(), value.requires_grad])
    if value is None or type(value) in (bool, int, float, str, complex, torch.Tensor, torch.dtype):
        return value
    if type(value) in (list, tuple):
        return type(value)(map(tell, value))
    if type(value) is dict:
        return {key: tell(item) for key, item in value.items()}
    if isinstance(value, enum.Enum):
        return Told("member", _name(type(value), home), [value.name, tell(value.value)])
    if isinstance(value, numpy.ndarray | numpy.generic):
        return Told("array" if isinstance(value, numpy.ndarray) else "number", str(value.dtype), value.tolist())
    if isinstance(value, types.SimpleNamespace):
        return types.SimpleNamespace(**{key: tell(item) for key, item in vars(value).items()})
    known = _told_builtin(value, tell)
    if known is not None:
        return known
    if name := _name(value, home):
        return Told("named", name, None)
    if isinstance(value, types.FunctionType | type):
        raise transport.WireError(f"{value.__qualname__} is given to it, which the top of its file has no name for")
    return _told_object(value, _name(type(value), home), tell)


def _told_builtin(value: Any, tell: Callable[[Any], Any]) -> Told | None:
    if isinstance(value, torch.Size):
        return Told("size", "", list(value))
    if isinstance(value, torch.device):
        return Told("device", "", str(value))
    if isinstance(value, range | slice):
        return Told(type(value).__name__, "", [value.start, value.stop, value.step])
    if type(value) in (set, frozenset):
        return Told(type(value).__name__, "", sorted(map(tell, value), key=repr))
    if type(value) is OrderedDict:
        return Told("OrderedDict", "", [[tell(key), tell(item)] for key, item in value.items()])
    if isinstance(value, functools.partial):
        return Told("partial", "", [tell(value.func), list(map(tell, value.args)), tell(dict(value.keywords))])
    return None


def _told_object(value: Any, name: str, tell: Callable[[Any], Any]) -> Any:
    """A named tuple, or an object that is what its attributes are. One whose class nobody finds stays as it is."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return Told("record", name, [list(value._fields), [tell(item) for item in value]])
    attributes = _attributes(value)
    if not name or attributes is None:
        return value
    return Told("object", name, {key: tell(item) for key, item in attributes.items()})


def _attributes(value: Any) -> dict[str, Any] | None:
    """Of an object that has no other state; None where it may have."""
    kind: Any = type(value)
    slots = [name for one in kind.__mro__ for name in _slots(one)]
    plain = kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__
    if isinstance(value, type | types.FunctionType | types.MethodType | types.ModuleType) or not plain:
        return None
    if not slots and not hasattr(value, "__dict__"):
        return None
    of_slots = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return of_slots | dict(getattr(value, "__dict__", {}))


def _slots(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def _name(value: Any, home: types.ModuleType) -> str:
    """Under which both processes find a class or function, "" where they do not: MODULE:NAME, or :NAME in the file."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(name, str) or not callable(value):
        return ""
    if module == home.__name__:
        return f":{name}" if _found(home, name) is value else ""
    places = (module, *PLACES) if isinstance(module, str) and module.split(".")[0] in PACKAGES else PLACES
    for place in places:
        for known in (name, getattr(value, "__name__", name)):
            if _found(importlib.import_module(place), known) is value:
                return f"{place}:{known}"
    return ""


def _found(module: types.ModuleType, name: str) -> Any:
    try:
        return operator.attrgetter(name)(module)
    except AttributeError:
        return None


def meant(value: Any, file: types.ModuleType) -> Any:
    """What was `told`, with the names of the problem's file found in the kernel's, `file`.

    An object whose class is not there comes as a namespace of its attributes. Raises `NameError` for a function or
    class that is not.
    """
    if isinstance(value, tuple) and getattr(value, "_fields", None) == Told._fields:
        return _MEANT[value[0]](value[1], value[2], file)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return value
    if isinstance(value, list | tuple):
        return type(value)(meant(item, file) for item in value)
    if isinstance(value, dict):
        return {key: meant(item, file) for key, item in value.items()}
    if isinstance(value, types.SimpleNamespace):
        return types.SimpleNamespace(**{key: meant(item, file) for key, item in vars(value).items()})
    return value


def own(value: Any, file: types.ModuleType) -> Any:
    """Inputs with objects and named tuples of the classes that `file` has under their names, where it has such ones."""
    items = transport.parts(value)
    if items is None:
        return value
    value = transport.like(value, [own(item, file) for item in items])
    kind: Any = _found(file, type(value).__name__)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind._make(value) if getattr(kind, "_fields", None) == value._fields else value
    if not isinstance(value, types.SimpleNamespace) or not isinstance(kind, type) or not dataclasses.is_dataclass(kind):
        return value
    if {field.name for field in dataclasses.fields(kind)} != set(vars(value)):
        return value
    return object_of(kind, vars(value))


def object_of(kind: type, fields: Mapping[str, Any]) -> Any:
    """An object of a dataclass that has these fields, also where its own code would refuse or change them."""
    made = _with_attributes(object.__new__(kind), fields)
    with contextlib.suppress(Exception):  # there may be no such method, or it may refuse them
        made.__post_init__()
    return _with_attributes(made, fields)  # what is made from the fields must leave them as they were given


def _with_attributes(made: Any, attributes: Mapping[str, Any]) -> Any:
    for name, item in attributes.items():
        object.__setattr__(made, name, item)  # also where it is frozen
    return made


def _known(name: str, file: types.ModuleType) -> Any:
    """None for what the kernel's file lacks."""
    module, _, path = name.partition(":")
    return _found(importlib.import_module(module) if module else file, path)


def _named(name: str, _: Any, file: types.ModuleType) -> Any:
    found = _known(name, file)
    if found is None:
        raise NameError(f"get_init_inputs() gives {name.partition(':')[2]}, which the kernel file does not define")
    return found


def _member(name: str, content: Any, file: types.ModuleType) -> Any:
    kind = _known(name, file) if name else None
    value = meant(content[1], file)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        if content[0] in kind.__members__:
            return kind[content[0]]
        with contextlib.suppress(ValueError):
            return kind(value)  # of flags, several at once
    return types.SimpleNamespace(name=content[0], value=value)


def _object(name: str, content: Any, file: types.ModuleType) -> Any:
    kind, attributes = _known(name, file), {key: meant(item, file) for key, item in content.items()}
    if not isinstance(kind, type):
        return types.SimpleNamespace(**attributes)
    return _with_attributes(object.__new__(kind), attributes)


def _record(name: str, content: Any, file: types.ModuleType) -> Any:
    fields, items = content
    kind: Any = _known(name, file) if name else None
    if list(getattr(kind, "_fields", ())) != fields:
        kind = transport.named_tuple(tuple(fields))
    return kind._make(meant(item, file) for item in items)


def _partial(_: str, content: Any, file: types.ModuleType) -> Any:
    function, args, keywords = meant(content, file)
    return functools.partial(function, *args, **keywords)


_MEANT: dict[str, Callable[[str, Any, types.ModuleType], Any]] = {
    "named": _named,
    "member": _member,
    "object": _object,
    "record": _record,
    "partial": _partial,
    "parameter": lambda _, content, __: torch.nn.Parameter(content[0], requires_grad=content[1]),
    "array": lambda name, content, _: numpy.array(content, dtype=name),
    "number": lambda name, content, _: numpy.dtype(name).type(content),
    "size": lambda _, content, __: torch.Size(content),
    "device": lambda _, content, __: torch.device(content),
    "range": lambda _, content, __: range(*content),
    "slice": lambda _, content, __: slice(*content),
    "set": lambda _, content, file: set(meant(content, file)),
    "frozenset": lambda _, content, file: frozenset(meant(content, file)),
    "OrderedDict": lambda _, content, file: OrderedDict(map(tuple, meant(content, file))),
}
