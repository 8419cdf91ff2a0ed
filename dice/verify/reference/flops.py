"""Floating-point operations of what runs inside a context, by PyTorch's own formulas."""

from __future__ import annotations

from typing import Any

from torch.utils.flop_counter import flop_registry

from dice.verify.execution.dispatch import OperatorMode


class FlopCounter(OperatorMode):
    """PyTorch's `FlopCounterMode` for a fresh process: that one imports the whole compiler at its first operator."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        formula = flop_registry.get(func._overloadpacket)
        if formula is None:
            with self:
                output = func.decompose(*args, **kwargs)
            if output is not NotImplemented:
                return output
        output = func(*args, **kwargs)
        if formula is not None:
            self.flops += int(formula(*args, **kwargs, out_val=output))
        return output
