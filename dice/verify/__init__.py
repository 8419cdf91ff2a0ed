"""(problem, kernel) -> verdict: compile, isolate, run, compare and time one candidate. Knows nothing of models."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dice.kernel import Kernel
    from dice.problem import Problem
    from dice.verdict import Verdict
    from dice.verify.options import BackendUnavailable, Options, resolve_backend
    from dice.verify.verifier import Verifier, verify

__all__ = ["BackendUnavailable", "Options", "Verifier", "resolve_backend", "verify"]
_HOMES = {"BackendUnavailable": "options", "Options": "options", "resolve_backend": "options"}


class _CallablePackage(ModuleType):
    """`from dice import verify` gives this package, which has the name of its main function. So it can be called.

    What it offers is imported when somebody asks for it: who wants one module of the package, as every command and
    every child of the verifier does, waits for no other.
    """

    def __call__(
        self,
        problem: Problem | str | Path,
        kernel: Kernel | str | Path,
        *,
        backend: str = "auto",
        options: Options | None = None,
    ) -> Verdict:
        """Compile, run and check `kernel` against `problem`: `dice.verify.verifier.verify`."""
        from dice.verify.verifier import verify

        return verify(problem, kernel, backend=backend, options=options)

    def __getattr__(self, name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found: object = getattr(importlib.import_module(f"{__name__}.{_HOMES.get(name, 'verifier')}"), name)
        setattr(self, name, found)
        return found


sys.modules[__name__].__class__ = _CallablePackage
