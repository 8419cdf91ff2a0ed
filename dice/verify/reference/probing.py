"""Which inputs does a reference react to, and so that a comparison would notice?"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from dice.verify.execution import evidence, inputs, running, steady
from dice.verify.execution.dispatch import OperatorMode
from dice.verify.ipc.messages import CROWDED, Step
from dice.verify.ipc.operator_counts import family
from dice.verify.reference.subject import Subject
from dice.verify.reference.trial import ReferenceFailed
from dice.verify.tensors import sampled, transport, trees

Forward = Callable[[Any], Any]
MAX_PROBED = 32  # inputs looked at one by one
# Operators that write where indices say: of equal ones any may be the last.
LAST_WINS = frozenset({"scatter", "index_copy", "index_put", "put", "masked_scatter"})
NEAR, FAR, MOST_BOUNDS = 1.0, 1e6, 2  # what is compared with less other families reach, and with more is no value's
MAX_VARIED = 16  # other values of inputs that all draws leave alike, or of masks; each costs a trial


def weak_inputs(
    forward: Forward, drawn: Any, again: Any, expected: Any, seed: int
) -> tuple[list[tuple[int, float]], list[str]]:
    """Inputs whose influence a comparison would not notice, each with the magnitude at which it would; and labels of
    those for which none does. `again`: another draw, or None."""
    amplified, labels = [], []
    tensors = transport.tensors(drawn)
    for index, tensor in enumerate(tensors[:MAX_PROBED]):
        measured = inputs.is_free(tensor) or inputs.is_scalar(tensor)
        factors = (1.0, *inputs.AMPLIFY, *inputs.SHRINK) if measured else (1.0,)
        found = _factor_that_matters(forward, drawn, expected, seed, index, factors)
        if found is None and _reacts_otherwise(forward, drawn, again, expected, seed, index):
            found = 1.0
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
        if not sampled.is_half_equal(before, after):
            return factor
        reacts = reacts or not trees.identical(before, after)
    return 0.0 if reacts else None


def _reacts_otherwise(forward: Forward, drawn: Any, again: Any, expected: Any, seed: int, index: int) -> bool:
    """Whether the reference reacts to the input `index` of another draw, or to its signs, which other magnitudes leave
    as they are: of a histogram's numbers the order does not matter."""
    tensor = transport.tensors(drawn)[index]
    tried = [] if again is None else [inputs.exchanged(drawn, again, index)]
    if inputs.is_free(tensor) or inputs.is_scalar(tensor):
        tried.append(inputs.flipped(drawn, index))
    for other in tried:
        running.seed_everything(seed)
        with contextlib.suppress(ReferenceFailed):
            after = forward(other)
            usable = trees.shape_of(after) == trees.shape_of(expected) and trees.is_finite(after)
            if usable and not sampled.are_equal(expected, after):
                return True
    return False


def react_otherwise(labels: Sequence[str], drawn: Any, varied: Sequence[tuple[int, str]]) -> list[str]:
    """The labels of `weak_inputs` without those of inputs that do matter, with other values than are drawn."""
    tensors = [place for place, leaf in enumerate(steady.leaves(drawn)) if isinstance(leaf, torch.Tensor)]
    places = {place for place, _ in varied}
    return [label for label in labels if tensors[int(label.rpartition(":")[2])] not in places]


def steady_inputs(
    forward: Forward, drawn: Any, again: Any, expected: Any, seed: int, subject: Subject
) -> list[tuple[int, str]]:
    """Of what two draws have alike, and of masks, the places among `steady.leaves` that matter to the reference, each
    with the first kind of other values on which its output stays finite, keeps its shape, and changes; whole numbers
    with one near and one far; and of whole numbers that are all different by chance alone. `again`: the other draw, the
    last of the `subject`; without it there is nothing to tell.
    """
    if again is None:
        return []
    leaves = list(steady.leaves(drawn))
    found: list[tuple[int, str]] = []
    for place in steady.steady(drawn, again)[:MAX_PROBED]:
        for kinds in steady.kinds(leaves[place], subject.words):
            kind = next((kind for kind in kinds if _matters(forward, drawn, expected, place, kind, seed)), "")
            found += [(place, kind)] if kind else []
    for place in steady.copies(drawn, again):
        kind = steady.SHUFFLED
        found += [(place, kind)] if _matters(forward, drawn, expected, place, kind, seed) else []
    for place, (low, high) in subject.ranges.items():
        kind = f"{CROWDED}{low} {high}"
        if steady.is_distinct(leaves[place]) and _matters(forward, drawn, expected, place, kind, seed):
            found += [(place, kind)] if _tells_equal_ones(forward, drawn) else []
    return found[:MAX_VARIED]


class _Asked(OperatorMode):
    """Notes whether an operator asks of one of these inputs whether it is finite: who asks that of what it has computed
    itself, as of the softmax of a row that is masked altogether, has no NaN in mind that it was given. And notes the
    numbers with which operators compare values of which all lie on one side (`bounds`)."""

    def __init__(self, drawn: Any) -> None:
        super().__init__()
        self.found = False
        self.bounds: dict[float, None] = {}
        self._inputs = [tensor for tensor in transport.tensors(drawn) if tensor.is_floating_point()]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        kind = family(func.name())
        if kind in inputs.ASKING and isinstance(args[0], torch.Tensor):
            with_itself = isinstance(args[-1], torch.Tensor) and args[-1].data_ptr() == args[0].data_ptr()
            self.found = self.found or ((with_itself or kind not in ("eq", "ne")) and self._is_input(args[0]))
        if kind in inputs.COMPARING and isinstance(args[-1], int | float) and args[0].is_floating_point():
            bound = float(args[-1])
            if NEAR < abs(bound) < FAR and bool(result.all()) == bool(result.any()):
                self.bounds[bound] = None
        return result

    def _is_input(self, asked: torch.Tensor) -> bool:
        flat = asked.reshape(-1)
        return any(flat.shape == one.reshape(-1).shape and torch.equal(flat, one.reshape(-1)) for one in self._inputs)


def decisive(forward: Forward, drawn: Any, families: Collection[str]) -> tuple[str, ...]:
    """Families of values between which the reference's operators decide, of which these are the families."""
    asked = _Asked(drawn)
    if (inputs.ASKING | inputs.COMPARING).intersection(families):
        with asked:
            forward(drawn)
    return inputs.decisive(families, asked.found, list(asked.bounds)[:MOST_BOUNDS])


def _tells_equal_ones(forward: Forward, drawn: Any) -> bool:
    """Whether the reference says what becomes of indices that are equal."""
    with evidence.Census() as census:
        forward(drawn)
    return not LAST_WINS & set(census.work.calls)


def _matters(forward: Forward, drawn: Any, expected: Any, place: int, kind: str, seed: int) -> bool:
    try:
        other = forward(steady.replaced(drawn, place, kind, seed))
    except ReferenceFailed:  # such values do not suit the problem
        return False
    if trees.shape_of(other) != trees.shape_of(expected) or not trees.is_finite(other):
        return False
    return not sampled.are_equal(expected, other)
