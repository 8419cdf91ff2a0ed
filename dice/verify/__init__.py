"""(problem, kernel) -> verdict: compile, isolate, run, compare and time one candidate. Knows nothing of models."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

from dice.kernel import Kernel
from dice.problem import Problem
from dice.verdict import Verdict
from dice.verify.options import BackendUnavailable, Options, resolve_backend
from dice.verify.verifier import Verifier, verify

__all__ = ["BackendUnavailable", "Options", "Verifier", "resolve_backend", "verify"]


class _CallablePackage(ModuleType):
    """`from dice import verify` gives this package, which has the name of its main function. So it can be called."""

    def __call__(
        self,
        problem: Problem | str | Path,
        kernel: Kernel | str | Path,
        *,
        backend: str = "auto",
        options: Options | None = None,
    ) -> Verdict:
        return verify(problem, kernel, backend=backend, options=options)


_CallablePackage.__call__.__doc__ = verify.__doc__
sys.modules[__name__].__class__ = _CallablePackage
