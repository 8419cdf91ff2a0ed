"""How much of a pair's work its kernel does, counted as the verifier counts it, on tensors without data.

Where PyTorch's libraries keep a part of the work, sizes decide how much of it is left for the kernel: a softmax behind
a long recurrence is next to nothing of it. Who trains on such pairs learns to solve a problem by replacing none of it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dice.synth.pair import Pair

if TYPE_CHECKING:
    import torch

# `forward` that calls the kernel and nothing else; arguments may unpack numbers of a layer.
_ALONE = re.compile(r"\n    def forward\(.*\):\n        return ops\.\w+\((?:[^()]|\*_\w+\([\w.]*\))*\)\n+\Z")
_LOADER = "from torch.utils.cpp_extension import load_inline\n"


def is_solution(pair: Pair) -> bool:
    """Whether the kernel does as much as a verifier asks for, in both sizes of the problem."""
    from dice.verify.ipc.replaced import LEAST_SHARE

    if _ALONE.search(pair.kernel.source):
        return True
    sources = {pair.problem.source, pair.check_problem.source}
    return all(share(source, pair.kernel.source) >= LEAST_SHARE for source in sources)


def share(problem: str, kernel: str) -> float:
    """The part of the reference's work that the kernel replaced. Both texts are run in this process: they must be our
    own. The kernel's result is taken to have the shape of its first tensor, as of all that are followed by a layer."""
    import torch

    from dice.verify.execution.evidence import Census
    from dice.verify.ipc import replaced

    _spare_compiler()
    reference: dict[str, Any] = {"__name__": "problem"}
    exec(compile(problem, "<problem>", "exec"), reference)
    candidate: dict[str, Any] = {"__name__": "kernel", "load_inline": lambda **_: _Functions()}
    exec(compile(kernel.replace(_LOADER, ""), "<kernel>", "exec"), candidate)
    with torch.device("meta"), torch.no_grad():
        given = reference["get_init_inputs"]()
        models = reference["Model"](*given), candidate["ModelNew"](*given)
        inputs = reference["get_inputs"]()
        counts = []
        for model in models:
            with Census() as census:
                model(*inputs)
            counts.append(census.work)
    return replaced.of(counts[0], counts[1], "program").time_share


@functools.cache
def _spare_compiler() -> None:
    """Nothing is compiled where pairs are drawn, and PyTorch's compiler takes seconds to import."""
    from dice.verify.execution import dispatch

    dispatch.spare_compiler()


class _Functions:
    """Stands for the compiled functions."""

    def __getattr__(self, name: str) -> Callable[..., torch.Tensor]:
        def call(first: torch.Tensor, *_: object) -> torch.Tensor:
            return first.new_empty(first.shape)

        return call
