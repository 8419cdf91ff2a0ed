"""Operators of a reference that do nothing on what a problem draws, and inputs on which they do something.

A kernel may leave out unnoticed what no trial gives anything to do: a clamp that no value reaches, a mask that lets
everything through, the end of a sequence that never comes. Tests of programs are measured by mutants, programs in which
one part is left out: a good set of tests tells each of them from the program. The mutants here are the reference with
one operator left out, its operand going on in place of its result, or with one comparison decided beforehand. Of most
operators any draw tells; one that gives an operand back as it was, or the same answer everywhere, is *idle*. For those
that are idle in all planned trials other inputs are looked for: other sizes, values that the reference itself compares
with, equal ones, sorted ones, many draws. Such inputs are used where the reference stays finite and leaving the
operator out changes its output.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from dice.verify.execution import inputs, seldom
from dice.verify.execution.changes import is_formed
from dice.verify.execution.dispatch import OperatorMode
from dice.verify.ipc.operator_counts import family
from dice.verify.tensors import sampled, transport, trees

WOKEN = "idle otherwise: "  # begins the family, before the operators that have something to do there
MOST_WOKEN = 4  # families; each costs a trial
SEARCH_S = 0.2  # of the processor, at most
LONGEST = 512  # calls of a reference that is looked at: of a long loop the steps are others' matter
MOST_NUMBERS = 8
SCALES = (8.0, 64.0, 1e3, 1e5, 1 / 8, 1 / 64, 1e-3)
SHARES = (0.25, 1.0)  # of the values are a number that the reference compares with

Call = tuple[str, int]  # an operator, and how often it was called before
Given = int | bool  # by an idle call
Change = Callable[[torch.Tensor], torch.Tensor]
Forward = Callable[[Any], Any]  # None where the inputs do not suit

# With numbers alone these do the same to any values, and with a dimension of one, those.
_BY_FORM = frozenset({"mul", "add", "pow", "sum", "max", "cat", "stack", "flip", "roll", "repeat", "constant_pad_nd"})
_COMPARING = inputs.COMPARING | {"eq", "ne", "relu", "remainder", "fmod", "bitwise_and"}  # with numbers that matter

_OF_FINITENESS = inputs.ASKING - {"eq", "ne"}  # which has trials of its own


class Idle(OperatorMode):
    """Notes idle calls (`calls`: what such a call gives, as the place of a tensor among the operands, or as a truth
    value), all calls (`seen`), and the numbers that values are compared with (`numbers`). `without`: a call to leave
    out, and what goes on instead. `state`: where parameters and buffers lie; what is computed of them alone no input
    wakes."""

    def __init__(self, state: Collection[int] = (), without: tuple[Call, Given] | None = None) -> None:
        super().__init__()
        self._state = state
        self.calls: dict[Call, Given] = {}
        self.seen: Counter[str] = Counter()
        self.numbers: dict[float, None] = {}
        self._without = without

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kind = func.name(), family(func.name())
        if not kind or func.is_view or kind in _OF_FINITENESS:
            return func(*args, **(kwargs or {}))
        call = name, self.seen[name]
        self.seen[name] += 1
        operands = transport.tensors((*args, *(kwargs or {}).values()))
        writes = func._schema.is_mutable
        left_out = self._without is not None and self._without[0] == call
        if left_out and writes:
            return operands[0]
        before: Sequence[torch.Tensor] = [operands[0].clone()] if writes and operands else operands
        result = func(*args, **(kwargs or {}))
        if left_out:
            given = self._without[1] if self._without else 0
            return torch.full_like(result, given) if isinstance(given, bool) else operands[given].clone()
        if kind in _COMPARING:
            plain = (one for one in args[1:] if isinstance(one, int | float) and not isinstance(one, bool))
            self.numbers.update(dict.fromkeys(float(one) for one in plain if one != seldom.NO_LABEL))
        is_form = kind in _BY_FORM and len(operands) < 2
        if isinstance(result, torch.Tensor) and not is_form and not self._is_of_state(operands):
            self._note(call, before, result)
        return result

    def _note(self, call: Call, operands: Sequence[torch.Tensor], result: torch.Tensor) -> None:
        if result.dtype == torch.bool and result.numel() > 1 and bool(result.any()) == bool(result.all()):
            self.calls[call] = bool(result.all())
            return
        place = next((place for place, one in enumerate(operands) if _is_same(one, result)), -1)
        if place >= 0:
            self.calls[call] = place

    def _is_of_state(self, operands: Iterable[torch.Tensor]) -> bool:
        return all(one.untyped_storage().data_ptr() in self._state for one in operands)


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)


def waking(
    forward: Forward,
    drawn: Any,
    planned: Iterable[Any],
    draws: Iterable[Any],
    seed: int,
    state: Iterable[torch.Tensor] = (),
) -> dict[str, Any]:
    """At most `MOST_WOKEN` inputs by their family, on which operators do something that are idle on what is `drawn` and
    on all that is `planned`. `draws`: of the problem's own, drawn one by one. `state`: parameters and buffers."""
    left, numbers = _idle(forward, drawn, {one.untyped_storage().data_ptr() for one in state})
    for one in planned if left else ():
        left = _still_idle(forward, one, left)
    begun, found = time.process_time(), dict[str, Any]()
    for one in _moves(drawn, numbers, seed, draws) if left else ():
        if not left or len(found) == MOST_WOKEN or time.process_time() - begun > SEARCH_S:
            break
        woken = [call for call in left.keys() - _still_idle(forward, one, left).keys()]
        shown = [call for call in woken if _shows(forward, one, call, left[call])]
        if shown:
            found[f"{WOKEN}{len(found)} {' '.join(sorted({family(name) for name, _ in shown}))}"] = one
            left = {call: given for call, given in left.items() if call not in shown}
    return found


def _idle(forward: Forward, drawn: Any, state: Collection[int]) -> tuple[dict[Call, Given], tuple[float, ...]]:
    with Idle(state) as mode:
        output = forward(drawn)
    if output is None or mode.seen.total() > LONGEST:
        return {}, ()
    return mode.calls, tuple(mode.numbers)[:MOST_NUMBERS]


def _still_idle(forward: Forward, other: Any, calls: dict[Call, Given]) -> dict[Call, Given]:
    """Those of the calls that are idle on the other inputs, too, or are not made there."""
    with Idle() as mode:
        output = forward(other)
    if output is None or not trees.is_finite(output):
        return calls
    return {
        call: given for call, given in calls.items() if mode.calls.get(call) == given or mode.seen[call[0]] <= call[1]
    }


def _shows(forward: Forward, drawn: Any, call: Call, given: Given) -> bool:
    """Whether the output is another one without the call."""
    expected = forward(drawn)
    with Idle(without=(call, given)):
        other = forward(drawn)
    if expected is None or other is None or trees.shape_of(other) != trees.shape_of(expected):
        return False
    return not sampled.are_equal(expected, other)


def _moves(drawn: Any, numbers: Sequence[float], seed: int, draws: Iterable[Any]) -> Iterator[Any]:
    """Other inputs of the same form: nearest to what is drawn first, many draws last."""
    generator = torch.Generator().manual_seed(seed)
    places = range(len(transport.tensors(drawn)))
    for scale in SCALES:
        yield _at(drawn, places, _is_measured, partial(_scaled, scale=scale))
    for index, number in itertools.product(places, numbers):
        for one in (number, number + 1, number - 1):
            for share in SHARES:
                yield _at(drawn, (index,), _is_loose, partial(_meeting, number=one, share=share, generator=generator))
            yield _at(drawn, (index,), _is_loose, partial(_largest_at, number=one, generator=generator))
    for index, scale in itertools.product(places if len(places) > 1 else (), SCALES):
        yield _at(drawn, (index,), _is_measured, partial(_scaled, scale=scale))
    for sign in (1, -1):
        yield _at(drawn, places, _is_measured, partial(_of_sign, sign=sign))
    for index in places:
        yield _at(drawn, (index,), seldom.is_mask, torch.zeros_like)
    changes: tuple[Change, ...] = (_paired, _rising, _falling)
    for index, change in itertools.product(places, changes):
        yield _at(drawn, (index,), _is_loose, change)
    yield from draws


def _at(drawn: Any, places: Iterable[int], suits: Callable[[torch.Tensor], bool], change: Change) -> Any:
    """The same with those inputs changed that are at these places and suit."""
    count, chosen = itertools.count(), set(places)
    return transport.map_tensors(lambda one: change(one) if next(count) in chosen and suits(one) else one, drawn)


def _is_measured(tensor: torch.Tensor) -> bool:
    return (inputs.is_free(tensor) or inputs.is_scalar(tensor)) and not tensor.is_complex()


def _is_loose(tensor: torch.Tensor) -> bool:
    """Whether any of its values may stand at any place: of measured ones, and of codes, unless they are in order or
    have another form (zeros, a symmetric matrix) on which kernels may rely."""
    if inputs.is_scalar(tensor):
        return True
    if _is_measured(tensor):
        return not is_formed(tensor)
    return seldom.is_coded(tensor) and bool((tensor.reshape(-1).diff() < 0).any())


def _scaled(tensor: torch.Tensor, scale: float) -> torch.Tensor:
    return (tensor * scale).to(tensor.dtype)


def _of_sign(tensor: torch.Tensor, sign: int) -> torch.Tensor:
    return sign * tensor.abs()


def _rising(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.sort(-1).values if tensor.dim() else tensor


def _falling(tensor: torch.Tensor) -> torch.Tensor:
    """Along the first dimension."""
    return tensor.sort(0, descending=True).values if tensor.dim() else tensor


def _meeting(tensor: torch.Tensor, number: float, share: float, generator: torch.Generator) -> torch.Tensor:
    """Some of its values are the number, if it is one of the tensor's type."""
    if not tensor.is_floating_point():
        known = torch.iinfo(tensor.dtype)
        if number != round(number) or not known.min <= number <= known.max:
            return tensor
    return seldom.meeting(tensor, (number,), generator, share)


def _largest_at(tensor: torch.Tensor, number: float, generator: torch.Generator) -> torch.Tensor:
    """Some rows have their largest value where the number says, which exchanges its place with what was there."""
    if not tensor.is_floating_point() or not tensor.dim() or number not in range(tensor.shape[-1]):
        return tensor
    rows = tensor.clone().reshape(-1, tensor.shape[-1])
    some = (torch.rand(len(rows), generator=generator) < SHARES[0]).nonzero().flatten().to(rows.device)
    places = rows[some].argmax(-1)
    there = rows[some, int(number)]
    rows[some, int(number)] = rows[some, places]
    rows[some, places] = there
    return rows.reshape(tensor.shape)


def _paired(tensor: torch.Tensor) -> torch.Tensor:
    """Every second index of the first dimension as the one before it."""
    if not tensor.dim() or len(tensor) < 2:
        return tensor
    return tensor[(torch.arange(len(tensor), device=tensor.device) // 2) * 2]
