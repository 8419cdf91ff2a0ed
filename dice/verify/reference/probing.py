"""Which inputs does a reference react to, and so that a comparison would notice?"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from dice.verify.execution import evidence, gathered, inputs, running, seldom, steady
from dice.verify.execution.dispatch import OperatorMode
from dice.verify.ipc.messages import BOTH, CROWDED, Step
from dice.verify.ipc.operator_counts import family
from dice.verify.reference import workload
from dice.verify.reference.subject import Subject
from dice.verify.reference.trial import ReferenceFailed
from dice.verify.tensors import sampled, transport, trees

Forward = Callable[[Any], Any]
MAX_PROBED = 32  # inputs looked at one by one
# Operators that write where indices say: of equal ones any may be the last.
LAST_WINS = frozenset({"scatter", "index_copy", "index_put", "put", "masked_scatter"})
NEAR, FAR, MOST_BOUNDS = 1.0, 1e6, 2  # what is compared with less other families reach, and with more is no value's
MOST_EDGES, MOST_MET = 1024, 16  # of a table that values are looked up in; of the numbers that one input meets
# Operators that compare their first argument with numbers that follow, and where these stand.
_NUMBERS = {"histc": slice(2, 4), "threshold": slice(1, 2), "hardshrink": slice(1, 2)}
_EDGES = {"bucketize": (0, 1), "searchsorted": (1, 0)}  # the values' place, and that of what they are looked up in
_ORDERING = frozenset({"argmax", "argmin", "topk", "sort", "kthvalue", "median", "max", "cummax", "cummin"})
_WHOLE = (torch.int16, torch.int32, torch.int64)
_CLAMPS = "relu"  # the family that they are of
# Losses of labels, which are their second argument; their fifth is the label that does not count.
_LABELS = frozenset({"nll_loss_forward", "nll_loss2d_forward", "nll_loss", "nll_loss2d"})
SHORT = 2  # bytes of a whole number
MOST_TOGETHER, MOST_KINDS = 6, 3  # inputs of which two are given other values at once, and of how many kinds
MAX_VARIED = 24  # other values of inputs that all draws leave alike, or of masks; each costs a trial


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
    for _, kind in varied:
        both = json.loads(kind.removeprefix(BOTH)) if kind.startswith(BOTH) else []
        places.update(place for place, _ in both)
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
    if trees.elements(drawn) <= workload.AT_HAND:
        found += _together(forward, drawn, steady.steady(drawn, again)[:MOST_TOGETHER], subject.words, seed)
    for place in steady.copies(drawn, again):
        kind = steady.SHUFFLED
        found += [(place, kind)] if _matters(forward, drawn, expected, place, kind, seed) else []
    for place in steady.rising(drawn, again):
        if _matters(forward, drawn, expected, place, steady.REPEATED, seed) and _tells_equal_ones(forward, drawn):
            found.append((place, steady.REPEATED))
    return (found + _ranged(forward, drawn, expected, subject, seed))[:MAX_VARIED]


def _ranged(forward: Forward, drawn: Any, expected: Any, subject: Subject, seed: int) -> list[tuple[int, str]]:
    """Of whole numbers that are drawn from ranges the places and kinds of others that matter: the greatest, where sums
    of them overflow or there are few, the ends, one input's at one end and another's at the other, and few of many."""
    leaves, ranges = list(steady.leaves(drawn)), subject.ranges
    most = torch.iinfo(torch.int32).max
    if all(leaves[place].dtype.itemsize <= SHORT for place in ranges):
        most = torch.iinfo(torch.int16).max  # who adds them up in twice their bits
    tried: list[tuple[int, str]] = []
    if len(ranges) > 1:
        together = math.prod(high for _, high in ranges.values())
        is_over = together * max(leaves[place].numel() for place in ranges) > most
        ends = " ".join(f"{place} {low} {high}" for place, (low, high) in ranges.items())
        tried += [(min(ranges), f"{steady.ALL_BRIMMING}{ends}")] if is_over else []
    told = bool(ranges) and _tells_equal_ones(forward, drawn)
    few = told and trees.elements(drawn) <= workload.AT_HAND  # another trial costs next to nothing
    for place, (low, high) in ranges.items():
        overflows = leaves[place].numel() * high > most
        tried += [(place, f"{steady.BRIMMING}{low} {high}")] if overflows or few else []
        tried += [(place, f"{steady.ENDS}{low} {high}")] if few else []
        tried += [(place, f"{CROWDED}{low} {high}")] if told and steady.is_distinct(leaves[place]) else []
    for (one, (low, high)), (other, (least, _)) in itertools.permutations(ranges.items(), 2) if few else ():
        apart = [[one, f"{steady.BRIMMING}{low} {high}"], [other, f"{steady.BRIMMING}{least} {least + 1}"]]
        tried.append((one, BOTH + json.dumps(apart)))
    return [(place, kind) for place, kind in tried if _matters(forward, drawn, expected, place, kind, seed)]


def _together(
    forward: Forward, drawn: Any, places: Sequence[int], words: Sequence[str], seed: int
) -> list[tuple[int, str]]:
    """Of each two of these places other values of both, if there are any on which the output is neither what it is with
    the one's alone nor with the other's: a rate of zero hides what it is a rate of, and a flag what it asks for."""
    leaves, alone = list(steady.leaves(drawn)), dict[tuple[int, str], Any]()
    for place in places:
        for kind in [kind for kinds in steady.kinds(leaves[place], words) for kind in kinds][:MOST_KINDS]:
            output = _output(forward, steady.replaced(drawn, place, kind, seed))
            if output is not None:
                alone[place, kind] = output
    found = []
    for one, other in itertools.combinations(places, 2):
        pairs = itertools.product(*([key for key in alone if key[0] == place] for place in (one, other)))
        for first, second in pairs:
            both = f"{BOTH}{json.dumps([first, second])}"
            output = _output(forward, steady.replaced(drawn, one, both, seed))
            if output is not None and not any(_are_equal(alone[key], output) for key in (first, second)):
                found.append((one, both))
                break
    return found


def _output(forward: Forward, drawn: Any) -> Any:
    """None where the reference does not bear these inputs."""
    with contextlib.suppress(ReferenceFailed):
        output = forward(drawn)
        return output if trees.is_finite(output) else None
    return None


def _are_equal(one: Any, other: Any) -> bool:
    return trees.shape_of(one) == trees.shape_of(other) and sampled.are_equal(one, other)


class _Asked(OperatorMode):
    """Notes whether an operator asks of one of these inputs whether it is finite: who asks that of what it has computed
    itself, as of the softmax of a row that is masked altogether, has no NaN in mind that it was given. And notes the
    numbers with which operators compare values of which all lie on one side (`bounds`), and those with which they
    compare an input as it is (`met`, by its index), and which inputs they put in order as they are (`ordered`)."""

    def __init__(self, drawn: Any, subject: Subject, state: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self._leaves_out = subject.leaves_out
        self._state = {one.untyped_storage().data_ptr() for one in state if one.numel() <= MOST_EDGES}
        self.found = False
        self.bounds: dict[float, None] = {}
        self.met: dict[int, dict[float, None]] = {}
        self.ordered: dict[int, None] = {}
        self._inputs = transport.tensors(drawn)
        places = [place for place, leaf in enumerate(steady.leaves(drawn)) if isinstance(leaf, torch.Tensor)]
        self._ranges = [subject.ranges.get(place) for place in places]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        kind = family(func.name())
        if kind in inputs.ASKING and isinstance(args[0], torch.Tensor):
            with_itself = isinstance(args[-1], torch.Tensor) and args[-1].data_ptr() == args[0].data_ptr()
            is_asked = (with_itself or kind not in ("eq", "ne")) and args[0].is_floating_point()
            self.found = self.found or (is_asked and self._index(args[0]) >= 0)
        if kind in inputs.COMPARING and isinstance(args[-1], int | float) and args[0].is_floating_point():
            bound = float(args[-1])
            if NEAR < abs(bound) < FAR and bool(result.all()) == bool(result.any()):
                self.bounds[bound] = None
        asks_for_places = kind in _ORDERING and _gives_places(result) and inputs.is_free(args[0])
        if asks_for_places and (index := self._index(args[0])) >= 0:
            self.ordered[index] = None
        values, numbers = _compared(kind, args)
        guarded = _guarded(func.name(), args, kwargs or {}) if kind == _CLAMPS else []
        if guarded and (index := self._index(args[0])) >= 0:
            self.met.setdefault(index, {}).update(dict.fromkeys(guarded))
        # A label that counts for nothing need not be drawn.
        is_given = kind in _LABELS and (numbers != [seldom.NO_LABEL] or self._leaves_out)
        if kind in inputs.COMPARING:
            for one, other in (args[:2], args[1::-1]):
                if self._is_state(other) and isinstance(one, torch.Tensor):
                    values, numbers = one, other.unique().tolist()
        if numbers and values is not None and (index := self._index(values)) >= 0:
            own = self._inputs[index]
            known = self._ranges[index]
            suiting = [_shortest(one, own.dtype) for one in numbers if is_given or _suits(one, own, known)]
            self.met.setdefault(index, {}).update(dict.fromkeys(suiting))
        return result

    def _is_state(self, value: Any) -> bool:
        """Whether it is a parameter or buffer of few values, or a view of one."""
        return isinstance(value, torch.Tensor) and value.untyped_storage().data_ptr() in self._state

    def _index(self, asked: torch.Tensor) -> int:
        """Of the input that has these values, below zero for none."""
        flat = asked.reshape(-1)
        alike = (
            index
            for index, one in enumerate(self._inputs)
            if (one.dtype, one.numel()) == (flat.dtype, len(flat)) and torch.equal(flat, one.reshape(-1))
        )
        return next(alike, -1)


def _guarded(name: str, args: Sequence[Any], keywords: Mapping[str, Any]) -> list[float]:
    """The whole numbers next to those that an operator lets pass: it guards against them."""
    low, high = [*args[1:3], None, None][:2]
    low, high = (
        (None, low) if name.startswith("aten::clamp_max") else (keywords.get("min", low), keywords.get("max", high))
    )
    bounds = ((low, -1), (high, 1))
    is_whole = isinstance(args[0], torch.Tensor) and args[0].dtype in _WHOLE
    return [float(bound + step) for bound, step in bounds if is_whole and isinstance(bound, int) and bound + step >= 0]


def _compared(kind: str, args: Sequence[Any]) -> tuple[torch.Tensor | None, list[float]]:
    """A tensor that an operator of this family compares with numbers, and the numbers."""
    numbers: Sequence[Any] = ()
    place = 0
    if kind in inputs.COMPARING or kind in ("eq", "ne"):
        numbers = args[1:2]
    elif kind in _NUMBERS:
        numbers = args[_NUMBERS[kind]]
    elif kind in _EDGES and isinstance(args[_EDGES[kind][1]], torch.Tensor):
        place, table = _EDGES[kind]
        numbers = args[table].reshape(-1)[: MOST_EDGES + 1].tolist() if args[table].dim() == 1 else ()
    elif kind in _LABELS:
        place, numbers = 1, args[4:5]
    values = args[place] if len(args) > place and isinstance(args[place], torch.Tensor) else None
    plain = [float(one) for one in numbers if isinstance(one, int | float) and not isinstance(one, bool)]
    return values, plain if len(plain) == len(numbers) <= MOST_EDGES else []


def _gives_places(result: Any) -> bool:
    """Whether an operator that puts values in order says where they were."""
    return any(tensor.dtype == torch.int64 for tensor in transport.tensors(result))


def _suits(number: float, tensor: torch.Tensor, known: tuple[int, int] | None) -> bool:
    """Whether an input may have the value: measured ones, and whole numbers in the range that they are drawn from, if
    it is `known`, or between those that are drawn. Where all are different, one that is there stays the only one."""
    if tensor.is_floating_point():
        return abs(number) < FAR and inputs.is_free(tensor)
    if tensor.is_complex() or tensor.dtype == torch.bool or not tensor.numel():
        return False
    if known is not None:
        return known[0] <= number < known[1]
    least, most = tensor.aminmax()
    return int(least) <= number <= int(most) and not (steady.is_distinct(tensor) and bool((tensor == number).any()))


def _shortest(number: float, dtype: torch.dtype) -> float:
    """The number of the fewest digits that is this one in the dtype: 0.1 for what is nearest to it in float32."""
    if not dtype.is_floating_point:
        return int(number)
    texts = (float(f"{number:.{digits}g}") for digits in range(1, 17))
    return next((one for one in texts if torch.tensor(one, dtype=dtype) == torch.tensor(number, dtype=dtype)), number)


def decisive(
    forward: Forward,
    drawn: Any,
    families: Mapping[str, int],
    subject: Subject,
    state: Iterable[torch.Tensor] = (),
) -> tuple[str, ...]:
    """Families of values between which the reference's operators decide, of which these are the families, and how
    often each is called. `state`: the reference's parameters and buffers, with which it may compare inputs, too."""
    asked = _Asked(drawn, subject, state)
    looked_for = inputs.ASKING | inputs.COMPARING | _NUMBERS.keys() | _EDGES.keys() | _LABELS | _ORDERING | {_CLAMPS}
    if looked_for.intersection(families):
        with asked:
            forward(drawn)
    if inputs.POLES.intersection(families):
        for index, tensor in enumerate(transport.tensors(drawn)):
            if inputs.is_share(tensor):
                asked.met.setdefault(index, {}).update({0.0: None, 1.0: None})
            elif tensor.is_floating_point() and gathered.is_counted(tensor) and bool((tensor >= 0).all()):
                asked.met.setdefault(index, {})[0.0] = None
    repeated = max(families.values(), default=0)
    met = {index: list(numbers)[:MOST_MET] for index, numbers in asked.met.items() if numbers}
    return inputs.decisive(families, asked.found, list(asked.bounds)[:MOST_BOUNDS], met, asked.ordered, repeated)


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
