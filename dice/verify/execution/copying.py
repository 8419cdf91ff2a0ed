"""Copies of a reference: everything that its forward reads is the copy's own."""

from __future__ import annotations

import copy
import functools
import types
from typing import Any

import torch

Memo = dict[int, Any]


def copied(model: Any) -> Any:
    """A copy that shares nothing with the model, not even through functions: what a lambda of the constructor closes
    over, or has as a default, is the copy's part where it was the model's. `copy.deepcopy` takes functions as they are,
    so that a copy with other parameters would compute with those of the original.

    PyTorch refuses to copy a tensor that was computed from parameters, as `torch.nn.utils.weight_norm` leaves one in a
    layer until the next forward: of such ones the values are copied.
    """
    modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
    kept = [value for part in modules for value in vars(part).values() if isinstance(value, torch.Tensor)]
    memo: Memo = {id(one): one.detach().clone() for one in kept if not one.is_leaf}
    found = copy.deepcopy(model, memo)
    functions: Memo = {}
    for part in modules:
        if id(part) not in memo:  # a class that copies itself, as TorchScript's
            continue
        own: dict[str, Any] = memo[id(part)].__dict__
        for name, value in vars(part).items():
            if isinstance(value, dict):
                own[name].update({key: _own(one, memo, functions) for key, one in value.items() if _is_code(one)})
            elif type(value) in (list, tuple) and any(map(_is_code, value)):
                own[name] = type(value)(_own(one, memo, functions) for one in value)
            elif _is_code(value):
                own[name] = _own(value, memo, functions)
    return found


def _is_code(value: Any) -> bool:
    return isinstance(value, types.FunctionType | functools.partial)


def _own(value: Any, memo: Memo, functions: Memo) -> Any:
    """The copy's own form of something that a function of the model refers to. `functions`: those made already, by the
    `id` of the model's; one may refer to itself."""
    if isinstance(value, functools.partial):
        arguments = {name: _own(one, memo, functions) for name, one in value.keywords.items()}
        given = (_own(one, memo, functions) for one in value.args)
        return functools.partial(_own(value.func, memo, functions), *given, **arguments)
    if isinstance(value, types.FunctionType):
        return functions[id(value)] if id(value) in functions else _function(value, memo, functions)
    try:
        return copy.deepcopy(value, memo)
    except (TypeError, RuntimeError, NotImplementedError):  # a Python module, a lock: nobody's parameters
        return value


def _function(function: types.FunctionType, memo: Memo, functions: Memo) -> types.FunctionType:
    cells = tuple(types.CellType() for _ in function.__closure__ or ())
    own = types.FunctionType(function.__code__, function.__globals__, function.__name__, None, cells or None)
    functions[id(function)] = own
    for cell, old in zip(cells, function.__closure__ or (), strict=True):
        try:
            value = old.cell_contents
        except ValueError:  # a name that has no value yet
            continue
        cell.cell_contents = _own(value, memo, functions)
    if function.__defaults__:
        own.__defaults__ = tuple(_own(one, memo, functions) for one in function.__defaults__)
    if function.__kwdefaults__:
        own.__kwdefaults__ = {name: _own(one, memo, functions) for name, one in function.__kwdefaults__.items()}
    return own
