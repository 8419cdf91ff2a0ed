"""Which inputs does a reference react to, and so that a comparison would notice?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dice.verify.execution import inputs, running, steady
from dice.verify.ipc.messages import Step
from dice.verify.reference.trial import ReferenceFailed
from dice.verify.tensors import compare, transport, trees

Forward = Callable[[Any], Any]
MAX_PROBED = 32  # inputs looked at one by one
MAX_VARIED = 16  # other values of inputs that all draws leave alike, or of masks; each costs a trial


def weak_inputs(forward: Forward, drawn: Any, expected: Any, seed: int) -> tuple[list[tuple[int, float]], list[str]]:
    """Inputs whose influence a comparison would not notice, each with the magnitude at which it would; and labels of
    those for which none does."""
    amplified, labels = [], []
    tensors = transport.tensors(drawn)
    for index, tensor in enumerate(tensors[:MAX_PROBED]):
        measured = inputs.is_free(tensor) or inputs.is_scalar(tensor)
        factors = (1.0, *inputs.AMPLIFY, *inputs.SHRINK) if measured else (1.0,)
        found = _factor_that_matters(forward, drawn, expected, seed, index, factors)
        if found is None:
            labels.append(f"unused_input:{index}")
        elif found == 0.0:
            labels.append(f"weak_input:{index}")
        elif found != 1.0:
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


def react_otherwise(labels: Sequence[str], drawn: Any, varied: Sequence[tuple[int, str]]) -> list[str]:
    """The labels of `weak_inputs` without those of inputs that do matter, with other values than are drawn."""
    tensors = [place for place, leaf in enumerate(steady.leaves(drawn)) if isinstance(leaf, torch.Tensor)]
    places = {place for place, _ in varied}
    return [label for label in labels if tensors[int(label.rpartition(":")[2])] not in places]


def steady_inputs(
    forward: Forward, drawn: Any, again: Any, expected: Any, seed: int, words: Sequence[str]
) -> list[tuple[int, str]]:
    """Of what two draws have alike, and of masks, the places among `steady.leaves` that matter to the reference, each
    with the first kind of other values on which its output stays finite, keeps its shape, and changes; whole numbers
    with one near and one far. `again`: the other draw; without it there is nothing to tell. `words`: what texts may be.
    """
    if again is None:
        return []
    leaves = list(steady.leaves(drawn))
    found: list[tuple[int, str]] = []
    for place in steady.steady(drawn, again)[:MAX_PROBED]:
        for kinds in steady.kinds(leaves[place], words):
            kind = next((kind for kind in kinds if _matters(forward, drawn, expected, place, kind, seed)), "")
            found += [(place, kind)] if kind else []
    return found[:MAX_VARIED]


def _matters(forward: Forward, drawn: Any, expected: Any, place: int, kind: str, seed: int) -> bool:
    try:
        other = forward(steady.replaced(drawn, place, kind, seed))
    except ReferenceFailed:  # such values do not suit the problem
        return False
    if trees.shape_of(other) != trees.shape_of(expected) or not trees.is_finite(other):
        return False
    return not compare.compare(expected, other).equal
