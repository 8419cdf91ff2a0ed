"""Takes a census of a forward while it runs, on tensors with or without data."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from dice.verify.audit.torch_calls import CONTAINERS, FREE, Census


class Watch(TorchFunctionMode):
    """Takes the census of what runs in its context. `model`: whose modules are watched too."""

    def __init__(self, model: Any):
        super().__init__()
        self._model = model if isinstance(model, torch.nn.Module) else None
        self._operators: Counter[str] = Counter()
        self._modules: Counter[str] = Counter()
        self._layers: set[int] = set()
        self._inside = 0  # modules of torch.nn that are running
        self._handles: list[Any] = []

    @property
    def census(self) -> Census:
        parameters = sum(one.numel() for one in self._model.parameters()) if self._model is not None else 0
        return Census(dict(self._operators), dict(self._modules), len(self._layers), parameters)

    def __enter__(self) -> Watch:
        modules = list(self._model.modules())[1:] if self._model is not None else []
        for module in modules:
            self._hook(module)
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        for handle in self._handles:
            handle.remove()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(getattr(func, "__name__", func)).strip("_")
        if not self._inside and name not in FREE and _given_tensor((*args, *(kwargs or {}).values())):
            self._operators[name] += 1
        return func(*args, **(kwargs or {}))

    def _hook(self, module: torch.nn.Module) -> None:
        if not type(module).__module__.startswith("torch.nn."):
            self._handles.append(module.register_forward_pre_hook(self._note_own))
        elif type(module).__name__ not in CONTAINERS:
            self._handles.append(module.register_forward_pre_hook(self._enter_layer))
            self._handles.append(module.register_forward_hook(self._leave_layer, always_call=True))

    def _note_own(self, module: torch.nn.Module, _: Any) -> None:
        if not self._inside:
            self._modules[type(module).__name__] += 1

    def _enter_layer(self, module: torch.nn.Module, _: Any) -> None:
        if not self._inside:
            self._operators[type(module).__name__] += 1
            if next(module.parameters(), None) is not None:
                self._layers.add(id(module))
        self._inside += 1

    def _leave_layer(self, *_: Any) -> None:
        self._inside -= 1


def _given_tensor(values: tuple[Any, ...]) -> bool:
    """Whether a call is given a tensor: one that is not does arithmetic on sizes, or makes a constant."""
    return any(
        isinstance(value, torch.Tensor)
        or (isinstance(value, list | tuple) and any(isinstance(item, torch.Tensor) for item in value))
        for value in values
    )
