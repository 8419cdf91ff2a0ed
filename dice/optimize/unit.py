"""`Unit`: a module, or a part of one, whose `forward` is known as a graph."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from dice.files import JsonObject
from dice.optimize.graph import ACCESS, PATH, Graph, Malformed, Named, from_plain, to_plain
from dice.optimize.python_text import term

KINDS = ("positional", "keyword", "args", "kwargs")
GUARDS = ("tensor", "number", "value", "list", "dict", "object")
_CLASS = re.compile(r"[A-Za-z_][\w.]{0,300}")
MOST_MODULES = 1 << 16


@dataclass(frozen=True, slots=True)
class Parameter:
    """One of `forward`'s. `default`: what it is, where there is one, in a tuple."""

    name: str
    kind: str = "positional"
    default: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Guard:
    """What held for an argument when the module was followed. `kind` and `value`: a `tensor` of a shape and dtype (on
    the GPU, where kernels read it), a plain `number` of a type, whichever it is, a `list` (or tuple) of a length, a
    `dict` of some keys, an `object` with some fields, or a plain `value`."""

    access: str
    kind: str
    value: Any

    def condition(self) -> str:
        """As Python."""
        name, value = self.access, self.value
        if self.kind == "tensor":
            shape, dtype = value
            return (
                f"isinstance({name}, torch.Tensor) and {name}.is_cuda and {name}.shape == {tuple(shape)}"
                f" and {name}.dtype == torch.{dtype}"
            )
        if self.kind == "number":
            return f"type({name}) is {value}"
        if self.kind == "list":
            return f"isinstance({name}, (list, tuple)) and len({name}) == {value}"
        if self.kind == "object":
            return f"all(hasattr({name}, field) for field in {tuple(value)!r})"
        if self.kind == "dict":
            return f"isinstance({name}, dict) and sorted({name}) == {value!r}"
        if value is None or isinstance(value, bool):
            return f"{name} is {value}"
        if isinstance(value, Named):
            return f"{name} == {term(value, {})}"
        return f"type({name}) is {type(value).__name__} and {name} == {term(value, {})}"


@dataclass(frozen=True, slots=True)
class Unit:
    """`paths`: where it stands in the model, `.blocks[0]`, "" for the model itself; several where equal parts do equal
    work. `class_name`: its class's; `home`: the module to import that from, "" for the problem's own file. `guards`:
    what held for the arguments, and `modes` whether each module in it was in training; else it is the class's own
    affair. `dtype`: what the module had been converted to, "" for what its constructor makes."""

    paths: tuple[str, ...]
    class_name: str
    home: str
    parameters: tuple[Parameter, ...]
    guards: tuple[Guard, ...]
    modes: tuple[bool, ...]
    graph: Graph
    dtype: str = ""

    @property
    def signature(self) -> str:
        """The parameters of `forward`, without `self`."""
        parts: list[str] = []
        for one in self.parameters:
            star = {"args": "*", "kwargs": "**"}.get(one.kind, "")
            if one.kind == "keyword" and not any(part.startswith("*") for part in parts):
                parts.append("*")
            default = f"={term(one.default[0], {})}" if one.default else ""
            parts.append(f"{star}{one.name}{default}")
        return ", ".join(parts)

    @property
    def call(self) -> str:
        """The arguments passed on."""
        forms = {"args": "*{0}", "kwargs": "**{0}", "keyword": "{0}={0}"}
        return ", ".join(forms.get(one.kind, "{0}").format(one.name) for one in self.parameters)

    @property
    def mode(self) -> str:
        """The modes as Python: one where all are alike."""
        return str(self.modes[0]) if len(set(self.modes)) == 1 else repr(self.modes)

    def to_json(self) -> JsonObject:
        return {
            "paths": list(self.paths),
            "class_name": self.class_name,
            "home": self.home,
            "parameters": [[one.name, one.kind, to_plain(list(one.default))] for one in self.parameters],
            "guards": [[one.access, one.kind, to_plain(one.value)] for one in self.guards],
            "modes": list(self.modes),
            "graph": self.graph.to_json(),
        }

    @classmethod
    def from_json(cls, raw: object) -> Unit:
        """Raises `Malformed`."""
        match raw:
            case {"paths": list(paths), "class_name": str(name), "home": str(home), "modes": list(modes)}:
                pass
            case _:
                raise Malformed("a malformed unit")
        assert isinstance(raw, dict)
        if not _CLASS.fullmatch(name) or (home and not _CLASS.fullmatch(home)):
            raise Malformed("a class without a name")
        if not all(isinstance(path, str) and (not path or PATH.fullmatch(path)) for path in paths):
            raise Malformed("a malformed path")
        if not 0 < len(modes) <= MOST_MODULES or not all(isinstance(mode, bool) for mode in modes):
            raise Malformed("a malformed mode")
        parameters = tuple(map(_parameter, _list(raw.get("parameters"))))
        guards = tuple(map(_guard, _list(raw.get("guards"))))
        return cls(tuple(paths), name, home, parameters, guards, tuple(modes), Graph.from_json(raw.get("graph")))


def _list(raw: object) -> list[object]:
    if not isinstance(raw, list):
        raise Malformed("no list")
    return raw


def _parameter(raw: object) -> Parameter:
    match raw:
        case [str(name), str(kind), list(default)] if name.isidentifier() and kind in KINDS and len(default) <= 1:
            return Parameter(name, kind, tuple(map(from_plain, default)))
    raise Malformed("a malformed parameter")


def _guard(raw: object) -> Guard:
    match raw:
        case [str(name), str(kind), value] if ACCESS.fullmatch(name) and kind in GUARDS:
            read = from_plain(value)
            match kind, read:
                case ("tensor", [list(shape), str(dtype)]) if (
                    all(type(one) is int for one in shape) and dtype.isalnum()
                ):
                    return Guard(name, kind, read)
                case ("list", int()) | ("value", _) | ("number", "int" | "float"):
                    return Guard(name, kind, read)
                case ("dict" | "object", list(keys)) if all(isinstance(key, str) for key in keys):
                    return Guard(name, kind, read)
    raise Malformed("a malformed condition")
