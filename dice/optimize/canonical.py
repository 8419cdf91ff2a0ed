"""A single module in canonical form: what `dice generate` has a model write where nothing right came of its own text.

The module is cut into regions as any other, each is asked for in the one form that regions are printed in, and what is
right of them is put together. So it does not matter how the module is spelt, and PyTorch may keep a part of it: how
much, the verdict says.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from dice.errors import UserError
from dice.generation import Attempt, Prompt, Writer
from dice.optimize.run import optimize_module
from dice.optimize.search import Policy
from dice.optimize.writers import Checkpoint
from dice.problem import Problem
from dice.verify import Verifier


def attempt(
    problem: Problem,
    name: str,
    writer: Writer,
    verifier: Verifier,
    *,
    samples: int,
    prompt: Prompt,
    seed: int,
    show: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> tuple[Attempt | None, str]:
    """The module put together from what was right of `samples` kernels for each region; None, and why, where nothing
    was, or it cannot be followed. `name`: of the model. Raises `MachineError` where this machine cannot verify."""
    checkpoint = Checkpoint(name, writer, prompt, seed)
    policy = Policy(samples=samples, keep="right")
    try:
        with tempfile.TemporaryDirectory() as folder:
            result = optimize_module(problem, verifier, [checkpoint], Path(folder), policy=policy, show=show)
    except UserError as error:
        return None, str(error)
    drafts = tuple(draft for own in checkpoint.drafts.values() for draft in own)
    if result.verdict is None or not drafts:
        reasons = [row.why for row in result.report.rows if row.why]
        return None, reasons[0] if reasons else "it has no region that a kernel could be written for"
    return Attempt(drafts, result.kernel, result.verdict, "canonical"), ""
