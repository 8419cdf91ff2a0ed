"""Any module, whole networks: cut into regions, each written, proven and timed, put together where it wins."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from dice.optimize.library import Library
from dice.optimize.run import Result, optimize_module
from dice.optimize.search import Policy
from dice.optimize.writers import make_writer
from dice.problem import Problem
from dice.verify import Options, Verifier

__all__ = ["Library", "Policy", "Result", "optimize", "optimize_module"]


def optimize(
    problem: Problem | str | Path,
    *,
    writers: Sequence[str] = ("templates",),
    backend: str = "auto",
    options: Options | None = None,
    policy: Policy | None = None,
    folder: Path | None = None,
    use_library: bool = True,
    training: bool = False,
) -> Result:
    """Replace what can be replaced in a module, a `Problem` or the path of its file, by verified kernels.

    `writers`: who writes kernels, by name: `templates`, `nano`, or a checkpoint. `folder`: keeps the run, which then
    can be resumed; a temporary one by default. `training`: gradients flow through the kernels.

    Raises `UserError` for a module that cannot be run or followed, `BackendUnavailable` where this machine cannot
    verify.
    """
    problem = problem if isinstance(problem, Problem) else Problem.from_file(problem)
    folder = folder or Path(tempfile.mkdtemp(prefix="dice-optimize-"))
    with Verifier(backend=backend, options=options) as verifier:
        made = [make_writer(name) for name in writers]
        library = Library() if use_library else None
        return optimize_module(problem, verifier, made, folder, policy=policy, library=library, training=training)


class _CallablePackage(ModuleType):
    """`from dice import optimize` gives this package, which has the name of its main function. So it can be called."""

    def __call__(
        self,
        problem: Problem | str | Path,
        *,
        writers: Sequence[str] = ("templates",),
        backend: str = "auto",
        options: Options | None = None,
        policy: Policy | None = None,
        folder: Path | None = None,
        use_library: bool = True,
        training: bool = False,
    ) -> Result:
        return optimize(
            problem,
            writers=writers,
            backend=backend,
            options=options,
            policy=policy,
            folder=folder,
            use_library=use_library,
            training=training,
        )


_CallablePackage.__call__.__doc__ = optimize.__doc__
sys.modules[__name__].__class__ = _CallablePackage
