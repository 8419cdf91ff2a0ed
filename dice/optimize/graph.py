"""`Graph`: what a module's `forward` computes, as a plain description: PyTorch's operators over named values.

It is made by `tracing.py` in a jailed process that runs the module's own code, crosses to this one as JSON, and is
checked here value by value before anything is printed from it. Every value has a static shape and a dtype.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dice.files import JsonObject

# Constant terms that have names in PyTorch: kind -> how the name may look.
NAMED = {
    "dtype": re.compile(r"(float|bfloat|int|uint|complex|bool)\w{0,12}"),
    "device": re.compile(r"cuda|cpu|meta"),
    "layout": re.compile(r"strided"),
    "memory_format": re.compile(r"contiguous_format|preserve_format|channels_last|channels_last_3d"),
    "float": re.compile(r"-?inf|nan"),
}
ITEMSIZE = {
    **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 8),
    **dict.fromkeys(("float32", "int32", "uint32"), 4),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    "complex128": 16,
}
_CLASS = re.compile(r"[A-Za-z_]\w{0,80}(\.[A-Za-z_]\w{0,80}){0,4}")
_OPERATOR = re.compile(r"\w{1,40}(\.\w{1,80}){1,3}")
PATH = re.compile(r"(\.\w{1,200}|\[\d{1,9}\]|\['[^'\"\\\n]{0,200}'\]){1,40}")
ACCESS = re.compile(r"\w+(\.(?!__)[A-Za-z_]\w*|\[(\d+|'[^'\"\\\n]{0,200}')\])*")
SOURCES = ("input", "number", "state", "constant")  # "number": a plain one of the caller's, as a tensor
MOST_NODES = 100_000
MOST_NUMBERS = 256  # of a tensor that is part of the code


class Malformed(ValueError):
    """What the process sent is no description of a graph."""


@dataclass(frozen=True, slots=True)
class Spec:
    """A tensor's shape and element type (`float32`)."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * ITEMSIZE.get(self.dtype, 1)


@dataclass(frozen=True, slots=True)
class Ref:
    """The value of that name."""

    name: str


@dataclass(frozen=True, slots=True)
class Named:
    """A constant of PyTorch's, such as `torch.float32`: its kind (see `NAMED`) and its name."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Tupled:
    """A named tuple that `forward` returns: its class, as the module's own file reaches it, and what it is made of."""

    name: str
    items: tuple[Any, ...]


# An argument: `Ref`, `Named`, None, a number, a text, or lists, tuples and dicts of them.
Term = Any
Output = Spec | tuple["Spec | None", ...] | None


@dataclass(frozen=True, slots=True)
class Node:
    """One value and what computes it. `operator`: PyTorch's, such as `aten.relu.default`, or one of our own:

    | operator | arguments |
    |---|---|
    | `input` | how `forward` reaches it from its arguments: `x`, `x[0]['mask']` |
    | `state` | how a parameter, buffer or tensor attribute is reached from the module: `.blocks[0].weight`; the options
    say that it is no parameter (`buffer`), and no buffer either (`plain`), which the module does not move |
    | `constant` | nested numbers |
    | `getitem` | a value that is a tuple, and an index |

    `ms`: what the operator took when the module was run for measurement. `effect`: it draws random numbers or writes
    to a tensor that is there already, so that it stays where it is.
    """

    name: str
    operator: str
    arguments: tuple[Term, ...]
    options: Mapping[str, Term] = field(default_factory=dict)
    output: Output = None
    ms: float = 0.0
    effect: bool = False

    @property
    def spec(self) -> Spec:
        """Of a value that is one tensor."""
        assert isinstance(self.output, Spec), f"{self.name} is no tensor"
        return self.output

    @property
    def base(self) -> str:
        """The operator without its overload: `relu`."""
        parts = self.operator.split(".")
        return parts[1] if len(parts) > 1 else parts[0]

    @property
    def is_source(self) -> bool:
        """Whether it is there before anything is computed."""
        return self.operator in SOURCES

    @property
    def uses(self) -> tuple[str, ...]:
        """Names of the values that it takes, each once."""
        return tuple(dict.fromkeys(references((self.arguments, dict(self.options)))))


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in an order in which they can be computed, and the term that `forward` returns."""

    nodes: tuple[Node, ...]
    output: Term

    def __getitem__(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def by_name(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    def to_json(self) -> JsonObject:
        return {"nodes": [_node_to_json(node) for node in self.nodes], "output": to_plain(self.output)}

    @classmethod
    def from_json(cls, raw: object) -> Graph:
        """Raises `Malformed`."""
        if not isinstance(raw, dict) or not isinstance(raw.get("nodes"), list) or len(raw["nodes"]) > MOST_NODES:
            raise Malformed("no list of nodes")
        nodes: list[Node] = []
        known: set[str] = set()
        for one in raw["nodes"]:
            node = _node_from_json(one)
            if node.name in known or not known.issuperset(node.uses):
                raise Malformed(f"{node.name} is there twice, or uses what is not there")
            known.add(node.name)
            nodes.append(node)
        output = from_plain(raw.get("output"))
        if not known.issuperset(references(output)):
            raise Malformed("an output that nothing computes")
        return cls(tuple(nodes), output)


def references(term: Term) -> Iterator[str]:
    """Names of the values in a term, in order."""
    if isinstance(term, Ref):
        yield term.name
    elif isinstance(term, list | tuple):
        for item in term:
            yield from references(item)
    elif isinstance(term, dict):
        for item in term.values():
            yield from references(item)
    elif isinstance(term, Tupled):
        yield from references(term.items)


def substituted(term: Term, change: Callable[[Ref], Term]) -> Term:
    """The term with every reference replaced."""
    if isinstance(term, Ref):
        return change(term)
    if isinstance(term, list | tuple):
        return type(term)(substituted(item, change) for item in term)
    if isinstance(term, dict):
        return {key: substituted(item, change) for key, item in term.items()}
    if isinstance(term, Tupled):
        return replace(term, items=substituted(term.items, change))
    return term


def with_references(node: Node, change: Callable[[Ref], Term]) -> Node:
    arguments, options = substituted(node.arguments, change), substituted(dict(node.options), change)
    return replace(node, arguments=arguments, options=options)


def tensors(graph: Graph, names: Iterable[str]) -> list[Spec]:
    known = graph.by_name()
    return [known[name].spec for name in names]


def to_plain(term: Term) -> object:
    """A term as JSON."""
    match term:
        case Ref(name):
            return {"ref": name}
        case Named(kind, name):
            return {kind: name}
        case float() if not math.isfinite(term):
            return {"float": repr(term)}
        case None | bool() | int() | float() | str():
            return term
        case tuple():
            return {"tuple": [to_plain(item) for item in term]}
        case list():
            return [to_plain(item) for item in term]
        case dict():
            return {"dict": [[key, to_plain(item)] for key, item in term.items()]}
        case Tupled(name, items):
            return {"tupled": [name, *(to_plain(item) for item in items)]}
    raise Malformed(f"an argument is a {type(term).__name__}")


def from_plain(raw: object, depth: int = 0) -> Term:
    """Raises `Malformed`."""
    if depth > 12:
        raise Malformed("a term nested too deeply")
    match raw:
        case None | bool() | int() | float():
            return raw
        case str():
            return _text(raw)
        case list():
            return [from_plain(item, depth + 1) for item in raw]
        case {"ref": str(name)}:
            return Ref(_identifier(name))
        case {"tuple": list(items)}:
            return tuple(from_plain(item, depth + 1) for item in items)
        case {"dict": list(pairs)}:
            return {_text(key): from_plain(item, depth + 1) for key, item in pairs}
        case {"tupled": [str(name), *items]} if _CLASS.fullmatch(name):
            return Tupled(name, tuple(from_plain(item, depth + 1) for item in items))
        case {"float": str(text)} if NAMED["float"].fullmatch(text):
            return float(text)
        case dict() if len(raw) == 1:
            ((kind, name),) = raw.items()
            if kind in NAMED and isinstance(name, str) and NAMED[kind].fullmatch(name):
                return Named(kind, name)
    raise Malformed("a malformed term")


def _node_to_json(node: Node) -> JsonObject:
    def spec(one: Spec | None) -> object:
        return None if one is None else [list(one.shape), one.dtype]

    output = [spec(one) for one in node.output] if isinstance(node.output, tuple) else spec(node.output)
    return {
        "name": node.name,
        "operator": node.operator,
        "arguments": to_plain(list(node.arguments)),
        "options": [[key, to_plain(value)] for key, value in node.options.items()],
        "several": isinstance(node.output, tuple),
        "output": output,
        "ms": node.ms,
        "effect": node.effect,
    }


def _node_from_json(raw: object) -> Node:
    match raw:
        case {"name": str(name), "operator": str(operator), "arguments": list(arguments), "options": list(options)}:
            pass
        case _:
            raise Malformed("a malformed node")
    if operator not in (*SOURCES, "getitem") and not _OPERATOR.fullmatch(operator):
        raise Malformed("a node that is no operator of PyTorch's")
    given = tuple(from_plain(item) for item in arguments)
    if operator in ("input", "number", "state"):
        pattern = PATH if operator == "state" else ACCESS
        if len(given) != 1 or not isinstance(given[0], str) or not pattern.fullmatch(given[0]):
            raise Malformed(f"a malformed {operator}")
    assert isinstance(raw, dict)
    output = raw.get("output")
    specs = tuple(map(_spec, output)) if raw.get("several") and isinstance(output, list) else _spec(output)
    named = {_identifier(str(key)): from_plain(value) for key, value in options}
    ms = raw.get("ms")
    return Node(
        _identifier(name),
        operator,
        given,
        named,
        specs,
        float(ms) if isinstance(ms, int | float) else 0.0,
        raw.get("effect") is True,
    )


def _spec(raw: object) -> Spec | None:
    match raw:
        case None:
            return None
        case [list(shape), str(dtype)] if NAMED["dtype"].fullmatch(dtype):
            if all(type(extent) is int and 0 <= extent < 1 << 48 for extent in shape):
                return Spec(tuple(shape), dtype)
    raise Malformed("a malformed shape")


def _identifier(name: str) -> str:
    if not name.isidentifier() or len(name) > 200:
        raise Malformed("a name that is no name")
    return f"{name}_" if keyword.iskeyword(name) else name


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > 4096:
        raise Malformed("a malformed text")
    return value
