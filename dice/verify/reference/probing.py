"""Which inputs does a reference react to, and so that a comparison would notice?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dice.verify.execution import inputs, running
from dice.verify.ipc.messages import Step
from dice.verify.reference.trial import ReferenceFailed
from dice.verify.tensors import compare, transport, trees

Forward = Callable[[Any], Any]
MAX_PROBED = 16  # inputs looked at one by one


def weak_inputs(forward: Forward, drawn: Any, expected: Any, seed: int) -> tuple[list[tuple[int, float]], list[str]]:
    """Inputs whose influence a comparison would not notice, each with the magnitude at which it would; and labels of
    those for which none does."""
    amplified, labels = [], []
    tensors = transport.tensors(drawn)
    for index, tensor in enumerate(tensors[:MAX_PROBED]):
        factors = (1.0, *inputs.AMPLIFY) if inputs.is_free(tensor) else (1.0,)
        found = _factor_that_matters(forward, drawn, expected, seed, index, factors)
        if found is None:
            labels.append(f"unused_input:{index}")
        elif found == 0.0:
            labels.append(f"weak_input:{index}")
        elif found > 1.0:
            amplified.append((index, found))
    return amplified, labels


def _factor_that_matters(
    forward: Forward, drawn: Any, expected: Any, seed: int, index: int, factors: Sequence[float]
) -> float | None:
    """The least factor for input `index` at which losing it shows; 0 for none of them, None for no reaction at all."""
    reacts = False
    for factor in factors:
        base = inputs.vary(drawn, Step("", "", index=index, factor=factor)) if factor != 1.0 else drawn
        try:
            before = expected if factor == 1.0 else forward(base)
            running.seed_everything(seed)
            after = forward(inputs.disturb(base, index))
        except ReferenceFailed:
            return factor if factor == 1.0 else 0.0  # other values do not suit the problem: nothing to learn
        if not (trees.is_finite(before) and trees.is_finite(after)):
            break
        if not compare.compare(before, trees.between(before, after)).equal:
            return factor
        reacts = reacts or not trees.identical(before, after)
    return 0.0 if reacts else None
