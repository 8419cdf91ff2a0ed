"""Problems are tried before kernels are written for them: one that cannot run would cost all of its answers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from dice.errors import UserError
from dice.problem import Problem

if TYPE_CHECKING:
    from dice.verify import Verifier


def require_runnable(
    verifier: Verifier,
    problems: Mapping[str, Problem],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Raises `UserError` for problems, named by the keys, whose own code fails. What is merely too large for this
    machine is said on stderr: a kernel for it may be checked on another one."""
    faults = dict(zip(problems, verifier.find_faults(list(problems.values()), progress), strict=True))
    own = {name: fault for name, fault in faults.items() if fault is not None and fault.own}
    if own:
        name, first = next(iter(own.items()))
        others = f" ({len(own) - 1} more of the {len(problems)} problems cannot either)" if len(own) > 1 else ""
        raise UserError(f"{name} cannot run: {first.message.rstrip('.')}{others}.")
    for name, fault in faults.items():
        if fault is not None:
            print(f"dice: kernels for {name} cannot be checked here: {fault.message}.", file=sys.stderr)
