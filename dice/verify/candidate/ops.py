"""PyTorch's operators for the shadow headers: `at::name(...)` in C++ becomes `call_op(name, arguments, options)` here.

C++ passes every argument by position, also those that Python takes by keyword only, and passes dtype, device and
layout together as `TensorOptions`. So the overload is chosen here, by PyTorch's own operator schemas.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

Arguments = tuple[Any, ...]
Options = dict[str, Any]


def call_op(name: str, arguments: Arguments, options: Options | None) -> Any:
    """Result of the operator that PyTorch's C++ interface calls `name`. Raises what PyTorch raises."""
    special = _SPECIAL.get(name)
    if special is not None:
        return special(arguments, dict(options or {}))
    if name.endswith("_out"):
        return _into(arguments[0], call_op(name.removesuffix("_out"), arguments[1:], options))
    kinds = tuple(_kind(argument) for argument in arguments)
    match = _choose(name, kinds, tuple(sorted(options or {})))
    if match is None:
        raise TypeError(f"no overload of at::{name} takes ({', '.join(kinds)})")
    # C++ makes a list of a bare number where a list is asked for: `x.view(-1)`.
    arguments = tuple([value] if index in match.lists else value for index, value in enumerate(arguments))
    positional = arguments[: match.positional]
    named = dict(zip(match.names, arguments[match.positional :], strict=False))
    return match.overload(*positional, **named, **_fitting(options, match.options))


def _into(out: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """What PyTorch's `out` forms do: the tensor takes the result's shape and values, and keeps its dtype."""
    if out.shape != result.shape:
        out.resize_(result.shape)
    return out.copy_(result)


@dataclass(frozen=True, slots=True)
class _Match:
    overload: Callable[..., Any]
    positional: int
    names: tuple[str, ...]  # keyword-only arguments that C++ passes by position
    options: frozenset[str]
    lists: frozenset[int]  # places of numbers where the schema has a list


_OPTION_NAMES = frozenset({"dtype", "device", "layout", "pin_memory", "memory_format"})


@cache
def _choose(name: str, kinds: tuple[str, ...], options: tuple[str, ...]) -> _Match | None:
    """The first overload whose schema takes arguments of these kinds in C++'s order."""
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        raise NotImplementedError(f"this version of PyTorch has no operator {name}")
    for overload in packet.overloads():
        match = _match(getattr(packet, overload), kinds, options)
        if match is not None:
            return match
    return None


def _match(overload: Any, kinds: tuple[str, ...], options: tuple[str, ...]) -> _Match | None:
    arguments = overload._schema.arguments
    if any(argument.name == "out" or argument.is_out for argument in arguments):
        return None
    takes_options = frozenset(argument.name for argument in arguments if argument.kwarg_only) & _OPTION_NAMES
    if options:
        if not (set(options) - {"requires_grad"}) <= takes_options:
            return None
        arguments = [argument for argument in arguments if argument.name not in takes_options]
    if len(kinds) > len(arguments):
        return None
    for argument, kind in zip(arguments, kinds, strict=False):
        if not _accepts(str(argument.type), argument.name, kind):
            return None
    if any(not argument.has_default_value() for argument in arguments[len(kinds) :]):
        return None
    positional = sum(not argument.kwarg_only for argument in arguments[: len(kinds)])
    names = tuple(argument.name for argument in arguments[positional : len(kinds)])
    lists = frozenset(
        index
        for index, (argument, kind) in enumerate(zip(arguments, kinds, strict=False))
        if kind == "int" and "List[int]" in str(argument.type)
    )
    return _Match(overload, positional, names, takes_options, lists)


def _kind(value: Any) -> str:
    if isinstance(value, list):
        inner = {_kind(item) for item in value}
        return f"List[{inner.pop()}]" if len(inner) == 1 else "List[]" if not inner else "List[mixed]"
    return _KINDS.get(type(value)) or ("Tensor" if isinstance(value, torch.Tensor) else type(value).__name__)


_KINDS = {
    type(None): "None",
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    torch.Tensor: "Tensor",
    torch.dtype: "dtype",
    torch.device: "Device",
    torch.layout: "layout",
    torch.memory_format: "memory_format",
}
_WIDER = {  # schema type -> kinds of Python values that C++ converts to it
    "Tensor": {"Tensor"},
    "number": {"int", "float", "bool"},
    "int": {"int", "bool"},
    "float": {"float", "int"},
    "bool": {"bool", "int"},
    "str": {"str"},
    "Device": {"Device"},
    "List[int]": {"List[int]", "List[]", "int"},
    "List[float]": {"List[float]", "List[]"},
    "List[Tensor]": {"List[Tensor]", "List[]"},
    "List[Optional[Tensor]]": {"List[Tensor]", "List[]"},
    "List[bool]": {"List[bool]"},
    "List[number]": {"List[int]", "List[float]"},
}
_ENUMS = {"dtype": "dtype", "memory_format": "memory_format", "layout": "layout"}  # argument name -> kind


def _accepts(schema_type: str, name: str, kind: str) -> bool:
    optional = schema_type.startswith("Optional[")
    if optional:
        if kind == "None":
            return True
        schema_type = schema_type[len("Optional[") : -1]
    if kind in ("dtype", "memory_format", "layout"):
        return _ENUMS.get(name) == kind
    if name in _ENUMS:
        return False
    return kind in _WIDER.get(schema_type, ())


def _fitting(options: Options | None, taken: frozenset[str]) -> Options:
    return {key: value for key, value in (options or {}).items() if key in taken}


# ---- operators that C++ spells differently from the schemas ------------------------------------------------------


def _factory(function: Callable[..., Any]) -> Callable[[Arguments, Options], Any]:
    return lambda arguments, options: function(*arguments, **options)


def _tensor(arguments: Arguments, options: Options) -> Any:
    options.pop("layout", None)  # of `x.options()`; Python's function has no such argument
    return torch.tensor(*arguments, **options)


def _to(arguments: Arguments, options: Options) -> Any:
    tensor, non_blocking, copy = arguments
    options.pop("layout", None)
    options.pop("requires_grad", None)
    options.pop("pin_memory", None)
    return tensor.to(**options, non_blocking=non_blocking, copy=copy)


def _index(arguments: Arguments, options: Options) -> Any:
    tensor, indices = arguments
    return tensor[tuple(_index_item(item) for item in indices)]


def _index_put(arguments: Arguments, options: Options) -> Any:
    tensor, indices, value = arguments
    tensor[tuple(_index_item(item) for item in indices)] = value
    return tensor


def _index_item(item: tuple[str, Any]) -> Any:
    kind, value = item
    if kind == "slice":
        return slice(*value)
    return {"none": None, "ellipsis": Ellipsis}.get(kind, value)


def _method(name: str) -> Callable[[Arguments, Options], Any]:
    return lambda arguments, options: getattr(arguments[0], name)(*arguments[1:], **options)


def _parts(name: str) -> Callable[[Arguments, Options], Any]:
    return lambda arguments, options: list(getattr(arguments[0], name)(*arguments[1:]))


_SPECIAL: dict[str, Callable[[Arguments, Options], Any]] = {
    **{
        name: _factory(getattr(torch, name))
        for name in (
            "empty",
            "zeros",
            "ones",
            "full",
            "rand",
            "randn",
            "randint",
            "empty_strided",
            "empty_like",
            "zeros_like",
            "ones_like",
            "rand_like",
            "randn_like",
            "full_like",
            "arange",
            "linspace",
            "eye",
            "randperm",
            "scalar_tensor",
            "where",
            "einsum",
        )
    },
    "tensor": _tensor,
    **{name: _parts(name) for name in ("split", "chunk", "unbind", "split_with_sizes", "tensor_split")},
    "to": _to,
    "index": _index,
    "index_put_": _index_put,
    "requires_grad": lambda arguments, options: arguments[0].requires_grad,
    "requires_grad_": _method("requires_grad_"),
    "is_contiguous": lambda arguments, options: arguments[0].is_contiguous(memory_format=arguments[1]),
    "contiguous": _method("contiguous"),
    "clone": _method("clone"),
    "item": _method("item"),
    "new_empty": _method("new_empty"),
    "new_zeros": _method("new_zeros"),
    "new_ones": _method("new_ones"),
    "new_full": _method("new_full"),
}
