"""How the arguments and the results of a module are arranged: lists, tuples, also with names, and dicts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from torch.utils import _pytree as pytree

from dice.optimize.graph import Ref, Term, Tupled
from dice.optimize.trace.functional import NotTraced


def leaves_of(base: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The leaves of a value in PyTorch's order, and how each is reached from what is called `base`."""
    for path, leaf in pytree.tree_flatten_with_path(value)[0]:
        text, owner = base, value
        for step in path:
            key = getattr(step, "idx", getattr(step, "key", None))
            if hasattr(owner, "_fields"):  # a tuple with names, of which PyTorch tells the name
                key = owner._fields.index(getattr(step, "name", None))
            text, owner = f"{text}[{key!r}]", owner[key]
        yield text, leaf


def plain_tree(tree: Any, own_file: str) -> Term:
    """Raises `NotTraced` for what is no tensor, list, tuple or dict of them, nor a named tuple of the module's file."""
    if type(tree) in (list, tuple):
        return type(tree)(plain_tree(item, own_file) for item in tree)
    if type(tree) is dict and all(isinstance(key, str) for key in tree):
        return {key: plain_tree(item, own_file) for key, item in tree.items()}
    if isinstance(tree, tuple) and type(tree).__module__ == "torch.return_types":
        return tuple(plain_tree(item, own_file) for item in tree)
    owner = type(tree)
    if owner.__bases__ == (tuple,) and hasattr(owner, "_fields") and _reached(owner.__qualname__, own_file) is owner:
        return Tupled(owner.__qualname__, tuple(plain_tree(item, own_file) for item in tree))
    if tree is None or isinstance(tree, Ref | bool | int | float | str):
        return tree
    raise NotTraced(
        f"it returns a {type(tree).__name__}, and only tensors, lists, tuples and dicts of them can be returned"
    )


def _reached(name: str, module: str) -> Any:
    """What a dotted name stands for in a module; None where nothing is there."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
