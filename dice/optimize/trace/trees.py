"""How the arguments and the results of a module are arranged: lists, tuples, also with names, and dicts."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils import _pytree as pytree

from dice.optimize.graph import Ref, Term, Tupled
from dice.optimize.trace.functional import NotTraced
from dice.verify.tensors.arguments import object_of
from dice.verify.tensors.transport import fields_of, parts


def register_dataclasses(value: Any) -> None:
    """Let PyTorch look into the objects of dataclasses that a value holds."""
    owner = type(value)
    if fields_of(value) is not None and owner not in pytree.SUPPORTED_NODES:
        _register(owner)
    for item in parts(value) or ():
        register_dataclasses(item)


def _register(owner: type) -> None:
    """Unlike PyTorch's own way, which calls the constructor, this may put what stands for tensors in their places."""

    def with_keys(value: Any) -> tuple[list[tuple[Any, Any]], None]:
        return [(pytree.GetAttrKey(name), getattr(value, name)) for name in fields_of(value) or ()], None

    def flatten(value: Any) -> tuple[list[Any], None]:
        return [item for _, item in with_keys(value)[0]], None

    def unflatten(items: Iterable[Any], _: None) -> Any:
        return object_of(owner, dict(zip(names, items, strict=True)))

    names = [field.name for field in dataclasses.fields(owner)]
    pytree.register_pytree_node(owner, flatten, unflatten, flatten_with_keys_fn=with_keys)


def leaves_of(base: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The leaves of a value in PyTorch's order, and how each is reached from what is called `base`."""
    for path, leaf in pytree.tree_flatten_with_path(value)[0]:
        text, owner = base, value
        for step in path:
            key, name = getattr(step, "idx", getattr(step, "key", None)), getattr(step, "name", "")
            if fields_of(owner) is not None:
                text, owner = f"{text}.{name}", getattr(owner, name)
                continue
            if hasattr(owner, "_fields"):  # a tuple with names, of which PyTorch tells the name
                key = owner._fields.index(name)
            text, owner = f"{text}[{key!r}]", owner[key]
        yield text, leaf


def plain_tree(tree: Any, own_file: str) -> Term:
    """Raises `NotTraced` for what is no tensor, list, tuple or dict of them, nor a named tuple or an object of a
    dataclass, by a class of the module's file."""
    if tree is None or isinstance(tree, Ref | bool | int | float | str):
        return tree
    if type(tree) in (list, tuple):
        return type(tree)(plain_tree(item, own_file) for item in tree)
    if type(tree) is dict and all(isinstance(key, str) for key in tree):
        return {key: plain_tree(item, own_file) for key, item in tree.items()}
    if isinstance(tree, tuple) and type(tree).__module__ == "torch.return_types":
        return tuple(plain_tree(item, own_file) for item in tree)
    owner = type(tree)
    items = _given(tree)
    if items is not None and _reached(owner.__qualname__, own_file) is owner:
        return Tupled(owner.__qualname__, tuple(plain_tree(item, own_file) for item in items))
    raise NotTraced(
        f"it returns a {type(tree).__name__}, and only tensors, lists, tuples and dicts of them can be returned"
    )


def _given(tree: Any) -> list[Any] | None:
    """What a named tuple, or an object of a dataclass, is made from; None for anything else."""
    owner = type(tree)
    if owner.__bases__ == (tuple,) and hasattr(owner, "_fields"):
        return list(tree)
    if not dataclasses.is_dataclass(owner):
        return None
    fields = dataclasses.fields(owner)
    by_place = all(field.init and not field.kw_only for field in fields)
    return [getattr(tree, field.name) for field in fields] if by_place else None


def _reached(name: str, module: str) -> Any:
    """What a dotted name stands for in a module; None where nothing is there."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
