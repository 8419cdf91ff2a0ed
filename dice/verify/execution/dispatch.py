"""The base of every class here that watches PyTorch's operators go by."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


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
