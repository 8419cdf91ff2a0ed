"""PyTorch's operators watched one by one, without its compiler, which would otherwise be imported for that."""

from __future__ import annotations

import gc
import importlib
from types import FunctionType
from typing import Any

from torch._compile import _disable_dynamo
from torch.utils._python_dispatch import TorchDispatchMode

_KEPT = "__dynamo_disable"  # where PyTorch keeps a function's form that the compiler leaves alone
_spared: list[FunctionType] = []


def spare_compiler() -> None:
    """Let the operators that PyTorch wrote in Python run as they are, in this process and its forks.

    The first call of each asks the compiler for a form that it leaves alone, and so imports it with all that belongs to
    it: over a second of every process that runs an operator on tensors without data. Where nothing is compiled, the
    function itself is that form.
    """
    importlib.import_module("torch._meta_registrations")  # with all operators in Python, as the first such call does
    wrapper = _disable_dynamo(lambda: None).__code__
    place = wrapper.co_freevars.index("fn")
    for known in gc.get_objects():
        if type(known) is FunctionType and known.__code__ is wrapper and known.__closure__:
            function = known.__closure__[place].cell_contents
            if _KEPT not in function.__dict__:
                function.__dict__[_KEPT] = function
                _spared.append(function)


def restore_compiler() -> None:
    """Take `spare_compiler` back: from here on something is compiled."""
    while _spared:
        del _spared.pop().__dict__[_KEPT]


class OperatorMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A `TorchDispatchMode` that is cheap to enter in a fresh process.

    PyTorch wraps a mode's handler so that `torch.compile` leaves it alone, and the wrapper imports the whole compiler
    at the first operator: over a second in every forked child, and a cache folder made in a read-only /tmp.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)  # type: ignore[no-untyped-call]

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
